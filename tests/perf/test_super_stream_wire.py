"""The floors of super streams route and count as the official clients do."""

from dataclasses import replace
from typing import Any

import pytest

from brokers import wire
from perf import super_stream_wire
from perf.clients.base import Target, bodies
from perf.clients.raw_socket_super import Publish, Tasks
from perf.lanes import KINDS

TARGET = Target('', 'orders')


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
    assert super_stream_wire.partition_of(key, 3) == partition


async def test_frames_hold_each_partition_s_messages_in_order() -> None:
    work = Publish(replace(KINDS['super-publish'], frame=50), TARGET)
    await work.prepare(1_000)
    data = bodies(1_000)
    sent: list[list[bytes]] = [[] for _ in range(8)]
    for i, count, frame in work.messages:
        *_, publisher, entries = wire.PUBLISH_HEAD.unpack_from(frame)
        assert (publisher, entries) == (i, count)
        assert 1 <= count <= 50
        pos = wire.PUBLISH_HEAD.size
        for _ in range(count):
            number, size = wire.ENTRY_HEAD.unpack_from(frame, pos)
            assert number == len(sent[i])
            pos += wire.ENTRY_HEAD.size + size
            sent[i].append(frame[pos - 10 : pos])
    assert sent == [
        [x for x in data if super_stream_wire.partition_of(x, 8) == i] for i in range(8)
    ]


async def test_slots_await_their_confirms() -> None:
    data = bodies(60)
    sent: list[bytes] = []
    in_flight: dict[int, int] = {}  # partition by publishing id, which is the slot

    class Broker:
        """Confirms half of the messages in flight at each read, in two frames."""

        rest = b''

        @property
        def socket(self) -> Any:
            return self

        def sendall(self, written: bytes) -> None:
            partitions = []
            pos = 0
            while pos < len(written):
                *_, partition, count = wire.PUBLISH_HEAD.unpack_from(written, pos)
                partitions.append(partition)
                pos += wire.PUBLISH_HEAD.size
                for _ in range(count):
                    slot, size = wire.ENTRY_HEAD.unpack_from(written, pos)
                    pos += wire.ENTRY_HEAD.size + size
                    assert slot not in in_flight
                    in_flight[slot] = partition
                    sent.append(written[pos - 10 : pos])
                    assert super_stream_wire.partition_of(sent[-1], 4) == partition
            assert len(set(partitions)) == len(partitions)

        def receive(self) -> bytes:
            confirms = b''
            for slot in [*in_flight][: (len(in_flight) + 1) // 2]:
                head = wire.CONFIRM.pack(17, wire.PUBLISH_CONFIRM, 1, in_flight.pop(slot), 1)
                confirms += head + slot.to_bytes(8, 'big')
            return confirms

    broker: Any = Broker()
    work = Tasks(replace(KINDS['super-tasks'], partitions=4, tasks=6), TARGET)
    work.connections = [broker]
    await work.prepare(60)
    assert await work.run() == 60
    assert sorted(sent) == data
    for slot in range(6):
        own = data[slot * 10 : slot * 10 + 10]
        assert [body for body in sent if body in own] == own


def test_confirms_are_counted_by_partition() -> None:
    def confirm(publisher: int, count: int) -> bytes:
        head = wire.CONFIRM.pack(9 + 8 * count, wire.PUBLISH_CONFIRM, 1, publisher, count)
        return head + bytes(8 * count)

    data = confirm(3, 2) + confirm(0, 1)
    found = [
        (publisher, count) for publisher, count, _ in super_stream_wire.confirmed(data + data[:20])
    ]
    assert found == [(3, 2), (0, 1)]
    refused = wire.frame(wire.PUBLISH_ERROR, bytes(5) + bytes(8) + bytes((0, 17)))
    with pytest.raises(wire.WireError, match='0x11'):
        [*super_stream_wire.confirmed(refused)]
