"""The keyword arguments of clients, streams, publishers and subscriptions, for type checkers.

They are those of `rbfly.streams`; a test compares them.
"""

from __future__ import annotations

import ssl as ssl_module
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from ..protocol.offset import OffsetSource
from ..streams import (
    AuthMechanism,
    BloomFilterExtract,
    Codec,
    Commit,
    Compression,
    Credentials,
    Group,
    MessageFilter,
    MetricsExporter,
    Offset,
    OffsetTracking,
    OnDecodeError,
    OnGap,
)
from ..streams._super_stream.routing import Route
from ..streams.types import ClientTracing


class ClientOptions(TypedDict, total=False):
    """Keyword arguments of `streams_client`."""

    auth_mechanism: AuthMechanism | ssl_module.SSLContext | None
    ssl: ssl_module.SSLContext | None
    connection_name: str | None
    connect_timeout: float | None
    reconnect_timeout: float | None
    heartbeat: int | None
    frame_max: int | None
    load_balancer: bool
    request_timeout: float | None
    close_timeout: float | None
    busy_poll: float | None
    credentials: Callable[[], Awaitable[Credentials]] | None
    server_hostname: str | None
    resolve: Callable[[str, int], tuple[str, int]] | None
    backoff: tuple[float, float] | None
    publishers_per_connection: int
    subscriptions_per_connection: int
    client_properties: Mapping[str, str] | None
    metrics: MetricsExporter | None
    tracing: ClientTracing | None


class StreamOptions(TypedDict, total=False):
    """Keyword arguments of `create_stream`."""

    max_length_bytes: int | None
    max_age: timedelta | None
    segment_size: int | None
    initial_cluster_size: int | None
    leader_locator: Literal['client-local', 'balanced'] | None
    filter_size: int | None
    initial_offset: int | None
    arguments: Mapping[str, str] | None


class PublisherOptions(TypedDict, total=False):
    """Keyword arguments of `publisher`."""

    name: str | None
    filter_extract: BloomFilterExtract | None
    amqp: bool
    max_unconfirmed: int
    sub_entry_size: int | None
    compression: Compression | str | None
    wait: bool
    codec: Codec[Any] | None


class ReadOptions(TypedDict, total=False):
    """Keyword arguments of `subscribe`, for a stream and for a super stream.

    Without `amqp`, `type`, `codec` and `copy`, which choose the type of the bodies.
    """

    filter: MessageFilter | None
    timeout: float | None
    on_decode_error: OnDecodeError
    initial_credit: int
    commit: Commit | OffsetTracking | None
    on_gap: OnGap
    until: Literal['now'] | Offset | datetime | None
    group: str | Group | None


class SubscribeOptions(ReadOptions, total=False):
    """Keyword arguments of `subscribe`, see :class:`ReadOptions`."""

    offset: Offset | OffsetSource | None


class SuperSubscribeOptions(ReadOptions, total=False):
    """Keyword arguments of `SuperStream.subscribe`, see :class:`ReadOptions`."""

    offset: Offset | OffsetSource | Mapping[str, Offset | OffsetSource] | None
    refresh_interval: float


class SuperPublisherOptions(PublisherOptions):
    """Keyword arguments of `SuperStream.publisher`."""

    route: Route
