"""What a broker answers to raw frames, well formed or not; RabbitMQ and the in-memory one agree.

An expected answer lists what comes back: the code of a response, the name of any other frame, and
'closed' where the connection then ends. Without 'closed', the connection works on: in the handshake
it can be completed, and an open one answers another request. Where RabbitMQ 4.0 differs, its answer
stands behind ' | '; '-' is not tried there, since 4.0 waits for more bytes.
"""

import asyncio
import struct
from collections.abc import Awaitable, Iterable
from typing import Any
from uuid import uuid4

import pytest

from brokers import RabbitMQ
from rbfly.protocol import commands as c
from rbfly.protocol.chunks import PublishEntry, message
from rbfly.protocol.const import RESPONSE, Key
from rbfly.protocol.fields import string
from rbfly.protocol.offset import Offset
from tests.raw import RawClient, connected, opened
from tests.stream_wire import frame, split_frames

UNKNOWN = 'Close 0x0d, closed'
TOO_LARGE = 'Close 0x0e'  # the connection is closed 10 seconds later, whatever follows
CRASH = 'closed'
STEPS: dict[str, c.Command[Any]] = {
    'connected': c.PeerProperties({}),
    'properties': c.SaslHandshake(),
    'authenticating': c.SaslAuthenticate('PLAIN', b'\0guest\0guest'),
    'tuning': c.Open('/'),  # Tune before it
    'tuned': c.Open('/'),
    'open': c.Metadata(()),
}
STATES = [*STEPS]
# Where the handshake goes on behind a frame of it.
LEADS_TO: dict[int, str] = {
    Key.PEER_PROPERTIES: 'properties',
    Key.SASL_HANDSHAKE: 'authenticating',
    Key.SASL_AUTHENTICATE: 'tuning',
    Key.TUNE: 'tuned',
    Key.OPEN: 'open',
}
ID = struct.pack('>I', 7)
NOT_UTF8 = b'\0\2\xff\xfe'
NULL = b'\xff\xff'
ONE = (PublishEntry(1, None, message(b'x')),)
TUNE = c.Tune(2**20, 0).encode()
OPEN = c.Open('/').encode(7)


def shown(item: Any) -> str:
    match item:
        case None:
            return 'closed'
        case c.Response():
            return f'0x{item.code:02x}'
        case c.Close() | c.CreditError():
            return f'{type(item).__name__} 0x{item.code:02x}'
        case c.PublishError() if item.errors:
            return f'PublishError 0x{item.errors[0][1]:02x}'
    return type(item).__name__


async def proceed(client: RawClient, state: str, end: str) -> str:
    """Take the handshake from one state to another; the state reached."""
    while state != end:
        if state == 'tuning':
            client.write(TUNE)
            if end == 'tuned':
                return end
        client.write(STEPS[state].encode(0))
        if shown(await client.receive()) != '0x01':
            break
        if state == 'authenticating':
            assert isinstance(await client.receive(), c.Tune)
        state = 'open' if state == 'tuning' else STATES[STATES.index(state) + 1]
    return state


async def answers(uri: str, state: str, data: bytes, expected: str) -> str:
    """What is answered to some bytes in a state of the connection."""
    found: list[str] = []
    ends = expected.endswith('closed')
    items = expected.split(', ') if expected else []
    async with connected(uri) as client:
        assert await proceed(client, 'connected', state) == state
        client.write(data)
        while found[-1:] != ['closed'] and (ends or len(found) < len(items)):
            item = await client.receive()
            found.append(shown(item))
            if isinstance(item, c.Close):
                client.write(c.close_response(1))
        if not ends and found[-1:] not in (['closed'], [TOO_LARGE]):
            last = split_frames(data)[-1][0] & ~RESPONSE
            reached = 'open' if state == 'open' else LEADS_TO.get(last, state)
            if await proceed(client, reached, 'open') != 'open':
                found.append('no handshake')
            client.write(STEPS['open'].encode(99))
            while not isinstance(item := await client.receive(), c.Response | None):
                found.append(shown(item))
            if item is None or item.correlation_id != 99:
                found.append(shown(item))
    return ', '.join(found)


async def check(uri: str, conversations: Iterable[tuple[str, str, bytes, str]]) -> None:
    """Compare answers to frames, each on a connection of its own.

    :param conversations: name, state, bytes and expected answer of each.
    """
    async with connected(uri) as client:
        properties = await client.value(c.PeerProperties({}))
    version = tuple(map(int, properties['version'].split('.')[:2]))
    wanted = {}
    for name, state, data, expected in conversations:
        new, _, old = expected.partition(' | ')
        wanted[name] = state, data, (old or new) if version < (4, 3) else new
    wanted = {name: item for name, item in wanted.items() if item[2] != '-'}
    room = asyncio.Semaphore(10)

    async def one(*conversation: Any) -> str:
        async with room:
            try:
                return await answers(uri, *conversation)
            except TimeoutError:
                return 'neither answered nor closed'

    found = await asyncio.gather(*(one(*item) for item in wanted.values()))
    assert dict(zip(wanted, found, strict=True)) == {name: item[2] for name, item in wanted.items()}


def frames(stream: str) -> dict[str, bytes]:
    """A well-formed frame of each command."""
    requests: list[c.Command[Any]] = [
        c.DeclarePublisher(0, 'reference', stream),
        c.QueryPublisherSequence('reference', stream),
        c.DeletePublisher(5),
        c.Subscribe(1, stream, Offset.offset(0), 0, {'a': 'b'}),
        c.QueryOffset('reference', stream),
        c.Unsubscribe(5),
        c.Create(stream, {'unknown': 'x'}),
        c.Delete('nothing'),
        c.Metadata(('nothing',)),
        c.PeerProperties({'a': 'b'}),
        c.SaslHandshake(),
        c.SaslAuthenticate('PLAIN', b'\0guest\0guest'),
        c.Open('/'),
        c.Close(),
        c.Route('key', 'nothing'),
        c.Partitions('nothing'),
        c.DeleteSuperStream('nothing'),
        c.ExchangeCommandVersions({Key.DELIVER: (1, 1)}),
        c.StreamStats('nothing'),
        c.ResolveOffsetSpec('nothing', Offset.FIRST, {'a': 'b'}),
        c.ConsumerUpdate(1, 1),
    ]
    one_way: list[c.OneWay] = [
        c.Publish(9, ONE),
        c.PublishV2(9, (PublishEntry(1, b'filter', message(b'x')),)),
        c.Credit(1, 1),
        c.StoreOffset('reference', 'nothing', 1),
        c.Tune(2**20, 0),
        c.Heartbeat(),
        c.Deliver(0, b''),
        c.DeliverV2(0, 0, b''),
        c.PublishConfirm(0, (1,)),
        c.PublishError(0, ((1, 0x12),)),
        c.MetadataUpdate(6, stream),
    ]
    return {type(item).__name__: item.encode(7) for item in requests} | {
        type(item).__name__: item.encode() for item in one_way
    } | {'SubscribeWithoutProperties': frame(
        Key.SUBSCRIBE, ID + b'\1' + string(stream) + struct.pack('>HH', 1, 0)
    )}  # fmt: skip


# Of an open connection: the frame as it is, with a byte more, with four zero bytes more, and with a
# byte less. RabbitMQ matches fixed fields at once; what it parses later, the connection crashes on.
FIXED = (UNKNOWN,) * 3
OPENED: dict[str, tuple[str, str, str, str]] = {
    'DeclarePublisher': ('0x01', *FIXED),
    'QueryPublisherSequence': ('0x01', *FIXED),
    'DeletePublisher': ('0x12', *FIXED),
    'Subscribe': ('0x01', CRASH, '0x01', CRASH),
    'SubscribeWithoutProperties': ('0x01', '0x01', '0x01', CRASH),
    'QueryOffset': ('0x13', *FIXED),
    'Unsubscribe': ('0x04', *FIXED),
    'Create': ('0x05', CRASH, '0x05', CRASH),
    'Delete': ('0x02', *FIXED),
    'Metadata': ('0x01', CRASH, '0x01', CRASH),
    'PeerProperties': (UNKNOWN, CRASH, UNKNOWN, CRASH),
    'SaslHandshake': (UNKNOWN, *FIXED),
    'SaslAuthenticate': ('0x01', CRASH, CRASH, CRASH),
    'Open': (UNKNOWN, *FIXED),
    'Close': ('0x01, closed', *FIXED),
    'Route': ('0x02', *FIXED),
    'Partitions': ('0x02', *FIXED),
    'DeleteSuperStream': ('0x02', *FIXED),
    'ExchangeCommandVersions': ('0x01', CRASH, CRASH, CRASH),
    'StreamStats': ('0x02', *FIXED),
    'ResolveOffsetSpec': (
        f'0x02 | {UNKNOWN}', f'{CRASH} | {UNKNOWN}', f'0x02 | {UNKNOWN}', f'{CRASH} | {UNKNOWN}',
    ),
    'ConsumerUpdate': (UNKNOWN, *FIXED),
    'Publish': ('PublishError 0x12', CRASH, CRASH, CRASH),
    'PublishV2': ('PublishError 0x12', CRASH, CRASH, CRASH),
    'Credit': ('CreditError 0x04', *FIXED),
    'StoreOffset': ('', *FIXED),
    'Tune': (UNKNOWN, *FIXED),
    'Heartbeat': ('', *FIXED),
    'Deliver': (UNKNOWN, *FIXED),
    'DeliverV2': (UNKNOWN, *FIXED),
    'PublishConfirm': (UNKNOWN, CRASH, CRASH, CRASH),
    'PublishError': (UNKNOWN, CRASH, CRASH, CRASH),
    'MetadataUpdate': (UNKNOWN, *FIXED),
}  # fmt: skip


@pytest.mark.parametrize('name', OPENED)
async def test_frame_and_what_is_like_it(broker: RabbitMQ, stream: str, name: str) -> None:
    data, expected = frames(stream)[name], OPENED[name]
    key, version = struct.unpack_from('>HH', data, 4)
    body = data[8:]
    altered = {
        'as it is': (data, expected[0]),
        'a byte more': (frame(key, body + b'\xff', version), expected[1]),
        'zero bytes more': (frame(key, body + bytes(4), version), expected[2]),
        'version 0': (frame(key, body, 0), UNKNOWN),
        'version 9': (frame(key, body, 9), UNKNOWN),
    }
    if body:
        altered['a byte less'] = frame(key, body[:-1], version), expected[3]
        altered['no body'] = frame(key, b'', version), UNKNOWN
        altered['a byte of its body'] = frame(key, body[:1], version), UNKNOWN
    if len(body) > 4:
        altered['four bytes of its body'] = frame(key, body[:4], version), UNKNOWN
    if name in ('Deliver', 'DeliverV2'):  # its chunk may have any length
        altered.pop('a byte less', None)
    await check(broker.uri, [(key, 'open', *item) for key, item in altered.items()])


# In the handshake, each other frame closes the connection at once.
EARLY: dict[str, dict[str, str]] = {
    'connected': {
        'PeerProperties': '0x01',
        'SaslHandshake': '0x01, closed',
        'SaslAuthenticate': '0x01, closed',
        'Heartbeat': ' | closed',
    },
    'properties': {
        'PeerProperties': '0x01 | 0x01, closed',
        'SaslHandshake': '0x01',
        'SaslAuthenticate': '0x01, closed',
        'Heartbeat': ' | closed',
    },
    'authenticating': {
        'PeerProperties': '0x01, closed',
        'SaslHandshake': '0x01 | 0x01, closed',
        'SaslAuthenticate': '0x01, Tune',
        'Heartbeat': ' | closed',
    },
    'tuning': {
        'PeerProperties': '0x01, closed',
        'SaslHandshake': '0x01, closed',
        'SaslAuthenticate': '0x01, closed',
        'Tune': '',
        'Open': '0x01',
        'Heartbeat': ' | closed',
    },
    'tuned': {
        'PeerProperties': '0x01, closed',
        'SaslHandshake': '0x01, closed',
        'SaslAuthenticate': '0x01, closed',
        'Tune': '',
        'Open': '0x01',
        'Heartbeat': '',
    },
}


@pytest.mark.parametrize('state', EARLY)
async def test_each_frame_in_the_handshake(broker: RabbitMQ, state: str) -> None:
    given = frames('nothing')
    conversations = [
        (name, state, data, EARLY[state].get(name, CRASH)) for name, data in given.items()
    ]
    for name in ('PeerProperties', 'SaslHandshake', 'SaslAuthenticate', 'Tune', 'Open'):
        key, body = int.from_bytes(given[name][4:6]), given[name][8:]
        altered = {
            'a byte more': frame(key, body + b'\xff'),
            'a byte less': frame(key, body[:-1]) if body else b'',
            'no body': frame(key),
            'version 2': frame(key, body, 2),
        }
        conversations += [
            (f'{name}, {what}', state, data, CRASH) for what, data in altered.items() if data
        ]
    await check(broker.uri, conversations)


def request(key: int, body: bytes) -> bytes:
    return frame(key, ID + body)


def properties(size: int) -> bytes:
    """A PeerProperties frame of so many bytes."""
    return c.PeerProperties({'a': 'x' * (size - 17)}).encode(7)


HANDSHAKE: dict[str, tuple[str, bytes, str]] = {
    'unknown key': ('connected', frame(0x7000), CRASH),
    'no bytes': ('connected', bytes(4), CRASH),
    'AMQP 1.0': ('connected', b'AMQP\0\0\x09\x01', CRASH),
    'response': ('connected', frame(0x8011, ID + b'\0\1' + bytes(4)), CRASH),
    'properties not UTF-8': (
        'connected', request(Key.PEER_PROPERTIES, b'\0\0\0\1' + NOT_UTF8 * 2), '0x01',
    ),
    'a null property': (
        'connected', request(Key.PEER_PROPERTIES, b'\0\0\0\1' + NULL + string('a')), CRASH,
    ),
    'properties, too few': ('connected', request(Key.PEER_PROPERTIES, b'\0\0\0\x09'), '0x01'),
    '8,192 bytes': ('connected', properties(8192), '0x01'),
    'more bytes': ('connected', properties(8193), f'{CRASH} | 0x01'),
    'two steps at once': (
        'connected', c.PeerProperties({}).encode(1) + c.SaslHandshake().encode(2),
        '0x01, 0x01, closed',
    ),
    'Close behind a step': (
        'connected', c.PeerProperties({}).encode(1) + c.Close().encode(2), '0x01, closed',
    ),
    'ANONYMOUS': ('authenticating', c.SaslAuthenticate('ANONYMOUS', b'x').encode(7), '0x01, Tune'),
    'ANONYMOUS, null': (
        'authenticating', request(Key.SASL_AUTHENTICATE, string('ANONYMOUS') + NULL * 2),
        '0x01, Tune',
    ),
    'no such mechanism': (
        'authenticating', c.SaslAuthenticate('plain', b'').encode(7), '0x07, closed',
    ),
    'EXTERNAL without TLS': (
        'authenticating', c.SaslAuthenticate('EXTERNAL', b'').encode(7), '0x07, closed',
    ),
    'a mechanism not UTF-8': (
        'authenticating', request(Key.SASL_AUTHENTICATE, NOT_UTF8 + bytes(4)), '0x07, closed',
    ),
    'no SASL data': (
        'authenticating', request(Key.SASL_AUTHENTICATE, string('PLAIN')), CRASH,
    ),
    'PLAIN, null': (
        'authenticating', request(Key.SASL_AUTHENTICATE, string('PLAIN') + NULL * 2),
        '0x09, closed',
    ),
    'PLAIN, no user': (
        'authenticating', c.SaslAuthenticate('PLAIN', b'guest').encode(7), '0x09, closed',
    ),
    'PLAIN for another user': (
        'authenticating', c.SaslAuthenticate('PLAIN', b'x\0guest\0guest').encode(7), '0x09, closed',
    ),
    'PLAIN, more': (
        'authenticating', c.SaslAuthenticate('PLAIN', b'\0guest\0guest\0').encode(7),
        '0x09, closed',
    ),
    'wrong password': (
        'authenticating', c.SaslAuthenticate('PLAIN', b'\0guest\0x').encode(7), '0x08, closed',
    ),
    'unknown user': (
        'authenticating', c.SaslAuthenticate('PLAIN', b'\0\xff\0x').encode(7), '0x08, closed',
    ),
    'authenticated and tuned at once': (
        'authenticating', STEPS['authenticating'].encode(7) + TUNE, '0x01, closed',
    ),
    'authenticated, tuned and opened at once': (
        'authenticating', STEPS['authenticating'].encode(7) + TUNE + OPEN, '0x01, 0x01, closed',
    ),
    'Tune as a response': ('tuning', frame(RESPONSE | Key.TUNE, TUNE[8:]), ''),
    'Tune and Open': ('tuning', TUNE + OPEN, '0x01'),
    'Tune twice and Open': ('tuning', TUNE * 2 + OPEN, '0x01'),
    'unknown virtual host': ('tuned', c.Open('nothing').encode(7), '0x0c, closed'),
    'a virtual host not UTF-8': ('tuning', request(Key.OPEN, NOT_UTF8), '0x0c, closed'),
    'a null virtual host': ('tuned', request(Key.OPEN, NULL), CRASH),
}  # fmt: skip


@pytest.mark.parametrize('state', ['connected', 'authenticating', 'tuning', 'tuned'])
async def test_handshake(broker: RabbitMQ, state: str) -> None:
    conversations = [(name, *item) for name, item in HANDSHAKE.items() if item[0] == state]
    await check(broker.uri, conversations)


def size(number: int) -> bytes:
    """A frame of so many bytes, as far as its size."""
    return struct.pack('>I', number) + b'junk' * 10


def heartbeat(number: int) -> bytes:
    """A Heartbeat of so many bytes, which is no frame unless they are 4."""
    return frame(Key.HEARTBEAT, bytes(number - 4))


def frames_in_an_open_connection(stream: str) -> dict[str, tuple[bytes, str]]:
    name, long = string(stream), string('x' * 256)
    declare = c.DeclarePublisher(0, '', stream).encode(1)
    subscribe = c.Subscribe(0, stream, Offset.NEXT, 0, {}).encode(1)
    sasl = c.SaslAuthenticate
    end = struct.pack('>HH', 3, 0)  # of a Subscribe: NEXT, no credit
    return {
        # sizes and keys
        'size 0': (bytes(4), f'{UNKNOWN} | closed'),
        'size 1': (b'\0\0\0\1\0', f'{UNKNOWN} | closed'),
        'size 2': (b'\0\0\0\2\0\x17', UNKNOWN),
        'size 3': (b'\0\0\0\3\0\x17\0', UNKNOWN),
        'largest size': (heartbeat(2**20), UNKNOWN),
        'larger size': (heartbeat(2**20 + 1), f'{TOO_LARGE} | {UNKNOWN}'),
        'size 2**31': (size(2**31), f'{TOO_LARGE} | -'),
        'size 2**32 - 1': (size(2**32 - 1), f'{TOO_LARGE} | -'),
        'AMQP 1.0': (b'AMQP\0\0\x09\x01', f'{TOO_LARGE} | -'),
        'key 0': (frame(0), UNKNOWN),
        'key 0x20': (frame(0x20), UNKNOWN),
        'key 0x7fff': (frame(0x7FFF), UNKNOWN),
        'response of key 0': (frame(0x8000), UNKNOWN),
        'response of key 0x20': (frame(0x8020), UNKNOWN),
        # responses
        'response to nothing': (request(0x8001, b'\0\1'), UNKNOWN),
        'response that is cut': (request(0x8001, b''), f'{UNKNOWN} | closed'),
        'response to no Metadata': (request(0x800F, bytes(8)), UNKNOWN),
        'response to no StreamStats': (request(0x801C, b'\0\1' + bytes(4)), UNKNOWN),
        'response to no Heartbeat': (frame(0x8017), UNKNOWN),
        'response to no Credit': (c.CreditError(4, 0).encode(), UNKNOWN),
        'response to no Close': (c.close_response(1), UNKNOWN),
        'response to no ConsumerUpdate': (request(0x801A, b'\0\1\0\0'), ''),
        'ConsumerUpdate, no offset': (request(0x801A, b'\0\1'), UNKNOWN),
        'ConsumerUpdate, no such offset': (request(0x801A, b'\0\1\0\x09'), CRASH),
        'Tune as a response': (frame(0x8014, bytes(8)), UNKNOWN),
        # the end
        'Close with a reason': (c.Close(5, 'reason').encode(7), '0x01, closed'),
        'Close not UTF-8': (request(Key.CLOSE, b'\0\1' + NOT_UTF8), '0x01, closed'),
        # authentication of an open connection
        'the same user': (sasl('PLAIN', b'\0guest\0guest').encode(7) * 2, '0x01, 0x01'),
        'wrong password': (sasl('PLAIN', b'\0guest\0x').encode(7), '0x08, closed | 0x08'),
        'unknown user': (sasl('PLAIN', b'\0nobody\0x').encode(7), '0x08, closed | 0x08'),
        'no user': (sasl('PLAIN', b'guest').encode(7), '0x09, closed | 0x09'),
        'no SASL data': (request(Key.SASL_AUTHENTICATE, string('PLAIN')), CRASH),
        'empty SASL data': (sasl('PLAIN', b'').encode(7), '0x09, closed | 0x09'),
        'other mechanism': (sasl('ANONYMOUS', b'').encode(7), '0x14, closed | 0x14'),
        'no such mechanism': (sasl('NONE', b'').encode(7), '0x14, closed | 0x14'),
        # versions of commands
        'no versions': (c.ExchangeCommandVersions({}).encode(7), '0x01'),
        'versions twice': (
            c.ExchangeCommandVersions({Key.DELIVER: (1, 2)}).encode(7) * 2, '0x01, 0x01',
        ),
        'no such version': (c.ExchangeCommandVersions({Key.DELIVER: (9, 1)}).encode(7), '0x01'),
        'version of an unknown key': (
            c.ExchangeCommandVersions({0x7F: (1, 1)}).encode(7), CRASH,
        ),
        'version of key 0': (c.ExchangeCommandVersions({0: (1, 1)}).encode(7), CRASH),
        'version of a response': (c.ExchangeCommandVersions({0x8001: (1, 1)}).encode(7), CRASH),
        'version of a new command': (
            c.ExchangeCommandVersions({Key.RESOLVE_OFFSET_SPEC: (1, 1)}).encode(7),
            '0x01 | closed',
        ),
        # what is wrong first
        'publisher id in use': (declare * 2, '0x01, 0x11'),
        'publisher id in use, unknown stream': (
            declare + c.DeclarePublisher(0, '', 'nothing').encode(2), '0x01, 0x11',
        ),
        'long publisher name, unknown stream': (
            request(Key.DECLARE_PUBLISHER, b'\0' + long + string('nothing')), '0x11',
        ),
        'publisher name in use': (
            c.DeclarePublisher(0, 'p', stream).encode(1)
            + c.DeclarePublisher(1, 'p', stream).encode(2)
            + c.DeclarePublisher(1, 'p', 'nothing').encode(3),
            '0x01, 0x11, 0x02',
        ),
        'subscription id in use': (subscribe * 2, '0x01, 0x03'),
        'subscription id in use, unknown stream': (
            subscribe + c.Subscribe(0, 'nothing', Offset.NEXT, 0, {}).encode(2), '0x01, 0x02',
        ),
        'subscription id in use, long name': (
            subscribe + c.Subscribe(0, stream, Offset.NEXT, 0, {'name': 'x' * 256}).encode(2),
            '0x01, 0x11',
        ),
        'long name, unknown stream': (
            c.Subscribe(0, 'nothing', Offset.NEXT, 0, {'name': 'x' * 256}).encode(1), '0x11',
        ),
        'single active consumer without a name': (
            c.Subscribe(0, stream, Offset.NEXT, 0, {'single-active-consumer': 'true'}).encode(1),
            '0x11',
        ),
        'long references': (
            request(Key.QUERY_PUBLISHER_SEQUENCE, long + name)
            + request(Key.QUERY_OFFSET, long + name)
            + frame(Key.STORE_OFFSET, long + name + bytes(8)),
            '0x01, 0x13',
        ),
        'empty names': (
            c.Delete('').encode(1)
            + c.StreamStats('').encode(2)
            + c.DeclarePublisher(0, '', '').encode(3)
            + c.Subscribe(0, '', Offset.FIRST, 0, {}).encode(4)
            + c.QueryOffset('', '').encode(5),
            '0x02, 0x02, 0x02, 0x02, 0x02',
        ),
        'super streams of a stream': (
            c.Route('key', stream).encode(1)
            + c.Partitions(stream).encode(2)
            + c.DeleteSuperStream(stream).encode(3),
            '0x02, 0x02, 0x02',
        ),
        # messages
        'no messages': (declare + c.Publish(0, ()).encode(), '0x01'),
        'no messages, unknown publisher': (c.Publish(7, ()).encode(), 'PublishError'),
        'a message that is cut': (
            declare + frame(Key.PUBLISH, b'\0\0\0\0\1' + struct.pack('>QI', 1, 100)),
            '0x01, closed',
        ),
        'a message that is cut, unknown publisher': (
            frame(Key.PUBLISH, b'\0\0\0\0\1' + struct.pack('>QI', 1, 100)), CRASH,
        ),
        'a sub-entry with filter values': (
            frame(
                Key.PUBLISH,
                b'\0\0\0\0\1' + bytes(8) + NULL
                + struct.pack('>BHII', 0x80, 1, 5, 5) + message(b'x'),
                2,
            ),
            CRASH,
        ),
        'no filter value, unknown publisher': (
            c.PublishV2(7, ONE).encode(), 'PublishError 0x12 | closed',
        ),
        # where to start
        'offset of type 0': (
            request(Key.SUBSCRIBE, b'\0' + name + b'\0\0\0\1'), CRASH,
        ),
        'offset of type 9': (
            request(Key.SUBSCRIBE, b'\0' + name + b'\0\x09\0\1'), CRASH,
        ),
        'offset that is cut': (
            request(Key.SUBSCRIBE, b'\0' + name + b'\0\4' + bytes(4)), CRASH,
        ),
        'FIRST with an offset': (
            request(Key.SUBSCRIBE, b'\0' + name + b'\0\1' + bytes(8) + b'\0\1' + bytes(4)), CRASH,
        ),
        'resolve without properties': (
            request(Key.RESOLVE_OFFSET_SPEC, name + b'\0\1'), f'0x01 | {UNKNOWN}',
        ),
        'resolve type 9': (
            request(Key.RESOLVE_OFFSET_SPEC, name + b'\0\x09'), f'{CRASH} | {UNKNOWN}',
        ),
        # strings
        'stream to be created, not UTF-8': (request(Key.CREATE, NOT_UTF8 + bytes(4)), CRASH),
        'stream to be created, null': (request(Key.CREATE, NULL + bytes(4)), UNKNOWN),
        'argument not UTF-8': (
            request(Key.CREATE, name + b'\0\0\0\1' + NOT_UTF8 + string('x')), '0x05',
        ),
        'value not UTF-8': (
            request(Key.CREATE, name + b'\0\0\0\1' + string('unknown') + NOT_UTF8), '0x05',
        ),
        'locator not UTF-8': (
            request(Key.CREATE, name + b'\0\0\0\1' + string('queue-leader-locator') + NOT_UTF8),
            '0x11',
        ),
        'argument null': (request(Key.CREATE, name + b'\0\0\0\1' + NULL + string('x')), CRASH),
        'argument twice': (
            request(
                Key.CREATE,
                name + b'\0\0\0\2' + (string('max-age') + string('1h')) * 2,
            ),
            '0x11',
        ),
        'more arguments than counted': (
            request(Key.CREATE, name + bytes(4) + string('max-age') + string('1h')), '0x11',
        ),
        'fewer arguments than counted': (request(Key.CREATE, name + b'\0\0\0\x09'), '0x05'),
        'more streams than counted': (request(Key.METADATA, bytes(4) + string('x')), '0x01'),
        'a stream twice': (c.Metadata(('nothing', 'nothing')).encode(7), '0x01'),
        'Metadata null': (request(Key.METADATA, b'\0\0\0\1' + NULL), CRASH),
        'stream not UTF-8': (
            request(Key.DELETE, NOT_UTF8)
            + request(Key.DECLARE_PUBLISHER, b'\0' + string('') + NOT_UTF8)
            + request(Key.QUERY_PUBLISHER_SEQUENCE, string('r') + NOT_UTF8)
            + request(Key.SUBSCRIBE, b'\0' + NOT_UTF8 + end)
            + request(Key.QUERY_OFFSET, string('r') + NOT_UTF8)
            + request(Key.STREAM_STATS, NOT_UTF8)
            + frame(Key.STORE_OFFSET, string('r') + NOT_UTF8 + bytes(8))
            + request(Key.ROUTE, NOT_UTF8 * 2)
            + request(Key.PARTITIONS, NOT_UTF8),
            ', '.join(['0x02'] * 8),
        ),
        'reference not UTF-8': (
            request(Key.DECLARE_PUBLISHER, b'\0' + NOT_UTF8 + name)
            + request(Key.QUERY_PUBLISHER_SEQUENCE, NOT_UTF8 + name)
            + request(Key.QUERY_OFFSET, NOT_UTF8 + name),
            '0x01, 0x01, 0x13',
        ),
        'reference null': (request(Key.DECLARE_PUBLISHER, b'\0' + NULL + name), UNKNOWN),
        'reference of an offset null': (frame(Key.STORE_OFFSET, NULL + name + bytes(8)), UNKNOWN),
        'property not UTF-8': (
            request(Key.SUBSCRIBE, b'\0' + name + end + b'\0\0\0\1' + NOT_UTF8 * 2), '0x01',
        ),
        'filter not UTF-8': (
            request(
                Key.SUBSCRIBE, b'\0' + name + end + b'\0\0\0\1' + string('filter.0') + NOT_UTF8
            ),
            '0x01',
        ),
        'property null': (
            request(Key.SUBSCRIBE, b'\0' + name + end + b'\0\0\0\1' + string('a') + NULL), CRASH,
        ),
    }  # fmt: skip


async def test_open_connection(broker: RabbitMQ, stream: str) -> None:
    given = frames_in_an_open_connection(stream)
    await check(broker.uri, [(name, 'open', *item) for name, item in given.items()])


CREATED = {
    'max-age': {
        '7D': '0x01', '01h': '0x01', '0s': '0x01', '1y': '0x01', '1 h': '0x01', '1': '0x01',
        '1.5h': '0x01', '1h\n': '0x01',
    },
    'max-length-bytes': {
        '01000': '0x01', '+1000': '0x01', '0': '0x01', '-5': '0x01', '9' * 30: '0x01',
        '': CRASH, '1.0': CRASH, '1GB': CRASH, ' 1': CRASH, '1_000': CRASH, '0x10': CRASH,
        '\u0661': CRASH,
    },
    'stream-max-segment-size-bytes': {
        '+1000': '0x01', '0': '0x01', '3000000000': '0x01', '3000000001': '0x11', '': CRASH,
    },
    'initial-cluster-size': {
        '01': '0x01', '99999999999': '0x01', '0': '0x11', '-1': '0x11', 'x': CRASH,
    },
    'queue-leader-locator': {
        'client-local': '0x01', 'balanced': '0x01', 'random': '0x01', 'least-leaders': '0x01',
        'min-masters': '0x01', 'nearest': '0x11', '': '0x11', 'BALANCED': '0x11',
    },
    'stream-filter-size-bytes': {
        '16': '0x01', '+255': '0x01', '15': '0x11', '256': '0x11', '-1': '0x11', 'x': CRASH,
    },
    'unknown': {'x': '0x01'},
}  # fmt: skip
# An argument of a stream, another value of it (None for none), and whether that is the same stream.
SAME = '0x05'
OTHER = '0x11'
CREATED_AGAIN = [
    ('max-age', '1h', '1h', SAME),
    ('max-age', '1h', '60m', f'{SAME} | {OTHER}'),
    ('max-age', '1h', '01h', f'{SAME} | {OTHER}'),
    ('max-age', '1h', '2h', OTHER),
    ('max-age', '1h', None, OTHER),
    ('max-age', '0s', '0s', SAME),
    ('max-age', '0s', '0h', OTHER),
    ('max-age', '0s', None, OTHER),
    ('max-age', '1y', None, OTHER),
    ('max-age', '1y', '1Y', OTHER),
    ('max-length-bytes', '1000', '+1000', SAME),
    ('max-length-bytes', '0', '-0', SAME),
    ('max-length-bytes', '0', None, OTHER),
    ('max-length-bytes', '-5', '-1', OTHER),
    ('max-length-bytes', '-5', None, OTHER),
    ('stream-max-segment-size-bytes', '0', None, OTHER),
    ('stream-max-segment-size-bytes', '1000', '01000', SAME),
    ('initial-cluster-size', '3', None, OTHER),
    ('initial-cluster-size', '1', '+1', SAME),
    ('queue-leader-locator', 'client-local', 'client-local', SAME),
    ('queue-leader-locator', 'client-local', None, OTHER),
    ('queue-leader-locator', 'balanced', 'random', OTHER),
    ('stream-filter-size-bytes', '16', None, f'{OTHER} | {SAME}'),
    ('stream-filter-size-bytes', '20', '+20', SAME),
    ('stream-filter-size-bytes', '20', None, f'{OTHER} | {SAME}'),
    ('unknown', 'x', None, SAME),
]


def given(argument: str, value: str | None) -> dict[str, str]:
    return {} if value is None else {argument: value}


@pytest.mark.parametrize('argument', CREATED)
async def test_values_of_an_argument(broker: RabbitMQ, argument: str) -> None:
    names = {value: f'test-{uuid4()}' for value in CREATED[argument]}
    conversations = [
        (value, 'open', c.Create(names[value], {argument: value}).encode(7), expected)
        for value, expected in CREATED[argument].items()
    ]
    await delete_behind(broker.uri, check(broker.uri, conversations), names.values())


async def test_streams_that_are_created_again(broker: RabbitMQ) -> None:
    conversations, names = [], []
    for argument, first, second, expected in CREATED_AGAIN:
        for one, other in ((first, second), (second, first)):
            names.append(f'test-{uuid4()}')
            data = c.Create(names[-1], given(argument, one)).encode(1)
            data += c.Create(names[-1], given(argument, other)).encode(2)
            codes = ' | '.join(f'0x01, {code}' for code in expected.split(' | '))
            conversations.append((f'{argument}: {one!r}, {other!r}', 'open', data, codes))
    await delete_behind(broker.uri, check(broker.uri, conversations), names)


async def delete_behind(uri: str, checking: Awaitable[None], names: Iterable[str]) -> None:
    try:
        await checking
    finally:
        async with opened(uri) as client:
            for name in names:
                await client.ask(c.Delete(name))
