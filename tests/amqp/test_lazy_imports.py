"""Lazy imports: each program runs in a new process in which uuid has not been imported."""

import subprocess
import sys

import pytest

HEAD = """
import sys
from rbfly.amqp import AMQPProperties, decode_amqp, encode_amqp_bytes, stream_message_ctx
from rbfly.amqp._types import AMQPArray, Symbol, UInt
from rbfly.error import AMQPDecoderError, AMQPEncoderTypeError
assert 'uuid' not in sys.modules
ID = bytes(range(16))
WIRE = bytes.fromhex('00537798') + ID

def decode(data):
    return decode_amqp(data).body

def refused(error, make, *args):
    try:
        make(*args)
    except error as ex:
        return str(ex)
    assert False, f'{make} did not raise'
"""


@pytest.mark.parametrize(
    'program',
    [
        pytest.param(
            """
decoded = decode(WIRE)
import uuid
assert decoded == uuid.UUID(bytes=ID) and decoded.is_safe is uuid.SafeUUID.unknown
""",
            id='decoded',
        ),
        pytest.param(
            """
import uuid
assert encode_amqp_bytes(uuid.UUID(bytes=ID)) == WIRE
""",
            id='encoded',
        ),
        pytest.param(
            """
import uuid
sent = stream_message_ctx('x', properties=AMQPProperties(message_id=uuid.UUID(bytes=ID)))
assert decode_amqp(encode_amqp_bytes(sent)).properties.message_id.bytes == ID
""",
            id='message id',
        ),
        pytest.param(
            """
import uuid
array = AMQPArray(uuid.UUID, [uuid.UUID(bytes=ID)])
assert decode(encode_amqp_bytes(array)) == array
""",
            id='array',
        ),
        pytest.param(
            """
array = decode(bytes.fromhex('005377e0020098'))
import uuid
assert array == AMQPArray(uuid.UUID) and array.element_type is uuid.UUID
""",
            id='array without elements',
        ),
        pytest.param(
            """
for body in ('text', 1, 2.5, b'data', None, [1, {'key': (True, UInt(3), Symbol('x'))}]):
    decode(encode_amqp_bytes(body))
    encode_amqp_bytes(stream_message_ctx(body, properties=AMQPProperties(message_id='x')))
assert 'uuid' not in sys.modules
""",
            id='none',
        ),
        pytest.param(
            """
import uuid
class Below(uuid.UUID): pass
class Proxy:
    def __init__(self, value): self.value = value
    bytes = property(lambda self: self.value.bytes)
    __class__ = property(lambda self: type(self.value))
for value in (Proxy(uuid.UUID(bytes=ID)), Below(bytes=ID)):
    assert encode_amqp_bytes(value) == WIRE
""",
            id='subclass and proxy',
        ),
        pytest.param(
            """
import uuid
from collections import UserDict
UUID = uuid.UUID
module = uuid
for other in (None, object()):
    sys.modules['uuid'] = other
    assert decode(encode_amqp_bytes(UserDict({1: 2}))) == {1: 2}
    assert 'object is not allowed' in refused(TypeError, AMQPArray, object)
    assert 'cannot import uuid' in refused(AMQPDecoderError, decode, WIRE)
sys.modules['uuid'] = module
assert encode_amqp_bytes(UUID(bytes=ID)) == WIRE
assert decode(WIRE) == UUID(bytes=ID)
""",
            id='hidden module',
        ),
        pytest.param(
            """
from collections import UserDict
from unittest.mock import patch
import uuid
class Fake(uuid.UUID): pass
with patch('uuid.UUID', Fake):
    assert decode(WIRE).bytes == ID
    assert decode(encode_amqp_bytes(UserDict({1: 2}))) == {1: 2}
    refused(TypeError, AMQPArray, object)
assert encode_amqp_bytes(uuid.UUID(bytes=ID)) == WIRE
decoded = decode(WIRE)
assert decoded == uuid.UUID(bytes=ID) and type(decoded) is uuid.UUID
""",
            id='patched module',
        ),
        pytest.param(
            """
from unittest.mock import MagicMock, patch
import uuid
class Stub:
    __slots__ = ()
    is_safe = 1
for name in ('text', None, Stub()):
    with patch('uuid.NAMESPACE_DNS', name):
        refused(AMQPEncoderTypeError, encode_amqp_bytes, object())
        refused(AMQPDecoderError, decode, WIRE)
with patch.dict(sys.modules, uuid=MagicMock()):
    refused(AMQPEncoderTypeError, encode_amqp_bytes, object())
    refused(AMQPDecoderError, decode, WIRE)
for array in (AMQPArray(str, ['a']), AMQPArray(type(None), [None])):
    assert decode(encode_amqp_bytes(array)) == array
array = AMQPArray(uuid.UUID, [uuid.UUID(bytes=ID)])
assert decode(encode_amqp_bytes(array)) == array
""",
            id='replaced module',
        ),
        pytest.param(
            """
class Names(type): __mro__ = property(lambda cls: (1, 2))
class Other(metaclass=Names): pass
class UUID: bytes = ID
UUID.__module__ = 'uuid'
for value in (Other(), UUID()):
    for make in (encode_amqp_bytes, lambda value: AMQPProperties(message_id=value)):
        refused(AMQPEncoderTypeError, make, value)
import uuid
assert encode_amqp_bytes(uuid.UUID(bytes=ID)) == WIRE
""",
            id='other classes',
        ),
        pytest.param(
            """
import rbfly.streams
assert set(rbfly.streams.__all__) <= set(dir(rbfly.streams))
from rbfly.streams import AMQPBody, AMQPScalar, Symbol
import datetime, rbfly.types, typing, uuid
assert AMQPBody is rbfly.types.AMQPBody and Symbol is rbfly.types.Symbol
assert {uuid.UUID, datetime.datetime, Symbol} < set(typing.get_args(AMQPScalar))
names = {}
exec('from rbfly.streams import *', names)
assert set(rbfly.streams.__all__) <= names.keys()
assert 'AMQPNothing' in refused(AttributeError, getattr, rbfly.streams, 'AMQPNothing')
""",
            id='aliases',
        ),
    ],
)
def test_lazy_import(program: str) -> None:
    run(HEAD + program)


def run(program: str) -> None:
    result = subprocess.run(
        [sys.executable, '-I', '-W', 'error', '-c', program],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr


def test_annotations_can_be_evaluated() -> None:
    """Frameworks evaluate the annotations of public classes."""
    program = """
import inspect, typing
from rbfly import streams
names = [name for name in streams.__all__ if inspect.isclass(getattr(streams, name))]
count = 0
for name in names:
    for member in vars(getattr(streams, name)).values():
        member = getattr(member, 'fget', None) or getattr(member, '__func__', member)
        if inspect.isfunction(member) and not member.__name__.startswith('_'):
            typing.get_type_hints(member)
            inspect.signature(member, eval_str=True)
            count += 1
assert count > 30, count
import datetime
hints = typing.get_type_hints(streams.StreamsClient.create_stream)
assert datetime.timedelta in typing.get_args(hints['max_age'])
assert int in typing.get_args(typing.get_type_hints(streams.Publisher.send)['message'])
"""
    run(program)
