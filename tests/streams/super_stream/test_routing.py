"""The partition that `by_hash` chooses is that of the other clients."""

import random
import string
from collections.abc import Sequence
from typing import Any

import pytest

import rbfly.streams as rbs
from perf.super_stream_wire import hashed
from rbfly.streams._super_stream._routing import hash32

THREE = ('p-0', 'p-1', 'p-2')
# From the tests of the Go client.
VECTORS = {
    'hello1': 'p-1', 'hello2': 'p-0', 'hello3': 'p-1', 'hello4': 'p-2', 'hello5': 'p-0',
    'hello6': 'p-2', 'hello7': 'p-0', 'hello8': 'p-1', 'hello9': 'p-0', 'hello10': 'p-2',
    'hello88': 'p-1',
}  # fmt: skip


def name(message: str, partitions: Sequence[str] = THREE) -> str:
    return rbs.by_hash(lambda body: body)(message, partitions)


@pytest.mark.parametrize(('key', 'partition'), VECTORS.items())
def test_hash_routing_equals_the_shared_table(key: str, partition: str) -> None:
    assert name(key) == partition


def test_known_hash() -> None:
    assert hash32('hello1') == 0x10F9983A


KEYS = [
    '',
    'a',
    'ab',
    'abc',
    'abcd',
    'abcde',
    'ä',
    'Straße',
    '日本語',
    '🐇',
    'a🐇b',
    '\0',
    '\0\0\0\0',
]


@pytest.mark.parametrize('key', KEYS)
def test_hash_equals_an_independent_implementation(key: str) -> None:
    assert hash32(key) == hashed(key.encode())


def test_random_keys() -> None:
    chosen = random.Random(7)
    for size in range(200):
        key = ''.join(chosen.choices(string.ascii_letters + 'äßé日🐇', k=size))
        expected = hashed(key.encode())
        assert hash32(key) == expected
        for count in (1, 2, 3, 8, 1000):
            names = [f'p-{i}' for i in range(count)]
            assert name(key, names) == names[expected % count]


def test_a_partition_that_is_bound_twice_counts_twice() -> None:
    assert [name(key, ('a', 'b', 'a')) for key in ('hello2', 'hello1', 'hello4')] == ['a', 'b', 'a']


@pytest.mark.parametrize('key', [None, 1, b'bytes', ['list']])
def test_key_of_another_type_is_refused(key: object) -> None:
    with pytest.raises(rbs.ArgumentTypeError, match=r'must be str, not \w+: return str\(key\)$'):
        rbs.by_hash(lambda _: key)({}, THREE)  # type: ignore[arg-type,return-value]


def test_key_with_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(rbs.ArgumentError, match='not valid Unicode'):
        name('\ud800')


@pytest.mark.parametrize('by', [rbs.by_hash, rbs.by_key])
def test_key_must_be_a_function(by: object) -> None:
    with pytest.raises(rbs.ArgumentTypeError, match='key must be a function'):
        by('customer')  # type: ignore[operator]


@pytest.mark.parametrize('by', [rbs.by_hash, rbs.by_key])
def test_key_must_not_be_an_async_function(by: object) -> None:
    async def key(message: object) -> str:
        raise AssertionError

    text = r'^key must be a function that returns the key of a message, not an async function$'
    with pytest.raises(rbs.ArgumentTypeError, match=text):
        by(key)  # type: ignore[operator]


@pytest.mark.parametrize('partitions', [[], (), range(0), {}])
def test_hash_routing_without_partitions_is_an_error(partitions: Any) -> None:
    with pytest.raises(rbs.ArgumentError, match='by_hash cannot choose a partition'):
        rbs.by_hash(str)('x', partitions)


def test_hash_routing_counts_partitions_beyond_32_bits() -> None:
    partitions: Any = range(2**32)
    chosen: object = rbs.by_hash(str)('x', partitions)
    assert chosen == hash32('x')
