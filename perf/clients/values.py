"""The message contents for the study of values."""

from rbfly.amqp import MessageCtx, encode_amqp_bytes, stream_message_ctx

from ..lanes.kinds import VALUES
from .codec import SEED, Message

__all__ = ['MESSAGES', 'context', 'encoded']

MESSAGES: dict[str, Message] = {
    'bytes': Message(b'0123456789'),
    'str': Message('abcdefghij'),
    'int': Message(2**31 - 1),
    'map': Message(SEED),
    'map-20': Message({f'field-{i:02}': i * 1000 if i % 2 else f'value {i}' for i in range(20)}),
    'properties': Message(
        b'0123456789',
        {},
        {'region': 'eu-west', 'tenant': 'acme', 'version': 3, 'weight': 70_000, 'urgent': True},
    ),
}
assert MESSAGES.keys() == VALUES.keys()


def context(value: str) -> MessageCtx:
    message = MESSAGES[value]
    return stream_message_ctx(message.body, app_properties=message.app_properties)


def encoded(value: str) -> bytes:
    return encode_amqp_bytes(context(value))
