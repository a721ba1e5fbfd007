"""Members of groups (single active consumers), as raw connections."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from rbfly.protocol import commands
from rbfly.protocol._chunk import Chunk
from rbfly.protocol.commands import (
    ConsumerUpdate,
    Create,
    CreateSuperStream,
    Credit,
    CreditError,
    DeclarePublisher,
    Delete,
    DeleteSuperStream,
    MetadataUpdate,
    StreamStats,
    Subscribe,
    Unsubscribe,
)
from rbfly.protocol.message_frames import Deliver, Publish
from rbfly.protocol.offset import Offset
from tests.raw_client import RawClient, connect, connect_and_open, numbered_entries

ON, OFF, REFUSED, GONE = 'active', 'inactive', 'credit refused', 'stream gone'
MARK = 200  # subscription that marks a point in what a client receives


def properties(name: str = 'group', super_stream: str | None = None) -> dict[str, str]:
    found = {'single-active-consumer': 'true', 'name': name}
    return found if super_stream is None else found | {'super-stream': super_stream}


class GroupConnection:
    """A connection whose subscriptions are members of a group on a stream."""

    def __init__(self, client: RawClient, stream: str, properties: dict[str, str]) -> None:
        self.client = client
        self.stream = stream
        self.properties = properties
        self.received = 0  # number of ConsumerUpdate requests, which are numbered from 0
        self.updates: list[int] = []  # those for members of the group

    async def join(self, offset: Offset = Offset.FIRST, credit: int = 10, id: int = 0) -> None:
        await self.client.value(Subscribe(id, self.stream, offset, credit, self.properties))
        await self.settle()

    async def leave(self, id: int = 0) -> None:
        await self.client.value(Unsubscribe(id))
        await self.settle()

    async def settle(self) -> None:
        """Wait until the group has changed: RabbitMQ 4.0 sends some responses before that."""
        await self.client.value(StreamStats(self.stream))

    async def credit(self, chunks: int, id: int = 0) -> None:
        self.client.send(Credit(id, chunks))

    async def answer(
        self, offset: Offset | None = None, code: int = 1, number: int | None = None
    ) -> None:
        """Answer the last ConsumerUpdate, or another one; return when the broker has read it."""
        number = self.updates[-1] if number is None else number
        self.client.write(ConsumerUpdate.respond(number, offset, code))
        await self.settle()

    async def next(self) -> Any:
        """The next event: the number of a delivered message, or the constant of another event."""
        item = await self.client.receive()
        event: Any = item
        match item:
            case ConsumerUpdate():
                if item.subscription_id != MARK:
                    self.updates.append(self.received)
                self.received += 1
                event = ON if item.active else OFF
            case Deliver():
                (data,) = Chunk.parse(item.chunk).messages()
                event = int(data)
            case CreditError(code=0x11):
                event = REFUSED
            case MetadataUpdate(code=6):
                return GONE
            case _:
                return item
        return (item.subscription_id, event) if item.subscription_id else event

    async def read_events(self) -> list[Any]:
        """All events that the broker has sent because of the requests before this call.

        The broker notifies the members of all groups in order, so it has sent them before it
        activates another group.
        """
        mark = properties(f'{uuid4()}')
        await self.client.value(Subscribe(MARK, self.stream, Offset.LAST, 1, mark))
        found = []
        while (event := await self.next()) != (MARK, ON):
            found.append(event)
        await self.answer(number=self.received - 1)
        while not (isinstance(event := await self.next(), tuple) and event[0] == MARK):
            found.append(event)
        await self.leave(MARK)
        return found


async def publish(client: RawClient, stream: str, *numbers: int) -> None:
    await client.value(DeclarePublisher(0, '', stream))
    for number in numbers:
        client.send(Publish(0, numbered_entries(number)))
        await client.receive()


@dataclass
class FilledStream:
    """A stream, or a partition of a super stream, that contains the messages 0 to 5."""

    uri: str
    version: str
    stream: str
    properties: dict[str, str]
    stack: AsyncExitStack

    async def peer(self) -> GroupConnection:
        client = await self.stack.enter_async_context(connect_and_open(self.uri))
        return GroupConnection(client, self.stream, self.properties)

    async def peers(self, count: int) -> list[GroupConnection]:
        return [await self.peer() for _ in range(count)]

    async def publish(self, *numbers: int) -> None:
        async with connect_and_open(self.uri) as client:
            await publish(client, self.stream, *numbers)


@asynccontextmanager
async def filled_stream(uri: str, partition: int | None = None) -> AsyncIterator[FilledStream]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(uri))
        server = await client.value(commands.PeerProperties({}))
    name = f'test-{uuid4()}'
    async with connect_and_open(uri) as client, AsyncExitStack() as stack:
        version = '.'.join(server['version'].split('.')[:2])
        if partition is None:
            await client.value(Create(name, {}))
            made = FilledStream(uri, version, name, properties(), stack)
        else:
            parts, keys = tuple(f'{name}-{i}' for i in range(3)), ('0', '1', '2')
            await client.value(CreateSuperStream(name, parts, keys, {}))
            group = properties(super_stream=name)
            made = FilledStream(uri, version, parts[partition], group, stack)
        try:
            await made.publish(*range(6))
            yield made
        finally:
            await client.code(Delete(name) if partition is None else DeleteSuperStream(name))
