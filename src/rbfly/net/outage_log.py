"""Logs the outages of publishers and subscriptions: one line for all that share an outage.

Nothing runs while every registration is open.  During an outage, failed attempts cause lines at
growing intervals.  An outage lasts while the registration needs a connection; a
subscription that no task reads needs none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from ..error import ConnectTimeout, counted
from .observer import Life, State, call_each
from .recovery import Recovery, describe, node

if TYPE_CHECKING:
    from .registration import Registration

logger: logging.Logger = logging.getLogger('rbfly.net')

COLLECT = 0.05  # seconds from a loss until its line, which includes the losses in that time
COLLECT_BACK = 1.0  # the same for registrations that are back, while others are not
NAMED = 3  # registrations and nodes that a line names; it counts the others


class LogThrottle:
    """Spaces lines at growing intervals; starts again after it was not used for a while.

    :param first: seconds until the second line; each further interval is twice as long.
    :param last: the longest interval, in seconds.
    :ivar next: time of the event loop before which no line is due.
    """

    def __init__(self, first: float, last: float) -> None:
        self._first, self._last = first, last
        self.restart()

    def restart(self) -> None:
        """Begin with the shortest interval."""
        self.next: float = -inf
        self._interval = self._first

    def advance(self, now: float) -> None:
        """Note that a line is logged."""
        if now > self.next + self._last:
            self._interval = self._first
        self.next = now + self._interval
        self._interval = min(2 * self._interval, self._last)


class Outage:
    """A registration that has no connection, or had none until now; does not refer to it.

    :ivar who: the publisher or subscription.
    :ivar publishes: it is a publisher.
    :ivar resent: number of messages resent in the outage; until it ends, minus those before it.
    :ivar opening: the registration has lost no connection, but cannot open one.
    :ivar losses: number of losses that no line has reported.
    :ivar began: time of the event loop from which the registration needed a connection.
    :ivar seconds: duration, when last determined.
    :ivar reason: the last error, or that of an unreported loss.
    :ivar node: where the registration is open again.
    """

    def __init__(self, registration: Registration) -> None:
        kind, stream, name = describe(registration)
        self.publishes: bool = kind == 'publisher'
        self.who: str = f'{kind} {name!r} of {stream!r}' if name else f'{kind} of {stream!r}'
        self.resent: int = -registration.owner.resent
        self.opening = False
        self.losses = 0
        self.began: float = 0.0
        self.seconds: float = 0.0
        self.reason = self.node = ''


class OutageLog(Recovery):
    """Logs when registrations of a client lose their connection, and when they are back.

    :param prefix: what each line begins with, see :attr:`.Settings.log_prefix`.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._outages: dict[Registration, Outage] = {}
        self._unused: dict[Registration, Outage] = {}  # lost, and nothing needs them
        self._back: dict[Registration, Outage] = {}  # open again, and not logged
        self._closed: list[Outage] = []  # the same, but closed since
        self._lost: list[Outage] = []  # closed before a line reported their loss
        self._failed: dict[int, Outage] = {}  # by id of the registration, which may be gone
        self._losses = LogThrottle(2 * COLLECT, 30.0)
        self._reminders = LogThrottle(1.0, 300.0)
        self._calls = LogThrottle(1.0, 30.0)
        self._renewals = LogThrottle(1.0, 300.0)
        self._loop: asyncio.AbstractEventLoop | None = None  # of the timer
        self._timer: asyncio.Handle | None = None
        self._due = inf

    # -- events

    def on_call_waiting(self, error: Exception, retry_at: float) -> None:
        if self._outages or not logger.isEnabledFor(logging.WARNING):
            return
        now = asyncio.get_running_loop().time()
        if now >= self._calls.next:
            self._calls.advance(now)
            following = next_attempt(retry_at - now)
            self._log(logging.WARNING, f'a call waits: {error}; {following}')

    def on_renewal_failed(self, error: Exception, retry_at: float) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._renewals.next and logger.isEnabledFor(logging.WARNING):
            self._renewals.advance(now)
            following = next_attempt(retry_at - now)
            self._log(logging.WARNING, f'cannot renew the credentials: {error}; {following}')

    def on_disconnect(self) -> None:
        if self._has_news():
            self._report()

    def on_lost(
        self, registration: Registration, before: State | Life, after: State, error: Exception
    ) -> None:
        if not logger.isEnabledFor(logging.WARNING):
            return
        now = asyncio.get_running_loop().time()
        outage = self._outages.get(registration) or self._unused.pop(registration, None)
        if outage is None:
            outage = self._back.pop(registration, None) or Outage(registration)
            outage.began, outage.reason = now, str(error)
            outage.losses += 1
            outage.opening = after is not State.LOST
        elif before is State.LOST:
            outage.began = now  # nothing needed it until now
        (self._unused if after is State.LOST else self._outages)[registration] = outage
        if outage.losses:
            self._schedule(max(now + COLLECT, self._losses.next))
        elif before is State.OPENING:  # another attempt has failed
            outage.reason = str(error)
            if now >= self._reminders.next:
                self._schedule(now + COLLECT)

    def on_open(self, registration: Registration) -> None:
        if registration not in self._outages or not logger.isEnabledFor(logging.WARNING):
            return
        now = asyncio.get_running_loop().time()
        assert registration.connection is not None
        outage = self._back[registration] = self._outages.pop(registration)
        outage.seconds = now - outage.began
        outage.node = node(registration.connection.address)
        if not outage.losses:
            self._schedule(now + COLLECT_BACK if self._outages else now)

    def on_closed(self, registration: Registration, by_owner: bool) -> None:
        if self._has_closed_again(registration):
            return
        unused = self._unused.pop(registration, None)
        outage = self._outages.pop(registration, None if by_owner else unused)
        if outage is not None and outage.losses and not outage.opening:
            self._lost.append(outage)
        elif not (self._outages or self._unused or self._has_news()):
            self._stop_timer()

    def on_gave_up(self, registration: Registration, error: Exception, is_deleted: bool) -> None:
        if self._has_closed_again(registration):
            return
        unused = self._unused.pop(registration, None)
        outage = self._outages.pop(registration, unused)
        now = asyncio.get_running_loop().time()
        if outage is None:
            if registration.declared or not registration.patient:
                return  # a call raises the error at once
            if not logger.isEnabledFor(logging.WARNING):
                return
            outage = Outage(registration)
            outage.began = now
        outage.seconds = now - outage.began
        # the line states the time itself: it needs the error of the last try
        cause = error.__cause__ if isinstance(error, ConnectTimeout) else None
        outage.reason = 'the stream was deleted' if is_deleted else str(cause or error)
        self._failed[id(registration)] = outage
        self._schedule(max(now + COLLECT, self._losses.next))

    def _has_closed_again(self, registration: Registration) -> bool:
        """Return whether no line has reported yet that a registration was open again."""
        if (outage := self._back.pop(registration, None)) is None:
            return False
        outage.resent += registration.owner.resent
        self._closed.append(outage)
        return True

    # -- lines

    def _has_news(self) -> bool:
        return bool(self._back or self._closed or self._lost or self._failed)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = None, inf

    def _schedule(self, at: float) -> None:
        """Log at a time of the event loop, or before."""
        loop = asyncio.get_running_loop()
        if self._timer is not None and self._due <= at and self._loop is loop:
            return
        self._stop_timer()
        self._loop, self._due = loop, at
        self._timer = loop.call_at(at, self._report)

    def _report(self) -> None:
        """Log all news; log a reminder if one is due."""
        self._stop_timer()
        now = asyncio.get_running_loop().time()
        for registration, outage in self._back.items():
            outage.resent += registration.owner.resent
        back, failed = [*self._back.values(), *self._closed], [*self._failed.values()]
        lost = [outage for outage in back if outage.losses and not outage.opening] + self._lost
        self._back, self._closed, self._lost, self._failed = {}, [], [], {}
        attempts: list[float] = []  # times of the next ones
        opening, waiting = list[Outage](), list[Outage]()
        for registration, outage in self._unused.items():
            if outage.losses and registration.life is Life.ACTIVE:  # else it is being closed
                lost.append(outage)
        for registration, outage in self._outages.items():
            if registration.state is State.BACKING_OFF:
                attempts.append(registration.retry_at)
            if outage.losses:
                (opening if outage.opening else lost).append(outage)
            else:
                waiting.append(outage)
        following = 'connecting'
        if attempts:
            following = next_attempt(min(attempts) - now)
        lines: list[tuple[int, str]] = []
        if lost:
            lines.append((logging.WARNING, text_of_lost(lost)))
        if opening:
            text = f'{all_of(opening)} cannot be opened: {opening[-1].reason}; {following}'
            lines.append((logging.WARNING, text))
        if waiting and now >= self._reminders.next:
            self._reminders.advance(now)
            text = text_of_waiting(waiting, now)
            lines.append((logging.WARNING, f'{text}; {following}'))
        if failed:
            text = f'{all_of(failed)} gave up after {duration(failed)}: {failed[-1].reason}'
            lines.append((logging.WARNING, text))
        if lost or opening or failed:
            self._losses.advance(now)
            self._reminders.advance(now)
        if back and logger.isEnabledFor(logging.INFO):
            lines.append((logging.INFO, text_of_back(back)))
        for outage in [*lost, *opening, *back]:
            outage.losses = 0
        if not self._outages:
            self._reminders.restart()
        call_each([partial(self._log, *line) for line in lines])

    def _log(self, level: int, text: str) -> None:
        logger.log(level, '%s%s', self._prefix, text)


def listed(names: Sequence[str]) -> str:
    """Name the first of them, each one once, and count the others."""
    shown = list(dict.fromkeys(names))[:NAMED]
    others = len(names) - len(shown)
    if others:
        shown.append(f'{others} more')
    return shown[0] if len(shown) == 1 else f'{", ".join(shown[:-1])} and {shown[-1]}'


def next_attempt(seconds: float) -> str:
    rounded = f'{max(0.0, seconds):.1f}'
    return 'next attempt at once' if rounded == '0.0' else f'next attempt in {rounded} s'


def all_of(outages: Sequence[Outage]) -> str:
    return listed([outage.who for outage in outages])


def duration(outages: Sequence[Outage]) -> str:
    seconds = max(outage.seconds for outage in outages)
    return f'{"up to " if len(outages) > 1 else ""}{seconds:.{0 if seconds >= 100 else 1}f} s'


def text_of_lost(outages: Sequence[Outage]) -> str:
    times = sum(outage.losses for outage in outages)
    what = 'its connection' if len(outages) == 1 else 'their connections'
    often = f' {times} times, most recently' if times > len(outages) else ''
    return f'{all_of(outages)} lost {what}{often}: {outages[-1].reason}'


def text_of_waiting(outages: Sequence[Outage], now: float) -> str:
    for outage in outages:
        outage.seconds = now - outage.began
    had = 'has had' if len(outages) == 1 else 'have had'
    spent = duration(outages)
    return f'{all_of(outages)} {had} no connection for {spent}: {outages[-1].reason}'


def text_of_back(outages: Sequence[Outage]) -> str:
    verb = 'connected' if all(outage.opening for outage in outages) else 'reconnected'
    nodes = listed(list(dict.fromkeys(outage.node for outage in outages)))
    text = f'{all_of(outages)} {verb} to {nodes} after {duration(outages)}'
    if verb == 'reconnected' and any(outage.publishes for outage in outages):
        text += f'; {counted(sum(outage.resent for outage in outages), "message")} resent'
    return text
