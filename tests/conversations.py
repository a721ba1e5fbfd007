"""Conversations in raw frames with a broker, and the expected answers.

An expected answer lists the code of a response, the name of any other frame, and 'closed' if the
connection ends. Otherwise the connection still works: the client can complete the handshake, or an
open connection answers another request. If RabbitMQ 4.0 differs, its answer follows ' | '; a '-'
skips the conversation there: 4.0 would wait for more bytes, or its answer depends on whether frames
arrive together (it closes at Open if a frame between Tune and Open arrived alone).
"""

import asyncio
import struct
from collections.abc import Iterable
from typing import Any

from rbfly.protocol import commands as c
from rbfly.protocol import message_frames
from rbfly.protocol.chunks import PublishEntry, message
from rbfly.protocol.const import RESPONSE, Key
from rbfly.protocol.fields import string
from rbfly.protocol.offset import Offset
from tests.raw_client import ACCEPT_TIMEOUT, TIMEOUT, RawClient, connect
from tests.stream_wire import frame, split_frames

UNKNOWN = 'Close 0x0d, closed'
TOO_LARGE = 'Close 0x0e'  # the broker closes the connection 10 seconds later
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
# State of the handshake after each of its frames.
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


def describe(item: Any) -> str:
    match item:
        case None:
            return 'closed'
        case c.Response():
            return f'0x{item.code:02x}'
        case c.Close() | c.CreditError():
            return f'{type(item).__name__} 0x{item.code:02x}'
        case message_frames.PublishError() if item.errors:
            return f'PublishError 0x{item.errors[0][1]:02x}'
    return type(item).__name__


async def continue_handshake(client: RawClient, state: str, end: str) -> str:
    """Continue the handshake from one state to another; return the state reached."""
    while state != end:
        if state == 'tuning':
            client.write(TUNE)
            if end == 'tuned':
                return end
        client.write(STEPS[state].encode(0))
        timeout = ACCEPT_TIMEOUT if state == 'connected' else TIMEOUT
        if describe(await client.receive(timeout)) != '0x01':
            break
        if state == 'authenticating':
            assert isinstance(await client.receive(), c.Tune)
        state = 'open' if state == 'tuning' else STATES[STATES.index(state) + 1]
    return state


async def converse(uri: str, state: str, data: bytes, expected: str) -> str:
    """Send bytes in a state of the connection, and return the answers."""
    found: list[str] = []
    ends = expected.endswith('closed')
    items = expected.split(', ') if expected else []
    async with connect(uri) as client:
        assert await continue_handshake(client, 'connected', state) == state
        client.write(data)
        while found[-1:] != ['closed'] and (ends or len(found) < len(items)):
            item = await client.receive()
            found.append(describe(item))
            if isinstance(item, c.Close):
                client.write(c.Close.respond(1))
        if not ends and found[-1:] not in (['closed'], [TOO_LARGE]):
            last = split_frames(data)[-1][0] & ~RESPONSE
            reached = 'open' if state == 'open' else LEADS_TO.get(last, state)
            if await continue_handshake(client, reached, 'open') != 'open':
                found.append('no handshake')
            client.write(STEPS['open'].encode(99))
            while not isinstance(item := await client.receive(), c.Response | None):
                found.append(describe(item))
            if item is None or item.correlation_id != 99:
                found.append(describe(item))
    return ', '.join(found)


async def check_conversations(
    uri: str, conversations: Iterable[tuple[str, str, bytes, str]]
) -> None:
    """Compare actual and expected answers, each conversation on its own connection.

    :param conversations: name, state, bytes and expected answer of each conversation.
    """
    async with connect(uri) as client:
        properties = await client.value(c.PeerProperties({}))
    version = tuple(map(int, properties['version'].split('.')[:2]))
    wanted = {}
    for name, state, data, expected in conversations:
        new, _, old = expected.partition(' | ')
        wanted[name] = state, data, (old or new) if version < (4, 3) else new
    wanted = {name: item for name, item in wanted.items() if item[2] != '-'}
    limit = asyncio.Semaphore(10)

    async def one(*conversation: Any) -> str:
        async with limit:
            try:
                return await converse(uri, *conversation)
            except TimeoutError:
                return 'neither answered nor closed'

    found = await asyncio.gather(*(one(*item) for item in wanted.values()))
    differing = [
        f'{name}: {answer}, not {item[2]}'
        for (name, item), answer in zip(wanted.items(), found, strict=True)
        if answer != item[2]
    ]
    assert not differing, '; '.join(differing)


def valid_frames(stream: str) -> dict[str, bytes]:
    """A valid frame of each command."""
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
        c.CreateSuperStream('nothing', (stream,), ('0',), {'a': 'b'}),
        c.DeleteSuperStream('nothing'),
        c.ExchangeCommandVersions({Key.DELIVER: (1, 1)}),
        c.StreamStats('nothing'),
        c.ResolveOffsetSpec('nothing', Offset.FIRST, {'a': 'b'}),
        c.ConsumerUpdate(1, 1),
    ]
    one_way: list[c.OneWay] = [
        message_frames.Publish(9, ONE),
        message_frames.PublishV2(9, (PublishEntry(1, b'filter', message(b'x')),)),
        c.Credit(1, 1),
        c.StoreOffset('reference', 'nothing', 1),
        c.Tune(2**20, 0),
        c.Heartbeat(),
        message_frames.Deliver(0, b''),
        message_frames.DeliverV2(0, 0, b''),
        message_frames.PublishConfirm(0, (1,)),
        message_frames.PublishError(0, ((1, 0x12),)),
        c.MetadataUpdate(6, stream),
    ]
    return {type(item).__name__: item.encode(7) for item in requests} | {
        type(item).__name__: item.encode() for item in one_way
    } | {'SubscribeWithoutProperties': frame(
        Key.SUBSCRIBE, ID + b'\1' + string(stream) + struct.pack('>HH', 1, 0)
    )}  # fmt: skip


def request_frame(key: int, body: bytes) -> bytes:
    return frame(key, ID + body)
