"""Busy polling: an event loop that does not sleep while a publisher awaits a confirm.

A processor that halts takes long to wake up; in a virtual machine, longer than the broker needs to
answer.  While a callback is scheduled, the event loop asks the kernel for events without sleeping.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from math import inf
from time import perf_counter
from weakref import WeakValueDictionary

from .observer import facts

logger: logging.Logger = logging.getLogger('rbfly.net')

SCORE = 4  # how many more polls may miss than hit before polling rests
TRIES = 2  # the same after a rest: the first poll also waits for processors that had halted
REST_FIRST = 16  # frames that are sent without polling; twice as many after each further miss
REST_LAST = 1024
YIELD_MOST = 0.001  # seconds; if others keep the processor for longer, polling rests
NEVER = -inf
CGROUPS = '/proc/self/cgroup'
QUOTAS = '/sys/fs/cgroup'

# The kernel may wake the broker on the processor of the poll; the broker would wait for it.
yield_processor: Callable[[], None] = getattr(os, 'sched_yield', lambda: None)


class Poller:
    """Keeps an event loop awake while any of its publishers polls, by one callback per turn.

    :param loop: the event loop.
    :param clock: returns seconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._polls: list[BusyPoll] = []  # the callback is scheduled while there are any

    def add(self, poll: BusyPoll) -> None:
        """Keep the event loop awake until the poll is over."""
        if not self._polls:
            self._loop.call_soon(self._turn)
        self._polls.append(poll)

    def _turn(self) -> None:
        now = self._clock()
        for poll in self._polls:
            if now >= poll.until:
                self._polls = [item for item in self._polls if item.goes_on(now)]
                break
        if not self._polls:
            return
        yield_processor()
        if self._clock() - now < YIELD_MOST:
            self._loop.call_soon(self._turn)
            return
        polls, self._polls = self._polls, []
        for poll in polls:  # others need this processor
            poll.rest()


_pollers = WeakValueDictionary[asyncio.AbstractEventLoop, Poller]()  # each BusyPoll keeps its own


class BusyPoll:
    """Keeps an event loop awake while a publisher awaits confirms.

    A poll hits if a confirm arrives before its time is over.  While most polls miss, because the
    broker is distant or slow, frames are sent without polling, except for two now and then.

    :param loop: event loop of the publisher.
    :param limit: seconds to poll for each frame that is sent.
    :param clock: returns seconds.  The loop's clock is too coarse: uvloop's counts milliseconds.
    :ivar until: time when the poll is over; `NEVER` while there is none.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limit: float,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._limit = limit
        self._clock = clock
        self.until: float = NEVER
        self._poller = _pollers.get(loop) or _pollers.setdefault(loop, Poller(loop, clock))
        self._added = False  # to the poller
        self._score = SCORE
        self._skip = 0  # frames to send without polling
        self._rest = REST_FIRST

    @property
    def is_polling(self) -> bool:
        """True while the event loop is kept awake."""
        return self.until != NEVER

    def on_sent(self) -> None:
        """Poll from now on: a frame was sent."""
        if self._skip:
            self._skip -= 1
            return
        self.until = self._clock() + self._limit
        if not self._added:
            self._added = True
            self._poller.add(self)

    def on_confirmed(self, last: bool) -> None:
        """Count a hit, if a poll is running.

        :param last: no other message is unconfirmed.
        """
        if self.until == NEVER:
            return
        if self._clock() >= self.until:
            self._miss()
            return
        self._score, self._rest = min(self._score + 1, SCORE), REST_FIRST
        if last:
            self.until = NEVER

    def stop(self) -> None:
        """Stop polling: the connection was lost, or the publisher is closed."""
        self.until = NEVER

    def goes_on(self, now: float) -> bool:
        """Return whether the poll is not over; if it is, the poller forgets it."""
        if now < self.until:
            return True
        if self.is_polling:
            self._miss()
        self._added = False
        return False

    def rest(self) -> None:
        """End the poll, which the poller forgets, and send the next frames without polling."""
        self._added = False
        self._score = 0
        self._miss()

    def _miss(self) -> None:
        self.until = NEVER
        self._score = max(self._score - 1, 0)
        if self._score == 0:
            self._score = TRIES
            self._skip, self._rest = self._rest, min(2 * self._rest, REST_LAST)


def poll_limit(seconds: float, log_prefix: str) -> float:
    """Return how long a client may poll: no time without a second processor for the broker's work.

    :param seconds: `busy_poll` of the client.
    :param log_prefix: what the client's lines in the log begin with.
    """
    if seconds and (usable := processors()) < 2:
        text = '%sbusy_poll is off: it needs 2 processors, this process may use %g'
        extra = facts(log_prefix, 'busy_poll_off', processors=usable)
        logger.warning(text, log_prefix, usable, extra=extra)
        return 0.0
    return seconds


def processors() -> float:
    """Return how many processors this process may use, by its affinity and its cgroups' quotas."""
    affinity = getattr(os, 'sched_getaffinity', None)
    allowed: float = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        lines = _read(CGROUPS).splitlines()
    except OSError:
        return allowed
    for line in lines:
        _, controllers, path = line.split(':', 2)
        if controllers and 'cpu' not in controllers.split(','):
            continue
        while path:  # the group, then the groups that contain it
            path = path.rstrip('/')
            allowed = min(allowed, quota(f'{QUOTAS}/{controllers}{path}', bool(controllers)))
            path = path.rpartition('/')[0] + '/' if path else ''
    return allowed


def quota(group: str, first_version: bool) -> float:
    """Return how many processors a cgroup may use; infinity for no limit."""
    try:
        if first_version:
            share, period = _read(f'{group}/cpu.cfs_quota_us'), _read(f'{group}/cpu.cfs_period_us')
        else:
            share, period = _read(f'{group}/cpu.max').split()
        return int(share) / int(period) if int(share) > 0 else inf
    except (OSError, ValueError):  # there is no such file, or 'max': no limit
        return inf


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
