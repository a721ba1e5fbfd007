"""The in-memory broker for tests: its public class."""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote

from ..amqp import MessageCtx, decode_amqp, encode_amqp_bytes
from ..checks import check_folder, check_integer, check_timeout, check_type
from ..error import ArgumentError, StreamDoesNotExist, counted, protocol_error
from ..protocol.commands import Create
from ..protocol.const import ResponseCode
from ..types import AMQPBody
from .arguments import Crash, Refused
from .cluster import Cluster
from .faults import Faults
from .handlers import Connection
from .node import Node
from .running import Running
from .stream import Stream


class StreamBroker(Running):
    """An in-memory RabbitMQ Streams broker.

    It runs in the event loop of the test::

        async with StreamBroker() as broker:
            client = streams_client(broker.uri)

    or in its own thread, for tests without an event loop, or with a busy one::

        with StreamBroker() as broker:
            client = streams_client(broker.uri)

    Its methods can be called from any thread, even after it has stopped. It keeps its streams and
    ports when it restarts. In a forked child, the methods of a running broker raise
    :class:`~rbfly.error.EventLoopError`.

    :param host: address at which it listens.
    :param port: port of the first node; the ports of the other nodes follow; 0 for free ports.
    :param nodes: number of nodes; each of them has every stream.
    :param users: passwords by user; None for `guest` with password `guest`.
    :param ssl: context with the broker's certificate, for TLS on all its ports; None for plain TCP.
        If the context requests a client certificate (`verify_mode`), the mechanism `EXTERNAL` takes
        the certificate's common name as the user. Faults begin after the TLS handshake.
    :param vhosts: names of the virtual hosts.
    :param frame_max: maximum size of a frame in bytes; 0 for no limit.
    :param heartbeat: interval in seconds that the broker proposes to clients; 0 for none.
    :param seed: seed of the faults' random choices.
    :param on_event: called with a line of text whenever a connection opens or closes, in the
        broker's event loop. Its errors go to that loop's exception handler, which logs them by
        default (`loop.set_exception_handler`).
    """

    def __init__(
        self,
        *,
        host: str = '127.0.0.1',
        port: int = 0,
        nodes: int = 1,
        users: Mapping[str, str] | None = None,
        ssl: tls.SSLContext | None = None,
        vhosts: Iterable[str] = ('/',),
        frame_max: int = 2**20,
        heartbeat: int = 60,
        seed: int = 0,
        on_event: Callable[[str], object] | None = None,
    ) -> None:
        check_integer('port', port, 0, 0xFFFF)
        check_integer('nodes', nodes, 1, 255)
        if port + nodes - 1 > 0xFFFF:
            raise ArgumentError(f'port {port} is too high: {nodes} nodes use consecutive ports')
        check_integer('frame_max', frame_max, 0, 2**32 - 1)
        check_integer('heartbeat', heartbeat, 0, 2**32 - 1)
        check_integer('seed', seed, 0, 2**64 - 1)
        if ssl is not None:
            check_type('ssl', ssl, tls.SSLContext)
            if ssl.protocol is tls.PROTOCOL_TLS_CLIENT:
                raise ArgumentError('ssl must be a context for servers (ssl.Purpose.CLIENT_AUTH)')
        users = {'guest': 'guest'} if users is None else users
        self._vhosts = tuple(vhosts)
        if not self._vhosts:
            raise ArgumentError('vhosts must contain at least one virtual host')
        streams: dict[str, dict[str, Stream]] = {name: {} for name in self._vhosts}
        cluster = Cluster(dict(users), streams, frame_max, heartbeat, Faults(seed), on_event)
        super().__init__(cluster)
        connect = partial(Connection, cluster)
        for number in range(nodes):
            cluster.nodes.append(Node(number, host, port and port + number, ssl, connect))

    # -- addresses

    @property
    def uri(self) -> str:
        """URI of the first node, with the first user and virtual host."""
        return self.uris[0]

    @property
    def uris(self) -> list[str]:
        """URIs of all nodes."""
        user = ''
        for name, password in [*self._cluster.users.items()][:1]:
            user = f'{quote(name, safe="")}:{quote(password, safe="")}@'
        vhost = '' if self._vhosts[0] == '/' else quote(self._vhosts[0], safe='')
        found = []
        for node in self._cluster.nodes:
            tls = '+tls' if node.ssl else ''
            host = f'[{node.host}]' if ':' in node.host else node.host
            found.append(f'rabbitmq-stream{tls}://{user}{host}:{node.port}/{vhost}')
        return found

    @property
    def port(self) -> int:
        """Port of the first node."""
        return self._cluster.nodes[0].port

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return self._call(lambda: len(self._cluster.sessions))

    # -- what the broker has stored

    def _vhost(self, vhost: str | None) -> str:
        found = self._vhosts[0] if vhost is None else vhost
        if found not in self._cluster.vhosts:
            raise ArgumentError(f'there is no virtual host {found!r}')
        return found

    def _stream(self, name: str, vhost: str | None) -> Stream:
        check_type('stream', name, str)
        try:
            return self._cluster.vhosts[self._vhost(vhost)][name]
        except KeyError:
            raise StreamDoesNotExist(name) from None

    @property
    def streams(self) -> list[str]:
        """Names of the streams of the first virtual host."""
        return self._call(lambda: [*self._cluster.vhosts[self._vhosts[0]]])

    @property
    def published(self) -> int:
        """Number of messages stored in all streams, including deleted ones."""
        cluster = self._cluster
        return self._call(
            lambda: cluster.published + sum(item.published for item in cluster.streams())
        )

    def messages(self, stream: str, *, raw: bool = False, vhost: str | None = None) -> list[Any]:
        """Return the messages of a stream, starting with the first.

        :param stream: name of the stream.
        :param raw: return the stored bytes; otherwise bodies, decoded as AMQP 1.0.
        :param vhost: its virtual host; None for the first one.
        :raises StreamDoesNotExist: there is no such stream.
        :raises AMQPDecoderError: a message is not AMQP 1.0.
        :raises ChunkError: a sub-entry cannot be read.
        """
        found = self._call(lambda: self._stream(stream, vhost).messages())
        return found if raw else [decode_amqp(data).body for data in found]

    async def wait_for(
        self,
        stream: str,
        count: int,
        *,
        timeout: float | None = 10.0,
        raw: bool = False,
        vhost: str | None = None,
    ) -> list[Any]:
        """Wait until a stream has stored `count` messages, then return :meth:`messages`.

        The stream need not exist yet. The method can be awaited in any event loop; a test without
        one calls `asyncio.run(broker.wait_for('orders', 3))`.

        :param stream: name of the stream.
        :param count: number of messages, including those that the limits of the stream removed.
        :param timeout: seconds to wait; None or 0 for no limit.
        :raises TimeoutError: fewer messages were stored in time.
        :raises AMQPDecoderError, ChunkError: as for :meth:`messages`.
        """
        check_type('stream', stream, str)
        check_integer('count', count, 1, 2**63)
        check_timeout('timeout', timeout)
        streams = self._cluster.vhosts[self._vhost(vhost)]
        watchers = self._cluster.watchers
        loop, reached = asyncio.get_running_loop(), asyncio.Event()

        def stored() -> int:
            found = streams[stream].published if stream in streams else 0
            if found >= count:
                with suppress(RuntimeError):  # the loop of the caller was closed
                    loop.call_soon_threadsafe(reached.set)
            return found

        self._call(watchers.append, stored)
        try:
            async with asyncio.timeout(timeout or None):
                self._call(stored)
                await reached.wait()
        except TimeoutError:
            found, messages = self._call(stored), counted(count, 'message')
            problem = f'{found} of {messages} in {stream!r} after {timeout} s'
            raise TimeoutError(problem) from None
        finally:
            self._call(watchers.remove, stored)
        return self.messages(stream, raw=raw, vhost=vhost)

    def offsets(self, stream: str, *, vhost: str | None = None) -> dict[str, int]:
        """Return the stored offsets of a stream, by reference.

        :raises StreamDoesNotExist: there is no such stream.
        """
        return self._call(lambda: dict(self._stream(stream, vhost).offsets))

    # -- what the test stores

    def create_stream(self, stream: str, *, vhost: str | None = None, **arguments: str) -> None:
        """Create a stream, unless one of that name exists.

        :param arguments: arguments of the protocol, with `_` for `-`: `max_age='1h'`.
        :raises ProtocolError: RabbitMQ would refuse to create it.
        :raises ArgumentTypeError: the name or an argument is not a str.
        :raises ArgumentError: an argument is not a number or an age, or the name is too long for a
            broker's file system or not valid Unicode.
        """
        check_type('stream', stream, str)
        for name, value in arguments.items():
            check_type(name, value, str)
        given = {name.replace('_', '-'): value for name, value in arguments.items()}
        Create(stream, given).encode(0)  # as the client would
        where = self._vhost(vhost)
        check_folder(stream, [where])

        def create(cluster: Cluster) -> None:
            if stream not in cluster.vhosts[where]:
                cluster.create(where, stream, given, cluster.nodes[0])

        try:
            self._call(create, self._cluster)
        except Refused as ex:
            raise protocol_error(ex.code, stream=stream) from None
        except Crash as ex:
            raise ArgumentError(str(ex)) from None

    def delete_stream(self, stream: str, *, vhost: str | None = None) -> None:
        """Delete a stream and notify its publishers and subscriptions.

        :raises StreamDoesNotExist: there is no such stream.
        """
        self._call(lambda: self._cluster.delete(self._vhost(vhost), self._stream(stream, vhost)))

    def publish(
        self, stream: str, *messages: AMQPBody | MessageCtx, vhost: str | None = None
    ) -> None:
        """Store messages as if a client had published them, in chunks of at most 4,096 messages.

        :raises StreamDoesNotExist: there is no such stream.
        :raises AMQPEncoderError: a message cannot be encoded as AMQP 1.0.
        """
        data = [encode_amqp_bytes(message) for message in messages]
        self._call(lambda: self._stream(stream, vhost).append(data))

    # -- nodes and time

    def _node(self, number: int) -> Node:
        check_integer('node', number, 0, len(self._cluster.nodes) - 1)
        return self._cluster.nodes[number]

    def leader(self, stream: str, *, vhost: str | None = None) -> int:
        """Return the number, from 0, of the node that leads a stream.

        :raises StreamDoesNotExist: there is no such stream.
        """
        return self._call(lambda: self._stream(stream, vhost).leader)

    def move_leader(self, stream: str, node: int, *, vhost: str | None = None) -> None:
        """Move the leader of a stream to another node.

        :param node: its number, from 0.
        :raises StreamDoesNotExist: there is no such stream.
        """
        to = self._node(node)
        self._call(lambda: self._cluster.move_leader(self._stream(stream, vhost), to))

    def stop_node(self, node: int) -> None:
        """Stop a node; other nodes take over as leaders of its streams."""
        self._call(self._cluster.stop_node, self._node(node))

    def start_node(self, node: int) -> None:
        """Start a stopped node on the same port."""
        self._call(self._cluster.start_node, self._node(node))

    def advance(self, seconds: float) -> None:
        """Set the broker's clock forward, and remove the chunks that exceed `max_age`.

        :param seconds: how far to set the clock forward.
        :raises ArgumentError: `seconds` is negative, or the time is beyond the year 37,000.
        """
        check_type('seconds', seconds, int, float)
        check_timeout('seconds', seconds)

        def advance() -> None:
            self._cluster.clock.advance(seconds)
            for stream in self._cluster.streams():
                stream.retain()

        self._call(advance)

    # -- faults

    def _set(self, **faults: Any) -> None:
        self._call(vars(self._cluster.faults).update, faults)

    def cut(self, after: int | None = None) -> None:
        """Cut all connections.

        :param after: number of bytes to receive and send before the cut, which may be within a
            frame; None to cut at once.
        """
        if after is not None:
            check_integer('after', after, 1, 2**63)
        self._call(self._cluster.cut, after)

    def refuse(self) -> None:
        """Close new connections at once, until :meth:`heal`."""
        self._set(refusing=True)

    def stall(self) -> None:
        """Neither read nor write, heartbeats included, until :meth:`heal`."""
        self._call(self._cluster.stall, True)

    def delay(self, seconds: float) -> None:
        """Delay everything that the broker sends, until :meth:`heal`.

        Opening and closing a connection are delayed by at most 10 seconds.

        :param seconds: the delay.
        """
        check_type('seconds', seconds, int, float)
        check_timeout('seconds', seconds)
        self._set(delay=seconds)

    def split(self, most: int = 100) -> None:
        """Send everything in pieces, one per turn of the event loop, until :meth:`heal`.

        :param most: maximum size of a piece in bytes; the sizes are random.
        """
        check_integer('most', most, 1, 2**31)
        self._set(piece_max=most)

    def silence(self) -> None:
        """Deliver nothing to subscriptions, but answer everything else, until :meth:`heal`."""
        self._set(silent=True)

    def fail_authentication(self, code: int = ResponseCode.AUTHENTICATION_FAILURE) -> None:
        """Refuse every user with a response code, until :meth:`heal`."""
        check_integer('code', code, 2, 0xFFFF)
        self._set(authentication=code)

    def publish_error(self, code: int = ResponseCode.PRECONDITION_FAILED, count: int = 1) -> None:
        """Refuse the next messages: they are not stored, and sending them raises `PublishError`.

        RabbitMQ refuses messages with two codes. With `PRECONDITION_FAILED` (0x11), it refuses
        sub-entries that it cannot read (since 4.3.5). With `PUBLISHER_DOES_NOT_EXIST` (0x12), it
        refuses everything from a publisher until the client declares that publisher again; RbFly's
        publishers do so by themselves, and resend the messages.

        :param code: a code of the protocol, from `rbfly.testing.ResponseCode`.
        :param count: how many messages to refuse; with `PUBLISHER_DOES_NOT_EXIST`, how many times
            to remove the publisher that sends next.
        """
        check_integer('code', code, 2, 0xFFFF)
        check_integer('count', count, 1, 2**31)
        self._call(lambda: self._cluster.faults.errors.extend([code] * count))

    def withhold_confirms(self) -> None:
        """Store messages, but do not confirm them until :meth:`heal`."""
        self._set(withholding=True)

    def lose_confirms(self, count: int = 1) -> None:
        """Store the next messages, but never confirm them on their connection.

        :param count: number of messages.
        """
        check_integer('count', count, 1, 2**31)
        self._set(lost=count)

    def shuffle_confirms(self) -> None:
        """Confirm messages that arrive together in random order, until :meth:`heal`."""
        self._set(shuffling=True)

    def damage_chunk(self, count: int = 1) -> None:
        """Deliver the next chunks with a wrong CRC.

        :param count: number of chunks, over all subscriptions.
        """
        check_integer('count', count, 1, 2**31)
        self._set(damaged=count)

    def corrupt_chunk(self, count: int = 1) -> None:
        """Deliver the next chunks with a message that extends past their end, and a correct CRC.

        :param count: number of chunks, over all subscriptions.
        """
        check_integer('count', count, 1, 2**31)
        self._set(corrupted=count)

    def metadata_update(
        self,
        stream: str,
        code: int = ResponseCode.STREAM_NOT_AVAILABLE,
        *,
        vhost: str | None = None,
    ) -> None:
        """Remove the publishers and subscriptions of a stream, and notify their clients.

        :raises StreamDoesNotExist: there is no such stream.
        """
        self._call(lambda: self._stream(stream, vhost).remove_clients(code=code))

    def close_connections(
        self, code: int = ResponseCode.OK, reason: str = 'closed by the broker'
    ) -> None:
        """Ask all clients to close their connections."""
        self._call(self._cluster.close_sessions, code, reason)

    def heal(self) -> None:
        """End all faults, and send everything that they held back."""
        self._call(self._cluster.heal)
