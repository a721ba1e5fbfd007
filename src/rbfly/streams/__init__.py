"""asyncio client for RabbitMQ Streams."""

from typing import TYPE_CHECKING

from .. import error as _errors
from ..amqp import AMQPHeader, Message, MessageCtx, get_message_ctx, stream_message_ctx
from ..amqp._types import Symbol
from ..error import *  # noqa: F403
from ..later import later
from ..net.login import AuthMechanism, Credentials
from ..protocol.compression import Compression
from ..protocol.offset import Offset, OffsetType
from .client import StreamsClient, streams_client
from .types import BloomFilterExtract, Commit, MessageFilter, OnDecodeError, OnGap, StreamStats

if TYPE_CHECKING:
    from ..amqp.body_codec import Codec
    from ..protocol._batch import MessageBatch
    from ..types import AMQPAnnotations, AMQPAppProperties, AMQPBody, AMQPScalar
    from . import events as events
    from ._consume.subscription import (
        BaseSubscription,
        Subscriber,
        Subscription,
    )
    from ._group.handover import Group
    from ._offsets.tracking import OffsetTracking
    from ._publish.base import BasePublisher
    from ._publish.confirmation import Confirmation
    from ._publish.publisher import Publisher
    from ._super_stream.client import SuperStream
    from ._super_stream.publisher import SuperStreamPublisher
    from ._super_stream.routing import by_hash, by_key
    from ._super_stream.subscription import SuperStreamSubscription
    from .compat import (
        PublisherBatch,
        PublisherBatchFast,
        PublisherBatchLimit,
        PublisherBatchMem,
        PublisherBin,
        PublisherBinBatch,
        connection,
    )  # fmt: skip
    from .description import (
        ConnectionDescription,
        Description,
        ErrorDescription,
        PublisherDescription,
        SubscriptionDescription,
    )
    from .events import *  # noqa: F403
    from .health import Health
    from .metrics import Metrics, MetricsExporter, MetricsSource, StreamMetrics

__all__ = [
    'AMQPAnnotations', 'AMQPAppProperties', 'AMQPBody', 'AMQPHeader', 'AMQPScalar',
    'AuthMechanism', 'BasePublisher', 'BaseSubscription', 'BloomFilterExtract', 'Codec', 'Commit',
    'Compression', 'Confirmation', 'ConnectionDescription', 'Credentials', 'Description',
    'ErrorDescription', 'Group', 'Health', 'Message', 'MessageBatch', 'MessageCtx',
    'MessageFilter', 'Metrics', 'MetricsExporter', 'MetricsSource', 'Offset', 'OffsetTracking',
    'OffsetType', 'OnDecodeError', 'OnGap', 'Publisher', 'PublisherBatch', 'PublisherBatchFast',
    'PublisherBatchLimit', 'PublisherBatchMem', 'PublisherBin', 'PublisherBinBatch',
    'PublisherDescription', 'StreamMetrics', 'StreamStats', 'StreamsClient', 'Subscriber',
    'Subscription', 'SubscriptionDescription', 'SuperStream', 'SuperStreamPublisher',
    'SuperStreamSubscription', 'Symbol', 'by_hash', 'by_key', 'connection', 'get_message_ctx',
    'stream_message_ctx', 'streams_client',
]  # fmt: skip
# All errors and events, so that programs can name what they catch or match.
__all__ += _errors.__all__
if TYPE_CHECKING:
    __all__ += events.__all__
else:  # a program pays only for what it uses
    _EVENTS = (
        'Activated ConfirmsOverdue ConfirmsResumed ConnectionEvent ConnectionLost ConnectionOpened'
        ' Deactivated DeliveryResumed DeliveryStalled Event Events EventsDropped GroupEvent'
        ' HandoverLate OffsetGap PartitionAdded PartitionEvent PartitionGone Recovered'
        ' RecoveryFailed RecoveryScheduled RegistrationEvent RenewalFailed RenewalRefused'
        ' StreamDeleted StreamMoved'
    )
    __all__ += _EVENTS.split()
    __getattr__ = later(
        __name__,
        {
            'rbfly.amqp.body_codec': 'Codec',
            'rbfly.protocol._batch': 'MessageBatch',
            'rbfly.types': 'AMQPAnnotations AMQPAppProperties AMQPBody AMQPScalar',
            'rbfly.streams.compat': 'PublisherBatch PublisherBatchFast PublisherBatchLimit'
            ' PublisherBatchMem PublisherBin PublisherBinBatch connection',
            'rbfly.streams._publish.confirmation': 'Confirmation',
            'rbfly.streams.description': 'ConnectionDescription Description ErrorDescription'
            ' PublisherDescription SubscriptionDescription',
            'rbfly.streams.health': 'Health',
            'rbfly.streams.events': f'events {_EVENTS}',
            'rbfly.streams._group.handover': 'Group',
            'rbfly.streams.metrics': 'Metrics MetricsExporter MetricsSource StreamMetrics',
            'rbfly.streams._publish.publisher': 'Publisher',
            'rbfly.streams._publish.base': 'BasePublisher',
            'rbfly.streams._super_stream.routing': 'by_hash by_key',
            'rbfly.streams._consume.subscription': 'BaseSubscription Subscriber Subscription',
            'rbfly.streams._super_stream.client': 'SuperStream',
            'rbfly.streams._super_stream.publisher': 'SuperStreamPublisher',
            'rbfly.streams._super_stream.subscription': 'SuperStreamSubscription',
            'rbfly.streams._offsets.tracking': 'OffsetTracking',
        },
    )


def __dir__() -> list[str]:
    """Return the public names, which editors and shells complete."""
    return __all__
