# How long the event loop has been kept from other tasks; read for every message.
#
# The processor's counter takes a third of the time of a clock.  It only measures the few
# milliseconds of a turn: where it jumps, e.g. between processors, a turn ends early.

from libc.stdint cimport uint64_t


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
    uint64_t rbfly_ticks() noexcept nogil


cdef class Turn:
    cdef readonly double seconds
    cdef uint64_t since             # ticks
    cdef uint64_t limit             # ticks

    # True if it is the turn of others.
    cdef inline bint _is_over(self) noexcept:
        return rbfly_ticks() - self.since > self.limit
