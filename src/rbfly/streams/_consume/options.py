"""How to read a stream or a super stream: the arguments of `subscribe`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from ...checks import check_integer, check_stream, check_timeout, check_type
from ...error import ArgumentError
from ...protocol.offset import Offset, OffsetSource, OffsetType
from ...record import replace
from .._arguments import check_choice, check_codec, check_filter, check_member_start, check_starts
from .._group.handover import Group
from .._group.hooks import Hooks
from .._offsets.tracking import OffsetTracking
from ..types import Commit, MessageFilter, OnDecodeError, OnGap

if TYPE_CHECKING:
    from ...amqp._plan import Plan
    from ...amqp.body_codec import Codec

Offsets = Offset | OffsetSource | Mapping[str, Offset | OffsetSource]


class ReadSettings:
    """How to read a stream, or the partitions of a super stream: the arguments of `subscribe`.

    :param is_super: `stream` is the name of a super stream.
    :raises ValueError: an argument is out of range.
    :raises TypeError: an argument has another type.
    :ivar tracking: how to store offsets; None not to.
    :ivar hooks: functions that the subscription calls.
    """

    def __init__(
        self,
        stream: str,
        is_super: bool,
        offset: Offsets | None,
        filter: MessageFilter | None,
        timeout: float | None,
        amqp: bool,
        on_decode_error: OnDecodeError,
        initial_credit: int,
        commit: Commit | OffsetTracking | None,
        on_gap: OnGap,
        until: Literal['now'] | Offset | datetime | None,
        group: str | Group | None,
        type: object,
        codec: Codec[Any] | None,
        copy: bool,
    ) -> None:
        check_stream(stream)
        if offset is None:  # a member that joins late misses nothing
            offset = Offset.NEXT if group is None else Offset.FIRST
        elif isinstance(offset, Mapping):
            offset = dict(offset)
        if group is not None and until is not None:
            raise ArgumentError('a group has no end: use either group or until')
        if isinstance(until, datetime):
            until = Offset.timestamp(until)
        check_starts(offset, until, is_super)
        check_type('filter', filter, MessageFilter, None)
        check_timeout('timeout', timeout)
        check_integer('initial_credit', initial_credit, 1, 2**16 - 1)
        check_choice('on_decode_error', on_decode_error, 'raise', 'skip', 'raw')
        check_choice('on_gap', on_gap, 'raise', 'warn', 'ignore')
        if filter is not None:
            check_filter(filter)
        self.super_stream: str | None = stream if is_super else None
        self.offset: Any = offset  # of a stream: Offset | OffsetSource; of a super stream: Offsets
        self.filter = filter
        self.timeout: float | None = timeout or None
        self.amqp = amqp
        self.plan: Plan | None = requested_plan(type, codec, amqp)
        check_type('copy', copy, bool)
        if self.plan is not None and not copy:
            raise ArgumentError('copy=False is for bodies as they are: omit type and codec')
        self.copy = copy
        self.on_decode_error = on_decode_error
        self.initial_credit = initial_credit
        self.on_gap = on_gap
        self.until = until
        self.tracking: OffsetTracking | None
        self.group: Group | None
        self.tracking, self.group = check_group(group, offset, commit)
        self.hooks: Hooks = Hooks()


def requested_plan(kind: object, codec: Codec[Any] | None, amqp: bool) -> Plan | None:
    """Return what decodes bodies to a type or with a codec; None for neither."""
    check_codec(codec, amqp)
    if kind is None and codec is None:
        return None
    from ...amqp.foreign_types import body_plan
    from ...amqp.schema import plan_of

    if codec is not None:
        if kind is not None:
            raise ArgumentError('pass either type or codec: a codec decodes to its own types')
        return body_plan(codec.decode)
    if not amqp:
        raise ArgumentError('a type is that of a body of AMQP 1.0: omit amqp=False')
    return plan_of(kind)


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
    lower_bound = 1.0 if tracking.manual else max(1.0, tracking.interval)
    if stranded_after is not None and stranded_after <= lower_bound:
        raise ArgumentError(
            f'stranded_after must be above {lower_bound:g} seconds, not {stranded_after}:'
            ' the member may not store an offset for so long'
        )
    return replace(tracking, reference=name), group
