"""rstream's codec: AMQPMessage and its decoder, used as in its documentation."""

from typing import Any

from rstream import AMQPMessage, Properties, amqp_decoder

from .codec import PROPERTIES, Case, Message


def as_read(value: Any) -> Any:
    """Convert a value to what rstream decodes: strings become bytes."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return [as_read(item) for item in value]
    if isinstance(value, dict):
        return {as_read(key): as_read(item) for key, item in value.items()}
    return value


def contents(message: AMQPMessage) -> tuple[Any, ...]:
    """Body, properties and application properties, for comparison."""
    body = message.value if message.body is None else message.body
    fields = message.properties._asdict() if message.properties else {}
    properties = {name: fields[name] for name in PROPERTIES if fields.get(name) is not None}
    return body, properties, message.application_properties or {}


def case(work: str, message: Message) -> Case:
    field = 'body' if isinstance(message.body, bytes) else 'value'
    arguments = f'{field}=data'
    if message.properties:
        fields = ', '.join(f'{name}={value!r}' for name, value in message.properties.items())
        arguments += f', properties=Properties({fields}), application_properties=app_properties'
    encode = f'bytes(AMQPMessage({arguments}))'
    names: dict[str, Any] = {
        'AMQPMessage': AMQPMessage,
        'Properties': Properties,
        'amqp_decoder': amqp_decoder,
        'app_properties': message.app_properties,
        'data': message.body,
    }
    names['raw'] = eval(encode, dict(names))
    properties = {name: value.encode() for name, value in message.properties.items()}
    expected = (as_read(message.body), properties, as_read(message.app_properties))
    if work == 'encode':
        return Case(encode, names, expected, lambda raw: contents(amqp_decoder(raw)))
    if work == 'decode':
        return Case(f'amqp_decoder(raw).{field}', names, expected[0])
    return Case('amqp_decoder(raw)', names, expected, contents)
