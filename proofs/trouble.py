"""The brokers of a soak and the random faults that they can inject."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from typing import Any

from perf import wire
from rbfly.testing import StreamBroker
from rbfly.testing.stream import Subscription

from .fault_injection import lose_node, move_leader, pause_node
from .run import ProofError
from .site import Site, body

__all__ = ['InMemory', 'OnCluster', 'Trouble', 'in_memory']


Faults = dict[str, Callable[[], Awaitable[None]]]


class OnCluster(Site):
    """A RabbitMQ cluster that injects faults, with a proxy for each node.

    Its other methods use neither the client nor a connection with faults.
    """

    def __init__(self, broker: Any, proxies: Sequence[Any]) -> None:
        super().__init__(broker, proxies)
        self._written = 0

    async def create(self, stream: str) -> None:
        await self.ask(lambda connection: connection.create_stream(stream))

    async def delete(self, stream: str) -> None:
        await self.ask(lambda connection: connection.delete_stream(stream))

    async def write(self, stream: str, numbers: Sequence[int]) -> None:
        """Store messages in one chunk, without duplicates."""
        first = self._written + 1
        self._written += len(numbers)

        def publish(connection: wire.Connection) -> None:
            connection.declare_publisher(stream, 'site')  # the broker discards duplicates
            frames = wire.publish_frames([*map(body, numbers)], len(numbers), first)
            connection.publish(frames, len(numbers), len(numbers))

        await self.ask(publish, stream)

    def faults(self, rnd: Any, streams: Sequence[str]) -> Faults:
        """Functions that inject one fault each and return when it is over, by name."""
        proxies = self.proxies

        async def cut() -> None:
            for proxy in proxies:
                proxy.cut(reset=rnd.random() < 0.5)

        async def cut_at_a_byte() -> None:
            rnd.choice(proxies).cut_after(rnd.randrange(1, 100_000), rnd.choice(('up', 'down')))

        async def refuse() -> None:
            for proxy in proxies:
                proxy.refuse()
                proxy.cut()
            await asyncio.sleep(rnd.uniform(0, 1))
            for proxy in proxies:
                proxy.accept()

        async def stall() -> None:
            for proxy in proxies:
                proxy.stall(*rnd.choice((('up',), ('down',), ('up', 'down'))))
            await asyncio.sleep(rnd.uniform(0, 2))
            for proxy in proxies:
                proxy.resume()

        async def slow(name: str, value: object) -> None:
            for proxy in proxies:
                setattr(proxy, name, value)
            await asyncio.sleep(rnd.uniform(0, 2))
            for proxy in proxies:
                setattr(proxy, name, type(value)())

        async def lose(how: str) -> None:
            node = rnd.randrange(len(proxies))
            await lose_node(self, node, how)
            for stream in streams:
                await self.leader(stream, replicated=True)

        async def move() -> None:
            stream = rnd.choice(streams)
            before = await self.leader(stream, replicated=True)
            other = rnd.choice([node for node in range(len(proxies)) if node != before])
            with suppress(ProofError):
                await move_leader(self, stream, before, other)

        return {
            'connections cut': cut,
            'cut at a byte': cut_at_a_byte,
            'connections refused': refuse,
            'stalled': stall,
            'delayed': lambda: slow('delay', rnd.uniform(0, 0.05)),
            'split': lambda: slow('split', True),
            'node killed': lambda: lose('kill'),
            'node stopped': lambda: lose('stop'),
            'node paused': lambda: pause_node(self, rnd.randrange(len(proxies)), rnd.uniform(0, 5)),
            'leader moved': move,
        }

    def heal(self) -> None:
        """End all faults that still last."""
        for proxy in self.proxies:
            proxy.delay, proxy.split = 0.0, False
            proxy.resume()
            proxy.accept()


class InMemory(Site):
    """The in-memory broker in a separate process, so that its memory is not the client's."""

    def __init__(self, broker: Any, uris: Sequence[str]) -> None:
        super().__init__(broker, ())
        self._uris = list(uris)

    @property
    def uris(self) -> list[str]:
        return self._uris

    @property
    def direct(self) -> list[str]:
        return self._uris

    async def leader(self, stream: str, **_: Any) -> int:
        found: int = await asyncio.to_thread(self.broker.leader, stream)  # type: ignore[attr-defined]
        return found

    async def _call(self, name: str, *args: Any) -> Any:
        return await asyncio.to_thread(getattr(self.broker, name), *args)

    async def create(self, stream: str) -> None:
        await self._call('create_stream', stream)

    async def delete(self, stream: str) -> None:
        await self._call('delete_stream', stream)

    async def write(self, stream: str, numbers: Sequence[int]) -> None:
        await self._call('publish', stream, *map(body, numbers))

    @asynccontextmanager
    async def unseen(self) -> AsyncIterator[None]:
        """Cut the connections of new subscriptions before they receive a chunk."""
        await self._call('silence')
        try:
            yield
        finally:
            await self._call('cut')
            await self._call('heal')

    async def readers(self, stream: str) -> int:
        found: int = await self._call('readers', stream)
        return found

    def faults(self, rnd: Any, streams: Sequence[str]) -> Faults:
        call = self._call

        async def awhile(name: str, *args: Any, cut: bool = False) -> None:
            await call(name, *args)
            if cut:
                await call('cut')
            await asyncio.sleep(rnd.uniform(0, 1))
            await call('heal')

        async def lose_confirms() -> None:
            await call('lose_confirms', rnd.randrange(1, 500))
            await asyncio.sleep(rnd.uniform(0, 1))
            await call('cut')  # otherwise a client would not notice
            await call('heal')

        async def stop_node() -> None:
            node = rnd.randrange(len(self._uris))
            await call('stop_node', node)
            await asyncio.sleep(rnd.uniform(0, 1))
            await call('start_node', node)

        def stream() -> str:
            return str(rnd.choice(streams))

        return {
            'connections cut': partial(call, 'cut'),
            'cut at a byte': lambda: call('cut', rnd.randrange(1, 100_000)),
            'connections refused': partial(awhile, 'refuse', cut=True),
            'stalled': partial(awhile, 'stall'),
            'delayed': lambda: awhile('delay', rnd.uniform(0, 0.05)),
            'split': lambda: awhile('split', rnd.randrange(20, 1000)),
            'silent': partial(awhile, 'silence'),
            'authentication refused': partial(awhile, 'fail_authentication', cut=True),
            'messages refused': lambda: call('publish_error', 0x11, rnd.randrange(1, 100)),
            'confirms withheld': partial(awhile, 'withhold_confirms'),
            'confirms lost': lose_confirms,
            'confirms out of order': partial(awhile, 'shuffle_confirms'),
            'chunk with a wrong CRC': partial(call, 'damage_chunk'),
            'chunk corrupted': partial(call, 'corrupt_chunk'),
            'stream unavailable': lambda: call('metadata_update', stream()),
            'connections closed': partial(call, 'close_connections'),
            'leader moved': lambda: call('move_leader', stream(), rnd.randrange(len(self._uris))),
            "broker's clock": lambda: call('advance', rnd.uniform(0, 100)),
            'node stopped': stop_node,
        }

    def heal(self) -> None:
        self.broker.heal()  # type: ignore[attr-defined]


Trouble = OnCluster | InMemory


class Memory(StreamBroker):
    """The in-memory broker, with methods for calls from another process."""

    def where(self) -> list[str]:
        return self.uris

    def readers(self, stream: str) -> int:
        clients = self._call(lambda: [*self._stream(stream, None).clients])
        return sum(isinstance(client, Subscription) for client in clients)


class Manager(BaseManager):
    Memory: Callable[..., Any]


Manager.register('Memory', Memory)


@asynccontextmanager
async def in_memory(nodes: int, seed: int) -> AsyncIterator[InMemory]:
    """Start the in-memory broker in a separate process."""
    manager = Manager(ctx=get_context('spawn'))
    await asyncio.to_thread(manager.start)
    try:
        broker = manager.Memory(nodes=nodes, seed=seed)
        broker.start()
        yield InMemory(broker, broker.where())
        broker.stop()
    finally:
        await asyncio.to_thread(manager.shutdown)
