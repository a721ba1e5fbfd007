"""What a client has open where, as text for a bug report; nothing of it is secret."""

from __future__ import annotations

import asyncio
import platform
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from .. import __version__
from ..error import counted
from ..later import datetime
from ..net.cluster import Cluster
from ..net.connection import Connection
from ..net.history import History, harmless
from ..net.observer import Role
from ..net.recovery import node
from ..net.registration import Registration
from ..net.uri import Settings
from ..record import Record
from .health import Health, health_of, sorted_by_name
from .metrics import Metrics, read_metrics

COUNTS = [  # metrics in the text, as sums of all streams
    *('published', 'confirmed', 'refused', 'resent', 'unconfirmed', 'consumed', 'chunks'),
    *('reconnects', 'bytes_written', 'bytes_read', 'last_confirm', 'last_chunk'),
]


class ConnectionDescription(Record):
    """A connection, see :class:`Description`.

    :ivar node: host and port that the client has dialled.
    :ivar role: `'publish'`, `'consume'` or `'manage'`.
    :ivar state: state of the connection.
    :ivar server: product and version of the broker.
    :ivar tls: the connection uses TLS.
    :ivar heartbeat: agreed interval in seconds, 0 for none.
    :ivar frame_max: agreed size limit of a frame in bytes, 0 for none.
    :ivar users: number of publishers or subscriptions on the connection.
    :ivar requests: number of requests that the broker has not answered.
    :ivar paused: the write buffer is full.
    """

    node: str
    role: str
    state: str
    server: str
    tls: bool
    heartbeat: int
    frame_max: int
    users: int
    requests: int
    paused: bool


class PublisherDescription(Record):
    """A publisher of a stream or of one partition, see :class:`Description`.

    :ivar stream: name of the stream; of the partition, if it belongs to a super stream.
    :ivar name: name for deduplication, empty for none.
    :ivar state: what it does.
    :ivar node: host and port of its connection, empty for none.
    :ivar unconfirmed: number of messages that are queued or in flight.
    :ivar in_flight: number of messages that are sent, and not confirmed.
    :ivar max_unconfirmed: limit of messages in flight.
    :ivar next_publish_id: publishing id of the next message.
    :ivar resent: number of messages sent again, in total.
    :ivar reconnects: how often it was declared again.
    :ivar problem: why it is not open; None if it is.
    """

    stream: str
    name: str
    state: str
    node: str
    unconfirmed: int
    in_flight: int
    max_unconfirmed: int
    next_publish_id: int
    resent: int
    reconnects: int
    problem: str | None


class SubscriptionDescription(Record):
    """A subscription to a stream or to one partition, see :class:`Description`.

    :ivar stream: name of the stream; of the partition, if it belongs to a super stream.
    :ivar super_stream: name of the super stream, empty for none.
    :ivar group: name of the consumer group, empty for none.
    :ivar state: what it does.
    :ivar node: host and port of its connection, empty for none.
    :ivar position: offset after the last message received; None before the first.
    :ivar finished: offset after the last message that the program has finished; None before that.
    :ivar initial_credit: number of chunks that the broker may send ahead.
    :ivar queued: number of chunks that have arrived, and that the program has not begun.
    :ivar lag: how many offsets the position is behind the last chunk of the stream, at least, when
        that was last reported; None if it is unknown.
    :ivar reconnects: how often it was declared again.
    :ivar problem: why it is not open, or the error that the program gets next; None for none.
    """

    stream: str
    super_stream: str
    group: str
    state: str
    node: str
    position: int | None
    finished: int | None
    initial_credit: int
    queued: int
    lag: int | None
    reconnects: int
    problem: str | None


class ErrorDescription(Record):
    """An error of a client, see :class:`Description`.

    :ivar at: when it happened, most recently.
    :ivar count: how often it happened with the same text.
    :ivar where: the publisher, subscription or connection, most recently.
    :ivar text: the text of the error; only its class, if the text is not RbFly's.
    """

    at: datetime.datetime
    count: int
    where: str
    text: str


class Description(Record):
    """What a client has open where, see :meth:`.StreamsClient.describe`.

    `str` returns it as text for a bug report.

    :ivar at: the current time.
    :ivar versions: versions of RbFly, Python, the event loop and the system, by name.
    :ivar settings: the settings of the client as text, by name, without user and password.
    :ivar health: whether it works.
    :ivar connections_lost: number of connections that have ended, and that the client did not
        close.
    :ivar metrics: its numbers; the text has the sums of all streams.
    :ivar connections: the connections that are open.
    :ivar publishers: the publishers, one for each partition of a super stream.
    :ivar subscriptions: the subscriptions, one for each partition of a super stream.
    :ivar errors: the last errors with different texts, the most recent one last.
    """

    at: datetime.datetime
    versions: dict[str, str]
    settings: dict[str, str]
    health: Health
    connections_lost: int
    metrics: Metrics
    connections: list[ConnectionDescription]
    publishers: list[PublisherDescription]
    subscriptions: list[SubscriptionDescription]
    errors: list[ErrorDescription]

    def __str__(self) -> str:
        versions = ', '.join(f'{name} {value}' for name, value in self.versions.items())
        lines = [versions, f'at {self.at:%Y-%m-%d %H:%M:%S} UTC', '', 'settings']
        lines += aligned([[name, value] for name, value in self.settings.items()])
        lines += ['', 'health: ok' if self.health.ok else 'health: not ok']
        lines += [f'  - {reason}' for reason in self.health.reasons]
        lost = f'{self.connections_lost} lost so far'
        lines += ['', f'{counted(len(self.connections), "connection")} open, {lost}']
        lines += table(self.connections)
        lines += ['', 'sums of all streams', *counts(self.metrics)]
        lines += ['', counted(len(self.publishers), 'publisher'), *table(self.publishers)]
        lines += ['', counted(len(self.subscriptions), 'subscription'), *table(self.subscriptions)]
        lines += ['', counted(len(self.errors), 'recent error'), *table(self.errors)]
        return '\n'.join(line.rstrip() for line in lines)


def describe_client(cluster: Cluster, history: History) -> Description:
    """Describe a client by what it knows."""
    hide = Hidden(cluster.settings)
    loop = cluster.loop
    parts = [] if loop is None or loop.is_closed() else sorted_by_name(cluster.known)
    health = health_of(cluster)
    return Description(
        datetime.datetime.now(datetime.UTC),
        versions(loop),
        settings_of(cluster.settings),
        Health(health.ok, [hide(reason) for reason in health.reasons]),
        history.lost,
        read_metrics(cluster.totals),
        [connection_of(role, item) for role, item in cluster.connections],
        [publisher_of(item, hide) for item in parts if item.owner.role is Role.PUBLISH],
        [subscription_of(item, hide) for item in parts if item.owner.role is Role.CONSUME],
        [
            ErrorDescription(
                datetime.datetime.fromtimestamp(item.at, datetime.UTC),
                item.count,
                item.where,
                hide(item.text),
            )
            for item in history.errors
        ],
    )


class Hidden:
    """Replaces passwords in texts.

    The client puts none there; but a broker or a resolver may repeat what it was sent.
    """

    def __init__(self, settings: Settings) -> None:
        self._logins = [item.login for item in settings.endpoints]

    def __call__(self, text: str) -> str:
        for login in self._logins:
            text = login.hide(text)
        return text


def versions(loop: asyncio.AbstractEventLoop | None) -> dict[str, str]:
    found = {'RbFly': __version__, platform.python_implementation(): platform.python_version()}
    kind = type(loop or asyncio._get_running_loop())
    module = kind.__module__.partition('.')[0]
    if kind is not type(None):
        version = getattr(sys.modules.get(module), '__version__', '')
        found['event loop'] = f'{module}.{kind.__name__} {version}'.rstrip()
    found[platform.system()] = platform.release()
    return found


def settings_of(settings: Settings) -> dict[str, str]:
    shown = {
        'addresses': ', '.join(map(str, settings.endpoints)),
        'virtual host': ', '.join(dict.fromkeys(item.virtual_host for item in settings.endpoints)),
        'authentication': settings.auth_mechanism.value,
    }
    hidden = ('endpoints', 'auth_mechanism', 'client_properties', 'resolve')
    for name in [name for name in Settings.field_types if name not in hidden]:
        value = getattr(settings, name)
        if value != getattr(Settings, name):
            shown[name] = str(value)
    return shown


def connection_of(role: Role, connection: Connection) -> ConnectionDescription:
    properties = connection.server_properties
    server = f'{properties.get("product", "")} {properties.get("version", "")}'.strip()
    return ConnectionDescription(
        node(connection.address),
        role.value,
        connection.state.value,
        server,
        connection.address.ssl is not None,
        connection.heartbeat,
        connection.frame_max,
        len(connection.registrations),
        connection.pending_requests,
        connection.paused,
    )


def node_of(registration: Registration) -> str:
    connection = registration.connection
    return '' if connection is None else node(connection.address)


def problem_of(registration: Registration, hide: Hidden) -> str | None:
    owner: Any = registration.owner
    error = owner.failure or registration.problem
    return None if error is None else hide(harmless(error))


def publisher_of(registration: Registration, hide: Hidden) -> PublisherDescription:
    session: Any = registration.owner
    window = session.core.window
    return PublisherDescription(
        session.stream,
        session.name,
        session.status,
        node_of(registration),
        window.unsettled,
        window.in_flight,
        window.max_unconfirmed,
        window.next_id,
        window.resent,
        max(0, registration.opened - 1),
        problem_of(registration, hide),
    )


def subscription_of(registration: Registration, hide: Hidden) -> SubscriptionDescription:
    session: Any = registration.owner
    cursor = session.cursor
    chunks, position = cursor.queue.chunks, cursor.position
    committed = chunks[-1].committed_chunk_id if chunks else None
    lag = None if committed is None or position is None else max(0, committed - position)
    return SubscriptionDescription(
        session.stream,
        cursor.super_stream or '',
        session.group,
        session.status,
        node_of(registration),
        session.position,
        cursor.finished,
        session.initial_credit,
        len(chunks),
        lag,
        session.reconnects,
        problem_of(registration, hide),
    )


def table(records: Sequence[Record]) -> list[str]:
    """Return lines with a column for each field that is not empty everywhere."""
    if not records:
        return []
    names = [
        name
        for name in type(records[0]).field_types
        if any(is_shown(getattr(item, name)) for item in records)
    ]
    rows = [[cell(getattr(item, name)) for name in names] for item in records]
    return aligned([[name.replace('_', ' ') for name in names], *rows])


def counts(metrics: Metrics) -> list[str]:
    """Return a line with the names of the sums, and one with their values."""
    values = {name: getattr(metrics, name) for name in COUNTS}
    for name in ('last_confirm', 'last_chunk'):
        if values[name] is not None:
            values[name] = datetime.datetime.fromtimestamp(values[name], datetime.UTC)
    return aligned([[name.replace('_', ' ') for name in values], [*map(cell, values.values())]])


def is_shown(value: object) -> bool:
    return value is not None and value is not False and value != ''


def cell(value: object) -> str:
    if isinstance(value, datetime.datetime):
        return f'{value:%H:%M:%S}'
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    return '-' if value in ('', None) else str(value)


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        '  ' + '  '.join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
