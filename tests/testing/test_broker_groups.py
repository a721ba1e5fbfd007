"""Groups (single active consumers): the in-memory broker and RabbitMQ notify and deliver alike."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from brokers import RabbitMQ
from rbfly.protocol.commands import Create, Delete, QueryOffset, StoreOffset, Subscribe
from rbfly.protocol.offset import Offset
from rbfly.testing import StreamBroker
from tests.raw_group import GONE, OFF, ON, REFUSED, FilledStream, filled_stream, properties

# -- conversations on a stream


async def only_the_first_member_is_active(filled: FilledStream) -> None:
    a, b = await filled.peers(2)
    await a.join(credit=20)
    assert await a.read_events() == [ON]
    await b.join()
    await b.leave()
    await b.join()
    assert await b.read_events() == []
    await a.answer()
    assert await a.read_events() == [0, 1, 2, 3, 4, 5]
    await filled.publish(6)
    assert await a.next() == 6
    assert await b.read_events() == []


async def the_answer_decides_where_delivery_starts(filled: FilledStream) -> None:
    for subscribed, answered, numbers in (
        (Offset.offset(4), None, [4, 5]),
        (Offset.NEXT, Offset.offset(3), [3, 4, 5]),
        (Offset.FIRST, Offset.LAST, [5]),
        (Offset.FIRST, Offset.NEXT, []),
    ):
        a = await filled.peer()
        await a.join(subscribed)
        assert await a.next() == ON
        await a.answer(answered)
        assert await a.read_events() == numbers
        await a.leave()


async def next_is_resolved_when_the_client_answers(filled: FilledStream) -> None:
    a = await filled.peer()
    await a.join(Offset.NEXT)
    assert await a.next() == ON
    await filled.publish(6)
    await a.answer()
    await filled.publish(7)
    assert await a.next() == 7


async def an_answer_with_another_code_is_an_answer(filled: FilledStream) -> None:
    a = await filled.peer()
    await a.join()
    assert await a.next() == ON
    await a.answer(Offset.offset(4), code=0x11)
    assert await a.read_events() == [4, 5]


async def other_answers_are_ignored(filled: FilledStream) -> None:
    a = await filled.peer()
    await a.join()
    assert await a.next() == ON
    for number in (1, 7, 2**32 - 1):
        await a.answer(number=number)
    assert await a.read_events() == []
    await a.answer(number=0)
    assert await a.read_events() == [0, 1, 2, 3, 4, 5]
    await a.answer(number=0)
    assert await a.read_events() == []


async def the_next_member_follows(filled: FilledStream) -> None:
    a, b, c = await filled.peers(3)
    for peer in (a, b, c):
        await peer.join()
    assert await a.next() == ON
    await a.leave()  # without an answer
    assert await b.read_events() == [ON]
    await a.answer()
    await a.join()
    assert await a.read_events() == []
    b.client.writer.close()  # without an answer
    assert await c.next() == ON
    await c.answer(Offset.offset(4))
    assert await c.read_events() == [4, 5]
    c.client.writer.close()
    assert await a.next() == ON


async def standby_members_leave_unnoticed(filled: FilledStream) -> None:
    a, b, c = await filled.peers(3)
    for peer in (a, b, c):
        await peer.join()
    await b.leave()
    assert await a.read_events() == [ON]
    assert await c.read_events() == []
    await a.leave()
    assert await c.read_events() == [ON]


async def credit_of_an_inactive_member(filled: FilledStream) -> None:
    a, b = await filled.peers(2)
    await a.join(credit=2)
    await b.join(credit=2)
    for peer, events in ((a, [ON, REFUSED]), (b, [REFUSED])):
        await peer.credit(1)
        assert await peer.read_events() == events
    await a.answer()
    assert await a.read_events() == [0, 1, 2]
    await a.leave()
    assert await b.next() == ON
    await b.answer()
    assert await b.read_events() == [0, 1, 2]


async def members_of_one_connection(filled: FilledStream) -> None:
    a, b = await filled.peers(2)
    await a.join(id=1)
    await a.join(id=2)
    await b.join()
    assert await a.read_events() == [(1, ON)]
    await a.answer()
    assert await a.read_events() == [(1, number) for number in range(6)]
    await a.leave(1)
    assert await a.read_events() == [(2, ON)]
    await a.join(id=1)
    a.client.writer.close()
    assert await b.next() == ON


async def an_answer_belongs_to_the_id_of_the_subscription(filled: FilledStream) -> None:
    a = await filled.peer()
    await a.join(credit=1)
    assert await a.next() == ON
    await a.leave()
    await a.join(credit=1)
    assert await a.next() == ON
    await a.answer(Offset.offset(3), number=0)
    assert await a.read_events() == [3]


async def names_of_groups(filled: FilledStream) -> None:
    a, b = await filled.peers(2)
    ask, stream, group = a.client.code, filled.stream, properties()
    del group['name']
    assert await ask(Subscribe(0, 'nothing', Offset.FIRST, 1, group)) == 0x02
    assert await ask(Subscribe(0, stream, Offset.FIRST, 1, group)) == 0x11
    assert await ask(Subscribe(0, stream, Offset.FIRST, 1, properties('x' * 256))) == 0x11
    for number, name in enumerate(('', 'x' * 255), 1):
        await a.client.value(Subscribe(number, stream, Offset.FIRST, 1, properties(name)))
        assert await a.next() == (number, ON)
    assert await ask(Subscribe(1, stream, Offset.FIRST, 1, group)) == 0x03
    plain = properties() | {'single-active-consumer': 'True'}
    for peer in (a, b):
        await peer.client.value(Subscribe(0, stream, Offset.LAST, 1, plain))
        assert await peer.next() == 5


async def an_unknown_super_stream_is_none(filled: FilledStream) -> None:
    peers = await filled.peers(2)
    for peer in peers:
        peer.properties = properties(super_stream='nothing')
        await peer.join()
    assert [await peer.read_events() for peer in peers] == [[ON], []]
    await peers[0].leave()
    assert await peers[1].read_events() == [ON]


async def offsets_of_another_connection(filled: FilledStream) -> None:
    a, b = await filled.peers(2)
    await a.join()
    assert await a.next() == ON
    b.client.send(StoreOffset('group', filled.stream, 3))
    for peer in (b, a):
        assert await peer.client.value(QueryOffset('group', filled.stream)) == 3


async def deleting_the_stream(filled: FilledStream) -> None:
    a, b, c = await filled.peers(3)
    for peer in (a, b):
        await peer.join()
    assert await a.next() == ON
    await a.answer()
    assert await a.read_events() == [0, 1, 2, 3, 4, 5]
    await c.client.value(Delete(filled.stream))
    await c.client.value(Create(filled.stream, {}))
    await filled.publish(0)
    for peer in (a, b):
        assert await peer.next() == GONE
        assert await peer.read_events() == []
    await b.join()
    assert await b.read_events() == [ON]


# -- conversations on a partition of a super stream


async def partition_0_stays_with_the_first_member(filled: FilledStream) -> None:
    a, b, c = await filled.peers(3)
    for peer in (a, b, c):
        await peer.join()
    assert [await peer.read_events() for peer in (a, b, c)] == [[ON], [], []]
    await a.leave()
    assert [await peer.read_events() for peer in (b, c)] == [[ON], []]


async def partition_1_moves(filled: FilledStream) -> None:
    a, b, c = await filled.peers(3)
    await a.join(credit=2)
    assert await a.next() == ON
    await a.answer()
    assert await a.read_events() == [0, 1]
    await b.join(credit=2)
    assert [await peer.read_events() for peer in (a, b)] == [[OFF], []]
    await a.credit(2)
    await filled.publish(6)
    assert await a.read_events() == [REFUSED]  # delivery ends before the answer
    await a.answer(Offset.FIRST)
    assert [await peer.read_events() for peer in (a, b)] == [[], [ON]]
    await b.answer(Offset.offset(2))
    assert await b.read_events() == [2, 3]
    await c.join()
    assert [await peer.read_events() for peer in (a, b, c)] == [[], [], []]
    await a.leave()
    assert [await peer.read_events() for peer in (b, c)] == [[OFF], []]
    await b.answer()
    assert await c.read_events() == [ON]
    await c.leave()
    assert await b.read_events() == [ON]


async def partition_1_keeps_the_credit_of_its_members(filled: FilledStream) -> None:
    a, b = await filled.peers(2)
    await a.join(Offset.offset(3), credit=6)
    assert await a.next() == ON
    await a.answer()
    assert await a.read_events() == [3, 4, 5]
    await b.join()
    assert await a.next() == OFF
    await a.answer()
    assert await b.next() == ON
    await b.leave()
    assert await a.next() == ON
    await a.answer()
    assert await a.read_events() == []  # half of the initial credit is not enough for a burst
    await a.credit(1)
    assert await a.read_events() == [3, 4, 5]


async def partition_1_moves_back(filled: FilledStream) -> None:
    """The new member leaves before the old one has answered."""
    a, b = await filled.peers(2)
    await a.join()
    assert await a.next() == ON
    await b.join()
    assert await a.next() == OFF
    await a.answer(number=0)  # late, for the activation
    assert [await peer.read_events() for peer in (a, b)] == [[], []]
    await b.leave()
    assert await a.read_events() == []
    await a.answer()
    assert await a.read_events() == [ON]
    await a.answer(Offset.offset(4))
    assert await a.read_events() == [4, 5]


async def partition_1_is_left_without_an_answer(filled: FilledStream) -> None:
    for closed in (False, True):
        a, b = await filled.peers(2)
        await a.join()
        assert await a.next() == ON
        await b.join()
        assert await a.next() == OFF
        if closed:
            a.client.writer.close()
            assert await b.next() == ON
        else:
            await a.leave()
            assert await b.read_events() == [ON]
            await a.answer()
        await b.answer()
        assert await b.read_events() == [0, 1, 2, 3, 4, 5]
        await b.leave()


async def partition_1_is_deactivated_several_times(filled: FilledStream) -> None:
    """Since 4.1.2, RabbitMQ repeats a deactivation without an answer when the group changes."""
    a, b, c = await filled.peers(3)
    again = [OFF] if filled.version != '4.0' else []
    await a.join()
    assert await a.next() == ON
    await b.join()
    assert await a.next() == OFF
    await c.join()
    assert [await peer.read_events() for peer in (a, b, c)] == [again, [], []]
    await a.answer(number=a.updates[1])
    assert [await peer.read_events() for peer in (a, b, c)] == [[], [ON], []]
    await a.answer()
    await c.leave()
    assert [await peer.read_events() for peer in (a, b, c)] == [[], [], []]
    await b.answer(Offset.LAST)
    assert await b.read_events() == [5]


async def partition_1_is_active_at_a_late_answer(filled: FilledStream) -> None:
    a, b, c = await filled.peers(3)
    for peer in (a, b, c):
        await peer.join(credit=2)
    for peer in (c, b):
        await peer.leave()
    updates = [ON, OFF, OFF, OFF] if filled.version != '4.0' else [ON, OFF]
    assert await a.read_events() == updates
    await a.answer(number=a.updates[1])
    assert await a.read_events() == [ON]
    await a.answer(Offset.offset(3), number=a.updates[2])  # on 4.0, of the activation
    assert await a.read_events() == [3, 4]


async def partition_1_keeps_its_number(filled: FilledStream) -> None:
    a, b = await filled.peers(2)
    await a.join()
    await a.client.value(Delete(f'{filled.properties["super-stream"]}-0'))
    await b.join()
    assert [await peer.read_events() for peer in (a, b)] == [[ON, OFF], []]


async def partition_2_is_left_without_an_answer(filled: FilledStream) -> None:
    """RabbitMQ chooses twice: with the member that leaves, and without it."""
    a, b, c = await filled.peers(3)
    await a.join()
    assert await a.next() == ON
    for peer in (b, c):
        await peer.join()
    assert await a.read_events() == [OFF]
    await a.leave()
    assert [await peer.read_events() for peer in (b, c)] == [[], [ON, OFF]]
    await c.answer()
    assert [await peer.read_events() for peer in (b, c)] == [[ON], []]


CONVERSATIONS: dict[str, Callable[[FilledStream], Awaitable[None]]] = {
    item.__name__: item
    for item in (
        only_the_first_member_is_active, the_answer_decides_where_delivery_starts,
        next_is_resolved_when_the_client_answers, an_answer_with_another_code_is_an_answer,
        other_answers_are_ignored, the_next_member_follows, standby_members_leave_unnoticed,
        credit_of_an_inactive_member, members_of_one_connection,
        an_answer_belongs_to_the_id_of_the_subscription, names_of_groups,
        an_unknown_super_stream_is_none, offsets_of_another_connection, deleting_the_stream,
        partition_0_stays_with_the_first_member, partition_1_moves,
        partition_1_keeps_the_credit_of_its_members, partition_1_moves_back,
        partition_1_is_left_without_an_answer, partition_1_is_deactivated_several_times,
        partition_1_is_active_at_a_late_answer, partition_1_keeps_its_number,
        partition_2_is_left_without_an_answer,
    )
}  # fmt: skip


async def run_conversation(uri: str, name: str) -> None:
    partition = int(name.split('_')[1]) if name.startswith('partition') else None
    async with filled_stream(uri, partition) as found:
        await CONVERSATIONS[name](found)


@pytest.mark.parametrize('version', ['4.0', '4.3'])
@pytest.mark.parametrize('name', CONVERSATIONS)
async def test_in_memory(name: str, version: Any) -> None:
    async with StreamBroker(version=version) as memory:
        await run_conversation(memory.uri, name)


@pytest.mark.parametrize('name', CONVERSATIONS)
async def test_on_rabbitmq(broker: RabbitMQ, name: str) -> None:
    await run_conversation(broker.uri, name)
