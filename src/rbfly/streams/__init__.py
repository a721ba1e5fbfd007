"""asyncio client for RabbitMQ Streams."""

from .. import error as _errors
from ..amqp import AMQPHeader, Message, MessageCtx, get_message_ctx, stream_message_ctx
from ..error import *  # noqa: F403
from ..net.uri import AuthMechanism
from ..protocol._batch import MessageBatch
from ..protocol.compression import Compression
from ..protocol.offset import Offset, OffsetType
from ..types import AMQPAnnotations, AMQPAppProperties, AMQPBody, AMQPScalar, Symbol
from . import events as _events
from .client import StreamsClient, streams_client
from .compat import (
    PublisherBatch,
    PublisherBatchFast,
    PublisherBatchLimit,
    PublisherBatchMem,
    PublisherBin,
    PublisherBinBatch,
)
from .confirmation import Confirmation
from .decorator import connection
from .events import *  # noqa: F403
from .handover import Group
from .publisher import Publisher
from .publisher_base import BasePublisher
from .routing import by_hash, by_key
from .subscription import BaseSubscription, Subscription, SuperStreamSubscription
from .super_client import SuperStream
from .super_stream import SuperStreamPublisher
from .tracking import OffsetTracking
from .types import BloomFilterExtract, MessageFilter, OnDecodeError, OnGap, StreamStats

Subscriber = Subscription  # the name in RbFly 0.10

__all__ = [
    'AMQPAnnotations',
    'AMQPAppProperties',
    'AMQPBody',
    'AMQPHeader',
    'AMQPScalar',
    'AuthMechanism',
    'BasePublisher',
    'BaseSubscription',
    'BloomFilterExtract',
    'Compression',
    'Confirmation',
    'Group',
    'Message',
    'MessageBatch',
    'MessageCtx',
    'MessageFilter',
    'Offset',
    'OffsetTracking',
    'OffsetType',
    'OnDecodeError',
    'OnGap',
    'Publisher',
    'PublisherBatch',
    'PublisherBatchFast',
    'PublisherBatchLimit',
    'PublisherBatchMem',
    'PublisherBin',
    'PublisherBinBatch',
    'StreamStats',
    'StreamsClient',
    'Subscriber',
    'Subscription',
    'SuperStream',
    'SuperStreamPublisher',
    'SuperStreamSubscription',
    'Symbol',
    'by_hash',
    'by_key',
    'connection',
    'get_message_ctx',
    'stream_message_ctx',
    'streams_client',
]
# All errors and events, so that programs can name what they catch or match.
__all__ += _errors.__all__
__all__ += _events.__all__


def __dir__() -> list[str]:
    """Return the public names, which editors and shells complete."""
    return __all__
