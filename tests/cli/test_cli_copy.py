"""`rbfly copy`."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.cli.connection import Target
from rbfly.cli.copy import Copy, command, copy
from rbfly.cli.places import place_of
from rbfly.testing import StreamBroker
from tests.command_line import (
    bodies,
    in_terminal,
    publish,
    rbfly,
    started,
    super_stream,
    wait_until,
)


@pytest.fixture
def to(broker: RabbitMQ) -> Iterator[str]:
    """A new, empty stream."""
    name = f'test-{uuid4()}'
    change(broker.uri, 'create_stream', name)
    yield name
    change(broker.uri, 'delete_stream', name)


def change(uri: str, method: str, *args: Any) -> Any:
    async def main() -> Any:
        async with rbs.streams_client(uri) as client:
            return await getattr(client, method)(*args)

    return asyncio.run(main())


def raw_bodies(uri: str, stream: str, **options: Any) -> list[bytes]:
    async def main() -> list[bytes]:
        async with rbs.streams_client(uri) as client:
            settings: Any = {'offset': rbs.Offset.FIRST, 'until': 'now', 'amqp': False} | options
            return [body async for body in client.subscribe(stream, **settings)]

    return asyncio.run(main())


def test_bytes_are_kept(broker: RabbitMQ, stream: str, to: str) -> None:
    sent = [b'\x00\x01junk', b'\x00\x53\x75\xa0\x01a', b'']
    publish(broker.uri, stream, *sent, amqp=False)
    done = rbfly('copy', stream, to, RBFLY_URI=broker.uri)
    assert (done.returncode, done.stdout, done.stderr) == (0, '3 messages copied\n', '')
    assert raw_bodies(broker.uri, to) == sent


def test_next_copy_goes_on(broker: RabbitMQ, stream: str, to: str) -> None:
    publish(broker.uri, stream, 'a', 'b')
    assert rbfly('copy', stream, to, RBFLY_URI=broker.uri).stdout == '2 messages copied\n'
    publish(broker.uri, stream, 'c')
    assert rbfly('copy', stream, to, RBFLY_URI=broker.uri).stdout == '1 message copied\n'
    assert rbfly('copy', stream, to, '-q', RBFLY_URI=broker.uri).stdout == ''
    assert bodies(broker.uri, to) == ['a', 'b', 'c']
    assert change(broker.uri, 'read_offset', stream, f'copy/{to}') >= 2
    rbfly('copy', stream, to, '--name', 'again', '-o', '2', RBFLY_URI=broker.uri)
    assert bodies(broker.uri, to) == ['a', 'b', 'c', 'c']


def test_sub_entries(broker: RabbitMQ, stream: str, to: str) -> None:
    publish(broker.uri, stream, *range(20))
    options = ('--sub-entries', '3', '--compression', 'gzip')
    assert rbfly('copy', stream, to, *options, RBFLY_URI=broker.uri).returncode == 0
    assert bodies(broker.uri, to) == [*range(20)]


def test_filter_values(broker: RabbitMQ, stream: str, to: str) -> None:
    publish(broker.uri, stream, *({'region': name} for name in ('emea', 'apac') * 3))
    publish(broker.uri, stream, b'?', amqp=False)
    done = rbfly('copy', stream, to, '--filter', 'region', RBFLY_URI=broker.uri)
    assert done.stdout == '7 messages copied\n'

    def region(message: rbs.Message[bytes]) -> str:
        return 'apac' if b'apac' in message.body else 'emea'

    wanted = rbs.MessageFilter(region, {'apac'})
    assert len(raw_bodies(broker.uri, to, filter=wanted)) == 3


def test_super_stream(broker: RabbitMQ) -> None:
    names = [f'super-{uuid4().hex[:8]}' for _ in range(2)]
    with (
        super_stream(broker.uri, names[0], 2) as sources,
        super_stream(broker.uri, names[1], 2) as targets,
    ):
        for number, partition in enumerate(sources):
            publish(broker.uri, partition, *range(number * 10, number * 10 + 5))
        done = rbfly('copy', *names, RBFLY_URI=broker.uri)
        assert (done.stdout, done.stderr) == ('10 messages copied\n', '')
        for source, target in zip(sources, targets, strict=True):
            assert bodies(broker.uri, target) == bodies(broker.uri, source)


def test_to_another_broker(broker: RabbitMQ, stream: str, tmp_path: Path) -> None:
    publish(broker.uri, stream, 'a', 'b')
    with StreamBroker() as other:
        other.create_stream('copy')
        done = rbfly('copy', stream, 'copy', '--to-uri', other.uri, RBFLY_URI=broker.uri)
        assert done.stdout == '2 messages copied\n'
        publish(broker.uri, stream, 'c')
        config = tmp_path / 'config.toml'
        config.write_text(f'[profiles.backup]\nuri = "{other.uri}"\n')
        variables = {'RBFLY_URI': broker.uri, 'RBFLY_CONFIG': str(config)}
        done = rbfly('copy', stream, 'copy', '--to-profile', 'backup', **variables)
        assert done.stderr == ''
        assert done.stdout == '1 message copied\n'
        assert other.messages('copy') == ['a', 'b', 'c']


def test_profile_counts_more_than_the_environment(tmp_path: Path) -> None:
    config = tmp_path / 'config.toml'
    with StreamBroker() as first, StreamBroker() as second, StreamBroker() as other:
        config.write_text(f'[profiles.backup]\nuri = "{second.uri}"\n')
        first.create_stream('orders')
        first.publish('orders', b'a')
        for broker in (second, other):
            broker.create_stream('copy')
        done = rbfly(
            *('copy', 'orders', 'copy', '--to-profile', 'backup'),
            RBFLY_URI=first.uri,
            RBFLY_TO_URI=other.uri,
            RBFLY_CONFIG=str(config),
        )
        assert done.stdout == '1 message copied\n'
        assert (len(second.messages('copy')), other.messages('copy')) == (1, [])


def test_follow_until_interrupted(broker: RabbitMQ, stream: str, to: str) -> None:
    publish(broker.uri, stream, 'a')
    with started('copy', stream, to, '--follow', RBFLY_URI=broker.uri) as process:
        wait_until(lambda: bodies(broker.uri, to) == ['a'])
        publish(broker.uri, stream, 'b')
        wait_until(lambda: bodies(broker.uri, to) == ['a', 'b'])
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stdout.read() == b'2 messages copied; interrupted\n'
    assert rbfly('copy', stream, to, RBFLY_URI=broker.uri).returncode == 0
    assert bodies(broker.uri, to) == ['a', 'b']


def test_interruption_counts_what_is_stored() -> None:
    with StreamBroker() as source, StreamBroker() as target:
        source.create_stream('orders')
        target.create_stream('copy')
        source.publish('orders', b'a', b'b')
        variables: Any = {'RBFLY_URI': source.uri, 'RBFLY_TO_URI': target.uri}
        with started('copy', 'orders', 'copy', '--follow', **variables) as process:
            wait_until(lambda: len(target.messages('copy')) == 2)
            target.lose_confirms(3)
            source.publish('orders', b'c', b'd', b'e')
            wait_until(lambda: len(target.messages('copy')) == 5)
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130
            assert process.stdout.read() == b'2 messages copied; interrupted\n'


def test_killed_copy_goes_on(broker: RabbitMQ, stream: str, to: str) -> None:
    publish(broker.uri, stream, *range(50))
    with started('copy', stream, to, '--follow', RBFLY_URI=broker.uri) as process:
        wait_until(lambda: bodies(broker.uri, to))
        process.kill()
        process.wait()
    assert rbfly('copy', stream, to, RBFLY_URI=broker.uri).returncode == 0
    assert bodies(broker.uri, to) == [*range(50)]


@pytest.mark.own_clock
async def test_copies_go_on_when_the_broker_has_chosen_none() -> None:
    """As RabbitMQ before 4.1.2 may do when one of two is killed."""
    job = Copy(
        source='orders',
        target='archive',
        offset=place_of('start'),
        follow=True,
        name='job',
        filter_field=None,
        sub_entries=None,
        compression=None,
        quiet=True,
    )
    with click.Context(command):
        async with StreamBroker(version='4.0') as broker:
            broker.create_super_stream('orders', partitions=1)
            broker.create_stream('archive')
            broker.publish('orders-0', b'a')
            end = Target(uris=(broker.uri,))
            running = [asyncio.create_task(copy(end, end, job)) for _ in range(2)]
            await broker.wait_for('archive', 1)
            broker.strand('orders-0', 'job')
            broker.publish('orders-0', b'b')
            assert await broker.wait_for('archive', 2, timeout=600) == [b'a', b'b']
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def test_progress_in_a_terminal(broker: RabbitMQ, stream: str, to: str) -> None:
    with in_terminal('copy', stream, to, '-f', RBFLY_URI=broker.uri) as terminal:
        publish(broker.uri, stream, 'a')
        terminal.read_until('1 copied, ')


WRONG = {
    '--compression needs --sub-entries': ('a', 'b', '--compression', 'gzip'),
    'use either --filter or --sub-entries': ('a', 'b', '--filter', 'x', '--sub-entries', '3'),
    "'a' cannot be copied to itself": ('a', 'a'),
    'is a range': ('a', 'b', '-o', '1:2'),
}


@pytest.mark.parametrize(('text', 'args'), WRONG.items(), ids=WRONG)
def test_wrong_options(broker: RabbitMQ, text: str, args: tuple[str, ...]) -> None:
    done = rbfly('copy', *args, RBFLY_URI=broker.uri)
    assert (done.returncode, done.stdout) == (2, '')
    assert text in done.stderr


def test_offset_that_differs_by_partition() -> None:
    with StreamBroker() as broker:
        for name in ('orders', 'archive'):
            broker.create_super_stream(name, partitions=2)
        done = rbfly('copy', 'orders', 'archive', '-o', '+1', RBFLY_URI=broker.uri)
    assert done.returncode == 2
    assert "'orders' is a super stream: +1 differs by partition" in done.stderr


def test_missing_streams(broker: RabbitMQ, stream: str) -> None:
    missing = f'missing-{uuid4()}'
    for names in ((missing, stream), (stream, missing)):
        done = rbfly('copy', *names, RBFLY_URI=broker.uri)
        assert (done.returncode, done.stdout) == (1, '')
        assert f"stream '{missing}': the stream does not exist" in done.stderr
