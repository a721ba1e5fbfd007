"""Creates a subscription of a stream or of a super stream."""

from __future__ import annotations

from collections.abc import Mapping, MutableSet
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from ..checks import check_integer, check_stream, check_timeout, check_type
from ..error import ArgumentError
from ..later import Later
from ..net.cluster import Cluster
from ..protocol.offset import Offset, OffsetSource, OffsetType
from ..record import replace
from .arguments import check_choice, check_filter, check_member_start, check_starts
from .consuming import ReadSettings, SubscriptionSession
from .handover import Group
from .offsets import GroupMember
from .reading import MessageWaiter, Waiter
from .subscription import Subscription, SuperStreamSubscription
from .tracking import Commit, OffsetTracking
from .types import MessageFilter, OnDecodeError, OnGap

if TYPE_CHECKING:
    from . import merged
else:  # for super streams
    merged = Later('rbfly.streams.merged')


def subscribe(
    cluster: Cluster,
    members: MutableSet[GroupMember],
    stream: str,
    refresh_interval: float | None,
    offset: merged.Offsets | None,
    filter: MessageFilter | None,
    timeout: float | None,
    amqp: bool,
    on_decode_error: OnDecodeError,
    initial_credit: int,
    commit: Commit | OffsetTracking | None,
    on_gap: OnGap,
    until: Literal['now'] | Offset | datetime | None,
    group: str | Group | None,
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
    if isinstance(until, datetime):
        until = Offset.timestamp(until)
    check_starts(offset, until, refresh_interval is not None)
    check_type('filter', filter, MessageFilter, None)
    check_timeout('timeout', timeout)
    check_integer('initial_credit', initial_credit, 1, 2**16 - 1)
    check_choice('on_decode_error', on_decode_error, 'raise', 'skip', 'raw')
    check_choice('on_gap', on_gap, 'raise', 'warn', 'ignore')
    if filter is not None:
        check_filter(filter)
    tracking, membership = check_group(group, offset, commit)
    settings = ReadSettings(
        filter,
        amqp,
        on_decode_error,
        initial_credit,
        tracking,
        on_gap,
        until,
        membership,
        None if refresh_interval is None else stream,
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
    session = merged.MergedSession(
        cluster,
        waiter,
        stream,
        offset,
        tracking,
        refresh_interval,
        until is not None,
        new_session,
    )
    return SuperStreamSubscription(session, waiter, offset)


def check_group(
    group: str | Group | None, offset: object, commit: Commit | OffsetTracking | None
) -> tuple[OffsetTracking | None, Group | None]:
    """Check the arguments of a subscription that concern its group, and how it stores offsets."""
    check_type('group', group, str, Group, None)
    check_type('commit', commit, str, OffsetTracking, None)
    if isinstance(commit, str):
        check_choice('commit', commit, 'auto', 'manual', 'off')
    if isinstance(group, str):
        group = Group(group)
    starts = [*offset.values()] if isinstance(offset, Mapping) else [offset]
    references = {
        str(start.value)
        for start in starts
        if isinstance(start, Offset) and start.type == OffsetType.REFERENCE
    }
    if commit is None:
        is_kept = not all(isinstance(start, Offset) for start in starts)  # by the program
        commit = 'off' if group is None or is_kept else 'auto'
    tracking = OffsetTracking(manual=commit == 'manual') if isinstance(commit, str) else commit
    if group is None:
        if commit == 'off':
            return None, None
        if tracking.reference is None:
            if len(references) != 1:
                raise ArgumentError(
                    f'commit={commit!r} needs the name under which to store offsets: pass'
                    ' group=..., offset=Offset.reference(name), or commit=OffsetTracking(name)'
                )
            tracking = replace(tracking, reference=references.pop())
        return tracking, None
    name, stranded_after = group.name, group.stranded_after
    for start in starts:
        if isinstance(start, Offset):
            check_member_start(start)
    for reference in references - {name}:
        raise ArgumentError(
            f'a member of group {name!r} starts after the offset stored under the name of the'
            f' group, not under {reference!r}'
        )
    if tracking.reference not in (None, name):
        raise ArgumentError(
            f'a member of group {name!r} stores its offset under the name of the group, not'
            f' under {tracking.reference!r}: omit the reference'
        )
    if commit == 'off':
        if stranded_after is not None:
            raise ArgumentError(
                "stranded_after looks at the stored offset: commit must be 'auto' or 'manual'"
            )
        return None, group
    least = 1.0 if tracking.manual else max(1.0, tracking.interval)
    if stranded_after is not None and stranded_after <= least:
        raise ArgumentError(
            f'stranded_after must be above {least:g} seconds, not {stranded_after}:'
            ' the member may not store an offset for so long'
        )
    return replace(tracking, reference=name), group
