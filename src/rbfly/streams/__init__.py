"""asyncio client for RabbitMQ Streams."""

from ..amqp import AMQPHeader, MessageCtx, get_message_ctx, stream_message_ctx
from ..types import AMQPAnnotations, AMQPAppProperties, AMQPBody, AMQPScalar, Symbol
from .batch import PublisherBatchFast
from .client import StreamsClient, connection, streams_client
from .offset import Offset, OffsetType
from .publisher import Publisher
from .subscriber import Subscription
from .types import BloomFilterExtract, MessageFilter
from .uri import AuthMechanism

__all__ = [
    'AMQPAnnotations',
    'AMQPAppProperties',
    'AMQPBody',
    'AMQPHeader',
    'AMQPScalar',
    'AuthMechanism',
    'BloomFilterExtract',
    'MessageCtx',
    'MessageFilter',
    'Offset',
    'OffsetType',
    'Publisher',
    'PublisherBatchFast',
    'StreamsClient',
    'Subscription',
    'Symbol',
    'connection',
    'get_message_ctx',
    'stream_message_ctx',
    'streams_client',
]
