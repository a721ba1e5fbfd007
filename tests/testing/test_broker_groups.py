"""Groups (single active consumers): the in-memory broker and RabbitMQ notify and deliver alike."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from brokers import RabbitMQ
from rbfly.protocol.commands import Create, Delete, QueryOffset, StoreOffset, Subscribe
from rbfly.protocol.offset import Offset
from rbfly.testing import StreamBroker
from tests.groups import GONE, OFF, ON, REFUSED, Scene, properties, scene

# -- conversations on a stream


async def only_the_first_member_is_active(scene: Scene) -> None:
    a, b = await scene.peers(2)
    await a.join(credit=20)
    assert await a.heard() == [ON]
    await b.join()
    await b.leave()
    await b.join()
    assert await b.heard() == []
    await a.answer()
    assert await a.heard() == [0, 1, 2, 3, 4, 5]
    await scene.publish(6)
    assert await a.next() == 6
    assert await b.heard() == []


async def the_answer_decides_where_delivery_starts(scene: Scene) -> None:
    for subscribed, answered, numbers in (
        (Offset.offset(4), None, [4, 5]),
        (Offset.NEXT, Offset.offset(3), [3, 4, 5]),
        (Offset.FIRST, Offset.LAST, [5]),
        (Offset.FIRST, Offset.NEXT, []),
    ):
        a = await scene.peer()
        await a.join(subscribed)
        assert await a.next() == ON
        await a.answer(answered)
        assert await a.heard() == numbers
        await a.leave()


async def next_is_resolved_when_the_client_answers(scene: Scene) -> None:
    a = await scene.peer()
    await a.join(Offset.NEXT)
    assert await a.next() == ON
    await scene.publish(6)
    await a.answer()
    await scene.publish(7)
    assert await a.next() == 7


async def an_answer_with_another_code_is_an_answer(scene: Scene) -> None:
    a = await scene.peer()
    await a.join()
    assert await a.next() == ON
    await a.answer(Offset.offset(4), code=0x11)
    assert await a.heard() == [4, 5]


async def other_answers_are_ignored(scene: Scene) -> None:
    a = await scene.peer()
    await a.join()
    assert await a.next() == ON
    for number in (1, 7, 2**32 - 1):
        await a.answer(number=number)
    assert await a.heard() == []
    await a.answer(number=0)
    assert await a.heard() == [0, 1, 2, 3, 4, 5]
    await a.answer(number=0)
    assert await a.heard() == []


async def the_next_member_follows(scene: Scene) -> None:
    a, b, c = await scene.peers(3)
    for peer in (a, b, c):
        await peer.join()
    assert await a.next() == ON
    await a.leave()  # without an answer
    assert await b.heard() == [ON]
    await a.answer()
    await a.join()
    assert await a.heard() == []
    b.client.writer.close()  # without an answer
    assert await c.next() == ON
    await c.answer(Offset.offset(4))
    assert await c.heard() == [4, 5]
    c.client.writer.close()
    assert await a.next() == ON


async def standby_members_leave_unnoticed(scene: Scene) -> None:
    a, b, c = await scene.peers(3)
    for peer in (a, b, c):
        await peer.join()
    await b.leave()
    assert await a.heard() == [ON]
    assert await c.heard() == []
    await a.leave()
    assert await c.heard() == [ON]


async def credit_of_an_inactive_member(scene: Scene) -> None:
    a, b = await scene.peers(2)
    await a.join(credit=2)
    await b.join(credit=2)
    for peer, events in ((a, [ON, REFUSED]), (b, [REFUSED])):
        await peer.credit(1)
        assert await peer.heard() == events
    await a.answer()
    assert await a.heard() == [0, 1, 2]
    await a.leave()
    assert await b.next() == ON
    await b.answer()
    assert await b.heard() == [0, 1, 2]


async def members_of_one_connection(scene: Scene) -> None:
    a, b = await scene.peers(2)
    await a.join(id=1)
    await a.join(id=2)
    await b.join()
    assert await a.heard() == [(1, ON)]
    await a.answer()
    assert await a.heard() == [(1, number) for number in range(6)]
    await a.leave(1)
    assert await a.heard() == [(2, ON)]
    await a.join(id=1)
    a.client.writer.close()
    assert await b.next() == ON


async def an_answer_belongs_to_the_id_of_the_subscription(scene: Scene) -> None:
    a = await scene.peer()
    await a.join(credit=1)
    assert await a.next() == ON
    await a.leave()
    await a.join(credit=1)
    assert await a.next() == ON
    await a.answer(Offset.offset(3), number=0)
    assert await a.heard() == [3]


async def names_of_groups(scene: Scene) -> None:
    a, b = await scene.peers(2)
    ask, stream, group = a.client.code, scene.stream, properties()
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


async def an_unknown_super_stream_is_none(scene: Scene) -> None:
    peers = await scene.peers(2)
    for peer in peers:
        peer.properties = properties(super_stream='nothing')
        await peer.join()
    assert [await peer.heard() for peer in peers] == [[ON], []]
    await peers[0].leave()
    assert await peers[1].heard() == [ON]


async def offsets_of_another_connection(scene: Scene) -> None:
    a, b = await scene.peers(2)
    await a.join()
    assert await a.next() == ON
    b.client.send(StoreOffset('group', scene.stream, 3))
    for peer in (b, a):
        assert await peer.client.value(QueryOffset('group', scene.stream)) == 3


async def deleting_the_stream(scene: Scene) -> None:
    a, b, c = await scene.peers(3)
    for peer in (a, b):
        await peer.join()
    assert await a.next() == ON
    await a.answer()
    assert await a.heard() == [0, 1, 2, 3, 4, 5]
    await c.client.value(Delete(scene.stream))
    await c.client.value(Create(scene.stream, {}))
    await scene.publish(0)
    for peer in (a, b):
        assert await peer.heard() == [GONE]
    await b.join()
    assert await b.heard() == [ON]


# -- conversations on a partition of a super stream


async def partition_0_stays_with_the_first_member(scene: Scene) -> None:
    a, b, c = await scene.peers(3)
    for peer in (a, b, c):
        await peer.join()
    assert [await peer.heard() for peer in (a, b, c)] == [[ON], [], []]
    await a.leave()
    assert [await peer.heard() for peer in (b, c)] == [[ON], []]


async def partition_1_moves(scene: Scene) -> None:
    a, b, c = await scene.peers(3)
    await a.join(credit=2)
    assert await a.next() == ON
    await a.answer()
    assert await a.heard() == [0, 1]
    await b.join(credit=2)
    assert [await peer.heard() for peer in (a, b)] == [[OFF], []]
    await a.credit(2)
    await scene.publish(6)
    assert await a.heard() == [REFUSED]  # delivery ends before the answer
    await a.answer(Offset.FIRST)
    assert [await peer.heard() for peer in (a, b)] == [[], [ON]]
    await b.answer(Offset.offset(2))
    assert await b.heard() == [2, 3]
    await c.join()
    assert [await peer.heard() for peer in (a, b, c)] == [[], [], []]
    await a.leave()
    assert [await peer.heard() for peer in (b, c)] == [[OFF], []]
    await b.answer()
    assert await c.heard() == [ON]
    await c.leave()
    assert await b.heard() == [ON]


async def partition_1_keeps_the_credit_of_its_members(scene: Scene) -> None:
    a, b = await scene.peers(2)
    await a.join(Offset.offset(3), credit=6)
    assert await a.next() == ON
    await a.answer()
    assert await a.heard() == [3, 4, 5]
    await b.join()
    assert await a.next() == OFF
    await a.answer()
    assert await b.next() == ON
    await b.leave()
    assert await a.next() == ON
    await a.answer()
    assert await a.heard() == []  # half of the initial credit is not enough for a burst
    await a.credit(1)
    assert await a.heard() == [3, 4, 5]


async def partition_1_moves_back(scene: Scene) -> None:
    """The new member leaves before the old one has answered."""
    a, b = await scene.peers(2)
    await a.join()
    assert await a.next() == ON
    await b.join()
    assert await a.next() == OFF
    await a.answer(number=0)  # late, for the activation
    assert [await peer.heard() for peer in (a, b)] == [[], []]
    await b.leave()
    assert await a.heard() == []
    await a.answer()
    assert await a.heard() == [ON]
    await a.answer(Offset.offset(4))
    assert await a.heard() == [4, 5]


async def partition_1_is_left_without_an_answer(scene: Scene) -> None:
    for closed in (False, True):
        a, b = await scene.peers(2)
        await a.join()
        assert await a.next() == ON
        await b.join()
        assert await a.next() == OFF
        if closed:
            a.client.writer.close()
            assert await b.next() == ON
        else:
            await a.leave()
            assert await b.heard() == [ON]
            await a.answer()
        await b.answer()
        assert await b.heard() == [0, 1, 2, 3, 4, 5]
        await b.leave()


async def partition_1_is_deactivated_several_times(scene: Scene) -> None:
    """Since 4.1.2, RabbitMQ repeats a deactivation without an answer when the group changes."""
    a, b, c = await scene.peers(3)
    again = [OFF] if scene.version != '4.0' else []
    await a.join()
    assert await a.next() == ON
    await b.join()
    assert await a.next() == OFF
    await c.join()
    assert [await peer.heard() for peer in (a, b, c)] == [again, [], []]
    await a.answer(number=a.updates[1])
    assert [await peer.heard() for peer in (a, b, c)] == [[], [ON], []]
    await a.answer()
    await c.leave()
    assert [await peer.heard() for peer in (a, b, c)] == [[], [], []]
    await b.answer(Offset.LAST)
    assert await b.heard() == [5]


async def partition_1_is_active_at_a_late_answer(scene: Scene) -> None:
    a, b, c = await scene.peers(3)
    for peer in (a, b, c):
        await peer.join(credit=2)
    for peer in (c, b):
        await peer.leave()
    updates = [ON, OFF, OFF, OFF] if scene.version != '4.0' else [ON, OFF]
    assert await a.heard() == updates
    await a.answer(number=a.updates[1])
    assert await a.heard() == [ON]
    await a.answer(Offset.offset(3), number=a.updates[2])  # on 4.0, of the activation
    assert await a.heard() == [3, 4]


async def partition_1_keeps_its_number(scene: Scene) -> None:
    a, b = await scene.peers(2)
    await a.join()
    await a.client.value(Delete(f'{scene.properties["super-stream"]}-0'))
    await b.join()
    assert [await peer.heard() for peer in (a, b)] == [[ON, OFF], []]


async def partition_2_is_left_without_an_answer(scene: Scene) -> None:
    """RabbitMQ chooses twice: with the member that leaves, and without it."""
    a, b, c = await scene.peers(3)
    await a.join()
    assert await a.next() == ON
    for peer in (b, c):
        await peer.join()
    assert await a.heard() == [OFF]
    await a.leave()
    assert [await peer.heard() for peer in (b, c)] == [[], [ON, OFF]]
    await c.answer()
    assert [await peer.heard() for peer in (b, c)] == [[ON], []]


CONVERSATIONS: dict[str, Callable[[Scene], Awaitable[None]]] = {
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


async def hold(uri: str, name: str) -> None:
    partition = int(name.split('_')[1]) if name.startswith('partition') else None
    async with scene(uri, partition) as found:
        await CONVERSATIONS[name](found)


@pytest.mark.parametrize('version', ['4.0', '4.3'])
@pytest.mark.parametrize('name', CONVERSATIONS)
async def test_in_memory(name: str, version: Any) -> None:
    async with StreamBroker(version=version) as memory:
        await hold(memory.uri, name)


@pytest.mark.parametrize('name', CONVERSATIONS)
async def test_on_rabbitmq(broker: RabbitMQ, name: str) -> None:
    await hold(broker.uri, name)
