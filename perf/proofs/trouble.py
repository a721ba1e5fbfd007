"""Brokers to be soaked on, and their faults of every kind, at random."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from typing import Any

from rbfly.testing import StreamBroker

from .faults import lose_node, move_leader, pause_node
from .run import ProofError
from .site import Site

__all__ = ['InMemory', 'OnCluster', 'Trouble', 'in_memory']


Faults = dict[str, Callable[[], Awaitable[None]]]


class Trouble(Site):
    """A site that makes trouble."""

    def faults(self, rnd: Any, streams: Sequence[str]) -> Faults:
        """Each makes one fault, and returns when it is over."""
        raise NotImplementedError

    def heal(self) -> None:
        """End what is left of them."""
        raise NotImplementedError


class OnCluster(Trouble):
    """RabbitMQ, and a proxy before each node."""

    def faults(self, rnd: Any, streams: Sequence[str]) -> Faults:
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
        for proxy in self.proxies:
            proxy.delay, proxy.split = 0.0, False
            proxy.resume()
            proxy.accept()


class InMemory(Trouble):
    """The broker in memory, in a process of its own: what it stores is not the client's memory."""

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

    def faults(self, rnd: Any, streams: Sequence[str]) -> Faults:
        broker: Any = self.broker

        async def call(name: str, *args: Any) -> None:
            await asyncio.to_thread(getattr(broker, name), *args)

        async def awhile(name: str, *args: Any, cut: bool = False) -> None:
            await call(name, *args)
            if cut:
                await call('cut')
            await asyncio.sleep(rnd.uniform(0, 1))
            await call('heal')

        async def lose_confirms() -> None:
            await call('lose_confirms', rnd.randrange(1, 500))
            await asyncio.sleep(rnd.uniform(0, 1))
            await call('cut')  # which is how a client finds out
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
            'chunk that is damaged': partial(call, 'corrupt_chunk'),
            'publishers and subscriptions gone': lambda: call('metadata_update', stream()),
            'connections closed': partial(call, 'close_connections'),
            'leader moved': lambda: call('move_leader', stream(), rnd.randrange(len(self._uris))),
            'node stopped': stop_node,
        }

    def heal(self) -> None:
        self.broker.heal()  # type: ignore[attr-defined]


class Memory(StreamBroker):
    """The broker, as another process reaches it."""

    def where(self) -> list[str]:
        return self.uris


class Manager(BaseManager):
    Memory: Callable[..., Any]


Manager.register('Memory', Memory)


@asynccontextmanager
async def in_memory(nodes: int, seed: int) -> AsyncIterator[InMemory]:
    """The broker in memory, in a process of its own."""
    manager = Manager(ctx=get_context('spawn'))
    await asyncio.to_thread(manager.start)
    try:
        broker = manager.Memory(nodes=nodes, seed=seed)
        broker.start()
        yield InMemory(broker, broker.where())
        broker.stop()
    finally:
        await asyncio.to_thread(manager.shutdown)
