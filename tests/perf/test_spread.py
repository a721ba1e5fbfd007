"""The floors of super streams route and count as the official clients do."""

import pytest

from perf import spread, wire
from perf.lanes.base import bodies


@pytest.mark.parametrize(
    ('key', 'partition'),
    [
        (b'hello0', 2),
        (b'hello1', 1),
        (b'hello2', 0),
        (b'hello3', 1),
        (b'hello4', 2),
        (b'hello5', 0),
        (b'hello6', 2),
        (b'hello7', 0),
        (b'hello8', 1),
        (b'hello9', 0),
        (b'hello10', 2),
    ],
)
def test_partitions_of_keys(key: bytes, partition: int) -> None:
    """As in the tests of the Java and Go clients, for three partitions."""
    assert spread.partition_of(key, 3) == partition


def test_frames_hold_each_partition_s_messages_in_order() -> None:
    data = bodies(1_000)
    sent: list[list[bytes]] = [[] for _ in range(8)]
    for i, count, frame in spread.spread(data, 8, 50):
        *_, publisher, entries = wire.PUBLISH_HEAD.unpack_from(frame)
        assert (publisher, entries) == (i, count)
        assert 1 <= count <= 50
        pos = wire.PUBLISH_HEAD.size
        for _ in range(count):
            number, size = wire.ENTRY_HEAD.unpack_from(frame, pos)
            assert number == len(sent[i])
            pos += wire.ENTRY_HEAD.size + size
            sent[i].append(frame[pos - 10 : pos])
    assert sent == [[x for x in data if spread.partition_of(x, 8) == i] for i in range(8)]


def test_waves_end_frames() -> None:
    counts = [count for _, count, _ in spread.spread(bodies(100), 2, 1_000, wave=10)]
    assert sum(counts) == 100
    assert max(counts) <= 10


def test_confirms_are_counted_by_partition() -> None:
    def confirm(publisher: int, count: int) -> bytes:
        head = wire.CONFIRM.pack(9 + 8 * count, wire.PUBLISH_CONFIRM, 1, publisher, count)
        return head + bytes(8 * count)

    data = confirm(3, 2) + confirm(0, 1)
    found = [(publisher, count) for publisher, count, _ in spread.confirmed(data + data[:20])]
    assert found == [(3, 2), (0, 1)]
    refused = wire.frame(wire.PUBLISH_ERROR, bytes(5) + bytes(8) + bytes((0, 17)))
    with pytest.raises(wire.WireError, match='0x11'):
        [*spread.confirmed(refused)]
