"""asyncio client for RabbitMQ Streams."""

from typing import TYPE_CHECKING

from .. import error as _errors
from ..amqp import AMQPHeader, Message, MessageCtx, get_message_ctx, stream_message_ctx
from ..amqp._types import Symbol
from ..error import *  # noqa: F403
from ..later import later
from ..net.uri import AuthMechanism
from ..protocol.compression import Compression
from ..protocol.offset import Offset, OffsetType
from .client import StreamsClient, streams_client
from .types import BloomFilterExtract, MessageFilter, OnDecodeError, OnGap, StreamStats

if TYPE_CHECKING:
    from ..protocol._batch import MessageBatch
    from ..types import AMQPAnnotations, AMQPAppProperties, AMQPBody, AMQPScalar
    from . import events as events
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
    from .subscription import (
        BaseSubscription,
        Subscriber,
        Subscription,
        SuperStreamSubscription,
    )
    from .super_client import SuperStream
    from .super_stream import SuperStreamPublisher
    from .tracking import OffsetTracking

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
if TYPE_CHECKING:
    __all__ += events.__all__
else:  # a program pays only for what it uses
    _EVENTS = (
        'Activated ConnectionEvent ConnectionLost ConnectionOpened Deactivated Event Events'
        ' EventsDropped GroupEvent HandoverLate OffsetGap PartitionAdded PartitionEvent'
        ' PartitionGone Recovered RecoveryFailed RecoveryScheduled RegistrationEvent StreamDeleted'
        ' StreamMoved'
    )
    __all__ += _EVENTS.split()
    __getattr__ = later(
        __name__,
        {
            'rbfly.protocol._batch': 'MessageBatch',
            'rbfly.types': 'AMQPAnnotations AMQPAppProperties AMQPBody AMQPScalar',
            'rbfly.streams.compat': 'PublisherBatch PublisherBatchFast PublisherBatchLimit'
            ' PublisherBatchMem PublisherBin PublisherBinBatch',
            'rbfly.streams.confirmation': 'Confirmation',
            'rbfly.streams.decorator': 'connection',
            'rbfly.streams.events': f'events {_EVENTS}',
            'rbfly.streams.handover': 'Group',
            'rbfly.streams.publisher': 'Publisher',
            'rbfly.streams.publisher_base': 'BasePublisher',
            'rbfly.streams.routing': 'by_hash by_key',
            'rbfly.streams.subscription': 'BaseSubscription Subscriber Subscription'
            ' SuperStreamSubscription',
            'rbfly.streams.super_client': 'SuperStream',
            'rbfly.streams.super_stream': 'SuperStreamPublisher',
            'rbfly.streams.tracking': 'OffsetTracking',
        },
    )


def __dir__() -> list[str]:
    """Return the public names, which editors and shells complete."""
    return __all__
