"""Requests to the byte, responses cut at every length, and the numbers shared with Cython."""

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbfly.error import RbFlyError
from rbfly.protocol import commands
from rbfly.protocol.commands import Broker, Reader, StreamMetadata, Tune
from rbfly.protocol.const import Key, OffsetCode, ResponseCode
from rbfly.streams import Offset
from rbfly.streams.error import ArgumentError, FrameError
from tests.stream_wire import frame, split_frames

PROTOCOL = Path(__file__).resolve().parents[2] / 'src' / 'rbfly' / 'protocol'


def unhex(text: str) -> bytes:
    return bytes.fromhex(re.sub(r'\s+', '', text))


# Key, version, correlation id and body, by the protocol's document; the size is put before it.
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
]


@pytest.mark.parametrize(('command', 'expected'), REQUESTS)
def test_bytes_of_a_request(command: commands.Command[Any], expected: str) -> None:
    data = unhex(expected)
    assert command.encode(7) == struct.pack('>I', len(data)) + data


def test_every_command_is_covered() -> None:
    found = {
        item
        for item in vars(commands).values()
        if isinstance(item, type) and issubclass(item, commands.Command) and hasattr(item, 'key')
    }
    assert {type(command) for command, _ in REQUESTS} == found


@pytest.mark.parametrize('correlation_id', [0, 1, 2**32 - 1])
def test_correlation_ids(correlation_id: int) -> None:
    data = commands.Unsubscribe(9).encode(correlation_id)
    assert data[8:12] == struct.pack('>I', correlation_id)


ONE_WAY: list[tuple[bytes, str]] = [
    (commands.credit(255, 32767), '0009 0001 ff 7fff'),
    (commands.credit(0, 1), '0009 0001 00 0001'),
    (commands.store_offset('r', 'sé', 5), '000a 0001 0001 72 0003 73c3a9 0000000000000005'),
    (commands.store_offset('', 's', 2**64 - 1), '000a 0001 0000 0001 73 ffffffffffffffff'),
    (Tune(2**20, 60).encode(), '0014 0001 00100000 0000003c'),
    (Tune(0, 0).encode(), '0014 0001 00000000 00000000'),
    (commands.HEARTBEAT, '0017 0001'),
    (commands.close_response(1), '8016 0001 00000001 0001'),
]


@pytest.mark.parametrize(('data', 'expected'), ONE_WAY)
def test_bytes_of_a_one_way_frame(data: bytes, expected: str) -> None:
    body = unhex(expected)
    assert data == struct.pack('>I', len(body)) + body


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
def test_references_have_at_most_255_bytes(make: Callable[[str], bytes]) -> None:
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
def test_strings_have_at_most_65534_bytes(make: Callable[[str], bytes]) -> None:
    longest = 'é' * 32767
    assert b'\xff\xfe' + longest.encode() in make(longest)
    for name in (longest + 'x', 'x' * 65535, 'x' * 10**6):
        with pytest.raises(ArgumentError, match='65534 bytes') as caught:
            make(name)
        assert len(str(caught.value)) < 100
    with pytest.raises(ArgumentError, match='Unicode'):
        make('\ud800')


def test_errors_are_of_the_family() -> None:
    assert issubclass(ArgumentError, RbFlyError)
    assert issubclass(ArgumentError, ValueError)
    assert issubclass(FrameError, RbFlyError)


def test_password_is_not_shown() -> None:
    assert 's3cr3t' not in repr(commands.SaslAuthenticate('PLAIN', b'\0u\0s3cr3t'))


# -- responses

LOCAL = Broker('localhost', 5552)
OTHER = Broker('höst', 65535)

# A parser, the bytes behind the code, and what they mean.
RESPONSES: dict[str, tuple[Callable[[bytes], Any], str, Any]] = {
    'peer properties': (
        lambda data: commands.PeerProperties({}).parse(Reader(data)),
        '00000002 0001 61 0002 c3a9 0001 62 0000',
        {'a': 'é', 'b': ''},
    ),
    'mechanisms': (
        lambda data: commands.SaslHandshake().parse(Reader(data)),
        '00000002 0005 504c41494e 0001 41',
        ['PLAIN', 'A'],
    ),
    'versions': (
        lambda data: commands.ExchangeCommandVersions({}).parse(Reader(data)),
        '00000002 0001 0001 0001 0002 0001 0002',
        {1: (1, 1), 2: (1, 2)},
    ),
    'metadata': (
        lambda data: commands.Metadata(()).parse(Reader(data)),
        '00000002 0000 0009 6c6f63616c686f7374 000015b0 0005 0005 68c3b67374 0000ffff'
        '00000003 0001 61 0001 0000 00000002 0005 0000'
        '0001 62 0002 ffff 00000000 0001 63 0001 ffff 00000002 0005 0063',
        {
            'a': StreamMetadata(1, LOCAL, (OTHER, LOCAL)),
            'b': StreamMetadata(2, None, ()),
            'c': StreamMetadata(1, None, (OTHER,)),
        },
    ),
    'sequence': (
        lambda data: commands.QueryPublisherSequence('', '').parse(Reader(data)),
        'ffffffffffffffff',
        2**64 - 1,
    ),
    'offset': (
        lambda data: commands.QueryOffset('', '').parse(Reader(data)),
        '0000000000000102',
        258,
    ),
    'stats': (
        lambda data: commands.StreamStats('').parse(Reader(data)),
        '00000002 0001 61 ffffffffffffffff 0001 62 0000000000000007',
        {'a': -1, 'b': 7},
    ),
    'tune': (Tune.parse, '00100000 0000003c', Tune(2**20, 60)),
    'close': (
        commands.ServerClose.parse,
        '00000001 000d 0004 6f6f7073',
        commands.ServerClose(1, 13, 'oops'),
    ),
    'metadata update': (
        commands.MetadataUpdate.parse,
        '0006 0002 c3a9',
        commands.MetadataUpdate(6, 'é'),
    ),
}


@pytest.mark.parametrize(('parse', 'data', 'expected'), RESPONSES.values(), ids=RESPONSES)
def test_response(parse: Callable[[bytes], Any], data: str, expected: Any) -> None:
    assert parse(unhex(data)) == expected


@pytest.mark.parametrize(('parse', 'data', 'expected'), RESPONSES.values(), ids=RESPONSES)
def test_response_cut_at_every_length(
    parse: Callable[[bytes], Any], data: str, expected: Any
) -> None:
    found = unhex(data)
    for size in range(len(found)):
        with pytest.raises(FrameError):
            parse(found[:size])


@pytest.mark.parametrize(('parse', 'data', 'expected'), RESPONSES.values(), ids=RESPONSES)
def test_response_with_fields_of_a_later_version(
    parse: Callable[[bytes], Any], data: str, expected: Any
) -> None:
    assert parse(unhex(data) + b'later') == expected


@pytest.mark.parametrize('parse', [item[0] for item in RESPONSES.values()], ids=RESPONSES)
@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_response_or_a_frame_error(
    parse: Callable[[bytes], Any], data: bytes
) -> None:
    try:
        parse(data)
    except FrameError:
        pass


def test_response_of_open() -> None:
    data = unhex('00000001 0001 61 0001 62')
    assert commands.Open('/').parse(Reader(data)) == {'a': 'b'}
    assert commands.Open('/').parse(Reader(b'')) == {}  # left out where Open is refused
    for size in range(1, len(data)):
        with pytest.raises(FrameError):
            commands.Open('/').parse(Reader(data[:size]))


def test_plain_responses_hold_nothing() -> None:
    plain = [command for command, _ in REQUESTS if isinstance(command, commands.NoPayload)]
    assert len(plain) > 8
    for command in plain:
        reader = Reader(b'challenge')
        command.parse(reader)
        assert reader.at == 0


def test_count_that_lies() -> None:
    with pytest.raises(FrameError):
        commands.PeerProperties({}).parse(Reader(b'\xff\xff\xff\xff'))


def test_reader() -> None:
    reader = Reader(unhex('01 0203 04050607 08090a0b0c0d0e0f ffffffffffffffff ffff 0001 ff'))
    assert (reader.u8(), reader.u16(), reader.u32()) == (1, 0x203, 0x4050607)
    assert reader.u64() == 0x08090A0B0C0D0E0F
    assert reader.i64() == -1
    assert not reader.at_end
    assert reader.string() == ''  # null
    assert reader.string() == '\ufffd'  # not UTF-8: shown as far as it goes
    assert reader.at_end
    with pytest.raises(FrameError):
        reader.u8()


# -- tuning


@pytest.mark.parametrize(
    ('one', 'other', 'agreed'),
    [
        (Tune(0, 0), Tune(0, 0), Tune(0, 0)),
        (Tune(0, 60), Tune(1048576, 30), Tune(1048576, 30)),
        (Tune(4096, 30), Tune(1048576, 60), Tune(4096, 30)),
        (Tune(4096, 0), Tune(0, 60), Tune(4096, 60)),
    ],
)
def test_agreement(one: Tune, other: Tune, agreed: Tune) -> None:
    assert one.agree(other) == agreed
    assert other.agree(one) == agreed


# -- numbers


def cython_numbers(name: str) -> dict[str, int]:
    """Members of the anonymous `cdef enum` blocks of a Cython file."""
    found: dict[str, int] = {}
    inside = False
    for line in (PROTOCOL / name).read_text().splitlines():
        if line.strip() and not line.startswith(' '):
            inside = line.startswith('cdef enum:')
        elif inside and (member := re.match(r'\s+(\w+) = ([^#]+)', line)):
            found[member[1]] = int(eval(member[2], {'__builtins__': {}}, dict(found)))
    return found


def test_numbers_of_the_cython_modules_are_those_of_const() -> None:
    engine = cython_numbers('_engine.pyx')
    assert engine['KEY_CONFIRM'] == Key.PUBLISH_CONFIRM
    assert engine['KEY_ERROR'] == Key.PUBLISH_ERROR
    assert engine['KEY_DELIVER'] == Key.DELIVER
    publish = cython_numbers('_frames.pyx')
    assert publish['KEY_PUBLISH'] == Key.PUBLISH
    assert cython_numbers('_entry.pyx')['FILTER_MAX'] == commands.STRING_MAX
    keys = [(name, n) for name in (engine, publish) for n in name if n.startswith('KEY_')]
    assert len(keys) == 4  # a new one belongs into this test


def test_numbers_of_the_protocol() -> None:
    assert [int(key) for key in Key] == list(range(1, 0x20))
    assert [int(code) for code in ResponseCode] == list(range(1, 0x16))
    assert [int(code) for code in OffsetCode] == list(range(6))


def test_frame_is_what_the_tests_write() -> None:
    assert commands.frame(Key.CREDIT, b'abc', 3) == frame(9, b'abc', 3)
    assert split_frames(commands.frame(5, b'x') * 2) == [(5, 1, b'x')] * 2
