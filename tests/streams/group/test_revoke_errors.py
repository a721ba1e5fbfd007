"""No error of `on_revoke` gets lost: a wait for a message or `close` raises it, or it is logged."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.group_members import hand_over_late
from tests.super_streams import subscribe_to

HANG = 20.0  # seconds; only a safeguard

LOST = 'has failed, and no task waits for the error: '


class WriteError(Exception):
    pass


async def fail(stream: str) -> None:
    raise WriteError(stream)


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[StreamBroker]:
    async with StreamBroker() as broker:
        broker.create_stream('events')
        broker.create_super_stream('orders', partitions=2)
        for stream in ('events', 'orders-0', 'orders-1'):
            broker.publish(stream, 1, 2, 3)
        yield broker


@pytest_asyncio.fixture
async def client(broker: StreamBroker) -> AsyncIterator[rbs.StreamsClient]:
    async with rbs.streams_client(broker.uri) as client:
        yield client


async def join(
    client: rbs.StreamsClient,
    on_revoke: Callable[[str], Awaitable[object]],
    super_stream: bool = False,
    handover_timeout: float = HANG,
) -> Any:
    """Return a subscription that has read and finished all messages."""
    stream, count = ('orders', 6) if super_stream else ('events', 3)
    group = rbs.Group('archive', on_revoke=on_revoke)
    messages = subscribe_to(client, stream, super_stream=super_stream, group=group)
    found: list[Any] = []
    async with asyncio.timeout(HANG):
        while len(found) < count:
            found += await messages.fetch()
    await messages.fetch(timeout=0)
    hand_over_late(messages, handover_timeout)
    return messages


async def hand_over(broker: StreamBroker, client: rbs.StreamsClient, *streams: str) -> None:
    """Let the broker take streams from the member, without giving them to another one."""
    events = client.events()
    for stream in streams:
        broker.strand(stream, 'archive')
    left = {*streams}
    async with asyncio.timeout(HANG):
        while left:
            event = await anext(events)
            if isinstance(event, rbs.Deactivated):
                left.remove(event.stream)


async def close(messages: Any) -> None:
    await messages.close()


async def leave(messages: Any) -> None:
    await messages.__aexit__(None, None, None)


async def stop_and_iterate(messages: Any) -> None:
    messages.stop()
    async for _ in messages:
        pass


async def stop_and_fetch(messages: Any) -> None:
    messages.stop()
    await messages.fetch()


ENDS = [close, leave, stop_and_iterate, stop_and_fetch]


@pytest.mark.parametrize('end', ENDS)
@pytest.mark.parametrize('super_stream', [False, True])
async def test_end_raises_the_error_of_a_handover(
    broker: StreamBroker,
    client: rbs.StreamsClient,
    super_stream: bool,
    end: Callable[[Any], Awaitable[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    messages = await join(client, fail, super_stream)
    streams = ['orders-0', 'orders-1'] if super_stream else ['events']
    await hand_over(broker, client, *streams)
    with pytest.raises(WriteError, match=streams[0]) as caught:
        await end(messages)
    notes = '\n'.join(caught.value.__notes__)
    assert all(stream in notes for stream in streams)
    await messages.close()
    with pytest.raises(rbs.SubscriptionClosed):
        await messages.fetch()
    assert not caplog.records


async def test_end_raises_what_the_waits_have_not_raised(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    messages = await join(client, fail, super_stream=True)
    await hand_over(broker, client, 'orders-0', 'orders-1')
    raised = []
    with pytest.raises(WriteError) as caught:
        await messages.fetch(timeout=0)
    raised.append(str(caught.value))
    with pytest.raises(WriteError) as caught:
        await messages.close()
    raised.append(str(caught.value))
    assert sorted(raised) == ['orders-0', 'orders-1']


async def test_error_is_raised_once(broker: StreamBroker, client: rbs.StreamsClient) -> None:
    messages = await join(client, fail)
    await hand_over(broker, client, 'events')
    with pytest.raises(WriteError):
        await messages.fetch(timeout=0)
    assert not await messages.fetch(timeout=0)
    await messages.close()


async def test_close_names_all_failed_hooks(client: rbs.StreamsClient) -> None:
    messages = await join(client, fail, super_stream=True)
    with pytest.raises(WriteError, match='orders-0') as caught:
        await messages.close()
    assert caught.value.__notes__ == [
        "raised by on_revoke of group 'archive', for stream 'orders-0'",
        "also failed: on_revoke of group 'archive', for stream 'orders-1': WriteError('orders-1')",
    ]


async def test_one_error_object_of_two_hooks(client: rbs.StreamsClient) -> None:
    error = WriteError('the database is full')

    async def flush(stream: str) -> None:
        raise error

    messages = await join(client, flush, super_stream=True)
    with pytest.raises(WriteError) as caught:
        await messages.close()
    assert caught.value is error
    assert error.__notes__ == [
        f"raised by on_revoke of group 'archive', for stream 'orders-{number}'" for number in (0, 1)
    ]


async def test_error_is_raised_before_that_of_a_deleted_stream(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    messages = await join(client, fail)
    await hand_over(broker, client, 'events')
    broker.delete_stream('events')
    async with asyncio.timeout(HANG):
        with pytest.raises(WriteError):
            await messages.fetch()
        with pytest.raises(rbs.StreamDoesNotExist):
            await messages.fetch()
    await messages.close()


async def test_close_during_a_failing_handover_raises_the_error_once(
    broker: StreamBroker, client: rbs.StreamsClient, caplog: pytest.LogCaptureFixture
) -> None:
    called, go_on = asyncio.Event(), asyncio.Event()

    async def flush(stream: str) -> None:
        called.set()
        await go_on.wait()
        raise WriteError(stream)

    messages = await join(client, flush)
    broker.strand('events', 'archive')
    await called.wait()
    closing = asyncio.create_task(messages.close())
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(WriteError) as caught:
        await closing
    assert len(caught.value.__notes__) == 1
    assert not caplog.records


@pytest.mark.parametrize('super_stream', [False, True])
@pytest.mark.parametrize('how', ['dropped', 'cancelled'])
async def test_error_that_no_call_can_raise_is_logged(
    broker: StreamBroker,
    client: rbs.StreamsClient,
    super_stream: bool,
    how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    messages = await join(client, fail, super_stream)
    streams = ['orders-0', 'orders-1'] if super_stream else ['events']
    await hand_over(broker, client, *streams)
    if how == 'dropped':
        del messages
        gc.collect()
    else:
        await messages.__aexit__(asyncio.CancelledError, asyncio.CancelledError(), None)
    await until(lambda: len(caplog.records) == len(streams), 'the errors are logged')
    assert [record.getMessage() for record in caplog.records] == [
        f"on_revoke of group 'archive', for stream {stream!r} {LOST}{stream}" for stream in streams
    ]
    assert all(record.exc_info for record in caplog.records)


async def test_cancelled_close_logs_the_error_of_another_partition(
    client: rbs.StreamsClient, caplog: pytest.LogCaptureFixture
) -> None:
    called = asyncio.Event()

    async def flush(stream: str) -> None:
        if stream == 'orders-0':
            raise WriteError(stream)
        called.set()
        await asyncio.Event().wait()

    messages = await join(client, flush, super_stream=True)
    closing = asyncio.create_task(messages.close())
    await called.wait()
    await client.ping()  # the other hook has ended
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert [record.getMessage() for record in caplog.records] == [
        f"on_revoke of group 'archive', for stream 'orders-0' {LOST}orders-0"
    ]


# -- hooks that are cancelled


async def cancel_what_it_awaits(stream: str) -> None:
    writing = asyncio.ensure_future(asyncio.Event().wait())
    writing.cancel()  # as a pool of connections that shuts down
    await writing


@pytest.mark.parametrize('super_stream', [False, True])
@pytest.mark.parametrize('during', ['handover', 'close'])
async def test_cancelled_error_of_what_the_hook_awaits(
    broker: StreamBroker, client: rbs.StreamsClient, during: str, super_stream: bool
) -> None:
    """Nobody has cancelled the program's task: it must not end silently."""
    messages = await join(client, cancel_what_it_awaits, super_stream)
    async with asyncio.timeout(HANG):
        if during == 'handover':
            broker.strand('orders-1' if super_stream else 'events', 'archive')
        with pytest.raises(RuntimeError, match='raised CancelledError') as caught:
            await (messages.fetch() if during == 'handover' else messages.close())
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)


@pytest.mark.parametrize('during', ['handover', 'close', 'cancelled close'])
async def test_error_of_a_hook_that_is_cancelled_is_logged(
    broker: StreamBroker,
    client: rbs.StreamsClient,
    during: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    called = asyncio.Event()

    async def flush(stream: str) -> None:
        called.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise WriteError('cannot roll back') from None

    timeout = HANG if during == 'cancelled close' else 0.05
    messages = await join(client, flush, handover_timeout=timeout)

    def lost() -> list[logging.LogRecord]:
        return [record for record in caplog.records if LOST in record.getMessage()]

    if during == 'handover':
        await hand_over(broker, client, 'events')
    elif during == 'close':
        with pytest.raises(rbs.OffsetNotStored, match='has not ended'):
            await messages.close()
    else:
        closing = asyncio.create_task(messages.close())
        await called.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    await until(lambda: bool(lost()), 'the error is logged')
    [record] = lost()
    assert record.getMessage() == (
        f"on_revoke of group 'archive', for stream 'events' {LOST}cannot roll back"
    )
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], WriteError)
    assert not broker.offsets('events')
    await messages.close()
    assert len(lost()) == 1


async def test_hook_that_takes_too_long_stores_nothing(
    broker: StreamBroker, client: rbs.StreamsClient
) -> None:
    """The next member gets all messages again that the hook may not have written."""

    async def hang(stream: str) -> None:
        await asyncio.Event().wait()

    messages = await join(client, hang, handover_timeout=0.05)
    await hand_over(broker, client, 'events')
    assert not broker.offsets('events')
    await messages.close()
    async with client.subscribe('events', group='archive') as again:
        assert list(await again.fetch()) == [1, 2, 3]
