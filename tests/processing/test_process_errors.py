"""What `process` does with messages whose work fails, and with wrong arguments."""

import asyncio
import logging
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.amqp import encode_amqp_bytes
from rbfly.processing import ProcessSummary, dead_letter, process, retry
from tests.brokers import until
from tests.group_members import publish
from tests.processing.working import Work, client_in_memory, in_time, reading, start
from tests.super_streams import read_partition


class Failing:
    """Fails for some messages: so many times, or each time."""

    def __init__(self, *failing: int, times: float = float('inf')) -> None:
        self.failing = failing
        self.times = times
        self.tries = Counter[int]()
        self.ended: list[int] = []

    async def __call__(self, number: int) -> None:
        self.tries[number] += 1
        await asyncio.sleep(0)
        if number in self.failing and self.tries[number] <= self.times:
            raise ValueError(f'cannot process {number}')
        self.ended.append(number)


async def test_fail(client: rbs.StreamsClient, stream: str) -> None:
    """Messages in work are finished; the failed one and those after it are delivered again."""
    await publish(client, stream, range(30))
    held = Work(11)

    async def work(number: int) -> None:
        if number == 10:
            await until(lambda: bool(held.begun), 'the other message is in work')
            raise ValueError('cannot process 10')
        if number == 11:
            await held(number)

    messages = reading(client, stream)
    task = start(messages, work, workers=2)
    await until(lambda: "state='clos" in repr(messages), 'the subscription is closed')
    assert not task.done()
    held.let_go(11)
    with pytest.raises(ValueError, match='cannot process 10') as caught:
        await in_time(task)
    (note,) = caught.value.__notes__
    assert note == f'raised by the work on the message at offset 10 of stream {stream!r}'
    assert held.ended == [11]
    assert await client.read_offset(stream, 'reader') == 9


async def test_fail_keeps_the_order(client: rbs.StreamsClient, stream: str) -> None:
    """No message with the key of a failed one begins after it."""
    await publish(client, stream, range(300))
    work = Failing(30)
    with pytest.raises(ValueError, match='cannot process 30'):
        await in_time(process(reading(client, stream), work, key=lambda number: number % 10))
    assert max(number for number in work.ended if not number % 10) == 20


async def test_ignore(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, range(30))
    work = Failing(3, 20)
    summary = await in_time(process(reading(client, stream), work, on_error='ignore'))
    assert summary == ProcessSummary(finished=30, ignored=2)
    assert await client.read_offset(stream, 'reader') == 29


@pytest.mark.own_clock  # on a busy machine, the other messages may take longer than the delays
async def test_retry_blocks_only_its_key() -> None:
    work = Failing(0, 1, times=2)
    options: dict[str, Any] = {'workers': 1, 'key': lambda number: number % 10}
    async with client_in_memory(100) as client:
        messages = reading(client, 'orders')
        summary = await in_time(process(messages, work, on_error=retry([0.1, 0.1]), **options))
    assert summary == ProcessSummary(finished=100, retries=4)
    assert work.tries[0] == work.tries[1] == 3
    others = [number for number in work.ended if number % 10 > 1]
    assert work.ended[: len(others)] == others
    for key in range(10):
        assert [number for number in work.ended if number % 10 == key] == [*range(key, 100, 10)]


@pytest.mark.parametrize('then', ['fail', 'ignore'])
async def test_retry_without_success(client: rbs.StreamsClient, stream: str, then: Any) -> None:
    await publish(client, stream, range(10))
    work = Failing(4)
    call = process(reading(client, stream), work, on_error=retry([0, 0.01], then=then))
    if then == 'fail':
        with pytest.raises(ValueError, match='cannot process 4'):
            await in_time(call)
        assert await client.read_offset(stream, 'reader') == 3
    else:
        assert await in_time(call) == ProcessSummary(finished=10, ignored=1, retries=2)
        assert await client.read_offset(stream, 'reader') == 9
    assert work.tries[4] == 3


async def test_stop_gives_back_what_waits_for_a_retry(
    client: rbs.StreamsClient, stream: str
) -> None:
    await publish(client, stream, range(10))
    work = Failing(4)
    messages = reading(client, stream, until=None)
    task = start(messages, work, on_error=retry([600]))
    await until(lambda: len(work.ended) == 9, 'all others are finished')
    messages.stop()
    assert (await in_time(task)).finished == 9
    assert await client.read_offset(stream, 'reader') == 3


@pytest.mark.own_clock  # on a busy machine, the work on other messages may time out, too
async def test_work_that_hangs() -> None:
    work = Work(4)
    async with client_in_memory(10) as client:
        with pytest.raises(TimeoutError, match=r'the work has not ended within 0\.05 s'):
            await in_time(process(reading(client, 'orders'), work, timeout=0.05))
    assert work.cancelled == [4]


async def test_dead_letters(client: rbs.StreamsClient, stream: str, dead: str) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    header = rbs.AMQPHeader(durable=True)
    async with client.publisher(stream) as publisher:
        for i in range(5):
            await publisher.send(
                rbs.MessageCtx({'id': i}, app_properties={'shop': 7}, header=header)
            )

    async def work(order: dict[str, int]) -> None:
        if order['id'] in (1, 3):
            raise LookupError('no such order: ' + 'x' * 2000)

    async with client.publisher(dead) as letters:
        on_error = retry([0], then=dead_letter(letters))
        summary = await in_time(process(reading(client, stream), work, on_error=on_error))
    assert summary == ProcessSummary(finished=5, dead_letters=2, retries=2)
    assert await client.read_offset(stream, 'reader') == 4
    found = client.subscribe(dead, offset=rbs.Offset.FIRST, until='now')
    for message, offset in zip([item async for item in found.messages()], (1, 3), strict=True):
        assert message.body == {'id': offset}
        assert message.header == header
        facts = dict(message.app_properties)
        assert facts.pop('shop') == 7
        reason = facts.pop('dead-letter-reason')
        assert reason.startswith('LookupError: no such order: xxx')
        assert len(reason) == 1024
        assert facts.pop('dead-letter-time') >= before
        assert facts == {
            'dead-letter-stream': stream,
            'dead-letter-offset': offset,
            'dead-letter-tries': 2,
        }


async def test_dead_letter_has_the_bytes_of_the_body(
    client: rbs.StreamsClient, stream: str, dead: str
) -> None:
    """The body of another client, in a form that RbFly does not write."""
    body = bytes([0x00, 0x53, 0x77, 0x70, 0, 0, 0, 5])  # an uint of 4 bytes
    async with client.publisher(stream, amqp=False) as publisher:
        await publisher.send(body)
    async with client.publisher(dead) as letters:
        await in_time(process(reading(client, stream), Failing(5), on_error=dead_letter(letters)))
    raw = client.subscribe(dead, offset=rbs.Offset.FIRST, until='now', amqp=False)
    (found,) = [item async for item in raw]
    assert found.endswith(body)
    assert len(found) > len(body)
    assert encode_amqp_bytes(5) != body


async def test_dead_letter_of_bytes_that_are_not_amqp(
    client: rbs.StreamsClient, stream: str, dead: str
) -> None:
    async with client.publisher(stream, amqp=False) as publisher:
        await publisher.send_many([encode_amqp_bytes(0), b'not amqp', encode_amqp_bytes(2)])
    work = Failing()
    async with client.publisher(dead) as letters:
        summary = await in_time(
            process(reading(client, stream), work, on_error=dead_letter(letters))
        )
    assert summary == ProcessSummary(finished=3, dead_letters=1)
    assert sorted(work.ended) == [0, 2]
    assert await read_partition(client, dead) == [b'not amqp']
    with pytest.raises(rbs.AMQPDecoderError):
        await in_time(process(client.subscribe(stream, offset=rbs.Offset.FIRST), work))


async def test_dead_letter_of_a_body_of_another_type(
    client: rbs.StreamsClient, stream: str, dead: str
) -> None:
    """It is the message as it was received, not its bytes."""
    async with client.publisher(stream) as publisher:
        await publisher.send(rbs.MessageCtx('five', app_properties={'shop': 7}))
    async with client.publisher(dead) as letters:
        messages = reading(client, stream, type=int)
        await in_time(process(messages, Failing(), on_error=dead_letter(letters)))
    found = client.subscribe(dead, offset=rbs.Offset.FIRST, until='now')
    (letter,) = [item async for item in found.messages()]
    assert letter.body == 'five'
    assert letter.app_properties['shop'] == 7
    assert 'expected int, got str' in letter.app_properties['dead-letter-reason']


async def test_dead_letter_of_a_message_received_as_bytes(
    client: rbs.StreamsClient, stream: str, dead: str
) -> None:
    """Its body is what the work has received, even if that is a message of AMQP 1.0."""
    await publish(client, stream, [5])

    async def work(body: bytes) -> None:
        raise ValueError('cannot process it')

    async with client.publisher(dead) as letters:
        messages = reading(client, stream, amqp=False)
        await in_time(process(messages, work, on_error=dead_letter(letters)))
    assert await read_partition(client, dead) == [encode_amqp_bytes(5)]


async def test_bytes_that_are_not_amqp_are_not_tried(
    client: rbs.StreamsClient, stream: str, dead: str
) -> None:
    """The work receives only what it expects, and the letter says that it was never called."""
    async with client.publisher(stream, amqp=False) as publisher:
        await publisher.send_many([encode_amqp_bytes(0), b'not amqp', encode_amqp_bytes(2)])
    work = Failing(2, times=1)
    async with client.publisher(dead) as letters:
        on_error = retry([0], then=dead_letter(letters))
        summary = await in_time(process(reading(client, stream), work, on_error=on_error))
    assert summary == ProcessSummary(finished=3, dead_letters=1, retries=1)
    assert work.tries == {0: 1, 2: 2}
    found = client.subscribe(dead, offset=rbs.Offset.FIRST, until='now')
    (letter,) = [item async for item in found.messages()]
    assert letter.body == b'not amqp'
    assert letter.app_properties['dead-letter-tries'] == 0


async def test_dead_letters_in_a_super_stream(
    client: rbs.StreamsClient, stream: str, super_stream: str
) -> None:
    await publish(client, stream, range(20))
    orders = client.super_stream(super_stream)
    async with orders.publisher(route=rbs.by_hash(lambda letter: str(letter.body))) as letters:
        summary = await in_time(
            process(reading(client, stream), Failing(*range(10)), on_error=dead_letter(letters))
        )
    assert summary.dead_letters == 10
    found = list[int]()
    for name in await orders.partitions():
        found += await read_partition(client, name)
    assert sorted(found) == [*range(10)]


async def test_dead_letter_that_cannot_be_published(
    client: rbs.StreamsClient, stream: str, dead: str
) -> None:
    await publish(client, stream, range(10))
    letters = client.publisher(dead)
    async with letters as publisher:
        pass
    with pytest.raises(rbs.RbFlyError) as caught:
        await in_time(process(reading(client, stream), Failing(4), on_error=dead_letter(publisher)))
    assert 'cannot process 4' in caught.value.__notes__[-1]
    assert await client.read_offset(stream, 'reader') == 3


async def test_key_that_fails(client: rbs.StreamsClient, stream: str) -> None:
    await publish(client, stream, [{'key': 0}, {}, {'key': []}, {'key': 1}])
    ended: list[Any] = []

    async def work(order: Any) -> None:
        ended.append(order)

    def key(order: Any) -> Any:
        return order['key']

    messages = reading(client, stream)
    summary = await in_time(process(messages, work, key=key, on_error='ignore'))
    assert summary == ProcessSummary(finished=4, ignored=2)
    assert ended == [{'key': 0}, {'key': 1}]
    with pytest.raises(KeyError):
        await in_time(process(client.subscribe(stream, offset=rbs.Offset.FIRST), work, key=key))


async def test_cancelled_error_of_the_work(client: rbs.StreamsClient, stream: str) -> None:
    """Nobody has cancelled `process`."""
    await publish(client, stream, range(3))

    async def work(number: int) -> None:
        if number == 1:
            task = asyncio.ensure_future(asyncio.sleep(10))
            task.cancel()
            await task

    with pytest.raises(RuntimeError, match='raised CancelledError'):
        await in_time(process(reading(client, stream), work))


async def test_many_errors_make_few_lines(
    client: rbs.StreamsClient, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(client, stream, range(1000))
    on_error = retry([0.01], then='ignore')
    with caplog.at_level(logging.INFO, 'rbfly.processing'):
        await in_time(process(reading(client, stream), Failing(*range(1000)), on_error=on_error))
    first, record = [item for item in caplog.records if item.name == 'rbfly.processing']
    assert [first.levelname, record.levelname] == ['INFO', 'WARNING']
    assert first.getMessage() == (
        f'the work on the message at offset 0 of stream {stream!r} has failed, try 1:'
        ' ValueError: cannot process 0'
    )
    assert ', try 2: ValueError: cannot process ' in record.getMessage()
    assert vars(first)['rbfly_offset'] == 0


async def test_automatic_offsets_are_refused(client: rbs.StreamsClient, stream: str) -> None:
    with pytest.raises(rbs.ArgumentError, match="commit='manual'"):
        await process(client.subscribe(stream, group='billing'), Work())


@pytest.mark.parametrize('work', [lambda number: number, lambda: None])
@pytest.mark.parametrize('options', [{}, {'timeout': 5}, {'key': str}])
async def test_work_that_is_not_an_async_function(
    client: rbs.StreamsClient, stream: str, work: Any, options: dict[str, Any]
) -> None:
    await publish(client, stream, range(3))
    with pytest.raises(rbs.ArgumentTypeError, match='work must be an async function of one'):
        await in_time(process(reading(client, stream), work, on_error='ignore', **options))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({'workers': 0}, 'workers must be from 1'),
    ({'workers': 'many'}, 'workers must be int'),
    ({'key': 'customer'}, 'key must be a function, not str'),
    ({'context': 1}, 'context must be bool'),
    ({'timeout': 0}, 'timeout must be above 0'),
    ({'max_pending': 0}, 'max_pending must be from 1'),
    ({'every': -1}, 'every must be from 0'),
    ({'interval': -1}, 'interval must be 0 or more'),
    ({'finish_timeout': None}, 'finish_timeout must be int or float'),
    ({'on_error': 'skip'}, "on_error must be 'fail', 'ignore', retry"),
    ({'on_error': None}, "on_error must be 'fail', 'ignore', retry"),
]


@pytest.mark.parametrize(('options', 'text'), WRONG)
async def test_wrong_arguments(
    client: rbs.StreamsClient, stream: str, options: dict[str, Any], text: str
) -> None:
    with pytest.raises((rbs.ArgumentError, rbs.ArgumentTypeError), match=text):
        await process(client.subscribe(stream), Work(), **options)


@pytest.mark.parametrize(
    ('arguments', 'text'),
    [
        (([],), 'delays must not be empty'),
        ((['1'],), 'a delay must be int or float'),
        (([-1],), 'a delay must be 0 or more'),
        (('1',), 'delays must be numbers'),
        ((5,), r'delays must be numbers of seconds in a list, such as \[0.1, 1\], not 5'),
        (([1], 'skip'), "then must be 'fail', 'ignore' or dead_letter"),
    ],
)
def test_wrong_delays(arguments: Any, text: str) -> None:
    with pytest.raises((rbs.ArgumentError, rbs.ArgumentTypeError), match=text):
        retry(*arguments)


def test_wrong_publisher() -> None:
    with pytest.raises(rbs.ArgumentTypeError, match='publisher must be BasePublisher'):
        dead_letter('orders-dlq')  # type: ignore[arg-type]


async def test_wrong_subscription() -> None:
    with pytest.raises(rbs.ArgumentTypeError, match='messages must be Subscription or Super'):
        await process([1, 2], Work())  # type: ignore[call-overload]
