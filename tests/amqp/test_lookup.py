"""Finding a text in the sections of a message, without decoding them."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbfly.amqp import Message, decode_amqp, encode_amqp_bytes
from rbfly.amqp._lookup import find_text
from rbfly.error import AMQPDecoderError
from rbfly.types import Symbol

KEY = 'traceparent'
VALUES = st.none() | st.text() | st.binary() | st.integers(0, 2**64 - 1) | st.floats()
NAMES = st.sampled_from([KEY, 'tracestate', 'a', '', 'x' * 300])


def expected(pairs: dict[Any, Any]) -> str | None:
    value = {str(key): item for key, item in pairs.items()}.get(KEY)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return value if isinstance(value, str) else None


@given(
    st.dictionaries(NAMES | st.integers(0, 9), VALUES),
    st.dictionaries(NAMES, VALUES | st.lists(VALUES) | st.dictionaries(st.text(), VALUES)),
)
def test_found_as_if_decoded(annotations: dict[Any, Any], properties: dict[str, Any]) -> None:
    sent = Message(b'body', annotations=annotations, app_properties=properties)
    wanted = expected(annotations)
    wanted = expected(properties) if wanted is None else wanted
    assert find_text(sent, KEY) == wanted
    received = decode_amqp(encode_amqp_bytes(sent))
    assert find_text(received, KEY) == wanted
    assert received.annotations is not None  # decode both
    assert received.app_properties is not None
    assert find_text(received, KEY) == wanted


def test_sections_that_the_program_sets() -> None:
    received = decode_amqp(encode_amqp_bytes(Message(b'a', app_properties={KEY: 'old'})))
    received.app_properties = {KEY: 'new'}
    assert find_text(received, KEY) == 'new'
    received.annotations = {Symbol(KEY): Symbol('symbol')}
    assert find_text(received, KEY) == 'symbol'
    received.annotations = received.app_properties = None
    assert find_text(received, KEY) is None


def with_properties(section: bytes) -> bytes:
    return b'\x00\x53\x74' + section + b'\x00\x53\x75\xa0\x01a'


def test_wide_forms() -> None:
    """Other clients write sizes of 32 bits where 8 are enough."""
    pair = b'\xb1' + struct.pack('>I', len(KEY)) + KEY.encode() + b'\xb0\x00\x00\x00\x02ok'
    section = b'\xd1' + struct.pack('>II', 4 + len(pair), 2) + pair
    assert find_text(decode_amqp(with_properties(section)), KEY) == 'ok'


def test_keys_of_other_forms() -> None:
    text, binary, value = b'\xa1\x0b', b'\xa0\x0b', b'\xa1\x01'
    key = KEY.encode()
    pairs = text + key + value + b'1' + text + key + value + b'2' + binary + key + value + b'3'
    section = b'\xc1' + bytes([1 + len(pairs), 6]) + pairs
    message = decode_amqp(with_properties(section))
    assert find_text(message, KEY) == '2'
    assert message.app_properties == {KEY: '2', KEY.encode(): '3'}


def test_malformed_sections() -> None:
    """Every prefix, and every changed byte: no error, and no text from beyond the section."""
    section = encode_amqp_bytes(Message(b'a', app_properties={'a': [1], KEY: 'ok'}))[3:-6]
    assert find_text(decode_amqp(with_properties(section)), KEY) == 'ok'
    for i in range(len(section)):
        for value in range(256):
            changed = section[:i] + bytes([value]) + section[i + 1 :]
            try:
                message = decode_amqp(with_properties(changed))
            except AMQPDecoderError:
                continue
            found = find_text(message, KEY)
            assert found is None or len(found) <= 2


@pytest.mark.parametrize('inner', [b'\xa1', b'\xa1\xff', b'\xb1\xff\xff\xff\xff', b'\x01', b'\x00'])
def test_key_beyond_the_section(inner: bytes) -> None:
    section = b'\xc1' + bytes([1 + len(inner), 2]) + inner
    assert find_text(decode_amqp(with_properties(section)), KEY) is None


def test_message_without_bytes() -> None:
    assert find_text(Message.__new__(Message), KEY) is None
