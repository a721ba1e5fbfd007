"""The client for programs without asyncio."""

import asyncio
import contextlib
import dataclasses
import gc
import inspect
import logging
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, assert_type, get_type_hints
from uuid import uuid4

import pytest

import rbfly.sync
from rbfly import streams as rbs
from rbfly.error import (
    AMQPEncoderError,
    ArgumentError,
    ArgumentTypeError,
    ConfirmTimeout,
    EventLoopError,
    MessageTimeout,
    OffsetNotStored,
    PublisherError,
    RbFlyError,
    StreamConnectionError,
    StreamDoesNotExist,
    SubscriptionClosed,
    SubscriptionError,
)
from rbfly.sync import options as kinds
from rbfly.sync.thread import Call, ClientThread, RunningLoop
from rbfly.testing import StreamBroker

HANG = 60.0  # seconds; only a safeguard
FIRST = rbs.Offset.FIRST


@dataclasses.dataclass
class Order:
    id: int

    @classmethod
    def read(cls, data: bytes) -> 'Order':
        return cls(int.from_bytes(data))


@pytest.fixture
def client(broker_uri: str) -> Iterator[rbfly.sync.StreamsClient]:
    with rbfly.sync.streams_client(broker_uri) as client:
        yield client


@pytest.fixture
def super_stream(client: rbfly.sync.StreamsClient) -> Iterator[rbfly.sync.SuperStream]:
    found = client.super_stream(f'super-{uuid4().hex[:12]}')
    found.create(partitions=3)
    yield found
    found.delete()


@pytest.fixture
def memory() -> Iterator[StreamBroker]:
    with StreamBroker() as broker:
        broker.create_stream('orders')
        yield broker


def read(client: rbfly.sync.StreamsClient, stream: str) -> list[Any]:
    with client.subscribe(stream, offset=FIRST, until='now') as subscription:
        return list(subscription)


def threads() -> list[threading.Thread]:
    return [item for item in threading.enumerate() if item.name == 'rbfly.sync']


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait, without an event to wait for."""
    pause = threading.Event()
    for _ in range(int(HANG * 100)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError('it did not become true')


# -- streams


def test_streams_and_offsets(client: rbfly.sync.StreamsClient) -> None:
    name = f'test-{uuid4()}'
    assert not client.stream_exists(name)
    client.create_stream(name, max_length_bytes=10**8)
    assert client.stream_exists(name)
    with client.publisher(name) as publisher:
        publisher.send_many(range(10))
    assert client.stream_stats(name).first_chunk_id == 0
    assert client.resolve_offset(name, FIRST) == 0
    assert client.read_offset(name, 'me') is None
    client.write_offset(name, 'me', 3, wait=True)
    assert (client.read_offset(name, 'me'), client.lag(name, 'me')) == (3, 6)
    client.delete_stream(name)
    with pytest.raises(StreamDoesNotExist), client.subscribe(name):
        pass


def test_state_of_the_client(client: rbfly.sync.StreamsClient) -> None:
    assert not client.connected
    assert client.ping() > 0
    assert client.connected
    assert client.health().ok
    assert 'rabbitmq-stream://' in str(client.describe())
    assert client.metrics().published == 0
    assert 'version' in client.server_properties
    assert repr(client).startswith('<sync <StreamsClient')


def test_client_can_be_used_again(broker_uri: str, stream: str) -> None:
    client = rbfly.sync.streams_client(broker_uri)
    for _ in range(2):
        with client:
            client.publisher(stream).send(b'x')
            assert client.connected
        assert not client.connected
    client.close()
    assert read(client, stream) == [b'x', b'x']
    client.close()


def test_asynchronous_client(client: rbfly.sync.StreamsClient, stream: str) -> None:
    async def work(inner: rbs.StreamsClient) -> int:
        async with inner.publisher(stream) as publisher:
            return await publisher.send_many(range(5))

    assert_type(client.run(work), int)
    assert read(client, stream) == [*range(5)] * 1


def test_function_awaits_a_cancelled_task(memory: StreamBroker) -> None:
    async def work(_: rbs.StreamsClient) -> None:
        task = asyncio.create_task(asyncio.sleep(HANG))
        task.cancel()
        await task

    with (
        rbfly.sync.streams_client(memory.uri) as client,
        pytest.raises(RuntimeError, match='was cancelled'),  # not "the client was closed"
    ):
        client.run(work)


# -- publishing


def test_publish(client: rbfly.sync.StreamsClient, stream: str) -> None:
    with client.publisher(stream, name='shop') as publisher:
        assert (publisher.name, publisher.stream, publisher.next_publish_id) == ('shop', stream, 1)
        publisher.send(0)
        assert publisher.send_many([1, 2]) == 2
        assert publisher.send_many(range(3, 5)) == 2
        assert publisher.send_many(i for i in range(5, 3005)) == 3000
        publisher.send_atomic([3005, 3006])
        publisher.send_atomic(i for i in (3007, 3008))
        confirmation = publisher.submit(3009)
        confirmation.result()
        assert confirmation.done()
        publisher.batch(3010)
        publisher.flush()
        publisher.batch(3011)
        assert publisher.unconfirmed == 1
        assert publisher.capacity == 9_999
    assert read(client, stream) == [*range(3012)]
    with pytest.raises(PublisherError, match='closed'):
        publisher.send(0)


def test_errors_of_publishing(client: rbfly.sync.StreamsClient, stream: str) -> None:
    wrong: list[Any] = [b'0', b'1', object()]
    with client.publisher(stream) as publisher:
        with pytest.raises(AMQPEncoderError):
            publisher.send(object())  # type: ignore[arg-type]
        with pytest.raises(ArgumentTypeError, match='not a single str'):
            publisher.send_many('text')
        with pytest.raises(ArgumentError, match='at most 65,535'):
            publisher.send_atomic(b'' for _ in range(100_000))
        with pytest.raises(AMQPEncoderError) as caught:
            publisher.send_many(iter(wrong))
        assert getattr(caught.value, 'index', None) == 2
    assert read(client, stream) == [b'0', b'1']


def test_iterator_runs_in_the_calling_thread(client: rbfly.sync.StreamsClient, stream: str) -> None:
    """It may use the client, e.g. to copy a stream, and what belongs to its thread."""
    seen = set()

    def bodies() -> Iterator[Any]:
        for i in range(2500):
            seen.add(threading.get_ident())
            yield i
        yield client.stream_exists(stream)

    with client.publisher(stream) as publisher:
        assert publisher.send_many(bodies()) == 2501
    assert seen == {threading.get_ident()}
    assert read(client, stream) == [*range(2500), True]


def test_iterator_that_fails(client: rbfly.sync.StreamsClient, stream: str) -> None:
    progress = rbs.SendProgress()
    with client.publisher(stream) as publisher:
        with pytest.raises(ZeroDivisionError) as caught:
            publisher.send_many((6 // (3 - i) for i in range(10)), progress=progress)
        note = 'raised by the iterator given to send_many, after 3 messages'
        assert caught.value.__notes__ == [note]
        assert progress.confirmed == 3
    assert read(client, stream) == [2, 3, 6]


def test_threads_share_a_publisher(client: rbfly.sync.StreamsClient, stream: str) -> None:
    def work(number: int) -> None:
        for i in range(50):
            publisher.send([number, i])

    with client.publisher(stream) as publisher:
        workers = [threading.Thread(target=work, args=(i,)) for i in range(10)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(HANG)
    found = read(client, stream)
    for number in range(10):
        assert [i for n, i in found if n == number] == [*range(50)]


def test_failed_block_closes_the_publisher(client: rbfly.sync.StreamsClient, stream: str) -> None:
    def work() -> None:
        with client.publisher(stream) as publisher:
            publisher.batch(b'x')
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert read(client, stream) == [b'x']


def test_publisher_closes_after_its_client(memory: StreamBroker) -> None:
    memory.create_super_stream('super', partitions=2)
    with rbfly.sync.streams_client(memory.uri) as client:
        publishers = [
            client.publisher('orders'),
            client.super_stream('super').publisher(route=rbs.by_hash(str)),
        ]
        for publisher in publishers:
            publisher.send(b'a')
    for publisher in publishers:
        for call in (publisher.send, publisher.submit, publisher.batch):
            with pytest.raises(StreamConnectionError, match='was disconnected') as caught:
                call(b'b')
            assert (caught.value.outcome, caught.value.retriable) == ('not_sent', False)
        for call_many in (publisher.send_many, publisher.send_atomic):
            with pytest.raises(StreamConnectionError, match='the client was disconnected'):
                call_many([b'b'])
        with pytest.raises(StreamConnectionError, match='the client was disconnected'):
            publisher.flush()
        with publisher:
            publisher.close()
        with pytest.raises(PublisherError, match='is closed'):
            publisher.send(b'b')
    client.close()


def test_confirms_after_the_client_was_closed(memory: StreamBroker) -> None:
    with rbfly.sync.streams_client(memory.uri, close_timeout=0.01) as client:
        publisher = client.publisher('orders')
        stored = publisher.submit(b'a')
        stored.result()
        memory.withhold_confirms()
        lost = publisher.submit(b'b')
    stored.result()
    with pytest.raises(StreamConnectionError, match='may still be stored'):
        lost.result()
    with pytest.raises(ArgumentError, match='timeout'):
        stored.result(-1)
    assert threads() == []


def test_confirmation_keeps_its_client_open(memory: StreamBroker) -> None:
    def submit() -> rbfly.sync.Confirmation:
        client = rbfly.sync.streams_client(memory.uri)
        return client.publisher('orders').submit(b'x')

    memory.withhold_confirms()
    confirmation = submit()
    gc.collect()
    memory.heal()
    confirmation.result()
    del confirmation
    gc.collect()
    wait_until(lambda: not threads() and not memory.connections)


def test_confirm_that_is_late(memory: StreamBroker) -> None:
    with rbfly.sync.streams_client(memory.uri) as client, client.publisher('orders') as publisher:
        memory.withhold_confirms()
        confirmation = publisher.submit(b'x')
        with pytest.raises(ConfirmTimeout):
            confirmation.result(0.01)
        assert not confirmation.done()
        with pytest.raises(ConfirmTimeout):
            publisher.send(b'y', timeout=0.01)
        memory.heal()
        confirmation.result()


# -- subscriptions


def test_iterations_continue_each_other(client: rbfly.sync.StreamsClient, stream: str) -> None:
    with client.publisher(stream, sub_entry_size=3000) as publisher:
        publisher.send_many(range(3000))  # in one chunk, of which messages are left after twenty
    with client.subscribe(stream, offset=FIRST, until='now') as subscription:
        found = []
        for body in subscription:
            found.append(body)
            if len(found) == 10:
                break
        for message in subscription.messages():
            assert message.stream_offset == message.body
            found.append(message.body)
            if len(found) == 20:
                break
        with pytest.raises(SubscriptionError, match='are left'):
            subscription.fetch()
        with pytest.raises(SubscriptionError, match='are left'):
            next(subscription.batches())
        found += subscription
        assert found == [*range(3000)]
        assert list(subscription) == []


def test_batches_and_fetch(client: rbfly.sync.StreamsClient, stream: str) -> None:
    with client.publisher(stream, sub_entry_size=100) as publisher:
        publisher.send_many(range(100))  # which arrive in one chunk
    with client.subscribe(stream, offset=FIRST, until='now') as subscription:
        found = [*subscription.fetch(10)]
        assert len(found) == 10
        for batch in subscription.batches(7):
            assert len(batch) <= 7
            found += batch
        assert found == [*range(100)]
    with client.subscribe(stream) as subscription:
        assert len(subscription.fetch(timeout=0)) == 0
    with client.subscribe(stream, timeout=0.01) as subscription:
        with pytest.raises(MessageTimeout):
            next(subscription)
        client.publisher(stream).send(b'x')
        received: list[Any] = []

        def has_received() -> bool:  # RabbitMQ may need longer than the timeout
            with contextlib.suppress(MessageTimeout):
                received.append(next(subscription))
            return bool(received)

        wait_until(has_received)
        assert received == [b'x']


def test_types_of_bodies(client: rbfly.sync.StreamsClient, stream: str) -> None:
    with client.subscribe(stream, offset=FIRST, until='now', amqp=False) as raw:
        assert_type(raw, rbfly.sync.Subscription[bytes])
        assert list(raw) == []
    codec: rbs.Codec[Order] = rbs.Codec(lambda order: order.id.to_bytes(), Order.read)
    with client.publisher(stream) as publisher:
        publisher.send(Order(1))
    with client.publisher(stream, codec=codec) as publisher:
        publisher.send(Order(2))
    with client.subscribe(stream, offset=FIRST, type=Order) as typed:
        assert_type(typed, rbfly.sync.Subscription[Order])
        assert next(iter(typed)) == Order(1)
    with client.subscribe(stream, offset=rbs.Offset.offset(1), codec=codec) as decoded:
        assert_type(decoded, rbfly.sync.Subscription[Order])
        assert next(iter(decoded)) == Order(2)


def test_commit_covers_what_the_program_has_received(
    client: rbfly.sync.StreamsClient, stream: str
) -> None:
    with client.publisher(stream) as publisher:
        publisher.send_many(range(5000))
    tracking = rbs.OffsetTracking('me', manual=True)
    with client.subscribe(stream, offset=FIRST, until='now', commit=tracking) as subscription:
        subscription.commit()
        assert client.read_offset(stream, 'me') is None
        for last in (0, 9, 1500):  # not the whole batch that has arrived
            while next(subscription) != last:
                pass
            subscription.commit()
            assert client.read_offset(stream, 'me') == last
        subscription.commit(1400)
        assert client.read_offset(stream, 'me') == 1400
        assert len(list(subscription)) == 3499
        subscription.commit()
        assert client.read_offset(stream, 'me') == 4999


def test_automatic_commit(client: rbfly.sync.StreamsClient, stream: str) -> None:
    with client.publisher(stream) as publisher:
        publisher.send_many(range(1500))
    options: Any = {'until': 'now', 'commit': rbs.OffsetTracking('workers')}
    with client.subscribe(stream, offset=FIRST, **options) as subscription:
        assert len(list(subscription)) == 1500
    assert client.read_offset(stream, 'workers') == 1499
    with client.publisher(stream) as publisher:
        publisher.send_many(range(1500, 1510))
    options['offset'] = rbs.Offset.reference('workers')
    with client.subscribe(stream, **options) as subscription:
        assert next(subscription) == 1500
    with client.subscribe(stream, **options) as subscription:  # leaving repeats what was at hand
        assert list(subscription) == [*range(1500, 1510)]


def test_stop_ends_the_iteration(client: rbfly.sync.StreamsClient, stream: str) -> None:
    with client.publisher(stream) as publisher:
        publisher.send_many(range(10))
    with client.subscribe(stream, offset=FIRST) as subscription:
        assert subscription.position is None
        assert subscription.active
        assert next(subscription) == 0
        stopper = threading.Timer(0.05, subscription.stop)
        found = []
        for number in subscription:
            found.append(number)
            if number == 9:  # messages that arrive after `stop` are not received
                stopper.start()
        assert found == [*range(1, 10)]
        stopper.join()


def test_close_ends_the_iteration(client: rbfly.sync.StreamsClient, stream: str) -> None:
    with client.publisher(stream) as publisher:
        publisher.send_many(range(10))
    with client.subscribe(stream, offset=FIRST) as subscription:
        contexts = subscription.messages()
        assert next(subscription) == 0
        assert next(contexts).body == 1
    assert [*subscription] == []
    assert [*contexts] == []
    subscription = client.subscribe(stream, offset=FIRST)
    assert next(subscription) == 0
    subscription.close()
    with pytest.raises(SubscriptionClosed):  # not "messages are left"
        subscription.fetch()
    assert [*subscription.batches()] == []
    assert [*subscription] == []


def test_threads_share_a_subscription(client: rbfly.sync.StreamsClient, stream: str) -> None:
    with client.publisher(stream) as publisher:
        publisher.send_many(range(5000))
    with client.subscribe(stream, offset=FIRST, until='now') as subscription:
        found: list[list[int]] = [[], [], [], []]
        workers = [threading.Thread(target=part.extend, args=(subscription,)) for part in found]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(HANG)
    assert sorted(i for part in found for i in part) == [*range(5000)]
    assert all(part == sorted(part) for part in found)


# -- super streams


def test_super_stream(
    client: rbfly.sync.StreamsClient, super_stream: rbfly.sync.SuperStream
) -> None:
    assert super_stream.exists()
    assert len(super_stream.partitions()) == 3
    with super_stream.publisher(route=rbs.by_hash(str)) as publisher:
        publisher.send_many(range(500))
        publisher.send_atomic([1, 1, 1])
        with pytest.raises(ArgumentError, match='belong to one partition'):
            publisher.send_atomic(range(20))
    tracking = rbs.OffsetTracking('me', manual=True)
    with super_stream.subscribe(offset=FIRST, until='now', commit=tracking) as subscription:
        assert sorted(subscription) == sorted([*range(500), 1, 1, 1])
        subscription.commit()
    offsets = super_stream.read_offset('me')
    assert sum(offset + 1 for offset in offsets.values() if offset is not None) == 503
    assert {*super_stream.lag('me').values()} == {0}
    super_stream.write_offset('me', dict.fromkeys(offsets, 0), wait=True)
    assert {*super_stream.read_offset('me').values()} == {0}


@pytest.mark.parametrize(
    ('group', 'commit'), [('me', 'manual'), (None, rbs.OffsetTracking('me', manual=True))]
)
def test_commit_after_the_stream_was_created_again(
    client: rbfly.sync.StreamsClient, stream: str, group: str | None, commit: Any
) -> None:
    """The offset of its last message is that of no message of the new stream."""
    with (
        client.publisher(stream) as publisher,
        client.subscribe(stream, offset=FIRST, group=group, commit=commit) as subscription,
    ):
        publisher.send_many(range(3))
        assert [next(subscription) for _ in range(3)] == [0, 1, 2]
        client.delete_stream(stream)
        with pytest.raises(StreamDoesNotExist):
            next(subscription)
        client.create_stream(stream)
        subscription.commit()
        with client.publisher(stream) as other:
            other.send('new')
        assert next(subscription) == 'new'
        subscription.commit()
        assert client.read_offset(stream, 'me') == 0


@contextlib.contextmanager
def each_partition_read() -> Iterator[tuple[StreamBroker, rbfly.sync.Subscription[Any]]]:
    """A subscription with manual commits that has read a message of each partition."""
    tracking = rbs.OffsetTracking('me', manual=True)
    with StreamBroker() as broker, rbfly.sync.streams_client(broker.uri) as client:
        broker.create_super_stream('orders', partitions=2)
        with client.super_stream('orders').subscribe(
            offset=FIRST, commit=tracking, refresh_interval=0.01
        ) as subscription:
            for number, partition in enumerate(['orders-0', 'orders-1']):
                broker.publish(partition, number)
                assert next(subscription) == number
            yield broker, subscription


def test_commit_after_the_super_stream_was_created_again() -> None:
    """The offsets of its last messages are those of no messages of the new partitions."""
    with each_partition_read() as (broker, subscription):
        broker.delete_super_stream('orders')
        with pytest.raises(StreamDoesNotExist):
            next(subscription)
        broker.create_super_stream('orders', partitions=2)
        broker.publish('orders-1', 'new')
        assert next(subscription) == 'new'
        subscription.commit()
        assert broker.offsets('orders-1') == {'me': 0}
        assert broker.offsets('orders-0') == {}


def test_commit_after_a_partition_was_deleted(caplog: pytest.LogCaptureFixture) -> None:
    """The offsets of the other partitions are stored."""
    caplog.set_level(logging.INFO, 'rbfly.streams')
    with each_partition_read() as (broker, subscription):
        broker.delete_stream('orders-0')
        wait_until(lambda: "'orders-0' is gone" in caplog.text)
        subscription.commit()
        assert broker.offsets('orders-1') == {'me': 0}
        with pytest.raises(ArgumentError, match="does not read a partition 'orders-2'"):
            subscription.commit({'orders-2': 0})


def test_commit_after_another_member_has_a_partition() -> None:
    """The error is raised once: the other member receives the message, and the next offsets of this
    one can be stored."""
    with (
        StreamBroker() as broker,
        rbfly.sync.streams_client(broker.uri) as client,
        rbfly.sync.streams_client(broker.uri) as other,
    ):
        broker.create_super_stream('orders', partitions=2)
        options: Any = {'group': 'billing', 'commit': 'manual', 'timeout': HANG}
        with client.super_stream('orders').subscribe(**options) as subscription:
            wait_until(lambda: len(subscription.active) == 2)  # type: ignore[arg-type]
            for number, partition in enumerate(['orders-0', 'orders-1']):
                broker.publish(partition, number)
                assert next(subscription) == number
            with other.super_stream('orders').subscribe(**options) as second:
                # It hands over when the program asks for the next message.
                reader = threading.Thread(target=next, args=(subscription, None))
                reader.start()
                wait_until(lambda: bool(second.active))
                (lost,), (kept,) = second.active, subscription.active  # type: ignore[misc]
                assert next(second) == int(lost[-1])
                with pytest.raises(OffsetNotStored):
                    subscription.commit()
                assert broker.offsets(kept)['billing'] == 0
                subscription.commit()
                broker.publish(kept, 2)
                reader.join(HANG)
                subscription.commit()
                assert broker.offsets(kept)['billing'] > 0


def test_commit_while_another_thread_waits(client: rbfly.sync.StreamsClient, stream: str) -> None:
    tracking = rbs.OffsetTracking('me', manual=True)
    with (
        client.publisher(stream) as publisher,
        client.subscribe(stream, offset=FIRST, commit=tracking, timeout=HANG) as subscription,
    ):
        for number in range(2):
            publisher.send(number)
            assert next(subscription) == number
        reader = threading.Thread(target=next, args=(subscription, None))
        reader.start()
        wait_until(lambda: is_calling(reader))
        for offset in (0, None):
            subscription.commit(offset)
            assert client.read_offset(stream, 'me') == (1 if offset is None else offset)
            assert reader.is_alive()
        publisher.send(2)
        reader.join(HANG)


# -- interrupts, processes, threads


def is_in(thread: threading.Thread, code: CodeType) -> bool:
    """Return whether a thread runs a function."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


def is_calling(thread: threading.Thread | None = None) -> bool:
    """Return whether a thread, by default the main one, waits for a call that it has passed on."""
    return is_in(thread or threading.main_thread(), Call.wait.__code__)


@contextlib.contextmanager
def interrupted(ready: Callable[[], bool]) -> Iterator[None]:
    """Interrupt the main thread once a condition holds."""

    def interrupt() -> None:
        wait_until(ready)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        thread.start()
        yield
    thread.join()


def test_interrupt_leaves_the_client_usable(memory: StreamBroker) -> None:
    with (
        rbfly.sync.streams_client(memory.uri) as client,
        client.publisher('orders') as publisher,
        client.subscribe('orders') as subscription,
    ):
        with interrupted(is_calling):
            next(subscription)
        memory.withhold_confirms()
        with interrupted(lambda: publisher.unconfirmed == 1 and is_calling()):
            publisher.send(b'a')
        memory.heal()
        publisher.send(b'b')
        assert [next(subscription), next(subscription)] == [b'a', b'b']


@contextlib.contextmanager
def unnoticed_interrupt(ready: Callable[[], bool]) -> Iterator[None]:
    """Interrupt the main thread without ending its wait in the system, as if the signal had arrived
    just before the wait."""

    def unmasked() -> bool:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # of this thread
        return ready()

    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with interrupted(unmasked):
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_interrupt_just_before_a_wait(memory: StreamBroker) -> None:
    def two_messages() -> Iterator[bytes]:
        yield b'a'
        memory.withhold_confirms()
        yield b'b'

    with (
        rbfly.sync.streams_client(memory.uri) as client,
        client.publisher('orders') as publisher,
        client.subscribe('orders') as subscription,
    ):
        with unnoticed_interrupt(is_calling):
            next(subscription)
        with unnoticed_interrupt(lambda: publisher.unconfirmed > 0):
            publisher.send_many(two_messages())
        memory.heal()


def test_interrupted_wait_for_a_confirm_can_be_repeated(memory: StreamBroker) -> None:
    with (
        rbfly.sync.streams_client(memory.uri) as client,
        client.publisher('orders') as publisher,
    ):
        memory.withhold_confirms()
        confirmation = publisher.submit(b'x')
        with interrupted(is_calling):
            confirmation.result()
        assert not confirmation.done()
        memory.heal()
        confirmation.result()
        for wrong in (-1, float('nan')):
            with pytest.raises(ArgumentError, match='timeout'):
                confirmation.result(wrong)


def test_interrupt_as_soon_as_a_call_has_begun(
    memory: StreamBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ClientThread._start

    def interrupt(thread: ClientThread, call: Any) -> None:
        start(thread, call)
        raise KeyboardInterrupt

    with (
        rbfly.sync.streams_client(memory.uri) as client,
        client.publisher('orders') as publisher,
        client.subscribe('orders') as subscription,
    ):
        for _ in range(10):
            monkeypatch.setattr(ClientThread, '_start', interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(subscription)
            monkeypatch.setattr(ClientThread, '_start', start)

        def publish() -> None:
            wait_until(is_calling)
            publisher.send(b'a')
            publisher.send(b'b')

        publishing = threading.Thread(target=publish)
        publishing.start()
        assert [next(subscription), next(subscription)] == [b'a', b'b']
        publishing.join()


def interrupt_after_calls(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Interrupt each call when its result has arrived; return what `Call.wait` was before."""
    wait = Call.wait

    def interrupt(call: Any) -> None:
        wait(call)
        raise KeyboardInterrupt

    monkeypatch.setattr(Call, 'wait', interrupt)
    return wait


@pytest.mark.parametrize('way', ['for', 'messages', 'batches', 'fetch'])
def test_interrupt_as_messages_arrive(
    memory: StreamBroker, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The program receives them next, and does not commit them before."""
    memory.publish('orders', 'a')
    memory.publish('orders', 'b')
    with (
        rbfly.sync.streams_client(memory.uri) as client,
        client.subscribe('orders', offset=FIRST, commit='manual', group='g') as orders,
    ):

        def receive() -> list[Any]:
            match way:
                case 'for':
                    return [next(orders)]
                case 'messages':
                    return [next(orders.messages()).body]
                case 'batches':
                    return [*next(orders.batches(1))]
            return [*orders.fetch(1)]

        wait = interrupt_after_calls(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            receive()
        monkeypatch.setattr(Call, 'wait', wait)
        orders.commit()
        assert client.read_offset('orders', 'g') is None
        assert [receive(), next(orders)] == [['a'], 'b']
        orders.commit()
        assert client.read_offset('orders', 'g') == 1


def test_iteration_continues_an_interrupted_fetch(
    memory: StreamBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.publish('orders', 'a', 'b')
    with (
        rbfly.sync.streams_client(memory.uri) as client,
        client.subscribe('orders', offset=FIRST, until='now') as orders,
    ):
        wait = interrupt_after_calls(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            orders.fetch()
        monkeypatch.setattr(Call, 'wait', wait)
        assert list(orders) == ['a', 'b']


class SlowStart(threading.Event):
    """The event that a new thread sets, and its creator waits for.

    :ivar is_late: the wait is interrupted when the new thread has its `ident`, not before.
    :ivar released: the thread may start.
    """

    def __init__(self, is_late: bool) -> None:
        super().__init__()
        self.is_late = is_late
        self.released = threading.Event()
        self.has_ident = threading.Event()

    def set(self) -> None:
        self.has_ident.set()
        self.released.wait()
        super().set()

    def wait(self, timeout: float | None = None) -> bool:
        if self.is_late:
            self.has_ident.wait()
        raise KeyboardInterrupt


@pytest.mark.parametrize('moment', ['before', 'early', 'late', 'after'])
def test_interrupt_as_the_thread_starts(
    memory: StreamBroker, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """No thread and no event loop stay behind; the client can be used."""
    made: list[asyncio.AbstractEventLoop] = []
    begun = SlowStart(moment == 'late')
    thread_class: Any = threading.Thread
    start, bootstrap = thread_class.start, thread_class._bootstrap_inner

    def factory() -> asyncio.AbstractEventLoop:
        made.append(asyncio.new_event_loop())
        return made[-1]

    def interrupt(thread: Any) -> None:
        match moment:
            case 'before':  # the system has no more threads
                raise RuntimeError
            case 'early' | 'late':
                thread._started = begun
        start(thread)
        raise KeyboardInterrupt

    def begin(thread: Any) -> None:
        if moment == 'early':
            begun.released.wait()
        bootstrap(thread)

    client = rbfly.sync.streams_client(memory.uri, loop_factory=factory)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, 'start', interrupt)
        patch.setattr(threading.Thread, '_bootstrap_inner', begin)
        with pytest.raises(RuntimeError if moment == 'before' else KeyboardInterrupt):
            client.ping()
    if moment in ('before', 'after'):
        assert made[0].is_closed()
        assert threads() == []
    publisher = client.publisher('orders')
    begun.released.set()
    wait_until(lambda: made[0].is_closed() and len(threads()) == 1)
    publisher.send('a')
    client.close()


def test_client_is_closed_as_a_call_begins(memory: StreamBroker) -> None:
    """By another thread: the call starts the client's thread again."""
    with rbfly.sync.streams_client(memory.uri) as client:
        client.ping()
        closing = threading.Thread(target=client.close)
        lines = 0  # of `check` that have begun

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal lines
            if frame.f_code is not ClientThread.check.__code__:
                return trace if event == 'call' else None
            lines += event == 'line'
            if lines == 2 and closing.ident is None:  # it has looked once
                closing.start()
                closing.join()
            return trace

        sys.settrace(trace)
        try:
            assert client.ping() > 0
        finally:
            sys.settrace(None)
        assert closing.ident is not None


@pytest.mark.parametrize('way', ['call', 'confirm'])
def test_call_begins_as_the_thread_ends(
    memory: StreamBroker, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Because another thread closes the client: the call waits for that."""
    made: list[asyncio.AbstractEventLoop] = []
    stop = RunningLoop.stop
    errors: list[BaseException] = []

    def factory() -> asyncio.AbstractEventLoop:
        assert all(loop.is_closed() for loop in made)
        made.append(asyncio.new_event_loop())
        return made[-1]

    def call() -> None:
        try:
            confirmation.result() if way == 'confirm' else client.ping()
        except BaseException as ex:
            errors.append(ex)

    def stop_later(running: Any) -> None:
        monkeypatch.setattr(RunningLoop, 'stop', stop)
        calling.start()
        wait_until(lambda: not calling.is_alive() or is_in(calling, ClientThread._start.__code__))
        stop(running)

    calling = threading.Thread(target=call)
    client = rbfly.sync.streams_client(memory.uri, loop_factory=factory, close_timeout=0.01)
    memory.withhold_confirms()
    confirmation = client.publisher('orders').submit(b'x')
    monkeypatch.setattr(RunningLoop, 'stop', stop_later)
    client.close()
    calling.join(HANG)
    if way == 'call':
        assert errors == []
    else:
        with pytest.raises(StreamConnectionError, match='may still be stored'):
            raise errors[0]
    client.close()


def test_signal_handler_calls_as_the_thread_ends(
    memory: StreamBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the thread that closes the client: `close` returns, and other calls raise."""
    client = rbfly.sync.streams_client(memory.uri)
    client.ping()
    end = RunningLoop._end
    done: list[str] = []

    async def end_later(running: Any) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_until(lambda: len(done) == 2)
        await end(running)

    def handle(*_: object) -> None:
        client.close()
        done.append('close')
        with pytest.raises(StreamConnectionError, match='the client was closed'):
            client.ping()
        done.append('ping')

    monkeypatch.setattr(RunningLoop, '_end', end_later)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        client.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert done == ['close', 'ping']
    assert threads() == []


def test_interrupt_at_any_moment_of_a_call() -> None:
    """No lock stays locked: the client can be used afterwards."""

    async def work() -> int:
        return 1

    def interrupt_at(number: int) -> bool:
        """Call, and return whether there was such a moment: the start or the end of a function."""
        left = number

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if event in ('call', 'return'):
                if not left:
                    raise KeyboardInterrupt
                left -= 1
            return trace

        sys.settrace(trace)
        try:
            thread.call(work)
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    thread = ClientThread(work, asyncio.new_event_loop)  # type: ignore[arg-type]
    assert thread.call(work) == 1
    count = 0
    while interrupt_at(count):
        assert thread.call(work) == 1
        count += 1
    thread.close()
    assert count > 10


@pytest.mark.parametrize('moment', ['before', 'after'])
def test_interrupted_close(
    memory: StreamBroker, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Its connections are closed all the same, and the outcome of messages is known."""
    start = Call.start

    def interrupt(call: Any, *args: Any) -> None:
        monkeypatch.setattr(Call, 'start', start)
        if moment == 'after':
            start(call, *args)
        raise KeyboardInterrupt

    memory.withhold_confirms()
    client = rbfly.sync.streams_client(memory.uri)
    publisher = client.publisher('orders')
    confirmation = publisher.submit(b'x')
    monkeypatch.setattr(Call, 'start', interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert threads() == []
    wait_until(lambda: not memory.connections)
    with pytest.raises(StreamConnectionError, match='may still be stored'):
        confirmation.result()
    with pytest.raises(StreamConnectionError, match='disconnected'):
        publisher.send(b'y')
    client.close()


def test_interrupt_while_an_iterator_waits(memory: StreamBroker) -> None:
    waiting = threading.Event()

    def bodies() -> Iterator[bytes]:
        yield b'a'
        waiting.set()
        threading.Event().wait()

    with rbfly.sync.streams_client(memory.uri) as client, client.publisher('orders') as publisher:
        with interrupted(waiting.is_set):
            publisher.send_many(bodies())
        publisher.send(b'b')
    assert memory.messages('orders') == [b'b']


def test_another_thread_closes_the_client(memory: StreamBroker) -> None:
    client = rbfly.sync.streams_client(memory.uri)
    subscription = client.subscribe('orders')
    subscription.open()

    def close() -> None:
        wait_until(is_calling)  # a call after `close` would start another thread
        client.close()

    closing = threading.Thread(target=close)
    closing.start()
    with pytest.raises(Exception, match=r'disconnected|closed'):
        next(subscription)
    closing.join(HANG)
    assert threads() == []


def test_several_threads_use_and_close_a_client(memory: StreamBroker, rng: random.Random) -> None:
    """Each call works, or raises an error of RbFly; the client can be used afterwards."""
    client = rbfly.sync.streams_client(memory.uri)
    unexpected: list[BaseException] = []

    def work(closes: list[bool]) -> None:
        try:
            for close in closes:
                with contextlib.suppress(RbFlyError):
                    client.close() if close else client.ping()
        except BaseException as ex:
            unexpected.append(ex)

    plans = [[rng.random() < 0.3 for _ in range(30)] for _ in range(8)]
    workers = [threading.Thread(target=work, args=(plan,)) for plan in plans]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(HANG)
    assert not any(worker.is_alive() for worker in workers)
    assert unexpected == []
    assert client.ping() > 0
    client.close()
    assert threads() == []


def test_functions_of_the_program_cannot_call_the_client(memory: StreamBroker) -> None:
    def filter_value(message: Any) -> str:
        own.ping()
        raise AssertionError

    with (
        rbfly.sync.streams_client(memory.uri) as own,
        own.publisher('orders', filter_extract=filter_value) as publisher,
        pytest.raises(EventLoopError, match='would wait for itself'),
    ):
        publisher.send(b'x')


@pytest.mark.parametrize('kind', [SystemExit, KeyboardInterrupt])
def test_function_that_exits(memory: StreamBroker, kind: type[BaseException]) -> None:
    """The calling thread exits; the thread of the client goes on."""

    async def leave(_: rbs.StreamsClient) -> None:
        raise kind

    client = rbfly.sync.streams_client(memory.uri)
    with pytest.raises(kind):
        client.run(leave)
    assert client.ping() > 0
    client.close()
    assert threads() == []


async def test_within_a_running_event_loop(memory: StreamBroker) -> None:
    """As any blocking call, it blocks the loop: a notebook runs its cells in one."""
    with rbfly.sync.streams_client(memory.uri) as client:
        client.publisher('orders').send(b'x')
    assert memory.messages('orders') == [b'x']


def test_objects_that_are_dropped_leave_no_thread(memory: StreamBroker) -> None:
    client = rbfly.sync.streams_client(memory.uri)
    publisher, subscription = client.publisher('orders'), client.subscribe('orders')
    publisher.send(b'x')
    subscription.open()
    del client
    publisher.send(b'x')  # it keeps the client
    assert len(threads()) == 1
    del publisher, subscription
    gc.collect()
    wait_until(lambda: not threads() and not memory.connections)


def test_client_that_was_never_used_has_no_thread() -> None:
    client = rbfly.sync.streams_client('rabbitmq-stream://localhost')
    client.close()
    assert threads() == []


PROGRAM = """
import os, sys
import rbfly.sync
from rbfly.error import EventLoopError
client = rbfly.sync.streams_client(sys.argv[1])
publisher = client.publisher('orders')
publisher.send(b'parent')
"""
FORKED = """
child = os.fork()
if child == 0:
    try:
        publisher.send(b'child')
    except EventLoopError as ex:
        assert 'create a client in each process' in str(ex)
        sys.exit(0)
    sys.exit(1)
assert os.waitpid(child, 0)[1] == 0
"""
READING = """
import contextlib, signal, threading
from rbfly.error import SubscriptionClosed
from rbfly.streams import Offset
from rbfly.sync.thread import Call
subscription = client.subscribe('orders', offset=Offset.FIRST)
contexts = subscription.messages()
assert next(contexts).body == b'parent'
waits, join = threading.Event(), Call._join
Call._join = lambda call: (waits.set(), join(call))
def fetch():
    with contextlib.suppress(SubscriptionClosed):
        subscription.fetch()
reader = threading.Thread(target=fetch)
reader.start()
waits.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)  # rather than wait for ever
    for call in (lambda: next(subscription), lambda: next(contexts), subscription.fetch):
        try:
            call()
        except EventLoopError as ex:
            assert 'create a client in each process' in str(ex)
        else:
            sys.exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
subscription.close()
reader.join()
"""
UNUSED = """
client.close()
if os.fork() == 0:
    with client:
        client.publisher('orders').send(b'child')
    sys.exit(0)
assert os.wait()[1] == 0
"""


@pytest.mark.parametrize(
    'rest', ['', FORKED, READING, UNUSED, 'raise SystemExit', 'memory = [client]']
)
def test_program_ends(memory: StreamBroker, rest: str) -> None:
    """It ends without a hang and in order, although it closes nothing."""
    command = [sys.executable, '-c', PROGRAM + rest, memory.uri]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, '', '')
    assert memory.messages('orders') == [b'parent'] + [b'child'] * (rest is UNUSED)
    wait_until(lambda: not memory.connections)


def test_broker_that_does_not_answer_at_the_end(memory: StreamBroker) -> None:
    program = PROGRAM.replace('argv[1])', 'argv[1], close_timeout=0.1)')
    program += '\nprint("ready", flush=True)\nsys.stdin.readline()\n'
    command = [sys.executable, '-c', program, memory.uri]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == 'ready\n'
        memory.stall()
        process.communicate('\n', timeout=HANG)
        assert process.returncode == 0
        memory.heal()


# -- arguments


def keywords(function: Any, *without: str) -> set[str]:
    found = inspect.signature(function).parameters
    target = {'self', 'uri', 'stream', 'partitions', 'binding_keys', 'cls'}
    return {*found} - target - {'amqp', 'type', 'codec', 'copy', *without}


@pytest.mark.parametrize(
    ('kind', 'function'),
    [
        (kinds.ClientOptions, rbs.streams_client),
        (kinds.StreamOptions, rbs.StreamsClient.create_stream),
        (kinds.StreamOptions, rbs.SuperStream.create),
        (kinds.PublisherOptions, rbs.StreamsClient.publisher),
        (kinds.SuperPublisherOptions, rbs.SuperStream.publisher),
        (kinds.SubscribeOptions, rbs.StreamsClient.subscribe),
        (kinds.SuperSubscribeOptions, rbs.SuperStream.subscribe),
    ],
)
def test_keyword_arguments_are_those_of_the_asynchronous_client(kind: Any, function: Any) -> None:
    assert {*get_type_hints(kind)} - {'amqp', 'codec'} == keywords(function)


def test_event_loop_of_the_program(memory: StreamBroker) -> None:
    made: list[asyncio.AbstractEventLoop] = []

    def factory() -> asyncio.AbstractEventLoop:
        made.append(asyncio.new_event_loop())
        return made[-1]

    with rbfly.sync.streams_client(memory.uri, loop_factory=factory) as client:
        client.ping()
    assert [loop.is_closed() for loop in made] == [True]
