"""RabbitMQ and the in-memory broker give the same answers to frames in an open connection."""

import struct

import pytest

from brokers import RabbitMQ
from rbfly.protocol import commands as c
from rbfly.protocol import message_frames
from rbfly.protocol.chunks import message
from rbfly.protocol.const import Key
from rbfly.protocol.fields import string
from rbfly.protocol.offset import Offset
from tests.conversations import (
    CRASH,
    NOT_UTF8,
    NULL,
    ONE,
    TOO_LARGE,
    UNKNOWN,
    check_conversations,
    request_frame,
    valid_frames,
)
from tests.stream_wire import frame

# Answers in an open connection to a valid frame, and to the same frame with an extra byte, four
# extra zero bytes, and a missing byte. RabbitMQ matches fixed fields at once; if it fails to
# parse the rest, the connection crashes.
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
    'CreateSuperStream': ('0x05', CRASH, '0x05', CRASH),
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
async def test_valid_and_malformed_frames(broker: RabbitMQ, stream: str, name: str) -> None:
    data, expected = valid_frames(stream)[name], OPENED[name]
    key, version = struct.unpack_from('>HH', data, 4)
    body = data[8:]
    altered = {
        'valid': (data, expected[0]),
        'extra byte': (frame(key, body + b'\xff', version), expected[1]),
        'extra zero bytes': (frame(key, body + bytes(4), version), expected[2]),
        'version 0': (frame(key, body, 0), UNKNOWN),
        'version 9': (frame(key, body, 9), UNKNOWN),
    }
    if body:
        altered['missing byte'] = frame(key, body[:-1], version), expected[3]
        altered['no body'] = frame(key, b'', version), UNKNOWN
        altered['first byte of the body'] = frame(key, body[:1], version), UNKNOWN
    if len(body) > 4:
        altered['first four bytes of the body'] = frame(key, body[:4], version), UNKNOWN
    if name in ('Deliver', 'DeliverV2'):  # its chunk may have any length
        altered.pop('missing byte', None)
    await check_conversations(broker.uri, [(key, 'open', *item) for key, item in altered.items()])


def size(number: int) -> bytes:
    """The start of a frame that announces a size."""
    return struct.pack('>I', number) + b'junk' * 10


def heartbeat(number: int) -> bytes:
    """A Heartbeat of a given size; only 4 bytes make a valid one."""
    return frame(Key.HEARTBEAT, bytes(number - 4))


def frames_in_an_open_connection(stream: str) -> dict[str, tuple[bytes, str]]:
    name, long = string(stream), string('x' * 256)
    declare = c.DeclarePublisher(0, '', stream).encode(1)
    subscribe = c.Subscribe(0, stream, Offset.NEXT, 0, {}).encode(1)
    sasl = c.SaslAuthenticate
    end = struct.pack('>HH', 3, 0)  # end of a Subscribe: NEXT, no credit
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
        'response to no request': (request_frame(0x8001, b'\0\1'), UNKNOWN),
        'truncated response': (request_frame(0x8001, b''), f'{UNKNOWN} | closed'),
        'unsolicited Metadata response': (request_frame(0x800F, bytes(8)), UNKNOWN),
        'unsolicited StreamStats response': (request_frame(0x801C, b'\0\1' + bytes(4)), UNKNOWN),
        'response to a Heartbeat': (frame(0x8017), UNKNOWN),
        'response to a Credit': (c.CreditError(4, 0).encode(), UNKNOWN),
        'unsolicited Close response': (c.Close.respond(1), UNKNOWN),
        'unsolicited ConsumerUpdate response': (request_frame(0x801A, b'\0\1\0\0'), ''),
        'ConsumerUpdate without offset': (request_frame(0x801A, b'\0\1'), UNKNOWN),
        'ConsumerUpdate with an unknown offset type': (request_frame(0x801A, b'\0\1\0\x09'), CRASH),
        'Tune as a response': (frame(0x8014, bytes(8)), UNKNOWN),
        # closing
        'Close with a reason': (c.Close(5, 'reason').encode(7), '0x01, closed'),
        'Close not UTF-8': (request_frame(Key.CLOSE, b'\0\1' + NOT_UTF8), '0x01, closed'),
        # authentication of an open connection
        'same user again': (sasl('PLAIN', b'\0guest\0guest').encode(7) * 2, '0x01, 0x01'),
        'wrong password': (sasl('PLAIN', b'\0guest\0x').encode(7), '0x08, closed | 0x08'),
        'unknown user': (sasl('PLAIN', b'\0nobody\0x').encode(7), '0x08, closed | 0x08'),
        'no user': (sasl('PLAIN', b'guest').encode(7), '0x09, closed | 0x09'),
        'no SASL data': (request_frame(Key.SASL_AUTHENTICATE, string('PLAIN')), CRASH),
        'empty SASL data': (sasl('PLAIN', b'').encode(7), '0x09, closed | 0x09'),
        'different mechanism': (sasl('ANONYMOUS', b'').encode(7), '0x14, closed | 0x14'),
        'unknown mechanism': (sasl('NONE', b'').encode(7), '0x14, closed | 0x14'),
        # versions of commands
        'no versions': (c.ExchangeCommandVersions({}).encode(7), '0x01'),
        'versions twice': (
            c.ExchangeCommandVersions({Key.DELIVER: (1, 2)}).encode(7) * 2, '0x01, 0x01',
        ),
        'unknown version': (c.ExchangeCommandVersions({Key.DELIVER: (9, 1)}).encode(7), '0x01'),
        'version of an unknown key': (
            c.ExchangeCommandVersions({0x7F: (1, 1)}).encode(7), CRASH,
        ),
        'version of key 0': (c.ExchangeCommandVersions({0: (1, 1)}).encode(7), CRASH),
        'version of a response': (c.ExchangeCommandVersions({0x8001: (1, 1)}).encode(7), CRASH),
        'version of a new command': (
            c.ExchangeCommandVersions({Key.RESOLVE_OFFSET_SPEC: (1, 1)}).encode(7),
            '0x01 | closed',
        ),
        # the first of several problems
        'publisher id in use': (declare * 2, '0x01, 0x11'),
        'publisher id in use, unknown stream': (
            declare + c.DeclarePublisher(0, '', 'nothing').encode(2), '0x01, 0x11',
        ),
        'long publisher name, unknown stream': (
            request_frame(Key.DECLARE_PUBLISHER, b'\0' + long + string('nothing')), '0x11',
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
            request_frame(Key.QUERY_PUBLISHER_SEQUENCE, long + name)
            + request_frame(Key.QUERY_OFFSET, long + name)
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
        'no messages': (declare + message_frames.Publish(0, ()).encode(), '0x01'),
        'no messages, unknown publisher': (message_frames.Publish(7, ()).encode(), 'PublishError'),
        'truncated message': (
            declare + frame(Key.PUBLISH, b'\0\0\0\0\1' + struct.pack('>QI', 1, 100)),
            '0x01, closed',
        ),
        'truncated message, unknown publisher': (
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
            message_frames.PublishV2(7, ONE).encode(), 'PublishError 0x12 | closed',
        ),
        # offsets
        'offset of type 0': (
            request_frame(Key.SUBSCRIBE, b'\0' + name + b'\0\0\0\1'), CRASH,
        ),
        'offset of type 9': (
            request_frame(Key.SUBSCRIBE, b'\0' + name + b'\0\x09\0\1'), CRASH,
        ),
        'offset that is cut': (
            request_frame(Key.SUBSCRIBE, b'\0' + name + b'\0\4' + bytes(4)), CRASH,
        ),
        'FIRST with an offset': (
            request_frame(Key.SUBSCRIBE, b'\0' + name + b'\0\1' + bytes(8) + b'\0\1' + bytes(4)),
            CRASH,
        ),
        'resolve without properties': (
            request_frame(Key.RESOLVE_OFFSET_SPEC, name + b'\0\1'), f'0x01 | {UNKNOWN}',
        ),
        'resolve type 9': (
            request_frame(Key.RESOLVE_OFFSET_SPEC, name + b'\0\x09'), f'{CRASH} | {UNKNOWN}',
        ),
        # strings
        'stream to be created, not UTF-8': (request_frame(Key.CREATE, NOT_UTF8 + bytes(4)), CRASH),
        'stream to be created, null': (request_frame(Key.CREATE, NULL + bytes(4)), UNKNOWN),
        'argument not UTF-8': (
            request_frame(Key.CREATE, name + b'\0\0\0\1' + NOT_UTF8 + string('x')), '0x05',
        ),
        'value not UTF-8': (
            request_frame(Key.CREATE, name + b'\0\0\0\1' + string('unknown') + NOT_UTF8), '0x05',
        ),
        'locator not UTF-8': (
            request_frame(
                Key.CREATE, name + b'\0\0\0\1' + string('queue-leader-locator') + NOT_UTF8
            ),
            '0x11',
        ),
        'argument null': (
            request_frame(Key.CREATE, name + b'\0\0\0\1' + NULL + string('x')),
            CRASH,
        ),
        'argument twice': (
            request_frame(
                Key.CREATE,
                name + b'\0\0\0\2' + (string('max-age') + string('1h')) * 2,
            ),
            '0x11',
        ),
        'more arguments than counted': (
            request_frame(Key.CREATE, name + bytes(4) + string('max-age') + string('1h')), '0x11',
        ),
        'fewer arguments than counted': (request_frame(Key.CREATE, name + b'\0\0\0\x09'), '0x05'),
        'more streams than counted': (request_frame(Key.METADATA, bytes(4) + string('x')), '0x01'),
        'a stream twice': (c.Metadata(('nothing', 'nothing')).encode(7), '0x01'),
        'Metadata null': (request_frame(Key.METADATA, b'\0\0\0\1' + NULL), CRASH),
        'stream not UTF-8': (
            request_frame(Key.DELETE, NOT_UTF8)
            + request_frame(Key.DECLARE_PUBLISHER, b'\0' + string('') + NOT_UTF8)
            + request_frame(Key.QUERY_PUBLISHER_SEQUENCE, string('r') + NOT_UTF8)
            + request_frame(Key.SUBSCRIBE, b'\0' + NOT_UTF8 + end)
            + request_frame(Key.QUERY_OFFSET, string('r') + NOT_UTF8)
            + request_frame(Key.STREAM_STATS, NOT_UTF8)
            + frame(Key.STORE_OFFSET, string('r') + NOT_UTF8 + bytes(8))
            + request_frame(Key.ROUTE, NOT_UTF8 * 2)
            + request_frame(Key.PARTITIONS, NOT_UTF8),
            ', '.join(['0x02'] * 8),
        ),
        'reference not UTF-8': (
            request_frame(Key.DECLARE_PUBLISHER, b'\0' + NOT_UTF8 + name)
            + request_frame(Key.QUERY_PUBLISHER_SEQUENCE, NOT_UTF8 + name)
            + request_frame(Key.QUERY_OFFSET, NOT_UTF8 + name),
            '0x01, 0x01, 0x13',
        ),
        'reference null': (request_frame(Key.DECLARE_PUBLISHER, b'\0' + NULL + name), UNKNOWN),
        'reference of an offset null': (frame(Key.STORE_OFFSET, NULL + name + bytes(8)), UNKNOWN),
        'property not UTF-8': (
            request_frame(Key.SUBSCRIBE, b'\0' + name + end + b'\0\0\0\1' + NOT_UTF8 * 2), '0x01',
        ),
        'filter not UTF-8': (
            request_frame(
                Key.SUBSCRIBE, b'\0' + name + end + b'\0\0\0\1' + string('filter.0') + NOT_UTF8
            ),
            '0x01',
        ),
        'property null': (
            request_frame(Key.SUBSCRIBE, b'\0' + name + end + b'\0\0\0\1' + string('a') + NULL),
            CRASH,
        ),
    }  # fmt: skip


async def test_open_connection(broker: RabbitMQ, stream: str) -> None:
    given = frames_in_an_open_connection(stream)
    await check_conversations(broker.uri, [(name, 'open', *item) for name, item in given.items()])
