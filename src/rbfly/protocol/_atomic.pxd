# Atomic batches.  The ABI may change in any release.

from libc.stdint cimport uint64_t

from rbfly.protocol._entry cimport SubEntry
from rbfly.protocol._pending cimport ConfirmWaiter
from rbfly.protocol._publish cimport PublishWindow


cdef class AtomicBatch:
    cdef PublishWindow window
    cdef SubEntry messages
    cdef Py_ssize_t used        # bytes of the messages
    cdef Py_ssize_t size        # of the entry without its publishing id

    cdef Py_ssize_t _limit(self) noexcept


cdef uint64_t put_atomic(
    PublishWindow window, AtomicBatch batch, ConfirmWaiter waiter, object publish_id
) except? 0xdead
