"""Random messages of other Python clients: whatever any of them can read, this codec reads.

Each library writes what its API allows; its own errors and those of its decoders are no findings.
"""

import contextlib
import copy
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import proton
import pytest
import rstream
from amqp_values import SECTIONS
from azure.eventhub._pyamqp import _decode as eventhub_decode
from azure.eventhub._pyamqp import _encode as eventhub_encode
from azure.eventhub._pyamqp import message as eventhub_message
from azure.servicebus._pyamqp import _decode as servicebus_decode
from azure.servicebus._pyamqp import _encode as servicebus_encode
from azure.servicebus._pyamqp import message as servicebus_message
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rstream._pyamqp import message as rstream_message

from rbfly.amqp import decode_amqp, encode_amqp_bytes
from tests.sizes import sized

profile = settings(max_examples=sized(60, 300), phases=[Phase.explicit, Phase.generate])

text = st.text(max_size=20)
octets = st.binary(max_size=20)
names = st.text(st.characters(max_codepoint=127), max_size=10)
moments = st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1)).map(
    lambda t: t.replace(tzinfo=UTC)
)


def compounds(scalars: st.SearchStrategy[Any], keys: Any) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=12,
    )


def libraries_that_read(data: bytes) -> list[str]:
    """The libraries that can read a message."""
    found = []
    decoders: dict[str, Callable[[], Any]] = {
        'rstream': lambda: rstream.amqp_decoder(data),
        'proton': lambda: proton.Message().decode(data),
        'eventhub': lambda: eventhub_decode.decode_payload(memoryview(data)),
        'servicebus': lambda: servicebus_decode.decode_payload(memoryview(data)),
    }
    for name, decode in decoders.items():
        with contextlib.suppress(Exception):
            decode()
            found.append(name)
    return found


def check(data: bytes) -> bool:
    """Read a message as a program does, and send it on; return False if no library can read it."""
    if not libraries_that_read(data):
        return False
    ctx = decode_amqp(data)
    assert encode_amqp_bytes(ctx) == data
    values = [getattr(ctx, name) for name in SECTIONS]
    repr(ctx)
    assert encode_amqp_bytes(ctx) == data
    for other in (copy.copy(ctx), copy.deepcopy(ctx), pickle.loads(pickle.dumps(ctx))):
        assert other == ctx or 'nan' in repr(values)
        assert encode_amqp_bytes(other) == data
    return True


# -- pyamqp: rstream, azure-eventhub and azure-servicebus contain a copy each

# pyamqp states a wrong size for an array of nulls, of described values, or of unsigned zeros
typed = st.sampled_from(
    [
        ('UBYTE', st.integers(0, 255)),
        ('BYTE', st.integers(-128, 127)),
        ('USHORT', st.integers(0, 2**16 - 1)),
        ('SHORT', st.integers(-(2**15), 2**15 - 1)),
        ('UINT', st.integers(0, 2**32 - 1)),
        ('INT', st.integers(-(2**31), 2**31 - 1)),
        ('ULONG', st.integers(0, 2**64 - 1)),
        ('LONG', st.integers(-(2**63), 2**63 - 1)),
        ('FLOAT', st.floats(width=32)),
        ('DOUBLE', st.floats()),
        ('BOOL', st.booleans()),
        ('TIMESTAMP', moments),
        ('UUID', st.uuids()),
        ('BINARY', octets),
        ('STRING', text | octets),
        ('SYMBOL', text | octets),
    ]
).flatmap(lambda pair: st.tuples(st.just(pair[0]), pair[1]))
typed_values = typed.map(lambda pair: {'TYPE': pair[0], 'VALUE': pair[1]})
arrays = typed.filter(lambda pair: pair not in [('UINT', 0), ('ULONG', 0)]).flatmap(
    lambda pair: st.integers(0, 4).map(
        lambda n: {'TYPE': 'ARRAY', 'VALUE': [{'TYPE': pair[0], 'VALUE': pair[1]}] * n}
    )
)
plain = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), text, octets,
    st.uuids(), moments,
)  # fmt: skip
pyamqp_values = compounds(plain | typed_values | arrays, text | octets | st.integers(0, 2**31 - 1))
described = st.tuples(text | st.integers(0, 2**31 - 1), pyamqp_values)
pyamqp_maps = st.none() | st.dictionaries(text | octets, pyamqp_values, max_size=4)
annotations = st.none() | st.dictionaries(
    text | octets | st.integers(0, 2**63), pyamqp_values, max_size=4
)
ids = st.none() | text | octets | st.uuids() | st.integers(0, 2**64 - 1)
field = st.none() | text | octets
times = st.none() | moments | st.integers(-(2**63), 2**63 - 1)
pyamqp_properties = st.tuples(
    *(ids, st.none() | octets, field, field, field, ids, field, field, times, times, field),
    st.none() | st.integers(0, 2**32 - 1),
    field,
)
numbers = st.none() | st.integers(0, 2**32 - 1)
pyamqp_headers = st.tuples(
    st.none() | st.booleans(), st.none() | st.integers(0, 255), numbers,
    st.none() | st.booleans(), numbers,
)  # fmt: skip


def pyamqp_messages(data: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    """The arguments of a message; how the data sections are passed depends on the library."""
    return st.tuples(
        st.none() | pyamqp_headers,
        annotations,
        annotations,
        st.none() | pyamqp_properties,
        pyamqp_maps,
        st.none() | data,
        st.none() | st.lists(pyamqp_values, max_size=3),
        st.none() | pyamqp_values | described,
        annotations,
    )


COPIES: dict[str, tuple[ModuleType, Any]] = {
    'rstream': (rstream_message, lambda m: bytes(rstream.AMQPMessage(*m))),
    'eventhub': (eventhub_message, None),
    'servicebus': (servicebus_message, None),
}
ENCODERS: dict[str, ModuleType] = {'eventhub': eventhub_encode, 'servicebus': servicebus_encode}


def pyamqp_write(name: str, parts: tuple[Any, ...]) -> bytes:
    module, write = COPIES[name]
    header, properties = parts[0], parts[3]
    message = module.Message(
        header and module.Header(*header),
        *parts[1:3],
        properties and module.Properties(*properties),
        *parts[4:],
    )
    if write is not None:
        return bytes(write(message))
    out = bytearray()
    ENCODERS[name].encode_payload(out, message)
    return bytes(out)


@pytest.mark.parametrize('name', COPIES)
def test_pyamqp(name: str) -> None:
    count = 0

    @profile
    @given(pyamqp_messages(octets if name == 'rstream' else st.lists(octets, max_size=3)))
    def run(parts: tuple[Any, ...]) -> None:
        nonlocal count
        try:
            data = pyamqp_write(name, parts)
        except Exception:  # for example, of an integer of more than 64 bits
            return
        count += check(data)

    run()
    assert count > sized(20, 100)


# -- Qpid Proton

proton_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    text,
    octets,
    st.uuids(),
    names.map(proton.symbol),
    st.integers(0, 255).map(proton.ubyte),
    st.integers(0, 2**64 - 1).map(proton.ulong),
    st.integers(-(2**63), 2**63 - 1).map(proton.timestamp),
    st.characters(exclude_categories=['Cs']).map(proton.char),
    st.binary(min_size=16, max_size=16).map(proton.decimal128),
    st.builds(proton.Described, names.map(proton.symbol), text),
)
proton_values = compounds(proton_scalars, text | names.map(proton.symbol))
proton_messages = st.fixed_dictionaries(
    {},
    optional={
        'body': proton_values,
        'inferred': st.booleans(),
        'durable': st.booleans(),
        'priority': st.integers(0, 255),
        'ttl': st.integers(0, 10**6),
        'first_acquirer': st.booleans(),
        'delivery_count': st.integers(0, 2**32 - 1),
        'id': ids,
        'user_id': octets,
        'address': text,
        'subject': text,
        'reply_to': text,
        'correlation_id': ids,
        'content_type': text,
        'content_encoding': text,
        'expiry_time': st.integers(0, 2**40),
        'creation_time': st.integers(0, 2**40),
        'group_id': text,
        'group_sequence': st.integers(0, 2**31 - 1),
        'reply_to_group_id': text,
        'instructions': st.dictionaries(
            names | names.map(proton.symbol), proton_values, max_size=4
        ),
        'annotations': st.dictionaries(names | names.map(proton.symbol), proton_values, max_size=4),
        'properties': st.dictionaries(text, proton_values, max_size=4),
    },
)


def test_proton() -> None:
    count = 0

    @profile
    @given(proton_messages)
    def run(parts: dict[str, Any]) -> None:
        nonlocal count
        try:
            data = bytes(proton.Message(**parts).encode())
        except Exception:  # for example, a NUL in a string
            return
        count += check(data)

    run()
    assert count > sized(20, 100)


# -- the sections of a message, in any order and number


@profile
@given(st.data())
def test_sections_in_any_order(draw: st.DataObject) -> None:
    parts = draw.draw(pyamqp_messages(octets))
    sections = []
    for i in range(len(parts)):
        part = [None] * len(parts)
        part[i] = parts[i]
        with contextlib.suppress(Exception):
            sections.append(pyamqp_write('rstream', tuple(part)))
    chosen = draw.draw(st.lists(st.sampled_from(sections), max_size=8)) if sections else []
    check(b''.join(chosen))
