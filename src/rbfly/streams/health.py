"""Whether a client works, without asking the broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..error import RbFlyError, counted
from ..net.cluster import Cluster
from ..net.history import harmless
from ..net.observer import Role
from ..net.outage_log import listed
from ..net.registration import Registration
from ..record import Record

MOMENT = 1.0  # seconds without a connection that are no problem


class Health(Record):
    """Whether a client works, see :meth:`.StreamsClient.health`; true if it does.

    :ivar ok: there is no problem.
    :ivar reasons: the problems (str), for people.
    """

    ok: bool
    reasons: list[str]

    def __bool__(self) -> bool:
        return self.ok


def health_of(cluster: Cluster) -> Health:
    """Return the health of a client from what it knows."""
    loop = cluster.loop
    if loop is None or loop.is_closed():
        return Health(True, [])
    now = loop.time()
    known = sorted_by_name(cluster.known)
    reasons = [*disconnected(known, now), *late_confirms(known, now)]
    for item in known:
        session = item.owner
        if session.failure is not None:
            reasons.append(f'{session!r} has failed: {harmless(session.failure)}')
        elif item.owner.role is Role.CONSUME and session.stalled_since is not None:
            seconds = now - session.stalled_since
            text = f'has received nothing for {seconds:.0f} s, although the stream has more'
            reasons.append(f'{session!r} {text}')
    problem = cluster.call_problem
    if problem is not None:
        reasons.append(f'a call waits for a connection: {harmless(problem)}')
    return Health(not reasons, reasons)


def sorted_by_name(registrations: Any) -> list[Any]:
    """Return registrations that are not closed; publishers first."""
    found = [item for item in list(registrations) if hasattr(item, 'owner')]
    return sorted(
        found,
        key=lambda item: (item.owner.role is Role.CONSUME, item.owner.stream, repr(item.owner)),
    )


def disconnected(known: Sequence[Registration], now: float) -> list[str]:
    """Return why publishers and subscriptions are not open; in one reason for all."""
    waiting = [
        (now - item.waiting_since, item)
        for item in known
        if item.waiting_since is not None and now - item.waiting_since >= MOMENT
    ]
    if not waiting:
        return []
    seconds, longest = max(waiting, key=lambda found: found[0])
    names = listed([repr(item.owner) for _, item in waiting])
    had = 'has had' if len(waiting) == 1 else 'have had'
    problem: RbFlyError | None = longest.problem
    why = '' if problem is None else f': {harmless(problem)}'
    up_to = 'up to ' * (len(waiting) > 1)
    return [f'{names} {had} no connection for {up_to}{seconds:.0f} s{why}']


def late_confirms(known: Sequence[Registration], now: float) -> list[str]:
    """Return which publishers wait for late confirms; in one reason for all."""
    owners: list[Any] = [item.owner for item in known if item.owner.role is Role.PUBLISH]
    late = [item for item in owners if item.age.overdue]
    if not late:
        return []
    count = sum(item.age.count for item in late)
    seconds = max(now - item.age.since for item in late)
    names = listed([repr(item) for item in late])
    verb = 'has' if count == 1 else 'have'
    what = f'{counted(count, "message")} {verb} waited {seconds:.0f} s for confirms'
    return [f'{names}: {what}; {late[-1].age.broker_text}']
