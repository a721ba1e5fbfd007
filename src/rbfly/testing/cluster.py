"""The state that all nodes share: users, virtual hosts, and the leader of each stream."""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..protocol.commands import CreateSuperStream, StreamMetadata
from ..protocol.const import ResponseCode
from .arguments import Arguments, Crash, Refused, require
from .connection import Wire
from .faults import Faults
from .group import Group, Key
from .node import Node
from .stream import Clock, Stream

LINE_ENDS = str.maketrans('', '', '\r\n')
PARTITIONS_MAX = 1000  # of a super stream, since RabbitMQ 4.3.3


class Binding(NamedTuple):
    key: str
    partition: str
    number: int  # of the partition, for groups; -1 for none


Bindings = list[Binding]


@dataclass(eq=False, repr=False)
class Cluster:
    version: str  # of RabbitMQ
    users: dict[str, str]  # passwords by user
    vhosts: dict[str, dict[str, Stream]]
    super_streams: dict[str, dict[str, Bindings]]  # by virtual host and name
    frame_max: int
    heartbeat: int
    faults: Faults
    on_event: Callable[[str], object] | None  # called with a line of text about a connection
    clock: Clock = field(default_factory=Clock)
    nodes: list[Node] = field(default_factory=list)
    sessions: dict[Wire, None] = field(default_factory=dict)  # with an open virtual host
    groups: dict[Key, Group] = field(default_factory=dict)  # with members
    consumer_update_timeout: float | None = 60.0  # seconds
    credential_lifetime: float | None = None  # seconds
    max_connections: int | None = None  # of a node
    loop: asyncio.AbstractEventLoop | None = None  # None while the broker does not run
    published: int = 0  # number of messages stored in streams that were deleted
    # Called when a stream has stored something.
    watchers: list[Callable[[], object]] = field(default_factory=list)
    leaders: Iterator[int] = field(default_factory=itertools.count)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call a function in the next turn of the loop, if the broker runs."""
        if self.loop is not None:
            self.loop.call_soon(callback)

    def emit(self, event: str) -> None:
        """Call `on_event` in its own turn, so that the loop handles its errors."""
        if self.on_event is not None and self.loop is not None:
            self.loop.call_soon(self.on_event, event)

    # -- faults

    def wires(self) -> list[Wire]:
        return [wire for node in self.nodes for wire in node.wires]

    def cut(self, after: int | None = None) -> None:
        """Cut all connections, now or after a number of bytes."""
        self.faults.bytes_left = after
        if not after:
            self.faults.bytes_left = None
            for wire in self.wires():
                wire.cut()

    def stall(self, stalled: bool) -> None:
        self.faults.stalled = stalled
        for wire in self.wires():
            wire.apply_stall()

    def close_sessions(self, code: int, reason: str) -> None:
        for session in [*self.sessions]:
            session.send_close(code, reason)

    def heal(self) -> None:
        self.faults.heal()
        self.stall(False)
        for group in [*self.groups.values()]:
            group.heal()
        for stream in self.streams():
            stream.resume()

    # -- streams

    def streams(self) -> list[Stream]:
        """The streams of all virtual hosts."""
        return [stream for streams in self.vhosts.values() for stream in streams.values()]

    def flush(self) -> None:
        for stream in self.streams():
            stream.flush()

    def create(
        self,
        vhost: str,
        name: str,
        given: Mapping[str, str],
        node: Node,
        super_stream: str | None = None,
    ) -> None:
        """Create a stream, perhaps as a partition of a super stream.

        :raises Refused: the stream exists, or RabbitMQ refuses its name or arguments.
        :raises Crash: the name or the arguments crash the connection on RabbitMQ.
        """
        streams = self.vhosts[vhost]
        name = name.translate(LINE_ENDS)
        if '\ufffd' in name:
            raise Crash('the name of a stream is not UTF-8')
        arguments = Arguments.parse(given, super_stream, self.version)
        check_name(name)
        if name in streams:
            same = streams[name].arguments == arguments
            code = ResponseCode.STREAM_ALREADY_EXISTS
            raise Refused(code if same else ResponseCode.PRECONDITION_FAILED)
        running = [item for item in self.nodes if item.accepts] or self.nodes
        leader = node
        if arguments.locator not in (None, 'client-local'):
            leader = running[next(self.leaders) % len(running)]
        others = [item.number for item in running if item is not leader]
        members = (leader.number, *others)[: arguments.replicas or len(self.nodes)]
        streams[name] = Stream(
            name, arguments, leader.number, members, self.clock, self.call_soon, self._stored
        )
        streams[name].end = arguments.initial_offset or 0

    def _stored(self) -> None:
        for watcher in [*self.watchers]:
            watcher()

    def delete(self, vhost: str, stream: Stream) -> None:
        del self.vhosts[vhost][stream.name]
        for bindings in self.super_streams[vhost].values():
            bindings[:] = [item for item in bindings if item.partition != stream.name]
        self.published += stream.published
        stream.remove_clients()

    def create_super_stream(self, vhost: str, command: CreateSuperStream, node: Node) -> None:
        """Create a super stream and its partitions.

        :raises Refused: it or a partition exists, or RabbitMQ refuses a name or the arguments.
        :raises Crash: a name or the arguments crash the connection on RabbitMQ.
        """
        streams, found = self.vhosts[vhost], self.super_streams[vhost]
        name, partitions = command.stream.translate(LINE_ENDS), command.partitions
        for item in (name, *partitions):
            check_name(item)
        if not len(command.binding_keys) == len(partitions) == len({*partitions}):
            raise Refused(ResponseCode.PRECONDITION_FAILED)
        if len(partitions) > PARTITIONS_MAX and self.version != '4.0':
            raise Refused(ResponseCode.PRECONDITION_FAILED)
        if name in found or not streams.keys().isdisjoint(partitions):
            raise Refused(ResponseCode.STREAM_ALREADY_EXISTS)
        bindings = found[name] = []
        for key, partition in zip(command.binding_keys, partitions, strict=True):
            if partition != partition.translate(LINE_ENDS):
                raise Crash('the name of a partition contains a line end')
            try:
                self.create(vhost, partition, command.arguments, node, name)
            except Refused:  # because of the arguments, so no partition was created
                del found[name]
                raise Refused(ResponseCode.INTERNAL_ERROR) from None
            bindings.append(Binding(key, partition, len(bindings)))

    def super_stream(self, vhost: str, name: str) -> Bindings:
        """Return the bindings of a super stream.

        :raises Refused: there is no such super stream.
        """
        return require(self.super_streams[vhost], name, ResponseCode.STREAM_DOES_NOT_EXIST)

    def delete_super_stream(self, vhost: str, name: str) -> None:
        """Delete a super stream and all streams that are bound to it."""
        for partition in {item.partition: None for item in self.super_streams[vhost].pop(name)}:
            self.delete(vhost, self.vhosts[vhost][partition])

    def group(self, vhost: str, stream: Stream, properties: Mapping[str, str]) -> Group:
        """Return the group that a subscription joins.

        :raises Refused: the group has no name, or its members name different super streams.
        """
        key = stream, require(properties, 'name', ResponseCode.PRECONDITION_FAILED)
        bindings = self.super_streams[vhost].get(properties.get('super-stream', ''), [])
        partition = next((item.number for item in bindings if item.partition == stream.name), -1)
        group = self.groups.get(key) or Group(self.groups, key, partition, self.version)
        if group.partition != partition:
            raise Refused(ResponseCode.PRECONDITION_FAILED)
        return group

    def metadata(self, stream: Stream | None) -> StreamMetadata:
        if stream is None:
            return StreamMetadata(ResponseCode.STREAM_DOES_NOT_EXIST, None, ())
        leader = self.nodes[stream.leader]
        members = (self.nodes[number] for number in stream.members if number != stream.leader)
        replicas = tuple(node.address for node in members if node.accepts)
        return StreamMetadata(ResponseCode.OK, leader.address if leader.accepts else None, replicas)

    # -- nodes

    def move_leader(self, stream: Stream, node: Node) -> None:
        """Make a node the leader; remove publishers, and subscriptions at the old leader."""
        stream.flush()
        before, stream.leader = stream.leader, node.number
        stream.epoch += 1
        if node.number not in stream.members:
            stream.members += (node.number,)
        stream.remove_clients(before)

    def stop_node(self, node: Node) -> None:
        node.close()
        for stream in self.streams():
            if stream.leader != node.number:
                continue
            left = [i for i in stream.members if self.nodes[i].accepts]
            if left:
                self.move_leader(stream, self.nodes[left[0]])
            else:
                stream.remove_clients(node.number)

    def drain_node(self, node: Node) -> None:
        if node.accepts:
            node.drain()

    def start_node(self, node: Node) -> None:
        if not node.accepts and self.loop is not None:
            node.open(self.loop)


def check_name(name: str) -> None:
    """Check the name of a stream or a super stream.

    :raises Refused: RabbitMQ refuses the name.
    """
    if not name or name.startswith('amq.'):
        raise Refused(ResponseCode.PRECONDITION_FAILED)
