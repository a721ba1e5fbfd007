"""Creates a subscription of a stream or of a super stream."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from ..checks import check_integer, check_stream, check_timeout, check_type
from ..error import ArgumentError
from ..net.cluster import Cluster
from ..protocol.offset import Offset
from .arguments import check_choice, check_filter, check_group, check_starts
from .consuming import ReadSettings, SubscriptionSession
from .merged import MergedSession, Offsets
from .reading import MessageWaiter
from .subscription import Subscription, SuperStreamSubscription
from .tracking import OffsetTracking
from .types import MessageFilter, OnDecodeError, OnGap


def subscribe(
    cluster: Cluster,
    super_streams: set[str],
    stream: str,
    super_stream: bool,
    offset: Offsets,
    filter: MessageFilter | None,
    timeout: float | None,
    amqp: bool,
    on_decode_error: OnDecodeError,
    initial_credit: int,
    auto_offset: OffsetTracking | bool | None,
    on_gap: OnGap,
    until: Literal['now'] | Offset | None,
    refresh_interval: float,
    group: str | None,
    handover_timeout: float,
    stranded_after: float | None,
) -> Subscription[Any] | SuperStreamSubscription[Any]:
    """Check the arguments of :meth:`StreamsClient.subscribe`, and create the subscription.

    :param super_streams: names that the client knows as those of super streams.
    """
    cluster.check_loop()
    check_stream(stream)
    check_type('super_stream', super_stream, bool)
    check_type('refresh_interval', refresh_interval, int, float)
    if not 0 < refresh_interval < float('inf'):
        raise ArgumentError(f'refresh_interval must be above 0 seconds, not {refresh_interval}')
    if isinstance(offset, Mapping):
        offset = dict(offset)
    check_starts(offset, until, super_stream)
    check_type('filter', filter, MessageFilter, None)
    check_timeout('timeout', timeout)
    check_integer('initial_credit', initial_credit, 1, 2**16 - 1)
    check_type('auto_offset', auto_offset, OffsetTracking, bool, None)
    check_choice('on_decode_error', on_decode_error, 'raise', 'skip', 'raw')
    check_choice('on_gap', on_gap, 'raise', 'warn', 'ignore')
    if filter is not None:
        check_filter(filter)
    tracking, membership = check_group(
        group,
        stream if super_stream else None,
        handover_timeout,
        stranded_after,
        offset,
        auto_offset or None,  # a bool is true now
        until,
    )
    settings = ReadSettings(
        filter, amqp, on_decode_error, initial_credit, tracking, on_gap, until, membership
    )
    waiter = MessageWaiter(cluster.check_loop, timeout or None)
    if not super_stream:
        assert not isinstance(offset, Mapping)
        session = SubscriptionSession(cluster, waiter, stream, offset, settings)
        return Subscription(session, waiter, offset)
    super_streams.add(stream)
    merged = MergedSession(
        cluster,
        waiter,
        stream,
        offset,
        refresh_interval,
        until is not None,
        super_streams,
        partial(SubscriptionSession, cluster, settings=settings),
    )
    return SuperStreamSubscription(merged, waiter, offset)
