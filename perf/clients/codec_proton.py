"""Qpid Proton's codec: Message.encode and Message.decode."""

from typing import Any

import proton

from .codec import Case, Message

# properties fields, as attributes of Message
ATTRIBUTES = {
    'message_id': 'id',
    'to': 'address',
    'subject': 'subject',
    'correlation_id': 'correlation_id',
    'content_type': 'content_type',
}
SECTIONS = f'({", ".join(f"message.{name}" for name in ATTRIBUTES.values())})'


def copied(value: Any) -> Any:
    """A copy without views of Proton's memory, which is freed with its message."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return value


def contents(message: proton.Message) -> tuple[Any, ...]:
    """Body, properties and application properties, for comparison."""
    fields = {name: getattr(message, attribute) for name, attribute in ATTRIBUTES.items()}
    # Proton decodes an absent content type as the symbol 'None'
    properties = {name: str(value) for name, value in fields.items() if value not in (None, 'None')}
    return copied(message.body), properties, dict(message.properties or {})


def decoded(raw: bytes) -> tuple[Any, ...]:
    message = proton.Message()
    message.decode(raw)
    return contents(message)


def case(work: str, message: Message) -> Case:
    # `inferred` encodes bytes as a Data section; the Message is reused
    one = proton.Message(inferred=isinstance(message.body, bytes))
    steps = [
        f'message.{ATTRIBUTES[name]} = {value!r}' for name, value in message.properties.items()
    ]
    if message.properties:
        steps.append('message.properties = app_properties')
    encode = '; '.join([*steps, 'message.body = data', 'message.encode()'])
    names: dict[str, Any] = {
        'app_properties': message.app_properties,
        'data': message.body,
        'message': one,
    }
    expected = (message.body, message.properties, message.app_properties)
    if work == 'encode':
        return Case(encode, names, expected, decoded)
    exec('; '.join([*steps, 'message.body = data']), dict(names))
    names['raw'] = one.encode()
    if work == 'decode':
        return Case('message.decode(raw); message.body', names, message.body)
    return Case(
        f'message.decode(raw); (message.body, {SECTIONS}, message.properties)',
        names,
        (message.body, tuple(message.properties.values()), message.app_properties),
    )
