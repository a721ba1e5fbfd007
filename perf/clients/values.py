"""Messages that consuming lanes read, besides plain bytes."""

from typing import Any

from rbfly.amqp import AMQPProperties, MessageCtx, encode_amqp_bytes, stream_message_ctx

from ..lanes import Stored
from ..lanes.kinds import VALUES
from .base import numbered
from .codec import APP_PROPERTIES, PROPERTIES, SEED, Message

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


def encoded(stored: Stored, number: int) -> bytes:
    """Encode the message of a stream with this number."""
    if stored.value:
        return encode_amqp_bytes(context(stored.value))
    fields: dict[str, Any] = dict(PROPERTIES)
    properties = AMQPProperties(**fields)
    body = numbered(number, stored.size)
    return encode_amqp_bytes(
        stream_message_ctx(body, properties=properties, app_properties=APP_PROPERTIES)
    )
