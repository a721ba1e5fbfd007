# Measures how long a task has kept the event loop from other tasks; called for every message.
#
# Reading the processor's cycle counter takes half as long as reading a clock, but still a sixth of
# the time of a small message.  While messages take less than a microsecond each, only every
# sixteenth call reads the counter.  After such messages have become slow unnoticed, each of the
# next ten thousand calls does.  If the counter jumps, e.g. between processors, the turn ends early.

from libc.stdint cimport int64_t, uint64_t

cdef enum:
    SAMPLE_INTERVAL = 200_000_000   # nanoseconds; a value costs up to 150 us with OpenTelemetry


cdef extern from *:
    """
    #ifndef RBFLY_TURN_H
    #define RBFLY_TURN_H

    #include <time.h>

    /* Nanoseconds. */
    static inline uint64_t rbfly_clock(void) {
        struct timespec t;
    #ifdef _WIN32
        timespec_get(&t, TIME_UTC);
    #else
        clock_gettime(CLOCK_MONOTONIC, &t);
    #endif
        return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
    }

    /* Milliseconds since the epoch.  The coarse clock only reads memory. */
    static inline int64_t rbfly_wall_time(void) {
        struct timespec t;
    #if defined(_WIN32)
        timespec_get(&t, TIME_UTC);
    #elif defined(CLOCK_REALTIME_COARSE)
        clock_gettime(CLOCK_REALTIME_COARSE, &t);
    #else
        clock_gettime(CLOCK_REALTIME, &t);
    #endif
        return (int64_t)t.tv_sec * 1000 + (int64_t)t.tv_nsec / 1000000;
    }

    #if !RBFLY_PORTABLE && defined(__x86_64__)
    #include <x86intrin.h>
    static inline uint64_t rbfly_ticks(void) { return __rdtsc(); }
    #elif !RBFLY_PORTABLE && defined(__aarch64__)
    static inline uint64_t rbfly_ticks(void) {
        uint64_t ticks;
        __asm__ volatile ("mrs %0, cntvct_el0" : "=r" (ticks));
        return ticks;
    }
    #else
    static inline uint64_t rbfly_ticks(void) { return rbfly_clock(); }
    #endif
    #endif
    """
    uint64_t rbfly_clock() noexcept nogil
    int64_t rbfly_wall_time() noexcept nogil
    uint64_t rbfly_ticks() noexcept nogil


cdef class Turn:
    cdef readonly double seconds
    cdef readonly unsigned int number   # turns begun before this one
    cdef uint64_t since             # ticks
    cdef uint64_t limit             # ticks
    cdef uint64_t checked           # ticks
    cdef uint64_t cheap             # CHEAP, in ticks
    cdef int every                  # messages between two checks
    cdef int skip                   # messages left until the next check
    cdef int wary                   # checks left until there may be fewer of them

    # True if the turn is over.
    cdef inline bint _is_over(self) noexcept:
        if self.skip:
            self.skip -= 1
            return False
        return self._check()

    cdef bint _check(self) noexcept


cdef class Sampler:
    cdef readonly object record
    cdef uint64_t due               # nanoseconds

    # Time in nanoseconds if the next value should be recorded, else 0.
    cdef inline uint64_t _now(self) noexcept:
        cdef uint64_t now = rbfly_clock()
        if now < self.due:
            return 0
        self.due = now + SAMPLE_INTERVAL
        return now
