"""The names of :mod:`rbfly.streams`."""

from .. import error as _errors
from ..amqp import AMQPHeader, MessageCtx, get_message_ctx, stream_message_ctx
from ..error import *  # noqa: F403
from ..net.uri import AuthMechanism
from ..protocol._batch import MessageBatch
from ..protocol.compression import Compression
from ..protocol.offset import Offset, OffsetType
from ..types import AMQPAnnotations, AMQPAppProperties, AMQPBody, AMQPScalar, Symbol
from . import events as _events
from .client import StreamsClient, streams_client
from .confirmation import Confirmation
from .decorator import connection
from .events import *  # noqa: F403
from .publisher import Publisher, PublisherBin
from .publisher_batch import (
    PublisherBatch,
    PublisherBatchFast,
    PublisherBatchLimit,
    PublisherBatchMem,
    PublisherBinBatch,
)
from .routing import by_hash, by_key
from .subscription import BaseSubscription, Subscription, SuperStreamSubscription
from .super_client import SuperStream
from .super_stream import (
    SuperStreamBatchLimitPublisher,
    SuperStreamBatchPublisher,
    SuperStreamPublisher,
)
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
    'BaseSubscription',
    'BloomFilterExtract',
    'Compression',
    'Confirmation',
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
    'SuperStreamBatchLimitPublisher',
    'SuperStreamBatchPublisher',
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
