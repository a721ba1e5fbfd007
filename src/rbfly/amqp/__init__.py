"""AMQP 1.0 messages: convert Python values to bytes and back, without IO."""

from ._codec import decode_amqp, encode_amqp, encode_amqp_bytes
from ._message import MessageCtx, get_message_ctx, set_message_ctx, stream_message_ctx
from ._sections import AMQPHeader, AMQPProperties, DataBody, SequenceBody

__all__ = [
    'AMQPHeader',
    'AMQPProperties',
    'DataBody',
    'MessageCtx',
    'SequenceBody',
    'decode_amqp',
    'encode_amqp',
    'encode_amqp_bytes',
    'get_message_ctx',
    'set_message_ctx',
    'stream_message_ctx',
]


def __dir__() -> list[str]:
    return __all__
