"""Why nothing arrives: the checks of `rbfly doctor`, which only read."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import rbfly.streams as rbs

from ..error import ProtocolError, RbFlyError, ResponseCode, counted
from ..net.connection import Connection
from ..net.locator import partitions_of
from ..net.uri import ConnectionInfo, parse_uri
from ..protocol.commands import Metadata, NodeAddress, QueryPublisherSequence, StreamMetadata
from ..time_limits import time_limit
from .connection import Target
from .reachability import CLOSE_LIMIT, Finding, Node

T = TypeVar('T')

LIMIT = 5.0  # seconds for a request
DELIVERY = 3.0  # seconds until a message arrives
POLL = 0.5  # seconds between looks at offsets
WATCH = 2.0  # seconds to watch whether messages are published
WATCH_GROUP = 7.0  # the same with a group: RbFly stores offsets every 5 s
AT_ONCE = 32  # partitions to ask for at once
UNSET = 2**64 - 1  # stored by a group that begins with the first message


@dataclass(frozen=True)
class Question:
    """What the doctor is asked.

    :ivar stream: its name; None to check only whether a node can be reached.
    :ivar group: name of a group, or of a stored offset.
    :ivar publisher: name of a publisher.
    :ivar filter_value: a filter value that messages should have.
    :ivar watch: seconds to look at offsets; None for the default.
    """

    stream: str | None = None
    group: str | None = None
    publisher: str | None = None
    filter_value: str | None = None
    watch: float | None = None


@dataclass(frozen=True)
class Sample:
    """Where a stream is.

    :ivar first: its first offset.
    :ivar end: the offset after its last message; `first` without messages.
    :ivar last_chunk: id of its last chunk; None without chunks.
    :ivar stored: what the group has stored.
    :ivar published: last publishing id of the publisher.
    """

    first: int
    end: int
    last_chunk: int | None
    stored: int | None
    published: int

    @property
    def position(self) -> int | None:
        """Offset of the next message of the group."""
        if self.stored is None:
            return None
        return 0 if self.stored == UNSET else self.stored + 1

    @property
    def lag(self) -> int:
        """Number of offsets that the group has left."""
        return max(0, self.end - max(self.position or 0, self.first))


class Diagnosis:
    """The checks, one after another.

    :param show: called with each finding.
    :ivar findings: what the checks have found.
    """

    def __init__(
        self, broker: Target, question: Question, show: Callable[[Finding], object]
    ) -> None:
        self.findings: list[Finding] = []
        self._broker = broker
        self._question = question
        self._show = show
        self._several = False  # the stream is a super stream

    def _add(self, finding: Finding) -> None:
        self.findings.append(finding)
        self._show(finding)

    def _of(self, stream: str, text: str) -> str:
        """Return a detail about a stream."""
        return f'{stream}: {text}' if self._several else text

    async def run(self) -> None:
        """Make all checks that the ones before them allow.

        :raises URIError: a URI is malformed.
        """
        infos = [parse_uri(uri, self._broker.ssl) for uri in self._broker.uris]
        reached: list[ConnectionInfo] = []
        for info in infos:
            node = Node(info)
            async for finding in node.check():
                self._add(finding)
            if node.reached:
                reached.append(info)
        stream = self._question.stream
        if not reached or stream is None:
            return
        async with self._broker.client(
            reconnect_timeout=LIMIT, request_timeout=LIMIT, close_timeout=CLOSE_LIMIT
        ) as client:
            connection = await self._answer('broker', client.get_protocol())
            if connection is None:
                return
            streams = await self._find(connection, stream)
            nodes = dict.fromkeys(
                node for item in streams.values() for node in (item.leader, *item.replicas) if node
            )
            await self._check_nodes(nodes, infos, reached)
            await self._check_streams(client, [*streams])

    async def _answer(self, check: str, request: Awaitable[T], stream: str = '') -> T | None:
        """Return the result of a request; if it fails, add a finding and return None."""
        try:
            async with time_limit(2 * LIMIT):
                return await request
        except TimeoutError:
            text, advice = f'no answer within {2 * LIMIT:g} s', 'see the log of the broker'
        except RbFlyError as ex:
            text, advice = str(ex), 'see the log of the broker'
            if isinstance(ex, ProtocolError) and ex.code == ResponseCode.ACCESS_REFUSED:
                check, advice = 'rights', self._admit()
        self._add(Finding(check, 'failed', self._of(stream, text), advice))
        return None

    def _admit(self) -> str:
        """Return the advice for a user who may not read."""
        info = parse_uri(self._broker.uris[0], self._broker.ssl)
        user = shlex.quote(info.username)
        return (
            f'`rabbitmqctl list_user_permissions {user}` shows the rights; the last pattern of'
            f' `rabbitmqctl set_permissions`, which replaces all three, must match the stream'
        )

    # -- where the stream is

    async def _find(self, connection: Connection, name: str) -> dict[str, StreamMetadata]:
        """Return the stream, or the partitions of the super stream, that can be read."""
        found = await self._locate(connection, [name])
        if name not in found and (partitions := await partitions_of(connection, name)):
            partitions = tuple(dict.fromkeys(partitions))
            self._several = True
            text = f'{name!r} is a super stream of {counted(len(partitions), "partition")}'
            self._add(Finding('stream', 'ok', text))
            found = await self._locate(connection, partitions)
            for item in partitions:
                if item not in found:
                    text = f'partition {item!r} does not exist'
                    self._add(Finding('stream', 'failed', text, 'was it deleted?'))
        elif name not in found:
            vhost = parse_uri(self._broker.uris[0], self._broker.ssl).virtual_host
            text = f'{name!r} does not exist in virtual host {vhost!r}'
            advice = f'check both names; `rbfly stream create {shlex.quote(name)}` creates it'
            self._add(Finding('stream', 'failed', text, advice))
        else:
            self._add(Finding('stream', 'ok', f'{name!r} exists'))
        return {stream: item for stream, item in found.items() if self._check_leader(stream, item)}

    async def _locate(
        self, connection: Connection, streams: Sequence[str]
    ) -> dict[str, StreamMetadata]:
        """Return the nodes of the streams that exist."""
        found: dict[str, StreamMetadata] = {}
        for start in range(0, len(streams), AT_ONCE):
            request = connection.request(Metadata(tuple(streams[start : start + AT_ONCE])))
            found |= await self._answer('stream', request) or {}
        missing = ResponseCode.STREAM_DOES_NOT_EXIST
        return {
            name: found[name] for name in streams if name in found and found[name].code != missing
        }

    def _check_leader(self, stream: str, found: StreamMetadata) -> bool:
        """Return whether a stream has a leader, and the user may know it."""
        if found.code == ResponseCode.ACCESS_REFUSED:
            text = self._of(stream, 'the user has no right to read it')
            self._add(Finding('rights', 'failed', text, self._admit()))
            return False
        if found.leader is None:
            advice = (
                'most of its nodes are down: see `rabbitmqctl cluster_status`, and'
                f' `rabbitmq-streams stream_status {shlex.quote(stream)}`'
            )
            self._add(Finding('leader', 'failed', self._of(stream, 'it has no leader'), advice))
            return False
        replicas = ', '.join(map(str, found.replicas)) or 'none'
        text = self._of(stream, f'at {found.leader}; other replicas: {replicas}')
        self._add(Finding('leader', 'ok', text))
        return True

    async def _check_nodes(
        self,
        nodes: Iterable[NodeAddress],
        infos: Sequence[ConnectionInfo],
        reached: Sequence[ConnectionInfo],
    ) -> None:
        """Check that the addresses that the nodes advertise lead to them."""
        check = 'advertised'
        if self._broker.load_balancer:
            text = 'the advertised addresses are not used, because of --load-balancer'
            self._add(Finding(check, 'ok', text))
            return
        used = {(info.host, info.port) for info in reached}
        nodes = [*nodes]
        for address in nodes:
            if (address.host, address.port) in used:
                self._add(Finding(check, 'ok', f'{address} can be reached, as checked above'))
                continue
            node = Node(moved(infos[0], address))
            problem = None
            async for finding in node.check():
                if finding.result == 'failed':
                    problem = finding
            if problem is not None:
                advice = (
                    'set advertised_host and advertised_port of the stream plugin on that node to'
                    ' an address that works from here (stream.advertised_host in rabbitmq.conf);'
                    ' behind a load balancer, pass load_balancer=True or --load-balancer'
                )
                text = f'{address}, which the broker advertises: {problem.detail}'
                self._add(Finding(check, 'failed', text, advice))
            elif is_another(node.advertised, address, nodes, infos[0].ssl is not None):
                host, port = node.advertised or ('', 0)
                text = f'{address} leads to another node, {host}:{port}'
                advice = 'correct stream.advertised_host and stream.advertised_port of the nodes'
                self._add(Finding(check, 'failed', text, advice))
            else:
                self._add(Finding(check, 'ok', f'{address} can be reached'))

    # -- the messages of the stream

    async def _check_streams(self, client: rbs.StreamsClient, streams: Sequence[str]) -> None:
        """Look at streams, wait, and look again."""
        question = self._question
        begun = time.monotonic()
        before = await self._look(client, streams)
        if not before:
            return
        self._add(Finding('rights', 'ok', 'the user may read; writing is not checked'))
        with_messages = [name for name, item in before.items() if item.end > item.first]
        for name in with_messages:
            await self._check_delivery(client, name)
        if question.filter_value is not None:
            for name in with_messages:
                await self._check_filter(client, name, question.filter_value)
        watch = question.watch
        if watch is None:
            watch = WATCH if question.group is None else WATCH_GROUP
        after = before
        while time.monotonic() - begun < watch and not self._all_moved(before, after):
            await asyncio.sleep(min(POLL, watch))
            after = await self._look(client, [*after])
        seconds = time.monotonic() - begun
        for name in after:
            self._check_messages(name, before[name], after[name], seconds)
            if question.publisher is not None:
                self._check_publisher(name, before[name], after[name], seconds)
            if question.group is not None:
                self._check_group(name, before[name], after[name], seconds)

    async def _look(self, client: rbs.StreamsClient, streams: Sequence[str]) -> dict[str, Sample]:
        """Return where streams are; those that cannot be read are left out."""
        found: dict[str, Sample] = {}
        for start in range(0, len(streams), AT_ONCE):
            part = streams[start : start + AT_ONCE]
            samples = await asyncio.gather(
                *(self._answer('offsets', self._sample(client, name), name) for name in part)
            )
            found |= {name: item for name, item in zip(part, samples, strict=True) if item}
        return found

    async def _sample(self, client: rbs.StreamsClient, stream: str) -> Sample:
        stats = await client.stream_stats(stream)
        first = stats.first_chunk_id or 0
        left = await client.lag(stream, position=0) or 0
        stored, published = None, 0
        if self._question.group is not None:
            stored = await client.read_offset(stream, self._question.group)
        if self._question.publisher is not None:
            connection = await client.get_protocol()
            request = QueryPublisherSequence(self._question.publisher, stream)
            published = await connection.request(request)
        return Sample(first, first + left, stats.committed_chunk_id, stored, published)

    def _all_moved(self, before: dict[str, Sample], after: dict[str, Sample]) -> bool:
        """Return whether another look would show nothing new."""
        for name, now in after.items():
            then = before[name]
            if now.end == then.end:
                return False
            if self._question.group is not None and now.stored == then.stored:
                return False
            if self._question.publisher is not None and now.published == then.published:
                return False
        return True

    async def _check_delivery(self, client: rbs.StreamsClient, stream: str) -> None:
        """Read the last messages."""
        batch = await self._answer('delivery', self._last(client, stream), stream)
        if batch is None:
            return
        if not batch:
            name = shlex.quote(stream)
            text = f'the broker has delivered no message within {DELIVERY:g} s'
            advice = f'see the log of the broker, and `rabbitmq-streams stream_status {name}`'
            self._add(Finding('delivery', 'failed', self._of(stream, text), advice))
            return
        age = max(0.0, time.time() - batch.timestamp)
        text = f'the last message has offset {batch.offsets[len(batch) - 1]}, stored {ago(age)}'
        self._add(Finding('delivery', 'ok', self._of(stream, text)))

    async def _last(self, client: rbs.StreamsClient, stream: str) -> rbs.MessageBatch[bytes]:
        async with client.subscribe(stream, offset=rbs.Offset.LAST, amqp=False) as messages:
            return await messages.fetch(timeout=DELIVERY)

    async def _check_filter(self, client: rbs.StreamsClient, stream: str, value: str) -> None:
        """Look for a chunk that may contain messages with a filter value."""
        found = await self._answer('filter', self._filtered(client, stream, value), stream)
        if found is None:
            return
        if found:
            text = f'offset {found.offsets[0]} is in a chunk that may have messages with {value!r}'
            self._add(Finding('filter', 'ok', self._of(stream, text)))
            return
        text = f'no message with the filter value {value!r} has arrived within {DELIVERY:g} s'
        advice = (
            'do the publishers set filter values (`filter_extract`), and this one, with the same'
            ' upper and lower case?'
        )
        self._add(Finding('filter', 'failed', self._of(stream, text), advice))

    async def _filtered(
        self, client: rbs.StreamsClient, stream: str, value: str
    ) -> rbs.MessageBatch[bytes]:
        selected = rbs.MessageFilter(lambda message: value, {value})  # the broker's choice counts
        async with client.subscribe(
            stream, offset=rbs.Offset.FIRST, filter=selected, amqp=False
        ) as messages:
            return await messages.fetch(1, timeout=DELIVERY)

    def _check_messages(self, stream: str, then: Sample, now: Sample, seconds: float) -> None:
        if now.end <= now.first:
            text = 'it has no messages: none was published, or retention has removed them'
            advice = 'does the publisher wait for its confirms, and use this virtual host?'
            if now.last_chunk is not None:
                text = f'no message arrives, although there are chunks up to {now.last_chunk}: they'
                text += ' contain nothing but stored offsets, or the broker withholds them'
                advice = '`rbfly publish` a message, and see whether it arrives'
            self._add(Finding('messages', 'warning', self._of(stream, text), advice))
            return
        text = f'offsets {now.first} to {now.end - 1}; '
        if new := now.end - then.end:
            text += f'{new:,} more in {seconds:.1f} s'
            self._add(Finding('messages', 'ok', self._of(stream, text)))
        else:
            text += f'none was published in {seconds:.1f} s'
            advice = (
                "if there should be some: see the publisher's log and whether it receives confirms,"
                ' `rabbitmq-diagnostics alarms`, and whether its user may write'
            )
            self._add(Finding('messages', 'warning', self._of(stream, text), advice))

    def _check_publisher(self, stream: str, then: Sample, now: Sample, seconds: float) -> None:
        name = self._question.publisher
        if not now.published:
            text = f'{name!r} has stored nothing here, or not for a long time'
            advice = 'check the name; RabbitMQ remembers the 255 names that were used last'
            self._add(Finding('publisher', 'warning', self._of(stream, text), advice))
        elif now.published == then.published:
            text = f'{name!r} has stored nothing in {seconds:.1f} s; its last id is {now.published}'
            advice = 'is it running? Ids up to this one are duplicates, and are not stored again'
            self._add(Finding('publisher', 'warning', self._of(stream, text), advice))
        else:
            text = f'{name!r} has stored ids {then.published + 1} to {now.published}'
            self._add(Finding('publisher', 'ok', self._of(stream, text)))

    def _check_group(self, stream: str, then: Sample, now: Sample, seconds: float) -> None:
        name = self._question.group
        names = f'--stream {shlex.quote(stream)} --reference {shlex.quote(name or "")}'
        members = f'`rabbitmq-streams list_stream_group_consumers {names}` shows its members'
        position = now.position
        if position is None:
            text = f'{name!r} has stored no offset'
            advice = f'check the name; does a member run, and does it store offsets? {members}'
            self._add(Finding('group', 'warning', self._of(stream, text), advice))
        elif position > now.end and now.end > now.first:
            text = f'{name!r} is at offset {position}, after the end of the stream ({now.end})'
            advice = 'was the stream deleted and created again? `rbfly offset reset` helps'
            self._add(Finding('group', 'failed', self._of(stream, text), advice))
        elif position < now.first and now.stored != UNSET:
            text = f'retention has removed offsets {position} to {now.first - 1} before'
            text += f' {name!r} has processed them'
            advice = f'add members, or let the stream keep more (`max_age`); {members}'
            self._add(Finding('group', 'warning', self._of(stream, text), advice))
        elif now.stored != then.stored:
            text = f'{name!r} has moved from {then.stored} to {now.stored} in {seconds:.1f} s;'
            text += f' {now.lag:,} left'
            slower = then.lag and now.lag > then.lag
            if slower:
                text += f', {now.lag - then.lag:,} more than before'
                advice = 'if it goes on like this, add partitions and members'
                self._add(Finding('group', 'warning', self._of(stream, text), advice))
            else:
                self._add(Finding('group', 'ok', self._of(stream, text)))
        elif not now.lag:
            text = f'{name!r} has processed all messages'
            self._add(Finding('group', 'ok', self._of(stream, text)))
        else:
            text = f'{name!r} has not moved in {seconds:.1f} s, with {now.lag:,} left: it is at'
            text += f' offset {position}'
            advice = (
                'is a member running and active, or busy with one message? Does it commit?'
                f' {members}'
            )
            self._add(Finding('group', 'failed', self._of(stream, text), advice))


def moved(info: ConnectionInfo, to: NodeAddress) -> ConnectionInfo:
    """Return another address, with the same user and virtual host."""
    return ConnectionInfo(
        info.scheme,
        to.host,
        to.port,
        info.virtual_host,
        info.username,
        info.password,
        info.ssl,
    )


def is_another(
    found: tuple[str, int] | None, address: NodeAddress, nodes: Sequence[NodeAddress], tls: bool
) -> bool:
    """Return whether an address has led to another node than the one that advertises it.

    On connections with TLS, RabbitMQ 4.0 names itself by `advertised_tls_host`, but a leader or
    replica by `advertised_host`: with TLS, a name that no other node has proves nothing.

    :param found: address by which the node that has answered calls itself; None if unknown.
    :param nodes: addresses of all nodes.
    """
    if found is None or found == (address.host, address.port):
        return False
    return not tls or any(found == (item.host, item.port) for item in nodes)


def ago(seconds: float) -> str:
    """Return how long ago something was."""
    for size, unit in ((86400, 'day'), (3600, 'hour'), (60, 'minute')):
        if seconds >= 2 * size:
            return f'{counted(int(seconds // size), unit)} ago'
    return f'{seconds:.1f} s ago'
