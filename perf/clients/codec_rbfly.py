"""This client's codec."""

from typing import Any

from rbfly.amqp import (
    AMQPProperties,
    MessageCtx,
    decode_amqp,
    encode_amqp,
    encode_amqp_bytes,
    stream_message_ctx,
)

from ..lanes.kinds import TYPED_WORK
from .codec import PROPERTIES, Case, Message

SECTIONS = 'm.properties, m.app_properties, m.body'


def arguments(message: Message) -> str:
    """Source of the arguments for `stream_message_ctx`."""
    if not message.properties:
        return 'data'
    fields = ', '.join(f'{name}={value!r}' for name, value in message.properties.items())
    return f'data, properties=AMQPProperties({fields}), app_properties=app_properties'


def contents(ctx: MessageCtx) -> tuple[Any, ...]:
    """Body, properties and application properties, for comparison."""
    fields = {name: getattr(ctx.properties, name) for name in PROPERTIES}
    properties = {name: str(value) for name, value in fields.items() if value is not None}
    return ctx.body, properties, ctx.app_properties


def case(work: str, message: Message, context: str = '') -> Case:
    """A statement of the public API.

    :param context: source of what to encode; by default, it creates a message.
    """
    context = context or f'stream_message_ctx({arguments(message)})'
    buffer = bytearray(4096)
    names = message.names() | {
        'AMQPProperties': AMQPProperties,
        'buffer': buffer,
        'decode_amqp': decode_amqp,
        'encode_amqp': encode_amqp,
        'encode_amqp_bytes': encode_amqp_bytes,
        'stream_message_ctx': stream_message_ctx,
    }
    names['raw'] = eval(f'encode_amqp_bytes({context})', names)
    expected: Any = (message.body, message.properties, message.app_properties)

    def written(size: int) -> tuple[Any, ...]:
        return contents(decode_amqp(bytes(buffer[:size])))

    if work == 'encode-into':
        return Case(f'encode_amqp(buffer, {context})', names, expected, written)
    if work == 'encode':
        return Case(
            f'encode_amqp_bytes({context})', names, expected, lambda x: contents(decode_amqp(x))
        )
    if work in TYPED_WORK:
        from .typed import TYPES, build, typed

        if work == 'decode-by-hand':
            names['build'] = build
            return Case('build(decode_amqp(raw).body)', names, build(message.body))
        names['Order'] = TYPES[work]
        expected = typed(TYPES[work], message.body)
        return Case('decode_amqp(raw, type=Order).body', names, expected)
    if work == 'decode':
        return Case('decode_amqp(raw).body', names, message.body)
    fields: dict[str, Any] = dict(message.properties)
    properties = AMQPProperties(**fields)
    return Case(
        f'm = decode_amqp(raw); ({SECTIONS})',
        names,
        (properties, message.app_properties, message.body),
    )
