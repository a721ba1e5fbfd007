"""The in-memory broker for tests: its public class."""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal
from urllib.parse import quote

from ..amqp import MessageCtx, decode_amqp, encode_amqp_bytes
from ..checks import check_binding_keys, check_folder, check_integer, check_timeout, check_type
from ..error import ArgumentError, ArgumentTypeError, StreamDoesNotExist, counted, protocol_error
from ..protocol.commands import Create, CreateSuperStream
from ..protocol.const import ResponseCode
from ..time_limits import time_limit
from ..types import AMQPBody
from .arguments import ARGUMENTS, Crash, Refused
from .cluster import Binding, Bindings, Cluster
from .fault_methods import FaultMethods
from .faults import Faults
from .handlers import HANDLERS, Connection
from .node import Node
from .stream import Stream


class StreamBroker(FaultMethods):
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
    :param version: version of RabbitMQ whose commands the broker knows.
    :param frame_max: maximum size of a frame in bytes; 0 for no limit.
    :param heartbeat: interval in seconds that the broker proposes to clients; 0 for none.
    :param consumer_update_timeout: seconds that a client may take to answer a ConsumerUpdate, with
        which the broker activates and deactivates the members of a group; then the broker closes
        the connection. None or 0 for no limit.
    :param credential_lifetime: seconds after which the broker closes a connection that has not
        authenticated again, as RabbitMQ does when an OAuth 2 token expires; None for no limit.
    :param max_connections: number of connections of a node above which it refuses the virtual host
        to a client, as RabbitMQ with `stream.max_connections`; None for no limit.
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
        version: Literal['4.0', '4.3', '4.4'] = '4.3',
        frame_max: int = 2**20,
        heartbeat: int = 60,
        consumer_update_timeout: float | None = 60.0,
        credential_lifetime: float | None = None,
        max_connections: int | None = None,
        seed: int = 0,
        on_event: Callable[[str], object] | None = None,
    ) -> None:
        check_integer('port', port, 0, 0xFFFF)
        check_integer('nodes', nodes, 1, 255)
        if port + nodes - 1 > 0xFFFF:
            raise ArgumentError(f'port {port} is too high: {nodes} nodes use consecutive ports')
        check_integer('frame_max', frame_max, 0, 2**32 - 1)
        check_integer('heartbeat', heartbeat, 0, 2**32 - 1)
        check_timeout('consumer_update_timeout', consumer_update_timeout)
        check_timeout('credential_lifetime', credential_lifetime, positive=True)
        if max_connections is not None:
            check_integer('max_connections', max_connections, 1, 2**31 - 1)
        check_integer('seed', seed, 0, 2**64 - 1)
        if ssl is not None:
            check_type('ssl', ssl, tls.SSLContext)
            if ssl.protocol is tls.PROTOCOL_TLS_CLIENT:
                raise ArgumentError('ssl must be a context for servers (ssl.Purpose.CLIENT_AUTH)')
        users = {'guest': 'guest'} if users is None else users
        if isinstance(vhosts, str):
            raise ArgumentTypeError(f'vhosts must be a sequence of str, not {vhosts!r}')
        self._vhosts = tuple(vhosts)
        if not self._vhosts:
            raise ArgumentError('vhosts must contain at least one virtual host')
        if version not in HANDLERS:
            raise ArgumentError(f'version must be one of {[*HANDLERS]}, not {version!r}')
        cluster = Cluster(
            version,
            dict(users),
            {name: {} for name in self._vhosts},
            {name: {} for name in self._vhosts},
            frame_max,
            heartbeat,
            Faults(seed),
            on_event,
            consumer_update_timeout=consumer_update_timeout,
            credential_lifetime=credential_lifetime,
            max_connections=max_connections,
        )
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

    def advertise(self, *hosts: str) -> None:
        """Set the host that each node advertises, for example a name that clients cannot resolve.

        :param hosts: one for each node, in their order.
        """
        nodes = self._cluster.nodes
        if len(hosts) != len(nodes):
            raise ArgumentError(f'there are {len(nodes)} nodes, not {len(hosts)}')
        for host in hosts:
            check_type('hosts', host, str)

        def advertise() -> None:
            for node, host in zip(nodes, hosts, strict=True):
                node.advertised = host

        self._call(advertise)

    def set_password(self, user: str, password: str | None) -> None:
        """Change the password of a user, or add one; None removes the user.

        Open connections of the user stay open.
        """
        check_type('user', user, str)
        check_type('password', password, str, None)
        users = self._cluster.users
        if password is None:
            self._call(users.pop, user, None)
        else:
            self._call(users.update, {user: password})

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
            async with time_limit(timeout or None):
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

    def members(
        self, stream: str, group: str, *, vhost: str | None = None
    ) -> list[tuple[str, str]]:
        """Return the members of a group on a stream, in the order in which they subscribed.

        :param group: its name.
        :returns: the connection of each member, and its state: `active`, `waiting`, or
            `deactivating` until its client has answered that it is no longer active. An active
            member receives messages as soon as its client has answered. Empty without a group.
        :raises StreamDoesNotExist: there is no such stream.
        """

        def members() -> list[tuple[str, str]]:
            found = self._cluster.groups.get((self._stream(stream, vhost), group))
            return [(str(item.wire), item.state) for item in found.members] if found else []

        return self._call(members)

    # -- what the test stores

    def create_stream(self, stream: str, *, vhost: str | None = None, **arguments: str) -> None:
        """Create a stream, unless one of that name exists.

        :param arguments: arguments of the protocol, with `_` for `-`: `max_age='1h'`,
            `stream_filter_size_bytes='32'`.
        :raises ProtocolError: RabbitMQ would refuse to create it.
        :raises ArgumentTypeError: the name or an argument is not a str.
        :raises ArgumentError: an argument is unknown, or not a number or an age; or the name is too
            long for a broker's file system, or not valid Unicode.
        """
        command = Create(stream, given(stream, arguments))
        where = self._vhost(vhost)
        self._create(where, command, self._cluster.vhosts[where], [stream])

    def create_super_stream(
        self,
        stream: str,
        *,
        partitions: int | None = None,
        binding_keys: Iterable[str] | None = None,
        vhost: str | None = None,
        **arguments: str,
    ) -> None:
        """Create a super stream, unless one of that name exists; its partitions have leaders on
        all nodes.

        :param partitions: number of partitions, `orders-0`, `orders-1`, ...
        :param binding_keys: or the key of each partition, `orders-KEY`.
        :param arguments: arguments of the protocol for each partition, as for
            :meth:`create_stream`.
        :raises ProtocolError: RabbitMQ would refuse to create it, e.g. because a stream has the
            name of a partition.
        :raises ArgumentTypeError, ArgumentError: as for :meth:`create_stream`; or not exactly one
            of `partitions` and `binding_keys` is given.
        """
        keys = check_binding_keys(partitions, binding_keys)
        names = [f'{stream}-{key}' for key in keys]
        settings = {'queue-leader-locator': 'balanced'} | given(stream, arguments)
        command = CreateSuperStream(stream, tuple(names), tuple(keys), settings)
        where = self._vhost(vhost)
        self._create(where, command, self._cluster.super_streams[where], names)

    def _create(
        self,
        vhost: str,
        command: Create | CreateSuperStream,
        existing: Container[str],
        names: list[str],
    ) -> None:
        command.encode(0)  # as the client would
        for name in names:
            check_folder(name, [vhost])

        def create(cluster: Cluster) -> None:
            if command.stream in existing:
                return
            if isinstance(command, CreateSuperStream):
                cluster.create_super_stream(vhost, command, cluster.nodes[0])
            else:
                cluster.create(vhost, command.stream, command.arguments, cluster.nodes[0])

        try:
            self._call(create, self._cluster)
        except Refused as ex:
            raise protocol_error(ex.code, stream=command.stream) from None
        except Crash as ex:
            raise ArgumentError(str(ex)) from None

    def bind(
        self, super_stream: str, stream: str, binding_key: str, *, vhost: str | None = None
    ) -> None:
        """Add a partition to a super stream, or another binding key to one of its partitions.

        With RabbitMQ, a program does this with `queue_bind` of AMQP 0.9.1; clients see the
        partition after all others. To remove a partition, delete its stream.

        :param stream: the partition, an existing stream.
        :param binding_key: key of the messages that `rbfly.streams.by_key` sends there.
        :raises StreamDoesNotExist: the super stream or the stream does not exist.
        """
        check_type('binding_key', binding_key, str)

        def bind() -> None:
            bindings = self._bindings(super_stream, vhost)
            name = self._stream(stream, vhost).name
            _, dash, last = name.rpartition('-')
            binding = Binding(binding_key, name, int(last) if dash and last.isdecimal() else -1)
            if binding[:2] not in [item[:2] for item in bindings]:
                bindings.append(binding)

        self._call(bind)

    def delete_super_stream(self, stream: str, *, vhost: str | None = None) -> None:
        """Delete a super stream with its partitions; notify their publishers and subscriptions.

        :raises StreamDoesNotExist: there is no such super stream.
        """

        def delete() -> None:
            self._bindings(stream, vhost)
            self._cluster.delete_super_stream(self._vhost(vhost), stream)

        self._call(delete)

    def _bindings(self, super_stream: str, vhost: str | None) -> Bindings:
        check_type('super_stream', super_stream, str)
        try:
            return self._cluster.super_stream(self._vhost(vhost), super_stream)
        except Refused:
            raise StreamDoesNotExist(super_stream) from None

    def delete_stream(self, stream: str, *, vhost: str | None = None) -> None:
        """Delete a stream and notify its publishers and subscriptions.

        :raises StreamDoesNotExist: there is no such stream.
        """
        self._call(lambda: self._cluster.delete(self._vhost(vhost), self._stream(stream, vhost)))

    def publish(
        self, stream: str, *messages: AMQPBody | MessageCtx, vhost: str | None = None
    ) -> None:
        """Store messages as if a client had published them, in chunks of at most 8,192 messages.

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

    def drain_node(self, node: int) -> None:
        """Put a node in maintenance, as `rabbitmq-upgrade drain` does.

        It accepts no new connections, and clients do not learn its address.  The connections that
        it has stay open, and it still leads its streams.
        """
        self._call(self._cluster.drain_node, self._node(node))

    def start_node(self, node: int) -> None:
        """Start a stopped node on the same port, or end its maintenance."""
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
        check_integer('code', code, 0, 0xFFFF)
        self._call(lambda: self._stream(stream, vhost).remove_clients(code=code))


def given(stream: str, arguments: dict[str, str]) -> dict[str, str]:
    """Check arguments of a stream, and return them with the names of the protocol."""
    for name, value in {'stream': stream, **arguments}.items():
        check_type(name, value, str)
    found = {name.replace('_', '-'): value for name, value in arguments.items()}
    for name in found:
        if name not in ARGUMENTS:  # RabbitMQ ignores it
            raise ArgumentError(f'{name!r} is no argument of a stream: these are {[*ARGUMENTS]}')
    return found
