"""The client: manages streams, and opens publishers and subscriptions."""

from __future__ import annotations

import ssl as ssl_module
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, SupportsIndex, TypeVar, overload
from weakref import WeakSet, WeakValueDictionary

from ..checks import check_integer, check_timeout, check_type
from ..error import ArgumentError, ArgumentTypeError, StreamConnectionError
from ..later import Later, datetime
from ..net.cluster import Cluster
from ..net.connection import Connection
from ..net.history import History
from ..net.login import AuthMechanism, Credentials
from ..net.observer import Role
from ..net.outage_log import OutageLog
from ..net.uri import ConnectionInfo, Endpoint, Settings, endpoint, parse_uri
from ..net.waiting import can_wait
from ..protocol.compression import Compression
from ..protocol.offset import Offset, OffsetSource
from ._admin.streams import ClientBase
from ._arguments import check_settings, check_tracing
from .types import BloomFilterExtract, ClientTracing, Commit, MessageFilter, OnDecodeError, OnGap

if TYPE_CHECKING:
    from ..amqp import body_codec
    from ..net import credentials as credentials_module
    from . import description as description_module
    from . import events as events_module
    from . import health as health_module
    from . import metrics as metrics_module
    from ._consume import options, subscription
    from ._group import handover
    from ._offsets import tracking
    from ._publish import opening
    from ._super_stream import client as super_client
else:  # a program pays only for what it uses
    body_codec = Later('rbfly.amqp.body_codec')
    credentials_module = Later('rbfly.net.credentials')
    description_module = Later('rbfly.streams.description')
    events_module = Later('rbfly.streams.events')
    health_module = Later('rbfly.streams.health')
    handover = Later('rbfly.streams._group.handover')
    metrics_module = Later('rbfly.streams.metrics')
    opening = Later('rbfly.streams._publish.opening')
    options = Later('rbfly.streams._consume.options')
    subscription = Later('rbfly.streams._consume.subscription')
    super_client = Later('rbfly.streams._super_stream.client')
    tracking = Later('rbfly.streams._offsets.tracking')

__all__ = ['ConnectionInfo', 'StreamsClient', 'streams_client']

T = TypeVar('T')

# Arguments of clients that are created later, by name: an instrumentor of OpenTelemetry sets them.
DEFAULTS: dict[str, Any] = {}


def streams_client(
    uri: str | Sequence[str],
    /,
    auth_mechanism: AuthMechanism | ssl_module.SSLContext | None = AuthMechanism.PLAIN,
    ssl: ssl_module.SSLContext | None = None,
    *,
    connection_name: str | None = None,
    connect_timeout: float | None = 30.0,
    reconnect_timeout: float | None = None,
    heartbeat: int | None = 60,
    frame_max: int | None = None,
    load_balancer: bool = False,
    request_timeout: float | None = 10.0,
    close_timeout: float | None = 10.0,
    busy_poll: float | None = None,
    credentials: Callable[[], Awaitable[Credentials]] | None = None,
    server_hostname: str | None = None,
    resolve: Callable[[str, int], tuple[str, int]] | None = None,
    backoff: tuple[float, float] | None = None,
    publishers_per_connection: int = 256,
    subscriptions_per_connection: int = 256,
    client_properties: Mapping[str, str] | None = None,
    metrics: metrics_module.MetricsExporter | None = None,
    tracing: ClientTracing | None = None,
) -> StreamsClient:
    """Create a client; it connects when it is first used::

        async with streams_client('rabbitmq-stream://guest:guest@localhost:5552/') as client:
            await client.create_stream('orders', max_length_bytes=20 * 2**30)

    :param uri: `rabbitmq-stream://user:password@host:port/vhost`, each part percent-encoded, or
        `rabbitmq-stream+tls://...`; or several of them, all with TLS or all without, tried in turn.
        User and password are `guest` by default, the host `localhost`, the port 5552, or 5551 for
        TLS, and the virtual host `/`.  There are no parameters after a `?`.
    :param auth_mechanism: how to authenticate.
    :param ssl: context for TLS; by default Python's, which verifies the broker's certificate.
    :param connection_name: name of the connections in the broker's management UI, and of the client
        in the log, see :doc:`/operating/logs`; None for none.
    :param connect_timeout: seconds until the first connect gives up with a
        :class:`~rbfly.error.ConnectTimeout`; None for no limit.  It does not apply to
        publishers opened with `wait=False`.
    :param reconnect_timeout: the same limit after the client has first connected.  It applies to
        each call, and to each outage of a publisher or a subscription, from the loss of its
        connection until it resumes.  None for no limit.  0: calls, publishers and subscriptions
        fail when they lose their connection; the next use connects within `connect_timeout`.
    :param heartbeat: interval in seconds to request from the broker, at least 1; None to accept the
        broker's.
    :param frame_max: frame size limit in bytes to request from the broker, at least 512; None to
        accept the broker's.
    :param load_balancer: the URIs lead to any node of the cluster.  The client does not use the
        nodes' own addresses; it reconnects through the URIs until it reaches the node it needs.
    :param request_timeout: seconds for the broker to answer a request, at least 60 to create or
        delete a stream.  If the broker does not answer, the client drops the connection, unless the
        connection has unconfirmed messages.  None for no limit.
    :param close_timeout: seconds without progress until closing gives up.  Progress is a confirm,
        an answer, or a message sent for the first time.  Closing several publishers,
        subscriptions and the client while no broker answers takes little longer than one
        `close_timeout` in total.  None for no limit, 0 not to wait for the broker.  If no call
        waits for a confirm, and no offset was stored that the broker may not have read, closing
        waits at most half a second.
    :param busy_poll: seconds, above 0 and at most 0.1, for which the event loop keeps polling after
        a publisher has sent a frame, until the confirm arrives, instead of sleeping.  Confirms
        arrive earlier, for more processor time; see :ref:`busy-polling`.  None to sleep.  It needs
        two processors: with fewer, the client logs a warning and does not poll.
    :param credentials: an async function without arguments that returns the current
        :class:`Credentials`, for example an OAuth 2 token; it replaces the user and password of the
        URIs.  The client awaits it at each connect, and, if they expire, after 80 % of their time:
        then it authenticates all open connections again.  If the function fails, the client asks
        again, after growing delays.  See :ref:`tokens`.
    :param server_hostname: name in the brokers' certificates, and in the TLS handshake (SNI); None
        for the host of the address that the client connects to.
    :param resolve: a function from the host and port that a node advertises to those at which this
        program reaches it, for example through NAT or out of Kubernetes; None for the same ones.
        See :ref:`addresses`.
    :param backoff: seconds before the second try of whatever failed, and the longest time between
        two tries: each delay is twice as long as the one before, minus up to half of it at random.
        None for `(0.1, 30.0)`.
    :param publishers_per_connection: how many publishers share a connection to a node, at most 256.
    :param subscriptions_per_connection: the same for subscriptions.
    :param client_properties: further properties that the broker shows for the connections, for
        example in its management UI, at most 4096 bytes; None for none.
    :param metrics: passes the numbers of the client to a monitoring system:
        :func:`rbfly.otel.metrics`, or another :class:`MetricsExporter`; None for none.  See
        :ref:`metrics`.
    :param tracing: makes spans for OpenTelemetry: :func:`rbfly.otel.tracing`; None for none, or for
        that of `opentelemetry-instrument`.  See :ref:`traces`.
    :raises URIError: a URI is malformed, only some of several use TLS, or `ssl` or
        `server_hostname` was passed with the scheme without TLS.
    :raises TypeError: an argument has the wrong type.
    :raises ValueError: an argument is out of range.
    """
    if isinstance(auth_mechanism, ssl_module.SSLContext):
        ssl, auth_mechanism = auth_mechanism, AuthMechanism.PLAIN
    if isinstance(uri, bytes | bytearray | memoryview):
        check_type('uri', uri, str)
    check_type('uri', uri, str, Iterable)
    check_type('ssl', ssl, ssl_module.SSLContext, None)
    uris = [uri] if isinstance(uri, str) else list(uri)
    if not uris:
        raise ArgumentError('uri must contain the URI of at least one broker')
    return StreamsClient(
        Settings(
            endpoints([parse_uri(item, ssl) for item in uris], credentials),
            AuthMechanism.PLAIN if auth_mechanism is None else auth_mechanism,
            '' if connection_name is None else connection_name,
            connect_timeout,
            reconnect_timeout,
            frame_max,
            heartbeat,
            load_balancer,
            request_timeout,
            close_timeout,
            busy_poll,
            server_hostname,
            resolve,
            () if backoff is None else backoff,
            publishers_per_connection,
            subscriptions_per_connection,
            {} if client_properties is None else client_properties,
        ),
        metrics=metrics,
        tracing=tracing,
    )


def endpoints(
    infos: Iterable[ConnectionInfo], provider: Callable[[], Awaitable[Credentials]] | None = None
) -> list[Endpoint]:
    """Return where a client connects.

    :param provider: what replaces the users and passwords of `infos`.
    """
    login = None
    if provider is not None:
        if not callable(provider):
            raise ArgumentTypeError(
                'credentials must be an async function that returns Credentials, not'
                f' {type(provider).__name__}'
            )
        login = credentials_module.ProvidedLogin(provider)
    check_type('connection_info', infos, Iterable)
    found = []
    for info in infos:
        check_type('connection_info', info, ConnectionInfo)
        found.append(endpoint(info, login))
    return found


class StreamsClient(ClientBase):
    """Creates and deletes streams, publishes to them and subscribes to them.

    :func:`streams_client` creates one.  `async with client` closes its connections at the end; the
    client can be used again, and then reconnects.

    A client belongs to the event loop that first uses it, until the client is closed or the loop
    ends.  In another event loop, thread or forked child, its methods raise
    :class:`~rbfly.error.EventLoopError`.
    """

    def __init__(
        self,
        connection_info: ConnectionInfo | Sequence[ConnectionInfo] | Settings,
        auth_mechanism: AuthMechanism = AuthMechanism.PLAIN,
        *,
        metrics: metrics_module.MetricsExporter | None = None,
        tracing: ClientTracing | None = None,
    ) -> None:
        check_tracing(tracing)
        self._tracing = DEFAULTS.get('tracing') if tracing is None else tracing
        settings = connection_info
        if not isinstance(settings, Settings):
            infos = [settings] if isinstance(settings, ConnectionInfo) else settings
            settings = Settings(endpoints(infos), auth_mechanism)
        self._cluster = Cluster(check_settings(settings))
        self._cluster.observers.add(OutageLog(settings.log_prefix))
        self._history = History()
        self._cluster.observers.add(self._history)
        self._members = WeakSet()
        self._users = 0
        self._windows = WeakSet()
        self._names = WeakValueDictionary()
        metrics = DEFAULTS.get('metrics') if metrics is None else metrics
        if metrics is not None:
            name = settings.connection_name
            metrics_module.export(metrics, self, self._cluster.totals, name)

    def __repr__(self) -> str:
        cluster = self._cluster
        roles = [item.owner.role for item in list(cluster.known) if hasattr(item, 'owner')]
        publishers = roles.count(Role.PUBLISH)
        return (
            f'<StreamsClient {", ".join(str(i) for i in cluster.settings.endpoints)}'
            f' connections={len(cluster.connections)} publishers={publishers}'
            f' subscriptions={len(roles) - publishers} connections_lost={self._history.lost}>'
        )

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise ArgumentTypeError(
            'a client cannot be copied or pickled, nor can its publishers and subscriptions: create'
            ' another one with streams_client'
        )

    # -- connection

    @property
    def connected(self) -> bool:
        """True if a connection is open, even if its broker does not answer; see `ping`."""
        return self._cluster.connected

    @property
    def server_properties(self) -> dict[str, str]:
        """What the node that the client last connected to reports about itself, for example its
        `version`; empty before the first connect."""
        return dict(self._cluster.server_properties)

    async def ping(self, timeout: float | None = 5.0) -> float:
        """Check that a broker answers: send one request, wait for its response, and return the
        seconds that it took.

        Ends within the timeout, also during an outage.  Uses a connection that is open, or
        connects; while it cannot connect, or loses the connection, it tries again.  A ping that
        times out closes no connection, but if no response arrives within `request_timeout`
        either, the client drops the connection, as after any other request.  Calls that overlap
        share one request.

        :param timeout: seconds, including the time to connect; None for no limit, 0 not to wait:
            then the ping fails.  `connect_timeout` and `reconnect_timeout` do not apply.
        :raises RequestTimeout: a connection is open, but its broker did not answer in time.
        :raises ConnectTimeout: no broker could be connected to in time; the cause is the last
            connection error.  Both timeouts are a :class:`~rbfly.error.StreamConnectionError`.
        :raises AuthenticationError: the broker refused the user.
        :raises VirtualHostError: the broker refused access to the virtual host.
        :raises RbFlyError: another error that no further try fixes, such as
            :class:`~rbfly.error.TLSError`.
        :raises EventLoopError: the client belongs to another event loop, thread or process.
        """
        check_timeout('timeout', timeout)
        return await self._cluster.ping(inf if timeout is None else timeout)

    def metrics(self) -> metrics_module.Metrics:
        """Return what the client has done, and what it has open: numbers for monitoring.

        They are always counted, and this sends no request.  It may be called at any time, also
        after `close`, and from any thread.
        """
        return metrics_module.read_metrics(self._cluster.totals)

    def events(self, limit: int = 1000) -> events_module.Events:
        """Iterate over what happens to the client from now on, until the client is closed.

        :param limit: number of events to keep for the program; then the oldest ones are dropped.
        :raises ValueError: the limit is below 1.
        :raises EventLoopError: the client belongs to another event loop, thread or process.
        """
        check_integer('limit', limit, 1, 2**31 - 1)
        self._cluster.check_loop()
        return events_module.Events(self._cluster, limit)

    def health(self) -> health_module.Health:
        """Return whether the client works, without asking the broker.

        It does not if a publisher, a subscription or a call has been without a connection for more
        than a second; if a publisher or a subscription has failed; if confirms are late; or if a
        subscription receives nothing although its stream has more messages.  The reasons say which.
        A client that was not used, or was closed, is healthy.  `ping` asks the broker.

        :raises EventLoopError: the client belongs to another event loop, thread or process.
        """
        self._cluster.check_loop()
        return health_module.health_of(self._cluster)

    def describe(self) -> description_module.Description:
        """Return what the client has open where, without asking the broker.

        `print(client.describe())` prints it as text for a bug report: versions, connections,
        metrics, publishers, subscriptions, their states and the last errors.  It contains names
        and addresses, but no user, no password and nothing of a message.

        :raises EventLoopError: the client belongs to another event loop, thread or process.
        """
        self._cluster.check_loop()
        return description_module.describe_client(self._cluster, self._history)

    async def get_protocol(self, *, wait_connected: bool = True) -> Connection:
        """Return an open connection; connect if there is none.

        :param wait_connected: if false, raise ConnectionError instead of connecting.
        """
        if not wait_connected and not self.connected:
            raise StreamConnectionError('the client is not connected')
        return await self._cluster.locator()

    async def reconnect(self) -> None:
        """Replace all open connections, one after another, for example before a node is stopped.

        The publishers and subscriptions of a connection move to a new one; the method waits for
        them before it goes on with the next connection.  Publishers await their confirms before,
        for up to 5 seconds, so that they resend nothing.  A member of a consumer group gives up
        the streams that it receives.  Publishers and subscriptions also move with
        `reconnect_timeout=0`, and then have `connect_timeout` for that.

        :raises EventLoopError: the client belongs to another event loop, thread or process.
        """
        await self._cluster.reconnect()

    async def close(self) -> None:
        """Close all connections, if there are any.  The client can be used again.

        Gives up waiting for the broker after `close_timeout`, or half a second if nothing is in
        flight.
        """
        await self._cluster.close()

    disconnect = close  # of RbFly 0.10

    async def __aenter__(self) -> Self:
        self._cluster.check_loop()
        self._users += 1
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._cluster.check_loop()
        self._users -= 1
        if self._users == 0:
            if can_wait(kind):
                await self.close()
            else:
                await self._cluster.close(wait=False)

    # -- publishing and subscribing

    def super_stream(self, name: str) -> super_client.SuperStream:
        """Return the object that manages a super stream, publishes to it and subscribes to it.

        This sends nothing: the super stream need not exist.

        :param name: name of the super stream.
        """
        return super_client.SuperStream(self, name)

    def publisher(
        self,
        stream: str,
        *,
        name: str | None = None,
        filter_extract: BloomFilterExtract | None = None,
        cls: type[opening.P] | None = None,
        amqp: bool = True,
        max_unconfirmed: int = 10_000,
        sub_entry_size: int | None = None,
        compression: Compression | str | None = None,
        wait: bool = True,
        codec: body_codec.Codec[Any] | None = None,
    ) -> opening.PublisherContext[opening.P]:
        """Open a publisher: `await` the result, or use it in `async with`::

            async with client.publisher('orders') as publisher:
                await publisher.send({'id': 1})

        The result is a coroutine: `asyncio.create_task` and `asyncio.run_coroutine_threadsafe` take
        it.

        The end of the `async with` block closes the publisher; a publisher from `await` ends with
        `await publisher.close()`.

        :param stream: name of the stream.
        :param name: name for deduplication, at most 255 bytes of UTF-8; None for none.  Each
            process needs its own name, e.g. `name=f'shop-{socket.gethostname()}'`: if two
            publishers use the same one, messages that the broker has confirmed may be lost, with or
            without an error.  It must be the same after a restart, because RabbitMQ remembers 255
            names of a stream.  See :ref:`publisher-names`.
        :param filter_extract: returns the filter value of a message, or None.
        :param cls: a subclass of :class:`Publisher`; None for that class.
        :param amqp: encode messages as AMQP 1.0; if false, they are bytes, sent unchanged; of a
            :class:`~rbfly.amqp.Message`, its body only.
        :param max_unconfirmed: maximum number of messages in flight.
        :param sub_entry_size: maximum number of messages in a sub-entry, up to 65535; None for no
            sub-entries.  Messages sent in one turn of the event loop share sub-entries.  The broker
            has much less work with them: a sub-entry has one publishing id and one confirm.
        :param compression: compression of sub-entries: `none`, `gzip`, `snappy`, `lz4` or `zstd`;
            the last three need the extra `compression`.
        :param wait: wait until the broker has declared the publisher.  If false, return at once and
            connect in the background, without a time limit; see :ref:`connect-later`.
        :param codec: encodes the bodies of messages, for example as JSON; None for AMQP 1.0 values.
            See :doc:`/guides/types`.
        :raises TypeError: an argument has the wrong type; `cls` is not derived from a publisher
            class of RbFly.
        :raises ValueError: an argument is out of range, or both sub-entries and filter values were
            requested.
        :raises CompressionError: the library for the compression is not installed.
        :raises StreamDoesNotExist: there is no such stream, or it is a super stream; the error says
            so.
        :raises ProtocolError: the broker refused the publisher.
        :raises PublisherNameInUse: this client already has a publisher of that name on the stream.
        :raises PublisherError: the name has already used the highest publishing id.
        :raises EventLoopError: the client belongs to another event loop, thread or process.
        """
        info = opening.publisher_info(
            stream,
            name,
            filter_extract,
            cls,
            amqp,
            max_unconfirmed,
            sub_entry_size,
            compression,
            wait,
            codec,
        )
        cls = opening.traced(cls, self._tracing)
        return opening.PublisherContext(self, self._cluster, self._names, info, wait, cls)

    @overload
    def subscribe(
        self,
        stream: str,
        *,
        offset: Offset | OffsetSource | None = None,
        filter: MessageFilter | None = None,
        timeout: float | None = None,
        amqp: Literal[False],
        on_decode_error: OnDecodeError = 'raise',
        initial_credit: int = 10,
        commit: Commit | tracking.OffsetTracking | None = None,
        on_gap: OnGap = 'warn',
        until: Literal['now'] | Offset | datetime.datetime | None = None,
        group: str | handover.Group | None = None,
        type: None = None,
        codec: None = None,
        copy: Literal[True] = True,
    ) -> subscription.Subscription[bytes]: ...

    @overload
    def subscribe(
        self,
        stream: str,
        *,
        offset: Offset | OffsetSource | None = None,
        filter: MessageFilter | None = None,
        timeout: float | None = None,
        amqp: Literal[False],
        on_decode_error: OnDecodeError = 'raise',
        initial_credit: int = 10,
        commit: Commit | tracking.OffsetTracking | None = None,
        on_gap: OnGap = 'warn',
        until: Literal['now'] | Offset | datetime.datetime | None = None,
        group: str | handover.Group | None = None,
        type: None = None,
        codec: None = None,
        copy: Literal[False],
    ) -> subscription.Subscription[memoryview]: ...

    @overload
    def subscribe(
        self,
        stream: str,
        *,
        offset: Offset | OffsetSource | None = None,
        filter: MessageFilter | None = None,
        timeout: float | None = None,
        amqp: bool = True,
        on_decode_error: OnDecodeError = 'raise',
        initial_credit: int = 10,
        commit: Commit | tracking.OffsetTracking | None = None,
        on_gap: OnGap = 'warn',
        until: Literal['now'] | Offset | datetime.datetime | None = None,
        group: str | handover.Group | None = None,
        type: None = None,
        codec: None = None,
        copy: bool = True,
    ) -> subscription.Subscription: ...

    @overload
    def subscribe(
        self,
        stream: str,
        *,
        offset: Offset | OffsetSource | None = None,
        filter: MessageFilter | None = None,
        timeout: float | None = None,
        amqp: Literal[True] = True,
        on_decode_error: OnDecodeError = 'raise',
        initial_credit: int = 10,
        commit: Commit | tracking.OffsetTracking | None = None,
        on_gap: OnGap = 'warn',
        until: Literal['now'] | Offset | datetime.datetime | None = None,
        group: str | handover.Group | None = None,
        type: type[T],
        codec: None = None,
        copy: Literal[True] = True,
    ) -> subscription.Subscription[T]: ...

    @overload
    def subscribe(
        self,
        stream: str,
        *,
        offset: Offset | OffsetSource | None = None,
        filter: MessageFilter | None = None,
        timeout: float | None = None,
        amqp: Literal[True] = True,
        on_decode_error: OnDecodeError = 'raise',
        initial_credit: int = 10,
        commit: Commit | tracking.OffsetTracking | None = None,
        on_gap: OnGap = 'warn',
        until: Literal['now'] | Offset | datetime.datetime | None = None,
        group: str | handover.Group | None = None,
        type: None = None,
        codec: body_codec.Codec[T],
        copy: Literal[True] = True,
    ) -> subscription.Subscription[T]: ...

    @overload
    def subscribe(
        self,
        stream: str,
        *,
        offset: Offset | OffsetSource | None = None,
        filter: MessageFilter | None = None,
        timeout: float | None = None,
        amqp: Literal[True] = True,
        on_decode_error: OnDecodeError = 'raise',
        initial_credit: int = 10,
        commit: Commit | tracking.OffsetTracking | None = None,
        on_gap: OnGap = 'warn',
        until: Literal['now'] | Offset | datetime.datetime | None = None,
        group: str | handover.Group | None = None,
        type: Any,
        codec: None = None,
        copy: Literal[True] = True,
    ) -> subscription.Subscription[Any]: ...

    def subscribe(
        self,
        stream: str,
        *,
        offset: Offset | OffsetSource | None = None,
        filter: MessageFilter | None = None,
        timeout: float | None = None,
        amqp: bool = True,
        on_decode_error: OnDecodeError = 'raise',
        initial_credit: int = 10,
        commit: Commit | tracking.OffsetTracking | None = None,
        on_gap: OnGap = 'warn',
        until: Literal['now'] | Offset | datetime.datetime | None = None,
        group: str | handover.Group | None = None,
        type: Any = None,
        codec: body_codec.Codec[Any] | None = None,
        copy: bool = True,
    ) -> subscription.Subscription[Any]:
        """Read the messages of a stream, with `async for`::

            async with client.subscribe('orders', offset=Offset.FIRST) as orders:
                async for order in orders:
                    print(order)

        :param stream: name of the stream.
        :param offset: where to start; None for `Offset.NEXT`, in a group for `Offset.FIRST`; or an
            async function that returns it, for a program that keeps offsets in its own database.
            RbFly calls the function with the name of the stream when the subscription first opens,
            not after a reconnect.  If it fails, waiting for a message raises its error, and the
            next wait calls it again.
        :param filter: selects messages; None for all.
        :param timeout: seconds to wait for each message; None or 0 for no limit.
        :param amqp: decode messages; if false, yield their bytes unchanged.
        :param on_decode_error: what to do with a message that is not AMQP 1.0, or not of the
            requested `type`, or that the `codec` cannot decode: `'raise'` an
            :class:`~rbfly.error.AMQPDecoderError` with its offset and bytes, after which the
            iteration can continue; `'skip'` it; or yield its bytes (`'raw'`).
        :param initial_credit: number of chunks that the broker may send ahead, 1 to 65,535; this
            and the size of chunks limit the memory used.
        :param commit: how to store the offset of the last message that the program has processed:
            RbFly stores it by itself (`'auto'`), when the program calls `commit` (`'manual'`), or
            not at all (`'off'`), for a program that keeps offsets in its own database.  None for
            `'auto'` in a group, unless `offset` is a function; else `'off'`.  `OffsetTracking`
            tells how often, and the name; without it, that is the group's, or the one of
            `offset=Offset.reference(name)`.
        :param on_gap: what to do if the next message to read, after the start from an offset or
            after a reconnect, is missing because retention has removed it: `'raise'` an
            :class:`~rbfly.error.OffsetGapError`, after which the iteration can continue with the
            first message of the stream; log a warning (`'warn'`); or `'ignore'` it.  With a filter,
            only the start is checked.  A start at an offset after the end of the stream is a gap
            too; the subscription then waits for that offset.
        :param until: where to end, see :ref:`read-until`; an aware datetime for
            `Offset.timestamp(...)` of it; None to wait for more messages.
            `'now'`: after the last message that the stream had when the subscription opened;
            `Offset.offset(n)`: before that offset; `Offset.timestamp(t)`: before the first chunk
            written at that time or later, by the broker's clock, or where `'now'` ends.
        :param group: a consumer group: its name, or :class:`Group`.  Of its members, one at a time
            receives the messages of the stream, or of each partition; it starts after the offset
            stored under the group's name, or at the offset that the function given as `offset`
            returns.  See :doc:`/guides/consumer-groups`.
        :param type: type of the bodies, which are checked: a dataclass, a Struct of msgspec, a
            TypedDict, a model of pydantic, or another annotation; None for what the messages
            contain.  See :doc:`/guides/types`.
        :param codec: decodes the bodies of messages, for example from JSON; None for AMQP 1.0
            values.
        :param copy: copy binary bodies to `bytes`; if false, they are read-only memoryviews, each
            of which keeps its chunk in memory.  See :ref:`large-messages`.
        :raises TypeError: an argument has the wrong type, or `type` cannot be decoded.
        :raises ValueError: an argument is out of range.
        :raises EventLoopError: the client belongs to another event loop, thread or process.
        """
        self._cluster.check_loop()
        settings = options.ReadSettings(
            stream,
            False,
            offset,
            filter,
            timeout,
            amqp,
            on_decode_error,
            initial_credit,
            commit,
            on_gap,
            until,
            group,
            type,
            codec,
            copy,
        )
        return subscription.subscribe(self._cluster, self._members, stream, settings)
