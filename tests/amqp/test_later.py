"""What is imported when the first message needs it, each in a process where nobody has."""

import subprocess
import sys

import pytest

HEAD = """
import sys
from rbfly.amqp import MessageCtx, decode_amqp, encode_amqp_bytes, stream_message_ctx
from rbfly.amqp._types import AMQPArray
assert 'uuid' not in sys.modules
ID = bytes(range(16))

def decode(data):
    return decode_amqp(data).body
"""


@pytest.mark.parametrize(
    'program',
    [
        pytest.param(
            """
found = decode(bytes.fromhex('00537798') + ID)
import uuid
assert found == uuid.UUID(bytes=ID) and found.is_safe is uuid.SafeUUID.unknown
""",
            id='decoded',
        ),
        pytest.param(
            """
import uuid
assert encode_amqp_bytes(uuid.UUID(bytes=ID)) == bytes.fromhex('00537798') + ID
""",
            id='encoded',
        ),
        pytest.param(
            """
import uuid
from rbfly.amqp import AMQPProperties
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
from collections import UserDict
class Other: pass
assert decode(encode_amqp_bytes(UserDict({1: 2}))) == {1: 2}
for value in (Other(), Other):
    try:
        AMQPArray(value) if isinstance(value, type) else encode_amqp_bytes(value)
    except TypeError as ex:
        assert 'Other' in str(ex)
    else:
        assert False
assert 'uuid' not in sys.modules
""",
            id='none',
        ),
        pytest.param(
            """
import rbfly.streams
from rbfly.streams import AMQPBody, AMQPScalar, Symbol
import datetime, rbfly.types, typing, uuid
assert AMQPBody is rbfly.types.AMQPBody and Symbol is rbfly.types.Symbol
assert {uuid.UUID, datetime.datetime, Symbol} < set(typing.get_args(AMQPScalar))
names = {}
exec('from rbfly.streams import *', names)
assert set(rbfly.streams.__all__) <= names.keys()
try:
    rbfly.streams.AMQPNothing
except AttributeError as ex:
    assert 'AMQPNothing' in str(ex)
else:
    assert False
""",
            id='aliases',
        ),
    ],
)
def test_needed_later(program: str) -> None:
    done = subprocess.run(
        [sys.executable, '-I', '-W', 'error', '-c', HEAD + program],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
