"""Limits how long a task keeps the event loop from other tasks, and how often values are recorded.
"""

cimport cython
from libc.stdint cimport uint64_t

cdef enum:
    WINDOW = 100_000_000            # nanoseconds between two measurements of the rate
    SHORTEST = 1_000_000            # the same, before the first one
    CHEAP = 1_000                   # nanoseconds; messages that take less are cheap
    EVERY = 16                      # cheap messages between two checks
    SLOW = 500_000                  # nanoseconds between two checks that a turn can tolerate
    WARY = 10_000                   # checks for every message, after SLOW was exceeded

cdef double RATE = 1                # ticks per nanosecond
cdef bint measured = False
cdef uint64_t clock = rbfly_clock()
cdef uint64_t ticks = rbfly_ticks()


cdef int measure() noexcept:
    global RATE, measured, clock, ticks
    cdef uint64_t now = rbfly_clock()
    cdef uint64_t counted = rbfly_ticks()
    cdef uint64_t elapsed = now - clock
    cdef double rate
    if elapsed < <uint64_t> (WINDOW if measured else SHORTEST):
        return 0
    rate = <double> (counted - ticks) / <double> elapsed
    if 0.001 < rate < 10:           # else the computer was suspended
        RATE = rate
        measured = True
    clock, ticks = now, counted
    return 0


@cython.final
cdef class Turn:
    """A turn of the event loop with a time limit, which begins when it is created.

    :param seconds: the limit; infinity for none.
    """

    def __init__(self, double seconds):
        self.seconds = seconds
        self.begin()

    def begin(self):
        """Begin a new turn, after other tasks have run."""
        cdef double limit
        measure()
        self.number += 1
        limit = self.seconds * 1e9 * RATE
        self.limit = <uint64_t> limit if limit < 1e18 else 0xffffffffffffffff
        self.cheap = <uint64_t> (CHEAP * RATE)
        self.every = 1
        self.skip = 0
        self.since = self.checked = rbfly_ticks()

    cdef bint _check(self) noexcept:
        cdef uint64_t now = rbfly_ticks()
        cdef uint64_t elapsed = now - self.checked
        if self.every > 1 and elapsed > self.cheap * (SLOW / CHEAP):
            self.wary = WARY
        if now - self.since > self.limit:
            return True
        if elapsed > self.every * self.cheap:
            self.every = 1
        elif self.wary:
            self.wary -= 1
        else:
            self.every = min(2 * self.every, EVERY)
        self.skip = self.every - 1
        self.checked = now
        return False

    @property
    def is_over(self):
        """True if other tasks should run now (bool)."""
        return self._check()


@cython.final
cdef class Sampler:
    """Records some of many values, at most one in 200 milliseconds.

    The time of a value decides, not the value: the recorded ones have the same distribution.

    :param record: called with a value.
    """

    def __init__(self, record not None):
        self.record = record
