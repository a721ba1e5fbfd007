"""A caller that gives up a `send`: whether its message is stored, and what the errors say."""

import asyncio
import pickle
import re
import time
from typing import Any

import pytest

import rbfly.streams as rbs
from brokers.proxy import Proxy
from rbfly.error import copy_error
from rbfly.net import retry
from rbfly.streams.error import (
    ArgumentError,
    ConfirmTimeout,
    PublisherError,
    PublishError,
    StreamConnectionError,
    StreamDoesNotExist,
    WindowTimeout,
)
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.inside import connection_of, core_of, window_of
from tests.streams.publish.test_publish import stored

SOON = 0.02  # seconds
NAMES = pytest.mark.parametrize('name', [None, 'shop'], ids=['unnamed', 'named'])


@pytest.fixture(autouse=True)
def _retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, 'BACKOFF_FIRST', 0.01)
    monkeypatch.setattr(retry, 'BACKOFF_LAST', 0.05)


def connect_through(proxy: Proxy, **options: Any) -> rbs.StreamsClient:
    return rbs.streams_client(proxy.uri, load_balancer=True, **options)


async def lose(proxy: Proxy, publisher: Any) -> None:
    """Begin an outage, and wait until the publisher has noticed."""
    proxy.refuse()
    proxy.cut()
    await until(lambda: connection_of(publisher) is None, 'the connection was lost')


async def give_up(publisher: rbs.Publisher, message: Any, how: str) -> ConfirmTimeout | None:
    """Send a message until the caller gives up; return the error of a timeout."""
    if how == 'timeout':
        with pytest.raises(ConfirmTimeout) as caught:
            await publisher.send(message, timeout=SOON)
        return caught.value
    task = asyncio.create_task(publisher.send(message))
    await asyncio.sleep(SOON)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return None


def explicit(publish_id: int, body: bytes) -> rbs.MessageCtx:
    return rbs.stream_message_ctx(body, publish_id=publish_id)


# -- withdrawn


@NAMES
@pytest.mark.parametrize('how', ['timeout', 'cancel'])
async def test_message_given_up_in_an_outage_is_not_stored(
    proxy: Proxy, client: rbs.StreamsClient, stream: str, name: str | None, how: str
) -> None:
    async with (
        connect_through(proxy) as own,
        own.publisher(stream, name=name, amqp=False) as publisher,
    ):
        await publisher.send(b'before')
        await lose(proxy, publisher)
        others = [asyncio.create_task(publisher.send(b'other %d' % i)) for i in range(2)]
        await asyncio.sleep(0)
        error = await give_up(publisher, b'given up', how)
        others.append(asyncio.create_task(publisher.send(b'other 2')))
        if error is not None:
            assert (error.outcome, error.retriable) == ('not_sent', True)
            assert re.search(r'it could not send .*, and withdrew it', str(error))
        assert window_of(publisher).unsettled == 2
        proxy.accept()
        await asyncio.gather(*others)
    assert await stored(client, stream) == [b'before', b'other 0', b'other 1', b'other 2']


async def test_service_answers_503_only_for_orders_that_are_not_stored(
    proxy: Proxy, client: rbs.StreamsClient, stream: str
) -> None:
    """After a 503, the customer orders again: no order is stored twice."""
    orders = [b'order %d' % i for i in range(50)]

    async with connect_through(proxy) as own, own.publisher(stream, amqp=False) as publisher:

        async def order(body: bytes, patience: float) -> int:
            try:
                await publisher.send(body, timeout=patience)
            except ConfirmTimeout as ex:
                if ex.outcome == 'not_sent':
                    return 503
                raise
            return 200

        await publisher.send(b'first')
        await lose(proxy, publisher)
        answers = await asyncio.gather(*(order(body, SOON) for body in orders))
        assert answers == [503] * 50
        proxy.accept()
        await publisher.send(b'after')
        assert await stored(client, stream) == [b'first', b'after']
        answers = await asyncio.gather(*(order(body, 30) for body in orders))
        assert answers == [200] * 50
    assert await stored(client, stream) == [b'first', b'after', *orders]


async def test_withdrawn_message_frees_its_place(proxy: Proxy, stream: str) -> None:
    async with (
        connect_through(proxy) as own,
        own.publisher(stream, max_unconfirmed=2) as publisher,
    ):
        await lose(proxy, publisher)
        first, second = [asyncio.create_task(publisher.send(i)) for i in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(WindowTimeout) as caught:
            await publisher.send('no place', timeout=SOON)
        assert (caught.value.outcome, caught.value.retriable) == ('not_sent', True)
        waiting = asyncio.create_task(publisher.send('waiting'))
        await asyncio.sleep(0)
        assert window_of(publisher).next_id == 3
        first.cancel()
        await until(lambda: window_of(publisher).next_id == 4, 'the message took the place')
        proxy.accept()
        await asyncio.gather(second, waiting)


async def test_ten_thousand_timeouts_at_once(
    proxy: Proxy, client: rbs.StreamsClient, stream: str
) -> None:
    async with connect_through(proxy) as own, own.publisher(stream, amqp=False) as publisher:
        await lose(proxy, publisher)
        tasks = [
            asyncio.create_task(publisher.send(b'%d' % i, timeout=0.5 if i % 10 else None))
            for i in range(10_000)
        ]
        late = [task for i, task in enumerate(tasks) if i % 10]
        outcomes = await asyncio.gather(*late, return_exceptions=True)
        assert {getattr(ex, 'outcome', ex) for ex in outcomes} == {'not_sent'}
        assert window_of(publisher).unsettled == 1000
        proxy.accept()
        await asyncio.gather(*tasks[::10])
    assert await stored(client, stream) == [b'%d' % i for i in range(0, 10_000, 10)]


@pytest.mark.parametrize('how', ['submit', 'send_many', 'batch', 'sub-entries', 'dropped'])
async def test_other_messages_are_not_withdrawn(
    proxy: Proxy, client: rbs.StreamsClient, stream: str, how: str
) -> None:
    cls: type[Any] = rbs.PublisherBatchFast if how == 'batch' else rbs.Publisher
    size = 5 if how == 'sub-entries' else None
    async with (
        connect_through(proxy) as own,
        own.publisher(stream, cls=cls, sub_entry_size=size, amqp=False) as publisher,
    ):
        await lose(proxy, publisher)
        match how:
            case 'submit' | 'dropped':
                confirmation = await publisher.submit(b'x')
                if how == 'submit':
                    confirmation.cancel()
                del confirmation
            case 'send_many':
                with pytest.raises(ConfirmTimeout) as caught:
                    await publisher.send_many([b'x'], timeout=SOON)
                assert (caught.value.outcome, caught.value.retriable) == ('unknown', False)
            case 'batch':
                publisher.batch(b'x')
                with pytest.raises(ConfirmTimeout) as caught:
                    await publisher.flush(timeout=SOON)
                assert (caught.value.outcome, caught.value.retriable) == ('unknown', False)
            case 'sub-entries':
                with pytest.raises(ConfirmTimeout) as caught:
                    await publisher.send(b'x', timeout=SOON)
                assert (caught.value.outcome, caught.value.retriable) == ('unknown', False)
        proxy.accept()
    assert await stored(client, stream) == [b'x']


async def test_message_is_withdrawn_while_the_connection_is_paused() -> None:
    """In the turn of its call, a message is in the window but not in the transport."""
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with (
            rbs.streams_client(broker.uri) as client,
            client.publisher('orders', amqp=False) as publisher,
        ):
            tasks = [asyncio.create_task(publisher.send(b'%d' % i)) for i in range(10)]
            await asyncio.sleep(0)
            for task in tasks[1::2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        sent = [b'%d' % i for i, task in enumerate(tasks) if not task.cancelled()]
        assert sent == [b'0', b'2', b'4', b'6', b'8']
        assert set(broker.messages('orders', raw=True)) >= set(sent)


# -- in flight


@NAMES
@pytest.mark.parametrize('how', ['timeout', 'cancel'])
async def test_only_a_named_publisher_resends_a_message_given_up_in_flight(
    proxy: Proxy, client: rbs.StreamsClient, stream: str, name: str | None, how: str
) -> None:
    async with (
        connect_through(proxy) as own,
        own.publisher(stream, name=name, amqp=False) as publisher,
    ):
        await publisher.send(b'before')
        proxy.stall()
        first = asyncio.create_task(publisher.send(b'first'))
        await asyncio.sleep(0)
        error = await give_up(publisher, b'given up', how)
        last = asyncio.create_task(publisher.send(b'last'))
        if error is not None:
            assert (error.outcome, error.retriable) == ('unknown', False)
            assert str(error).endswith('; it may still be stored')
        assert window_of(publisher).awaited == 1
        await asyncio.sleep(0)
        proxy.cut()
        proxy.resume()
        await asyncio.gather(first, last)
        await until(lambda: not window_of(publisher).unsettled, 'all messages were confirmed')
    given_up = [b'given up'] if name else []
    assert await stored(client, stream) == [b'before', b'first', *given_up, b'last']


# -- the same context again


@NAMES
async def test_context_sent_again_waits_for_the_same_confirm(
    proxy: Proxy, client: rbs.StreamsClient, stream: str, name: str | None
) -> None:
    async with (
        connect_through(proxy) as own,
        own.publisher(stream, name=name, amqp=False) as publisher,
    ):
        await publisher.send(explicit(1, b'one'))
        await lose(proxy, publisher)
        message = explicit(2, b'two')
        task = asyncio.create_task(publisher.send(message))
        await asyncio.sleep(0)
        error = await give_up(publisher, message, 'timeout')
        assert error is not None
        assert (error.outcome, error.retriable) == ('unknown', False)  # the first call waits
        again = asyncio.create_task(publisher.send(explicit(2, b'two')))
        await asyncio.sleep(0)
        await give_up(publisher, message, 'cancel')
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ArgumentError):
            await publisher.send(explicit(2, b'another'))
        proxy.accept()
        await again
        with pytest.raises(ArgumentError):
            await publisher.send(message)
    assert await stored(client, stream) == [b'one', b'two']


async def test_context_is_joined_although_the_window_is_full(
    proxy: Proxy, client: rbs.StreamsClient, stream: str
) -> None:
    async with (
        connect_through(proxy) as own,
        own.publisher(stream, max_unconfirmed=1, amqp=False) as publisher,
    ):
        await lose(proxy, publisher)
        messages = explicit(1, b'one'), explicit(1, b'one'), explicit(3, b'three')
        tasks = [asyncio.create_task(publisher.send(message)) for message in messages]
        await asyncio.sleep(0)
        assert window_of(publisher).unsettled == 1
        proxy.accept()
        await asyncio.gather(*tasks)
    assert await stored(client, stream) == [b'one', b'three']


async def test_refused_context_raises_in_both_calls() -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with (
            rbs.streams_client(broker.uri) as client,
            client.publisher('orders') as publisher,
        ):
            broker.publish_error(code=0x10)
            message = rbs.stream_message_ctx('x', publish_id=1)
            tasks = [asyncio.create_task(publisher.send(message)) for _ in range(2)]
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(ex) for ex in outcomes] == [PublishError] * 2
            assert {(ex.outcome, ex.retriable) for ex in outcomes} == {  # type: ignore[union-attr]
                ('refused', False)
            }


@NAMES
async def test_withdrawn_id_may_be_used_again(
    proxy: Proxy, client: rbs.StreamsClient, stream: str, name: str | None
) -> None:
    async with (
        connect_through(proxy) as own,
        own.publisher(stream, name=name, amqp=False) as publisher,
    ):
        await lose(proxy, publisher)
        for publish_id in (5, 7):
            await give_up(publisher, explicit(publish_id, b'given up'), 'timeout')
        kept = [asyncio.create_task(publisher.send(explicit(i, b'%d' % i))) for i in (5, 7)]
        await asyncio.sleep(0)
        with pytest.raises(ArgumentError):
            await publisher.send(explicit(5, b'given up'))
        proxy.accept()
        await asyncio.gather(*kept)
    assert await stored(client, stream) == [b'5', b'7']


# -- closing


@NAMES
async def test_shutdown_in_an_outage_does_not_wait_for_messages_given_up(
    proxy: Proxy, stream: str, name: str | None
) -> None:
    async with (
        asyncio.timeout(30),
        connect_through(proxy, close_timeout=3600) as own,
        own.publisher(stream, name=name) as publisher,
    ):
        proxy.stall()
        await give_up(publisher, 'in flight', 'timeout')
        await lose(proxy, publisher)
        await give_up(publisher, 'withdrawn', 'timeout')
        await give_up(publisher, 'cancelled', 'cancel')


async def test_shutdown_does_not_wait_for_confirms_of_messages_given_up() -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with (
            asyncio.timeout(30),
            rbs.streams_client(broker.uri, close_timeout=3600) as client,
            client.publisher('orders') as publisher,
        ):
            broker.withhold_confirms()
            await give_up(publisher, 'x', 'timeout')
            await give_up(publisher, 'y', 'cancel')


async def test_close_ends_when_the_last_caller_gives_up() -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with (
            asyncio.timeout(30),
            rbs.streams_client(broker.uri, close_timeout=3600) as client,
            client.publisher('orders') as publisher,
        ):
            broker.withhold_confirms()
            tasks = [asyncio.create_task(publisher.send(i)) for i in range(3)]
            await asyncio.sleep(SOON)
            closing = asyncio.create_task(publisher.close())
            await asyncio.sleep(SOON)
            assert not closing.done()
            for task in tasks:
                task.cancel()
            await closing


@pytest.mark.parametrize('size', [None, 5], ids=['messages', 'sub-entries'])
@pytest.mark.parametrize('how', ['send', 'send_many', 'flush'])
async def test_close_raises_no_failure_that_a_call_has_raised(how: str, size: int | None) -> None:
    cls: type[Any] = rbs.PublisherBatchFast if how == 'flush' else rbs.Publisher
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with (
            rbs.streams_client(broker.uri, close_timeout=0.1) as client,
            client.publisher('orders', cls=cls, sub_entry_size=size) as publisher,
        ):
            broker.withhold_confirms()
            match how:
                case 'send':
                    call = publisher.send('x', timeout=SOON)
                case 'send_many':
                    call = publisher.send_many(['x', 'y'], timeout=SOON)
                case 'flush':
                    publisher.batch('x')
                    call = publisher.flush(timeout=SOON)
            with pytest.raises(ConfirmTimeout):
                await call
            if how == 'send':
                await publisher.submit('y')
            elif how == 'flush':
                publisher.batch('y')
            if how == 'send_many':
                await publisher.close()
            else:
                with pytest.raises(ConfirmTimeout) as caught:
                    await publisher.close()
                assert (caught.value.unconfirmed, caught.value.unsent) == (1, 0)
                assert caught.value.outcome == 'unknown'


# -- errors


async def test_errors_say_what_became_of_the_message(proxy: Proxy, stream: str) -> None:
    async with connect_through(proxy, reconnect_timeout=0.3) as own:
        context = own.publisher(stream)
        publisher = await context.__aenter__()
        body: Any = object()
        for bad in (body, rbs.stream_message_ctx(body, publish_id=3)):
            with pytest.raises(rbs.AMQPEncoderError) as encoding:
                await publisher.send(bad)
            assert (encoding.value.outcome, encoding.value.retriable) == ('not_sent', False)
        with pytest.raises(PublisherError) as large:
            await publisher.send(b'x' * 2**21)
        assert large.value.outcome == 'not_sent'

        proxy.stall()
        sent = asyncio.create_task(publisher.send('sent'))
        await asyncio.sleep(SOON)
        await lose(proxy, publisher)
        unsent = asyncio.create_task(publisher.send('unsent'))
        found = await asyncio.gather(sent, unsent, return_exceptions=True)
        errors: list[Any] = [*found]
        assert [isinstance(ex, StreamConnectionError) for ex in errors] == [True, True]
        assert [(ex.outcome, ex.retriable) for ex in errors] == [
            ('unknown', False),
            ('not_sent', True),
        ]
        assert 'may still be stored' in str(errors[0])
        assert 'were not sent' in str(errors[1])
        assert own.connected is False
        proxy.resume()
        proxy.accept()
        await context.__aexit__(None, None, None)
        with pytest.raises(PublisherError) as closed:
            await publisher.send('closed')
        assert closed.value.outcome == 'not_sent'


async def test_message_of_a_deleted_stream(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send('x')
        await client.delete_stream(stream)
        with pytest.raises(StreamDoesNotExist) as caught:  # noqa: PT012
            while True:  # RabbitMQ ends the stream's leader after it has answered
                await publisher.send('y')
        assert caught.value.outcome in ('not_sent', 'unknown')
        assert caught.value.retriable is False


async def test_errors_of_send_many_are_retriable_only_if_nothing_is_stored() -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with (
            rbs.streams_client(broker.uri) as client,
            client.publisher('orders') as publisher,
        ):
            broker.publish_error(code=0x06)
            with pytest.raises(PublishError) as caught:
                await publisher.send_many(['x'])
            assert (caught.value.outcome, caught.value.retriable) == ('refused', True)
            broker.publish_error(code=0x06)
            with pytest.raises(PublishError) as caught:
                await publisher.send_many(['x', 'y'])
            assert (caught.value.outcome, caught.value.retriable) == ('refused', False)


async def publish(publisher: Any, how: str, *bodies: str) -> None:
    """Send messages with a method of the publisher, and wait for their confirms."""
    match how:
        case 'send':
            await publisher.send(*bodies)
        case 'submit':
            await (await publisher.submit(*bodies))
        case 'send_many':
            await publisher.send_many(bodies)
        case 'flush':
            for body in bodies:
                publisher.batch(body)
            await publisher.flush()


@pytest.mark.parametrize('how', ['send', 'submit', 'send_many', 'flush'])
async def test_message_refused_when_it_is_resent_may_be_stored(how: str) -> None:
    cls: type[Any] = rbs.PublisherBatchFast if how == 'flush' else rbs.Publisher
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with (
            rbs.streams_client(broker.uri) as client,
            client.publisher('orders', cls=cls) as publisher,
        ):
            broker.lose_confirms()
            call = asyncio.create_task(publish(publisher, how, 'x'))
            await broker.wait_for('orders', 1)
            broker.publish_error(code=0x06)
            broker.cut()
            with pytest.raises(PublishError) as caught:
                await call
            assert (caught.value.outcome, caught.value.retriable) == ('unknown', False)
            assert 'the previous connection may have stored it' in str(caught.value)
            if how == 'send_many':
                progress: Any = caught.value.progress
                assert (progress.refused, progress.unknown, caught.value.index) == ([], [0], 0)
            broker.publish_error()  # of a message that no earlier connection sent
            with pytest.raises(PublishError) as caught:
                await publish(publisher, how, 'y')
            assert caught.value.outcome == 'refused'
        assert broker.messages('orders') == ['x']


@pytest.mark.parametrize('how', ['send_many', 'flush'])
async def test_one_message_is_refused_and_another_may_be_stored(how: str) -> None:
    cls: type[Any] = rbs.PublisherBatchFast if how == 'flush' else rbs.Publisher
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with (
            rbs.streams_client(broker.uri, reconnect_timeout=0.1) as client,
            client.publisher('orders', cls=cls) as publisher,
        ):
            broker.publish_error()
            broker.lose_confirms()
            call = asyncio.create_task(publish(publisher, how, 'x', 'y'))
            await broker.wait_for('orders', 1)
            await until(lambda: publisher.unconfirmed == 1, 'x was refused')
            broker.refuse()
            broker.cut()
            with pytest.raises(PublishError) as caught:
                await call
            assert (caught.value.outcome, caught.value.retriable) == ('unknown', False)
            broker.heal()
        assert broker.messages('orders') == ['y']


async def test_context_sent_again_after_its_confirm_may_be_stored() -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with (
            rbs.streams_client(broker.uri) as client,
            client.publisher('orders') as publisher,
        ):
            broker.withhold_confirms()
            message = rbs.stream_message_ctx('x', publish_id=7)
            with pytest.raises(ConfirmTimeout):
                await publisher.send(message, timeout=SOON)
            broker.heal()
            await publisher.send('y')  # the confirm of 7 has arrived, too
            with pytest.raises(ArgumentError) as caught:
                await publisher.send(message)
            assert caught.value.outcome == 'unknown'


async def test_send_many_of_a_list_needs_no_capacity_after_the_last_message() -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with (
            rbs.streams_client(broker.uri, close_timeout=0.1) as client,
            client.publisher('orders', max_unconfirmed=2) as publisher,
        ):
            broker.withhold_confirms()
            first = asyncio.create_task(publisher.send('x'))
            call = asyncio.create_task(publisher.send_many(['y']))
            await broker.wait_for('orders', 2)
            assert not core_of(publisher).capacity.waiting
            broker.heal()
            assert await call == 1
            await first


async def test_last_confirm_of_send_many_comes_in_the_turn_of_the_timeout() -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        async with (
            rbs.streams_client(broker.uri) as client,
            client.publisher('orders') as publisher,
        ):
            broker.withhold_confirms()
            call = asyncio.create_task(publisher.send_many(['x'], timeout=SOON))
            await broker.wait_for('orders', 1)
            broker.heal()
            time.sleep(2 * SOON)  # noqa: ASYNC251  # the loop finds the confirm and the timer
            [result] = await asyncio.gather(call, return_exceptions=True)
            # If the loop ran the timer first, the outcome is unknown.
            assert result == 1 or getattr(result, 'outcome', None) == 'unknown'


def test_outcome_survives_copies() -> None:
    error = ConfirmTimeout('x')
    error.outcome, error.retriable = 'not_sent', True
    for found in (copy_error(error), pickle.loads(pickle.dumps(error))):
        assert (found.outcome, found.retriable) == ('not_sent', True)


@pytest.mark.parametrize('retriable', [False, True])
async def test_recovery_does_not_depend_on_retriable(
    monkeypatch: pytest.MonkeyPatch, retriable: bool, client: rbs.StreamsClient, stream: str
) -> None:
    monkeypatch.setattr(StreamConnectionError, 'retriable', retriable)
    async with client.publisher(stream) as publisher:
        await publisher.send('x')
        connection: Any = connection_of(publisher)
        connection.abort(StreamConnectionError('cut by the test'))
        await publisher.send('y')
