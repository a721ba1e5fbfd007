"""Members of the tests of consumer groups."""

import asyncio
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import rbfly.streams as rbs
from tests.brokers import until
from tests.inside import session_of

HANG = 40.0  # seconds; only a bug makes a test wait that long.  At most 50: a handover_timeout.

NewClient = Callable[[], rbs.StreamsClient]


async def may_strand(client: rbs.StreamsClient) -> bool:
    """Return whether the broker may strand a group while a member leaves and another one joins.

    RabbitMQ before 4.1.2 does, also if a member is cut off: then no member is active, and no
    update is unanswered.
    """
    version = (await client.get_protocol()).server_properties['version']
    return tuple(map(int, re.findall(r'\d+', version)[:3])) < (4, 1, 2)


async def publish(
    client: rbs.StreamsClient, stream: str, numbers: Iterable[Any], *, sub_entry_size: int = 1
) -> None:
    """Publish messages.

    :param sub_entry_size: that many messages are in the same chunk.
    """
    async with client.publisher(stream, sub_entry_size=sub_entry_size) as publisher:
        await publisher.send_many(numbers)


async def take(messages: Any, count: int) -> list[Any]:
    """Return the next messages; the last one is not finished."""
    found: list[Any] = []
    async with asyncio.timeout(HANG):
        async for body in messages:
            found.append(body)
            if len(found) == count:
                break
    return found


async def until_active(messages: Any, active: Any = True) -> None:
    await until(lambda: messages.active == active, 'the group has changed')


def hand_over_late(messages: Any, timeout: float = 0.01) -> None:
    """Let the active members of a subscription wait only briefly for the program's messages.

    A short `handover_timeout` from the beginning would also limit the time in which they start.
    """
    session = session_of(messages)
    parts = session.sessions.values() if hasattr(session, 'sessions') else [session]
    for part in parts:
        part._member.group = replace(part._member.group, handover_timeout=timeout)


class Reader:
    """Reads a subscription in a task of its own."""

    def __init__(self, messages: Any) -> None:
        self.messages = messages
        self.bodies: list[Any] = []
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for body in self.messages:
            self.bodies.append(body)

    async def stop(self) -> None:
        self.messages.stop()
        async with asyncio.timeout(HANG):
            await self.task


class OwnOffsets:
    """The offsets that a program keeps; `start` counts its calls."""

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}
        self.asked = 0

    async def start(self, name: str) -> rbs.Offset:
        self.asked += 1
        return rbs.Offset.offset(self.offsets.get(name, 0))
