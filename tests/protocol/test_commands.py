"""Encode and decode every command, truncate it at every length, and compare shared constants."""

import dataclasses
import pickle
import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbfly.error import RbFlyError
from rbfly.protocol import chunks, commands, fields, message_frames
from rbfly.protocol.chunks import PublishEntry
from rbfly.protocol.commands import NodeAddress, Reader, StreamMetadata, Tune
from rbfly.protocol.const import KEYS, Key, ResponseCode
from rbfly.streams import Offset, OffsetType
from rbfly.streams.error import ArgumentError, ArgumentOverflowError, FrameError
from tests.stream_wire import (
    SESSIONS,
    confirm,
    deliver,
    frame,
    message,
    refuse,
    session,
    split_frames,
    sub_batch,
)

PROTOCOL = Path(__file__).resolve().parents[2] / 'src' / 'rbfly' / 'protocol'


def unhex(text: str) -> bytes:
    return bytes.fromhex(re.sub(r'\s+', '', text))


# Key, version, correlation id and body, by the protocol's specification; the size comes before.
REQUESTS: list[tuple[commands.Command[Any], str]] = [
    (
        commands.PeerProperties({'product': 'RbFly', 'é': ''}),
        '0011 0001 00000007 00000002 0007 70726f64756374 0005 5262466c79 0002 c3a9 0000',
    ),
    (commands.PeerProperties({}), '0011 0001 00000007 00000000'),
    (commands.SaslHandshake(), '0012 0001 00000007'),
    (
        commands.SaslAuthenticate('PLAIN', b'\0u\0p'),
        '0013 0001 00000007 0005 504c41494e 00000004 00750070',
    ),
    (
        commands.SaslAuthenticate('EXTERNAL', b''),
        '0013 0001 00000007 0008 45585445524e414c 00000000',
    ),
    (commands.Open('/'), '0015 0001 00000007 0001 2f'),
    (commands.Open('żółw'), '0015 0001 00000007 0007 c5bcc3b3c58277'),
    (commands.Close(1, 'bye'), '0016 0001 00000007 0001 0003 627965'),
    (
        commands.ExchangeCommandVersions({8: (1, 2)}),
        '001b 0001 00000007 00000001 0008 0001 0002',
    ),
    (
        commands.Create('s', {'max-age': '7D'}),
        '000d 0001 00000007 0001 73 00000001 0007 6d61782d616765 0002 3744',
    ),
    (commands.Create('', {}), '000d 0001 00000007 0000 00000000'),
    (commands.Delete('日本'), '000e 0001 00000007 0006 e697a5e69cac'),
    (commands.Metadata(('a', 'é')), '000f 0001 00000007 00000002 0001 61 0002 c3a9'),
    (commands.Metadata(()), '000f 0001 00000007 00000000'),
    (
        commands.DeclarePublisher(255, 'ré', 's'),
        '0001 0001 00000007 ff 0003 72c3a9 0001 73',
    ),
    (commands.DeclarePublisher(0, '', 's'), '0001 0001 00000007 00 0000 0001 73'),
    (commands.DeletePublisher(3), '0006 0001 00000007 03'),
    (commands.QueryPublisherSequence('r', 's'), '0005 0001 00000007 0001 72 0001 73'),
    (
        commands.Subscribe(9, 's', Offset.FIRST, 10, {}),
        '0007 0001 00000007 09 0001 73 0001 000a 00000000',
    ),
    (
        commands.Subscribe(9, 's', Offset.LAST, 10, {'a': 'b'}),
        '0007 0001 00000007 09 0001 73 0002 000a 00000001 0001 61 0001 62',
    ),
    (
        commands.Subscribe(9, 's', Offset.NEXT, 65535, {}),
        '0007 0001 00000007 09 0001 73 0003 ffff 00000000',
    ),
    (
        commands.Subscribe(9, 's', Offset.offset(2**64 - 1), 1, {}),
        '0007 0001 00000007 09 0001 73 0004 ffffffffffffffff 0001 00000000',
    ),
    (
        commands.Subscribe(9, 's', Offset.timestamp(1.5), 1, {}),
        '0007 0001 00000007 09 0001 73 0005 00000000000005dc 0001 00000000',
    ),
    (
        commands.Subscribe(9, 's', Offset.timestamp(-1), 1, {}),
        '0007 0001 00000007 09 0001 73 0005 fffffffffffffc18 0001 00000000',
    ),
    (commands.Unsubscribe(9), '000c 0001 00000007 09'),
    (commands.QueryOffset('ré', 's'), '000b 0001 00000007 0003 72c3a9 0001 73'),
    (commands.StreamStats('sé'), '001c 0001 00000007 0003 73c3a9'),
    (commands.Route('ké', 's'), '0018 0001 00000007 0003 6bc3a9 0001 73'),
    (commands.Partitions('s'), '0019 0001 00000007 0001 73'),
    (commands.ConsumerUpdate(255, 1), '001a 0001 00000007 ff 01'),
    (
        commands.CreateSuperStream('s', ('a', 'b'), ('0', '1'), {'k': 'v'}),
        '001d 0001 00000007 0001 73 00000002 0001 61 0001 62 00000002 0001 30 0001 31'
        '00000001 0001 6b 0001 76',
    ),
    (commands.DeleteSuperStream('s'), '001e 0001 00000007 0001 73'),
    (
        commands.ResolveOffsetSpec('s', Offset.offset(5), {}),
        '001f 0001 00000007 0001 73 0004 0000000000000005 00000000',
    ),
]


@pytest.mark.parametrize(('command', 'expected'), REQUESTS)
def test_encoded_request(command: commands.Command[Any], expected: str) -> None:
    data = unhex(expected)
    assert command.encode(7) == struct.pack('>I', len(data)) + data


@pytest.mark.parametrize('correlation_id', [0, 1, 2**32 - 1])
def test_request_has_its_correlation_id(correlation_id: int) -> None:
    data = commands.Unsubscribe(9).encode(correlation_id)
    assert data[8:12] == struct.pack('>I', correlation_id)


# Key, version and body.
ONE_WAY: list[tuple[commands.OneWay, str]] = [
    (commands.Tune(2**20, 60), '0014 0001 00100000 0000003c'),
    (commands.Tune(0, 0), '0014 0001 00000000 00000000'),
    (commands.Heartbeat(), '0017 0001'),
    (commands.MetadataUpdate(6, 'é'), '0010 0001 0006 0002 c3a9'),
    (message_frames.PublishConfirm(255, (1, 2**64 - 1)), confirm(255, [1, 2**64 - 1])[4:].hex()),
    (message_frames.PublishConfirm(0, ()), '0003 0001 00 00000000'),
    (
        message_frames.PublishError(1, ((1, 0x12), (2, 0x11))),
        refuse(1, [(1, 0x12), (2, 0x11)])[4:].hex(),
    ),
    (
        message_frames.Publish(3, (PublishEntry(258, None, message(b'ab')),)),
        '0002 0001 03 00000001 0000000000000102 00000002 6162',
    ),
    (
        message_frames.Publish(3, (PublishEntry(1, None, sub_batch([b'a', b''], compression=5)),)),
        '0002 0001 03 00000001 0000000000000001 d0 0002 00000009 0000000900000001 61 00000000',
    ),
    (
        message_frames.PublishV2(
            3, (PublishEntry(1, b'\xff', message(b'a')), PublishEntry(2, None, message(b'')))
        ),
        '0002 0002 03 00000002 0000000000000001 0001 ff 00000001 610000000000000002 ffff 00000000',
    ),
    (message_frames.Deliver(255, b'chunk'), deliver(255, b'chunk')[4:].hex()),
    (message_frames.DeliverV2(255, 9, b'chunk'), deliver(255, b'chunk', 9)[4:].hex()),
    (commands.Credit(255, -1), '0009 0001 ff ffff'),
    (commands.CreditError(4, 255), '8009 0001 0004 ff'),
    (commands.StoreOffset('ré', 's', 5), '000a 0001 0003 72c3a9 0001 73 0000000000000005'),
]

# Frames that the client writes with functions of their own.
WRITTEN: list[tuple[bytes, str]] = [
    (commands.credit(255, 32767), '0009 0001 ff 7fff'),
    (commands.credit(0, 1), '0009 0001 00 0001'),
    (commands.store_offset('r', 'sé', 5), '000a 0001 0001 72 0003 73c3a9 0000000000000005'),
    (commands.store_offset('', 's', 2**64 - 1), '000a 0001 0000 0001 73 ffffffffffffffff'),
    (commands.HEARTBEAT, '0017 0001'),
    (commands.Close.respond(1), '8016 0001 00000001 0001'),
]


@pytest.mark.parametrize(
    ('data', 'expected'), WRITTEN + [(item.encode(), data) for item, data in ONE_WAY]
)
def test_encoded_one_way_frame(data: bytes, expected: str) -> None:
    body = unhex(expected)
    assert data == struct.pack('>I', len(body)) + body


LOCAL = NodeAddress('localhost', 5552)
OTHER = NodeAddress('höst', 65535)

# A command, the response's code and value, and the response's bytes from the code on.
RESPONSES: list[tuple[type[commands.Command[Any]], int, Any, str]] = [
    (
        commands.PeerProperties,
        1,
        {'a': 'é', 'b': ''},
        '0001 00000002 0001 61 0002 c3a9 0001 62 0000',
    ),
    (
        commands.SaslHandshake,
        1,
        ('PLAIN', 'A'),
        '0001 00000002 0005 504c41494e 0001 41',
    ),
    (commands.SaslAuthenticate, 1, None, '0001'),
    (commands.SaslAuthenticate, 8, None, '0008'),
    (commands.SaslAuthenticate, 10, b'\xffwho?', '000a 0005 ff77686f3f'),
    (commands.Open, 1, {'a': 'b'}, '0001 00000001 0001 61 0001 62'),
    (commands.Open, 1, {}, '0001 00000000'),
    (commands.Open, 12, None, '000c'),
    (
        commands.ExchangeCommandVersions,
        1,
        {1: (1, 1), 2: (1, 2)},
        '0001 00000002 0001 0001 0001 0002 0001 0002',
    ),
    (
        commands.Metadata,
        1,
        {
            'a': StreamMetadata(1, LOCAL, (OTHER, LOCAL)),
            'b': StreamMetadata(2, None, ()),
            'c': StreamMetadata(1, None, (OTHER,)),
        },
        '00000002 0000 0009 6c6f63616c686f7374 000015b0 0001 0005 68c3b67374 0000ffff'
        '00000003 0001 61 0001 0000 00000002 0001 0000'
        '0001 62 0002 ffff 00000000 0001 63 0001 ffff 00000001 0001',
    ),
    (commands.Metadata, 1, {}, '00000000 00000000'),
    (commands.QueryPublisherSequence, 1, 2**64 - 1, '0001 ffffffffffffffff'),
    (commands.QueryPublisherSequence, 16, 0, '0010 0000000000000000'),
    (commands.QueryOffset, 1, 258, '0001 0000000000000102'),
    (commands.QueryOffset, 19, 0, '0013 0000000000000000'),
    (
        commands.StreamStats,
        1,
        {'a': -1, 'b': 7},
        '0001 00000002 0001 61 ffffffffffffffff 0001 62 0000000000000007',
    ),
    (commands.StreamStats, 2, {}, '0002 00000000'),
    (commands.Route, 1, ('a', 'b'), '0001 00000002 0001 61 0001 62'),
    (commands.Route, 2, (), '0002 00000000'),
    (commands.Partitions, 1, ('a', 'b'), '0001 00000002 0001 61 0001 62'),
    (commands.ConsumerUpdate, 1, None, '0001 0000'),
    (commands.ConsumerUpdate, 1, Offset.NEXT, '0001 0003'),
    (commands.ConsumerUpdate, 1, Offset.offset(7), '0001 0004 0000000000000007'),
    (commands.ResolveOffsetSpec, 1, Offset.offset(7), '0001 0004 0000000000000007'),
    (commands.ResolveOffsetSpec, 19, Offset.offset(0), '0013 0004 0000000000000000'),
    *[
        (command, code, None, f'{code:04x}')
        for command, code in (
            (commands.Close, 1),
            (commands.Create, 5),
            (commands.CreateSuperStream, 1),
            (commands.DeclarePublisher, 0x11),
            (commands.Delete, 2),
            (commands.DeletePublisher, 0x12),
            (commands.DeleteSuperStream, 1),
            (commands.Subscribe, 1),
            (commands.Unsubscribe, 4),
        )
    ],
]


@pytest.mark.parametrize(('command', 'code', 'value', 'expected'), RESPONSES)
def test_encoded_response(
    command: type[commands.Command[Any]], code: int, value: Any, expected: str
) -> None:
    body = struct.pack('>HHI', 0x8000 | command.key, 1, 7) + unhex(expected)
    assert command.respond(7, value, code) == struct.pack('>I', len(body)) + body


@pytest.mark.parametrize(('command', 'code', 'value', 'expected'), RESPONSES)
def test_parsed_response(
    command: type[commands.Command[Any]], code: int, value: Any, expected: str
) -> None:
    data = unhex(expected)[2 if command is not commands.Metadata else 0 :]
    if data:
        assert command.parse(Reader(data)) == value
        assert command.parse(Reader(data + b'later')) == value  # fields of later versions


@pytest.mark.parametrize(
    ('command', 'value'), [(commands.Open, {}), (commands.SaslAuthenticate, None)]
)
def test_response_may_omit_its_last_field(command: type[commands.Command[Any]], value: Any) -> None:
    assert command.parse(Reader(b'')) == value


def test_error_response_needs_no_value() -> None:
    for command, code, value, _ in RESPONSES:
        if code not in (1, 10):
            assert command.respond(7, code=code) == command.respond(7, value, code)


# -- decoding any frame

# Key, version and body.
FRAMES: list[tuple[commands.Request | commands.Response | commands.OneWay, bytes]] = [
    *((commands.Request(7, command), unhex(data)) for command, data in REQUESTS),
    *((item, unhex(data)) for item, data in ONE_WAY),
    *(
        (
            commands.Response(command, 7, code, value),
            struct.pack('>HHI', 0x8000 | command.key, 1, 7) + unhex(data),
        )
        for command, code, value, data in RESPONSES
    ),
]
each_frame = pytest.mark.parametrize(
    ('item', 'data'), FRAMES, ids=[f'{i}-{data[:4].hex()}' for i, (_, data) in enumerate(FRAMES)]
)


def decode(data: bytes) -> commands.Request | commands.Response | commands.OneWay:
    key, version = struct.unpack_from('>HH', data)
    return message_frames.decode(key, version, Reader(data[4:], strict=True))


def command_classes() -> set[Any]:
    return {
        item
        for item in [*vars(commands).values(), *vars(message_frames).values()]
        if isinstance(item, type)
        and issubclass(item, commands.Command | commands.OneWay)
        and item not in (commands.Command, commands.OneWay)
    }


def test_every_command_is_covered() -> None:
    assert {type(command) for command, _ in REQUESTS} | {type(item) for item, _ in ONE_WAY} == (
        command_classes()
    )
    assert {command for command, *_ in RESPONSES} == {type(command) for command, _ in REQUESTS}
    assert {key & 0x7FFF for key, _ in commands.READERS} == set(KEYS)


@each_frame
def test_decoded_frame(item: object, data: bytes) -> None:
    assert decode(data) == item


def test_tune_may_arrive_as_a_response() -> None:
    assert decode(unhex('8014 0001 00001000 0000003c')) == Tune(4096, 60)


@each_frame
def test_truncated_frame_is_refused(item: object, data: bytes) -> None:
    for size in range(4, len(data)):
        try:
            found = decode(data[:size])
        except FrameError:
            continue
        # A complete frame: it omits its last field, or ends with any bytes.
        if isinstance(found, commands.Request):
            assert isinstance(found.command, commands.Subscribe | commands.ResolveOffsetSpec)
            assert found.command.properties == {}
            assert data[:size] + bytes(4) == found.encode()[4:]
        elif isinstance(found, commands.Response):
            assert size == (8 if found.command is commands.Metadata else 10)
            assert found.encode()[4:].startswith(data[:size])
        else:
            assert isinstance(found, message_frames.Deliver | message_frames.DeliverV2)
            assert found.encode()[4:] == data[:size]


@each_frame
def test_extra_bytes_after_a_frame_are_refused(item: object, data: bytes) -> None:
    if isinstance(item, message_frames.Deliver | message_frames.DeliverV2):
        return
    for more in (b'\0', b'\xff\xff\xff', b'\x01' * 40):
        with pytest.raises(FrameError):
            decode(data + more)


@each_frame
def test_unknown_version_is_refused(item: object, data: bytes) -> None:
    for version in (0, 3, 0xFFFF):
        with pytest.raises(FrameError, match=f'version {version}'):
            decode(data[:2] + struct.pack('>H', version) + data[4:])


@pytest.mark.parametrize('key', [0, 0x20, 0x7FFF, 0x8000, 0x8002, 0x8017, 0xFFFF])
def test_unknown_key_is_refused(key: int) -> None:
    with pytest.raises(FrameError, match=f'0x{key:04x}'):
        message_frames.decode(key, 1, Reader(bytes(20)))


@given(st.sampled_from(sorted(commands.READERS)), st.binary(max_size=80))
def test_any_bytes_yield_a_frame_or_frame_error(frame: tuple[int, int], body: bytes) -> None:
    try:
        found = message_frames.decode(*frame, Reader(body, strict=True))
    except FrameError:
        return
    assert message_frames.decode(*frame, Reader(found.encode()[8:], strict=True)) == found


def test_false_counts_allocate_nothing() -> None:
    tracemalloc.start()
    try:
        for _, data in FRAMES:
            for at in range(4, len(data) + 1):
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                try:
                    decode(data[:at] + b'\xff\xff\xff\xfe' + data[at + 4 :])
                except FrameError:
                    pass
                assert tracemalloc.get_traced_memory()[1] - before < 50_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize('text', ['ffff', '0001 ff', '0002 c3'])
def test_request_with_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(FrameError):
        decode(unhex('000e 0001 00000007' + text))


@pytest.mark.parametrize('spec', ['0000', '0006', 'ffff'])
def test_unknown_offset_type_is_refused(spec: str) -> None:
    with pytest.raises(FrameError):
        decode(unhex(f'0007 0001 00000007 09 0001 73 {spec} 000a'))


@pytest.mark.parametrize('milliseconds', [0, 1, -1, 1_700_000_000_001, -(2**50) + 1, 2**50 - 1])
def test_timestamps_are_exact(milliseconds: int) -> None:
    spec = struct.pack('>Hq', 5, milliseconds)
    data = unhex('001f 0001 00000007 0001 73') + spec + bytes(4)
    assert decode(data).encode()[4:] == data


@pytest.mark.parametrize('milliseconds', [2**63 - 1, -(2**63)])
def test_extreme_timestamps_stay_large(milliseconds: int) -> None:
    spec = struct.pack('>Hq', 5, milliseconds)
    found = decode(unhex('001f 0001 00000007 0001 73') + spec)
    assert isinstance(found, commands.Request)
    assert isinstance(found.command, commands.ResolveOffsetSpec)
    value = found.command.offset.value
    assert isinstance(value, float)
    assert abs(value) > 10**12
    assert (value > 0) == (milliseconds > 0)


def test_subscribe_may_omit_its_properties() -> None:
    found = decode(unhex('0007 0001 00000007 09 0001 73 0001 000a'))
    assert found == commands.Request(7, commands.Subscribe(9, 's', Offset.FIRST, 10, {}))


def test_null_sasl_data_is_empty() -> None:
    found = decode(unhex('0013 0001 00000007 0001 58 ffffffff'))
    assert found == commands.Request(7, commands.SaslAuthenticate('X', b''))


def test_sub_entry_with_filter_value_is_refused() -> None:
    data = struct.pack('>QH', 1, 0xFFFF) + sub_batch([b'a'])
    with pytest.raises(FrameError, match='sub-entries'):
        message_frames.decode(2, 2, Reader(struct.pack('>BI', 0, 1) + data, strict=True))


def test_decoded_frame_and_errors_hide_the_password() -> None:
    command = commands.SaslAuthenticate('PLAIN', b'\0u\0s3cr3t')
    assert 's3cr3t' not in repr(decode(command.encode(7)[4:]))
    for size in range(12, 30):
        with pytest.raises(FrameError) as caught:
            decode(command.encode(7)[4:size])
        assert 's3c' not in str(caught.value)


# -- random values

TEXT = st.text(max_size=20)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    fields.U8: st.integers(0, 2**8 - 1),
    fields.U16: st.integers(0, 2**16 - 1),
    fields.U32: st.integers(0, 2**32 - 1),
    fields.U64: st.integers(0, 2**64 - 1),
    fields.I16: st.integers(-(2**15), 2**15 - 1),
    fields.I64: st.integers(-(2**63), 2**63 - 1),
    fields.String: TEXT,
    fields.PublisherName: TEXT,
    fields.OffsetReference: TEXT,
    fields.Bytes: st.binary(max_size=40),
    fields.Rest: st.binary(max_size=40),
    fields.Challenge: st.none() | st.binary(max_size=40),
    fields.LastMap: st.dictionaries(TEXT, TEXT, max_size=4),
}
BROKERS = st.builds(NodeAddress, TEXT, VALUES[fields.U32])
OFFSETS = st.one_of(
    st.sampled_from([Offset.FIRST, Offset.LAST, Offset.NEXT]),
    st.builds(Offset.offset, VALUES[fields.U64]),
    st.builds(lambda ms: Offset.timestamp(ms / 1000), st.integers(-(2**50), 2**50)),
)
MESSAGES = st.builds(message, st.binary(max_size=20))
SUB_ENTRIES = st.builds(sub_batch, st.lists(st.binary(max_size=9)), compression=st.integers(0, 7))
VALUES |= {
    fields.OffsetSpec: OFFSETS,
    fields.AnyOffsetSpec: st.none() | OFFSETS,
    commands.Members: st.dictionaries(
        TEXT,
        st.builds(
            StreamMetadata,
            VALUES[fields.U16],
            st.none() | BROKERS,
            st.lists(BROKERS, max_size=3).map(tuple),
        ),
        max_size=3,
    ),
    chunks.Entries: st.lists(
        st.builds(PublishEntry, VALUES[fields.U64], st.none(), MESSAGES | SUB_ENTRIES), max_size=4
    ).map(tuple),
    chunks.FilteredEntries: st.lists(
        st.builds(PublishEntry, VALUES[fields.U64], st.none() | st.binary(max_size=9), MESSAGES),
        max_size=4,
    ).map(tuple),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a field's type."""
    if kind in VALUES:
        return VALUES[kind]
    origin, args = get_origin(kind), get_args(kind)
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=4)
    if origin is tuple and args[-1] is ...:
        return st.lists(values(args[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, args))
    assert kind is None
    return st.none()


@pytest.mark.parametrize('kind', sorted(command_classes(), key=str))
@given(data=st.data())
def test_random_values_round_trip(kind: Any, data: st.DataObject) -> None:
    made = kind(*(data.draw(values(item.type)) for item in dataclasses.fields(kind)))
    if not issubclass(kind, commands.Command):
        assert decode(made.encode()[4:]) == made
        return
    correlation_id = data.draw(VALUES[fields.U32])
    assert decode(made.encode(correlation_id)[4:]) == commands.Request(correlation_id, made)
    (base,) = kind.__orig_bases__
    value = data.draw(values(get_args(base)[0]))
    assert decode(kind.respond(correlation_id, value)[4:]) == commands.Response(
        kind, correlation_id, 1, value
    )


@pytest.mark.parametrize('name', sorted(path.name for path in SESSIONS.glob('*.bin*')))
def test_recorded_frames_round_trip(name: str) -> None:
    found = split_frames(session(name))
    assert found
    for key, version, body in found:
        item = message_frames.decode(key, version, Reader(body, strict=True))
        assert item.encode() == frame(key, body, version)


# -- arguments

LONG = 'é' * 128  # 256 bytes


@pytest.mark.parametrize(
    'make',
    [
        lambda name: commands.DeclarePublisher(0, name, 's').encode(1),
        lambda name: commands.QueryPublisherSequence(name, 's').encode(1),
        lambda name: commands.QueryOffset(name, 's').encode(1),
        lambda name: commands.store_offset(name, 's', 0),
    ],
)
def test_reference_above_255_bytes_is_refused(make: Callable[[str], bytes]) -> None:
    assert ('é' * 127 + 'x').encode() in make('é' * 127 + 'x')
    with pytest.raises(ArgumentError, match='255 bytes'):
        make(LONG)


@pytest.mark.parametrize(
    'make',
    [
        lambda name: commands.Create(name, {}).encode(1),
        lambda name: commands.Create('s', {'key': name}).encode(1),
        lambda name: commands.Create('s', {name: 'value'}).encode(1),
        lambda name: commands.Delete(name).encode(1),
        lambda name: commands.Metadata((name,)).encode(1),
        lambda name: commands.Open(name).encode(1),
        lambda name: commands.Subscribe(0, name, Offset.FIRST, 1, {}).encode(1),
        lambda name: commands.Subscribe(0, 's', Offset.FIRST, 1, {'filter.0': name}).encode(1),
        lambda name: commands.DeclarePublisher(0, '', name).encode(1),
        lambda name: commands.PeerProperties({'connection_name': name}).encode(1),
    ],
)
def test_string_above_65534_bytes_is_refused(make: Callable[[str], bytes]) -> None:
    longest = 'é' * 32767
    assert b'\xff\xfe' + longest.encode() in make(longest)
    for name in (longest + 'x', 'x' * 65535, 'x' * 10**6):
        with pytest.raises(ArgumentError, match='65534 bytes') as caught:
            make(name)
        assert len(str(caught.value)) < 100
    with pytest.raises(ArgumentError, match='Unicode'):
        make('\ud800')


@pytest.mark.parametrize(
    'make',
    [
        lambda: commands.Unsubscribe(256).encode(1),
        lambda: commands.credit(0, 2**15),
        lambda: message_frames.PublishConfirm(0, (2**64,)).encode(),
        lambda: commands.store_offset('r', 's', 2**64),
        lambda: commands.store_offset('r', 's', -1),
    ],
)
def test_number_out_of_range_is_refused(make: Callable[[], bytes]) -> None:
    with pytest.raises(ArgumentOverflowError):
        make()


def test_errors_derive_from_rbfly_error() -> None:
    assert issubclass(ArgumentError, RbFlyError)
    assert issubclass(ArgumentError, ValueError)
    assert issubclass(FrameError, RbFlyError)


def test_repr_hides_the_password() -> None:
    assert 's3cr3t' not in repr(commands.SaslAuthenticate('PLAIN', b'\0u\0s3cr3t'))


def test_commands_are_values() -> None:
    assert repr(Tune(1, heartbeat=60)) == 'Tune(frame_max=1, heartbeat=60)'
    assert commands.Close(reason='enough') == commands.Close(ResponseCode.OK, 'enough')
    assert str(NodeAddress('node', 5552)) == 'node:5552'
    assert (
        len(
            {
                NodeAddress('node', 5552),
                NodeAddress(port=5552, host='node'),
                NodeAddress('node', 5551),
            }
        )
        == 2
    )
    other: object = commands.Partitions('a')
    assert commands.Delete('a') != other
    assert pickle.loads(pickle.dumps(Tune(1, 60))) == Tune(1, 60)


# -- reading responses


def test_metadata_with_unlisted_brokers() -> None:
    data = unhex('00000000 00000001 0001 61 0001 0005 00000001 0063')
    found = commands.Metadata.parse(Reader(data))
    assert found == {'a': StreamMetadata(1, None, ())}


def test_broker_sends_close() -> None:
    data = unhex('00000001 000d 0004 6f6f7073')
    for more in (b'', b'later'):
        request = commands.Request(1, commands.Close(13, 'oops'))
        assert commands.READERS[Key.CLOSE, 1](Reader(data + more)) == request
    for size in range(len(data)):
        with pytest.raises(FrameError):
            commands.READERS[Key.CLOSE, 1](Reader(data[:size]))


@pytest.mark.parametrize('key', [Key.TUNE, Key.METADATA_UPDATE, Key.CLOSE])
@given(data=st.binary(max_size=60))
def test_parser_reads_any_bytes_or_raises_frame_error(key: int, data: bytes) -> None:
    try:
        commands.READERS[key, 1](Reader(data + b'later'))
    except FrameError:
        pass


def test_false_count_is_refused() -> None:
    with pytest.raises(FrameError, match='4294967295 items'):
        commands.PeerProperties({}).parse(Reader(b'\xff\xff\xff\xff'))


def test_reader_replaces_invalid_utf8() -> None:
    reader = Reader(unhex('0203 04050607 ffff 0001 ff'))
    assert (reader.u16(), reader.u32()) == (0x203, 0x4050607)
    assert not reader.at_end
    assert reader.string() == ''  # null
    assert reader.string() == '\ufffd'  # invalid UTF-8
    assert reader.at_end
    with pytest.raises(FrameError):
        reader.u16()


# -- Tune


@pytest.mark.parametrize(
    ('one', 'other', 'agreed'),
    [
        (Tune(0, 0), Tune(0, 0), Tune(0, 0)),
        (Tune(0, 60), Tune(1048576, 30), Tune(1048576, 30)),
        (Tune(4096, 30), Tune(1048576, 60), Tune(4096, 30)),
        (Tune(4096, 0), Tune(0, 60), Tune(4096, 60)),
    ],
)
def test_tune_agrees_on_the_smaller_limits(one: Tune, other: Tune, agreed: Tune) -> None:
    assert one.agree(other) == agreed
    assert other.agree(one) == agreed


# -- constants


def cython_numbers(name: str) -> dict[str, int]:
    """Return the members of the anonymous `cdef enum` blocks of a Cython file."""
    found: dict[str, int] = {}
    inside = False
    for line in (PROTOCOL / name).read_text().splitlines():
        if line.strip() and not line.startswith(' '):
            inside = line.startswith('cdef enum:')
        elif inside and (member := re.match(r'\s+(\w+) = ([^#]+)', line)):
            found[member[1]] = int(eval(member[2], {'__builtins__': {}}, dict(found)))
    return found


def test_cython_constants_match_const() -> None:
    engine = cython_numbers('_engine.pyx')
    assert engine['KEY_CONFIRM'] == Key.PUBLISH_CONFIRM
    assert engine['KEY_ERROR'] == Key.PUBLISH_ERROR
    assert engine['KEY_DELIVER'] == Key.DELIVER
    publish = cython_numbers('_frames.pyx')
    assert publish['KEY_PUBLISH'] == Key.PUBLISH
    assert cython_numbers('_entry.pyx')['FILTER_MAX'] == fields.STRING_MAX
    keys = [(name, n) for name in (engine, publish) for n in name if n.startswith('KEY_')]
    assert len(keys) == 4  # if this fails, add the new constant to this test


def test_enums_have_the_numbers_of_the_protocol() -> None:
    assert [*KEYS] == list(range(1, 0x20))
    assert [int(code) for code in ResponseCode] == list(range(1, 0x16))
    assert [int(kind) for kind in OffsetType] == [1, 2, 3, 4, 5, 0xFFFE, 0xFFFF]


def test_frame_matches_the_one_of_the_tests() -> None:
    assert commands.frame(Key.CREDIT, b'abc', 3) == frame(9, b'abc', 3)
    assert split_frames(commands.frame(5, b'x') * 2) == [(5, 1, b'x')] * 2
