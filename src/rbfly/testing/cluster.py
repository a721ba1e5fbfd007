"""The broker behind its nodes: users, virtual hosts, and where each stream is led."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from ..protocol.commands import StreamMetadata
from ..protocol.const import ResponseCode
from .arguments import Arguments, Crash, Refused
from .clock import Clock
from .faults import Faults
from .node import Node
from .stream import Stream

Streams = dict[str, Stream]


class User(Protocol):
    """A connection that uses streams."""

    @property
    def node(self) -> Node: ...

    def release(self, stream: Stream, publishers: bool, subscriptions: bool) -> bool:
        """Forget what is declared on a stream.

        :return: whether there was anything.
        """
        ...

    def tell_gone(self, stream: Stream, code: int) -> None:
        """Tell the client that what it has declared on a stream is gone."""

    def send_close(self, code: int, reason: str) -> None:
        """Ask the client to close the connection."""

    def heal(self) -> None:
        """A fault has ended."""


class Cluster:
    """Everything that connections share.

    :ivar users: passwords by user.
    :ivar vhosts: streams by name, by virtual host.
    :ivar nodes: all nodes.
    :ivar sessions: connections that are open.
    :ivar loop: the loop in which it runs; None while it does not.
    :ivar on_event: called with a line for each connection.
    :ivar watchers: called when a stream has stored something.
    """

    def __init__(
        self,
        users: Mapping[str, str],
        vhosts: Iterable[str],
        frame_max: int,
        heartbeat: int,
        seed: int,
    ) -> None:
        self.users = dict(users)
        self.vhosts: dict[str, Streams] = {name: {} for name in vhosts}
        self.frame_max = frame_max
        self.heartbeat = heartbeat
        self.clock = Clock()
        self.faults = Faults(seed)
        self.nodes: list[Node] = []
        self.sessions: dict[User, None] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        self.published = 0  # by streams that were deleted
        self.on_event: Callable[[str], object] | None = None
        self.watchers: list[Callable[[], object]] = []
        self._leaders = itertools.count()

    def soon(self, callback: Callable[[], None]) -> None:
        """Call a function in the next turn of the loop, if the broker has one."""
        if self.loop is not None:
            self.loop.call_soon(callback)

    def tell(self, event: str) -> None:
        """Call `on_event` in a turn of its own, so that the loop handles its errors."""
        if self.on_event is not None and self.loop is not None:
            self.loop.call_soon(self.on_event, event)

    # -- faults

    def cut(self, after: int | None = None) -> None:
        """Cut all connections, now or after so many bytes."""
        self.faults.left = after
        if not after:
            self.faults.left = None
            for node in self.nodes:
                node.cut()

    def stall(self, stalled: bool) -> None:
        self.faults.stalled = stalled
        for node in self.nodes:
            for wire in [*node.wires]:
                wire.stall()

    def close_sessions(self, code: int, reason: str) -> None:
        for session in [*self.sessions]:
            session.send_close(code, reason)

    def heal(self) -> None:
        self.faults.heal()
        self.stall(False)
        for session in [*self.sessions]:
            session.heal()

    # -- streams

    def streams(self) -> list[Stream]:
        """Those of all virtual hosts."""
        return [stream for streams in self.vhosts.values() for stream in streams.values()]

    def flush(self) -> None:
        """Write what has come."""
        for stream in self.streams():
            stream.flush()

    def create(self, vhost: str, name: str, given: Mapping[str, str], node: Node) -> Stream:
        """
        :raises Refused: there is one, or it cannot be created.
        :raises Crash: arguments that RabbitMQ does not expect.
        """
        streams = self.vhosts[vhost]
        name = name.replace('\r', '').replace('\n', '')
        if '\ufffd' in name:
            raise Crash('the name of a stream is not UTF-8')
        arguments = Arguments.parse(given)
        if not name or name.startswith('amq.'):
            raise Refused(ResponseCode.PRECONDITION_FAILED)
        if name in streams:
            same = streams[name].arguments == arguments
            code = ResponseCode.STREAM_ALREADY_EXISTS
            raise Refused(code if same else ResponseCode.PRECONDITION_FAILED)
        running = [item for item in self.nodes if item.running] or self.nodes
        leader = node
        if arguments.locator not in (None, 'client-local'):
            leader = running[next(self._leaders) % len(running)]
        size = arguments.replicas or len(self.nodes)
        others = [item.number for item in running if item is not leader]
        members = (leader.number, *others)[:size]
        stream = Stream(
            name, arguments, members, leader.number, self.clock, self.soon, self._stored
        )
        streams[name] = stream
        return stream

    def _stored(self) -> None:
        for watcher in [*self.watchers]:
            watcher()

    def delete(self, vhost: str, stream: Stream) -> None:
        del self.vhosts[vhost][stream.name]
        self.published += stream.published
        self.remove_from(stream, True, True)

    def metadata(self, vhost: str, names: Iterable[str]) -> dict[str, StreamMetadata]:
        return {name: self._metadata(self.vhosts[vhost].get(name)) for name in names}

    def _metadata(self, stream: Stream | None) -> StreamMetadata:
        if stream is None:
            return StreamMetadata(ResponseCode.STREAM_DOES_NOT_EXIST, None, ())
        leader = self.nodes[stream.leader]
        replicas = tuple(
            self.nodes[number].address
            for number in stream.members
            if number != stream.leader and self.nodes[number].running
        )
        return StreamMetadata(ResponseCode.OK, leader.address if leader.running else None, replicas)

    def remove_from(
        self,
        stream: Stream,
        publishers: bool,
        subscriptions: bool,
        node: Node | None = None,
        code: int = ResponseCode.STREAM_NOT_AVAILABLE,
    ) -> None:
        """Remove publishers, or subscriptions (those of a node), and tell whom they belong to."""
        for session in [*self.sessions]:
            here = subscriptions and node in (None, session.node)
            if session.release(stream, publishers, here):
                session.tell_gone(stream, code)

    # -- nodes

    def move_leader(self, stream: Stream, node: Node) -> None:
        """Another node leads; publishers, and the old leader's subscriptions, are gone."""
        stream.flush()
        before = self.nodes[stream.leader]
        stream.leader = node.number
        stream.epoch += 1
        if node.number not in stream.members:
            stream.members += (node.number,)
        self.remove_from(stream, True, True, before)

    def stop_node(self, node: Node) -> None:
        node.close()
        for stream in self.streams():
            if stream.leader != node.number:
                continue
            left = [i for i in stream.members if self.nodes[i].running]
            if left:
                self.move_leader(stream, self.nodes[left[0]])
            else:
                self.remove_from(stream, True, True, node)

    def start_node(self, node: Node) -> None:
        if not node.running and self.loop is not None:
            node.open(self.loop)
