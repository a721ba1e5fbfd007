"""RabbitMQ and the in-memory broker give the same answers to frames in the handshake."""

import pytest

from brokers import RabbitMQ
from rbfly.protocol import commands as c
from rbfly.protocol.const import RESPONSE, Key
from rbfly.protocol.fields import string
from tests.conversations import (
    CRASH,
    ID,
    NOT_UTF8,
    NULL,
    OPEN,
    STEPS,
    TUNE,
    check_conversations,
    request_frame,
    valid_frames,
)
from tests.stream_wire import frame

# Any other frame in the handshake closes the connection at once.
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
        'Tune': ' | -',
        'Open': '0x01',
        'Heartbeat': ' | -',
    },
}


@pytest.mark.parametrize('state', EARLY)
async def test_each_frame_in_the_handshake(broker: RabbitMQ, state: str) -> None:
    given = valid_frames('nothing')
    conversations = [
        (name, state, data, EARLY[state].get(name, CRASH)) for name, data in given.items()
    ]
    for name in ('PeerProperties', 'SaslHandshake', 'SaslAuthenticate', 'Tune', 'Open'):
        key, body = int.from_bytes(given[name][4:6]), given[name][8:]
        altered = {
            'extra byte': frame(key, body + b'\xff'),
            'missing byte': frame(key, body[:-1]) if body else b'',
            'no body': frame(key),
            'version 2': frame(key, body, 2),
        }
        conversations += [
            (f'{name}, {change}', state, data, CRASH) for change, data in altered.items() if data
        ]
    await check_conversations(broker.uri, conversations)


def properties(size: int) -> bytes:
    """A PeerProperties frame of a given size."""
    return c.PeerProperties({'a': 'x' * (size - 17)}).encode(7)


HANDSHAKE: dict[str, tuple[str, bytes, str]] = {
    'unknown key': ('connected', frame(0x7000), CRASH),
    'no bytes': ('connected', bytes(4), CRASH),
    'AMQP 1.0': ('connected', b'AMQP\0\0\x09\x01', CRASH),
    'response': ('connected', frame(0x8011, ID + b'\0\1' + bytes(4)), CRASH),
    'properties not UTF-8': (
        'connected', request_frame(Key.PEER_PROPERTIES, b'\0\0\0\1' + NOT_UTF8 * 2), '0x01',
    ),
    'a null property': (
        'connected', request_frame(Key.PEER_PROPERTIES, b'\0\0\0\1' + NULL + string('a')), CRASH,
    ),
    'missing properties': ('connected', request_frame(Key.PEER_PROPERTIES, b'\0\0\0\x09'), '0x01'),
    '8,192 bytes': ('connected', properties(8192), '0x01'),
    '8,193 bytes': ('connected', properties(8193), f'{CRASH} | 0x01'),
    'two steps at once': (
        'connected', c.PeerProperties({}).encode(1) + c.SaslHandshake().encode(2),
        '0x01, 0x01, closed',
    ),
    'Close after a step': (
        'connected', c.PeerProperties({}).encode(1) + c.Close().encode(2), '0x01, closed',
    ),
    'ANONYMOUS': ('authenticating', c.SaslAuthenticate('ANONYMOUS', b'x').encode(7), '0x01, Tune'),
    'ANONYMOUS, null': (
        'authenticating', request_frame(Key.SASL_AUTHENTICATE, string('ANONYMOUS') + NULL * 2),
        '0x01, Tune',
    ),
    'unknown mechanism': (
        'authenticating', c.SaslAuthenticate('plain', b'').encode(7), '0x07, closed',
    ),
    'EXTERNAL without TLS': (
        'authenticating', c.SaslAuthenticate('EXTERNAL', b'').encode(7), '0x07, closed',
    ),
    'a mechanism not UTF-8': (
        'authenticating', request_frame(Key.SASL_AUTHENTICATE, NOT_UTF8 + bytes(4)), '0x07, closed',
    ),
    'no SASL data': (
        'authenticating', request_frame(Key.SASL_AUTHENTICATE, string('PLAIN')), CRASH,
    ),
    'PLAIN, null': (
        'authenticating', request_frame(Key.SASL_AUTHENTICATE, string('PLAIN') + NULL * 2),
        '0x09, closed',
    ),
    'PLAIN without user': (
        'authenticating', c.SaslAuthenticate('PLAIN', b'guest').encode(7), '0x09, closed',
    ),
    'PLAIN for another user': (
        'authenticating', c.SaslAuthenticate('PLAIN', b'x\0guest\0guest').encode(7), '0x09, closed',
    ),
    'PLAIN with extra bytes': (
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
    'a virtual host not UTF-8': ('tuning', request_frame(Key.OPEN, NOT_UTF8), '0x0c, closed'),
    'a null virtual host': ('tuned', request_frame(Key.OPEN, NULL), CRASH),
}  # fmt: skip


@pytest.mark.parametrize('state', ['connected', 'authenticating', 'tuning', 'tuned'])
async def test_handshake(broker: RabbitMQ, state: str) -> None:
    conversations = [(name, *item) for name, item in HANDSHAKE.items() if item[0] == state]
    await check_conversations(broker.uri, conversations)
