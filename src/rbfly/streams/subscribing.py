"""Creates a subscription of a stream or of a super stream."""

from __future__ import annotations

from collections.abc import Mapping, MutableSet
from dataclasses import replace
from typing import Any, Literal

from ..checks import check_integer, check_stream, check_timeout, check_type
from ..error import ArgumentError
from ..net.cluster import Cluster
from ..protocol import commands
from ..protocol.offset import Offset, OffsetSource, OffsetType
from .arguments import check_choice, check_filter, check_member_start, check_starts
from .consuming import ReadSettings, SubscriptionSession
from .group import HANDOVER_MAX, HANDOVER_TIMEOUT, Group
from .merged import MergedSession, Offsets
from .offsets import GroupMember
from .reading import MessageWaiter, Waiter
from .subscription import Subscription, SuperStreamSubscription
from .tracking import OffsetTracking
from .types import MessageFilter, OnDecodeError, OnGap


def subscribe(
    cluster: Cluster,
    members: MutableSet[GroupMember],
    stream: str,
    refresh_interval: float | None,
    offset: Offsets | None,
    filter: MessageFilter | None,
    timeout: float | None,
    amqp: bool,
    on_decode_error: OnDecodeError,
    initial_credit: int,
    auto_offset: OffsetTracking | bool | None,
    on_gap: OnGap,
    until: Literal['now'] | Offset | None,
    group: str | None,
    handover_timeout: float,
    stranded_after: float | None,
) -> Any:
    """Check the arguments of `subscribe`, and create the subscription.

    :param members: the client's members of groups; refers to them weakly.
    :param refresh_interval: None for a stream: `Subscription` instead of `SuperStreamSubscription`.
    """
    cluster.check_loop()
    check_stream(stream)
    if offset is None:  # a member that joins late misses nothing
        offset = Offset.NEXT if group is None else Offset.FIRST
    elif isinstance(offset, Mapping):
        offset = dict(offset)
    if group is not None and until is not None:
        raise ArgumentError('a group has no end: use either group or until')
    check_starts(offset, until, refresh_interval is not None)
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
        None if refresh_interval is None else stream,
        handover_timeout,
        stranded_after,
        offset,
        auto_offset or None,  # a bool is true now
    )
    settings = ReadSettings(
        filter, amqp, on_decode_error, initial_credit, tracking, on_gap, until, membership
    )
    waiter = MessageWaiter(cluster.check_loop, timeout or None)

    def new_session(
        waiter: Waiter, stream: str, offset: Offset | OffsetSource
    ) -> SubscriptionSession:
        session = SubscriptionSession(cluster, waiter, stream, offset, settings)
        if membership is not None:
            members.add(session)
        return session

    if refresh_interval is None:
        assert not isinstance(offset, Mapping)
        return Subscription(new_session(waiter, stream, offset), waiter, offset)
    merged = MergedSession(
        cluster,
        waiter,
        stream,
        offset,
        tracking,
        refresh_interval,
        until is not None,
        new_session,
    )
    return SuperStreamSubscription(merged, waiter, offset)


def check_group(
    name: str | None,
    super_stream: str | None,
    handover_timeout: float,
    stranded_after: float | None,
    offset: object,
    tracking: OffsetTracking | Literal[True] | None,
) -> tuple[OffsetTracking | None, Group | None]:
    """Check the arguments of a subscription that concern its group, and how it stores offsets.

    :param super_stream: the super stream that is read; None for a stream.
    """
    check_type('group', name, str, None)
    check_type('handover_timeout', handover_timeout, int, float)
    check_timeout('stranded_after', stranded_after)
    if name is None:
        if tracking is True:
            raise ArgumentError(
                'auto_offset=True stores offsets under the name of the group: pass group=..., or'
                ' auto_offset=OffsetTracking(reference)'
            )
        if tracking is not None and tracking.reference is None:
            raise ArgumentError('OffsetTracking needs a reference, unless there is a group')
        if stranded_after or handover_timeout != HANDOVER_TIMEOUT:
            raise ArgumentError('handover_timeout and stranded_after require group=...')
        return tracking, None
    if not name:
        raise ArgumentError('group must not be empty')
    commands.reference(name, 'group')
    if not 0 < handover_timeout <= HANDOVER_MAX:
        raise ArgumentError(
            f'handover_timeout must be above 0 and at most {HANDOVER_MAX} seconds, because RabbitMQ'
            f' waits no longer than 60, not {handover_timeout}'
        )
    tracking = OffsetTracking() if tracking is True else tracking
    if tracking is not None:
        if tracking.reference not in (None, name):
            raise ArgumentError(
                f'a member of group {name!r} stores its offset under the name of the group, not'
                f' under {tracking.reference!r}: omit the reference'
            )
        tracking = replace(tracking, reference=name)
        least = 1.0 if tracking.manual else max(1.0, tracking.interval)
        if 0 < (stranded_after or 0) <= least:
            raise ArgumentError(
                f'stranded_after must be 0, or above {least:g} seconds, not {stranded_after}:'
                ' auto_offset may not store an offset for so long'
            )
    elif stranded_after:
        raise ArgumentError('stranded_after requires auto_offset: it looks at the stored offset')
    for start in offset.values() if isinstance(offset, Mapping) else [offset]:
        if not isinstance(start, Offset):
            continue
        check_member_start(start)
        if start.type == OffsetType.REFERENCE and start.value != name:
            raise ArgumentError(
                f'a member of group {name!r} starts after the offset stored under the name of the'
                f' group, not under {start.value!r}'
            )
    return tracking, Group(name, handover_timeout, stranded_after or 0, super_stream)
