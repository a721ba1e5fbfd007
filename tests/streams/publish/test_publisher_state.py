"""The state of a publisher, and its table of transitions."""

import asyncio
from uuid import uuid4

import pytest

import rbfly.streams as rbs
from rbfly.streams._publish import session as module
from rbfly.streams._publish.session import TRANSITIONS, PublisherState
from tests.inside import session_of


def test_table_is_the_documented_one() -> None:
    lines = (module.__doc__ or '').splitlines()
    documented = dict(line.strip().split(' -> ') for line in lines if ' -> ' in line)
    assert documented == {
        before.name: ', '.join(after.name for after in TRANSITIONS[before])
        for before in PublisherState
        if TRANSITIONS[before]
    }


async def test_a_publisher_with_a_name_connects_opens_and_closes(
    client: rbs.StreamsClient, stream: str
) -> None:
    publisher = await client.publisher(stream, name=f'shop-{uuid4()}', wait=False)
    assert session_of(publisher).state is PublisherState.CONNECTING
    with pytest.raises(rbs.PublisherError, match='still connecting'):
        publisher.batch('too early')
    await publisher.send('x')
    assert session_of(publisher).state is PublisherState.OPEN
    await publisher.close()
    assert session_of(publisher).state is PublisherState.CLOSED
    with pytest.raises(rbs.PublisherError, match='is closed'):
        await publisher.send('x')
    with pytest.raises(AssertionError, match='illegal transition CLOSED -> OPEN'):
        session_of(publisher)._enter(PublisherState.OPEN)


async def test_a_dropped_publisher_leaves_its_name_at_once(
    client: rbs.StreamsClient, stream: str
) -> None:
    name = f'shop-{uuid4()}'
    publisher = await client.publisher(stream, name=name)
    session = session_of(publisher)
    del publisher
    states = [session.state]
    async with client.publisher(stream, name=name, wait=False) as other:
        await session.registration.wait_closed()
        await other.send('x')
    assert [*states, session.state] == [PublisherState.DROPPED, PublisherState.CLOSED]


async def test_close_after_an_interrupted_close(
    client: rbs.StreamsClient, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = await client.publisher(stream)
    session = session_of(publisher)
    begin = session._begin_close

    def interrupted() -> None:
        begin()
        raise KeyboardInterrupt

    monkeypatch.setattr(session, '_begin_close', interrupted)
    with pytest.raises(KeyboardInterrupt):
        await publisher.close()
    await asyncio.wait_for(publisher.close(), 10)
    assert session.state is PublisherState.CLOSED
