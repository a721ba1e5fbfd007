"""Functions that a subscription calls while a `with` block runs."""

import asyncio
from typing import Any

import pytest

import rbfly.streams as rbs
from tests.brokers import until
from tests.group_members import HANG, NewClient, publish, take, until_active
from tests.inside import session_of
from tests.super_streams import subscribe_to

SUPER = [False, True]


def stream_of(messages: Any, stream: str) -> str:
    return f'{stream}-0' if isinstance(messages, rbs.SuperStreamSubscription) else stream


async def test_handover_calls_the_hook_before_the_message_is_finished(
    clients: NewClient, stream: str, group: str, client: rbs.StreamsClient
) -> None:
    """Then it waits for the message, and calls the function of the group."""
    await publish(client, stream, range(10))
    calls: list[str] = []
    hooked = asyncio.Event()

    async def hook(name: str) -> None:
        calls.append(f'hook of {name}')
        hooked.set()

    async def on_revoke(name: str) -> None:
        calls.append(f'on_revoke of {name}')

    settings = rbs.Group(group, on_revoke=on_revoke, handover_timeout=HANG)
    messages = clients().subscribe(stream, group=settings, commit='manual')
    with messages.hooks(on_revoke=hook):
        await take(messages, 5)
        member: Any = session_of(messages)._member
        member._on_update(1, False)  # what RabbitMQ sends to a member of a super stream
        async with asyncio.timeout(HANG):
            await hooked.wait()
        assert calls == [f'hook of {stream}']
        reading = asyncio.create_task(anext(messages))
        await until(lambda: len(calls) == 2, 'the handover goes on', HANG)
        assert calls[1] == f'on_revoke of {stream}'
        reading.cancel()
        await asyncio.wait([reading])


@pytest.mark.parametrize('how', ['stop', 'close'])
async def test_closing_calls_the_hooks(
    clients: NewClient, stream: str, group: str, how: str
) -> None:
    client = clients()
    await publish(client, stream, range(10))
    calls: list[str] = []

    async def hook(name: str) -> None:
        calls.append(name)
        await messages.commit(3)

    messages = client.subscribe(stream, group=group, commit='manual')
    with messages.hooks(on_revoke=hook, on_stop=lambda: calls.append('stop')):
        await take(messages, 5)
        if how == 'stop':
            messages.stop()
            assert calls == ['stop']
            assert await take(messages, 1) == []
        else:
            await messages.close()
    assert calls == ['stop', stream]
    assert await client.read_offset(stream, group) == 3


@pytest.mark.parametrize('super_stream_', SUPER)
async def test_lost_connection_calls_the_hook(
    clients: NewClient, stream: str, super_stream: str, group: str, super_stream_: bool
) -> None:
    client = clients()
    name = super_stream if super_stream_ else stream
    lost: list[str] = []

    async def hook(_: str) -> None:
        pytest.fail('a member that is lost does not hand over')

    messages = subscribe_to(client, name, super_stream=super_stream_, group=group)
    with messages.hooks(on_revoke=hook, on_lost=lost.append):
        reading = asyncio.create_task(anext(messages))
        partitions = 3 if super_stream_ else 1
        await until(
            lambda: messages.active is True or len(messages.active or ()) == partitions,
            'the member is active',
            HANG,
        )
        await client.reconnect()
        await until(lambda: len(lost) == partitions, 'the hook was called', HANG)
        reading.cancel()
        await asyncio.wait([reading])
    assert sorted(lost) == ([f'{name}-{i}' for i in range(3)] if super_stream_ else [name])


async def test_error_of_a_hook(clients: NewClient, stream: str, group: str) -> None:
    client = clients()
    await publish(client, stream, range(10))

    async def hook(_: str) -> None:
        raise LookupError('no table')

    messages = client.subscribe(stream, group=group)
    with messages.hooks(on_revoke=hook):
        await take(messages, 5)
        with pytest.raises(LookupError, match='no table'):
            await messages.close()


async def test_hooks_end_with_the_block(clients: NewClient, stream: str, group: str) -> None:
    client = clients()
    calls: list[str] = []

    async def hook(name: str) -> None:
        calls.append(name)

    messages = client.subscribe(stream, group=group)
    with messages.hooks(on_revoke=hook, on_lost=calls.append, on_stop=lambda: calls.append('')):
        opening = asyncio.create_task(anext(messages))
        await until_active(messages)
        opening.cancel()
        await asyncio.wait([opening])
    await messages.close()
    assert calls == []


async def test_one_block_at_a_time(client: rbs.StreamsClient, stream: str) -> None:
    messages = client.subscribe(stream)
    with (
        messages.hooks(),
        pytest.raises(rbs.SubscriptionError, match='another `with` block'),
        messages.hooks(),
    ):
        pass
    with messages.hooks():
        pass


@pytest.mark.parametrize('name', ['on_revoke', 'on_lost', 'on_stop'])
async def test_wrong_hook(client: rbs.StreamsClient, stream: str, name: str) -> None:
    options: Any = {name: 5}
    with (
        pytest.raises(rbs.ArgumentTypeError, match=f'{name} must be an? (async )?function'),
        client.subscribe(stream).hooks(**options),
    ):
        pass


async def test_settings_of_a_subscription(client: rbs.StreamsClient, stream: str) -> None:
    messages = client.subscribe(stream, group='billing', commit='manual')
    assert messages.group == rbs.Group('billing')
    assert messages.offset_tracking == rbs.OffsetTracking('billing', manual=True)
    plain = client.super_stream(stream).subscribe()
    assert plain.group is None
    assert plain.offset_tracking is None
