"""What a client has done and has open: numbers for a monitoring system."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol
from weakref import finalize

from ..error import ArgumentTypeError
from ..net.totals import StreamTotals, Totals
from ..record import Record

__all__ = ['Metrics', 'MetricsExporter', 'MetricsSource', 'StreamMetrics']


class StreamMetrics(Record):
    """Numbers of a stream, or of a partition of a super stream.

    Counts begin at 0 when the client is created, never fall, and include publishers and
    subscriptions that have ended.

    :ivar publishers: number of open publishers, connected or not; one per partition of a super
        stream.
    :ivar subscriptions: number of open subscriptions, connected or not; one per partition of a
        super stream.
    :ivar published: messages sent, each counted once.
    :ivar confirmed: messages that the broker has confirmed.
    :ivar refused: messages that the broker has refused, or that are too large for the frames of a
        new connection.
    :ivar resent: messages sent again after a reconnect; one that is sent three times counts twice.
    :ivar unconfirmed: messages that are queued, or that the broker has not confirmed yet.
    :ivar consumed: messages that the program has received from subscriptions, or that these have
        skipped (`on_decode_error='skip'`).
    :ivar chunks: chunks of messages that the broker has delivered.
    :ivar reconnects: how often a publisher or subscription was declared again, after it had lost
        its connection or its stream had moved to another node.
    :ivar last_confirm: time of the last confirm, in seconds since the epoch; None before it.
    :ivar last_chunk: time of the last chunk, in seconds since the epoch; None before it.
    """

    publishers: int
    subscriptions: int
    published: int
    confirmed: int
    refused: int
    resent: int
    unconfirmed: int
    consumed: int
    chunks: int
    reconnects: int
    last_confirm: float | None
    last_chunk: float | None


class Metrics(StreamMetrics):
    """Numbers of a client: the sums of all its streams, and those of its connections.

    :ivar connections: number of open connections.
    :ivar connections_lost: connections that ended, and the client did not close them.
    :ivar bytes_written: bytes written to connections, without the overhead of TLS.
    :ivar bytes_read: bytes read from connections, without the overhead of TLS.
    :ivar streams: numbers by the name of the stream or partition.  They go after the client has
        used a thousand other streams, if the stream has no publisher and no subscription; the sums
        keep them.
    """

    connections: int
    connections_lost: int
    bytes_written: int
    bytes_read: int
    streams: Mapping[str, StreamMetrics]


class MetricsSource:
    """The numbers of one client, which it does not keep alive.

    :ivar connection_name: the `connection_name` of the client; '' for none.
    """

    def __init__(self, totals: Totals, connection_name: str) -> None:
        self.connection_name: str = connection_name
        self._totals = totals

    def read(self) -> Metrics:
        """Return the numbers at this moment; from any thread."""
        return read_metrics(self._totals)


class MetricsExporter(Protocol):
    """Passes the numbers of clients to a monitoring system: `streams_client(metrics=...)`.

    :func:`rbfly.otel.metrics` returns one.  It may serve several clients.
    """

    def attach(self, source: MetricsSource) -> None:
        """A client was created: call `source.read()` when its numbers are wanted."""

    def detach(self, source: MetricsSource) -> None:
        """The client is gone, and its counts are final.  The garbage collector may call this, in
        any thread."""

    def on_confirm(self, source: MetricsSource, seconds: float) -> None:
        """The broker has confirmed a frame of messages.

        The event loop calls this for some of the frames: at most one of a client in 200 ms.

        :param seconds: time from sending the frame to its last confirm.
        """

    def on_chunk(self, source: MetricsSource, entries: int) -> None:
        """The broker has delivered a chunk.

        The event loop calls this for some of the chunks: at most one of a client in 200 ms.

        :param entries: number of its entries: messages and sub-entries.
        """


def export(exporter: MetricsExporter, client: object, totals: Totals, name: str) -> None:
    """Pass the numbers of a new client to an exporter, as long as the client lives.

    :param name: the `connection_name` of the client.
    :raises ArgumentTypeError: it is no exporter.
    """
    names = ('attach', 'detach', 'on_confirm', 'on_chunk')
    if not all(callable(getattr(exporter, item, None)) for item in names):
        raise ArgumentTypeError(
            f'metrics must be a MetricsExporter, such as rbfly.otel.metrics(), not {exporter!r}'
        )
    source = MetricsSource(totals, name)
    totals.measure(partial(exporter.on_confirm, source), partial(exporter.on_chunk, source))
    exporter.attach(source)
    finalize(client, exporter.detach, source).atexit = False


def read_metrics(totals: Totals) -> Metrics:
    """Return the numbers of a client."""
    found, others = totals.read()
    streams = {
        name: StreamMetrics(*numbers(item, unconfirmed))
        for name, (item, unconfirmed) in found.items()
    }
    unconfirmed = 0
    publishers = subscriptions = 0
    for item, left in found.values():
        others.add(item)
        unconfirmed += left
        publishers += len(item.windows)
        subscriptions += len(item.cursors)
    counters = totals.counters
    return Metrics(
        publishers,
        subscriptions,
        *numbers(others, unconfirmed)[2:],
        counters.connections,
        counters.connections_lost,
        counters.bytes_sent,
        counters.bytes_received,
        streams,
    )


def numbers(
    totals: StreamTotals, unconfirmed: int
) -> tuple[int, int, int, int, int, int, int, int, int, int, float | None, float | None]:
    """Return the values of StreamMetrics, in order."""
    return (
        len(totals.windows),
        len(totals.cursors),
        totals.published,
        totals.confirmed,
        totals.refused,
        totals.resent,
        unconfirmed,
        totals.consumed,
        totals.chunks,
        totals.reconnects,
        totals.last_confirm or None,
        totals.last_chunk or None,
    )
