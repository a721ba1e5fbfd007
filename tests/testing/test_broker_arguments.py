"""RabbitMQ and the in-memory broker give the same answers to the arguments of a stream."""

from collections.abc import Awaitable, Iterable
from uuid import uuid4

import pytest

from brokers import RabbitMQ
from rbfly.protocol import commands as c
from tests.conversations import CRASH, check_conversations
from tests.raw_client import connect_and_open

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
# An argument, two of its values (None for absent), and whether both describe the same stream.
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


def arguments_of(argument: str, value: str | None) -> dict[str, str]:
    return {} if value is None else {argument: value}


@pytest.mark.parametrize('argument', CREATED)
async def test_argument_values(broker: RabbitMQ, argument: str) -> None:
    names = {value: f'test-{uuid4()}' for value in CREATED[argument]}
    conversations = [
        (value, 'open', c.Create(names[value], {argument: value}).encode(7), expected)
        for value, expected in CREATED[argument].items()
    ]
    await check_and_delete(
        broker.uri, check_conversations(broker.uri, conversations), names.values()
    )


async def test_creating_a_stream_again(broker: RabbitMQ) -> None:
    conversations, names = [], []
    for argument, first, second, expected in CREATED_AGAIN:
        for one, other in ((first, second), (second, first)):
            names.append(f'test-{uuid4()}')
            data = c.Create(names[-1], arguments_of(argument, one)).encode(1)
            data += c.Create(names[-1], arguments_of(argument, other)).encode(2)
            codes = ' | '.join(f'0x01, {code}' for code in expected.split(' | '))
            conversations.append((f'{argument}: {one!r}, {other!r}', 'open', data, codes))
    await check_and_delete(broker.uri, check_conversations(broker.uri, conversations), names)


async def check_and_delete(uri: str, checking: Awaitable[None], names: Iterable[str]) -> None:
    try:
        await checking
    finally:
        async with connect_and_open(uri) as client:
            for name in names:
                await client.ask(c.Delete(name))
