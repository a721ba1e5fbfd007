"""MessagePack by msgspec: a reference for how fast a Python codec can be."""

from typing import Any

import msgspec

from ..lanes.kinds import TYPED_WORK
from .codec import Case, Message
from .typed import TYPES, build, typed


class Body(msgspec.Struct):
    """Only the body of a message with sections; the decoder skips the others."""

    body: Any


def case(work: str, message: Message) -> Case:
    encoder = msgspec.msgpack.Encoder()
    decoder: Any = msgspec.msgpack.Decoder()
    buffer = bytearray(4096)
    data: Any = message.body
    value = 'data'
    if message.properties:
        data = {
            'properties': message.properties,
            'app_properties': message.app_properties,
            'body': message.body,
        }
        fields = ', '.join(f'{name!r}: {text!r}' for name, text in message.properties.items())
        value = f"{{'properties': {{{fields}}}, 'app_properties': app_properties, 'body': data}}"
    names = message.names() | {
        'buffer': buffer,
        'decode': decoder.decode,
        'encode': encoder.encode,
        'encode_into': encoder.encode_into,
        'raw': encoder.encode(data),
    }
    if work == 'encode-into':
        return Case(
            f'encode_into({value}, buffer)', names, data, lambda _: decoder.decode(bytes(buffer))
        )
    if work == 'encode':
        return Case(f'encode({value})', names, data, decoder.decode)
    if work == 'decode-by-hand':
        return Case('build(decode(raw))', names | {'build': build}, build(data))
    if work in TYPED_WORK:
        names['decode'] = msgspec.msgpack.Decoder(TYPES[work]).decode
        return Case('decode(raw)', names, typed(TYPES[work], data))
    if work == 'decode' and message.properties:
        names['decode'] = msgspec.msgpack.Decoder(Body).decode
        return Case('decode(raw).body', names, message.body)
    return Case('decode(raw)', names, data)
