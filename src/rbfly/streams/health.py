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
    reasons = [
        *disconnected(known, now),
        *failed(known),
        *late_confirms(known, now),
        *stalled(known, now),
    ]
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


def failed(known: Sequence[Registration]) -> list[str]:
    """Return which publishers and subscriptions have failed; in one reason for each error."""
    owners: list[Any] = [item.owner for item in known]
    found: dict[str, list[str]] = {}
    for item in owners:
        if item.failure is not None:
            found.setdefault(harmless(item.failure), []).append(repr(item))
    return [
        f'{listed(names)} {"has" if len(names) == 1 else "have"} failed: {text}'
        for text, names in found.items()
    ]


def stalled(known: Sequence[Registration], now: float) -> list[str]:
    """Return which subscriptions receive nothing; in one reason for all."""
    owners: list[Any] = [item.owner for item in known if item.owner.role is Role.CONSUME]
    silent = [item for item in owners if item.stalled_since is not None]
    if not silent:
        return []
    seconds = max(now - item.stalled_since for item in silent)
    verb = 'has' if len(silent) == 1 else 'have'
    names = listed([repr(item) for item in silent])
    return [f'{names} {verb} received nothing for {seconds:.0f} s, although the stream has more']


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
