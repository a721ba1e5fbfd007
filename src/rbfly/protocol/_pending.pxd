from libc.stdint cimport uint32_t, uint64_t


# Why a message is not confirmed; also the index of its list in `ConfirmGroup.unconfirmed`.
cdef enum Unconfirmed:
    REFUSED             # refused by the broker, or too large; no earlier connection sent it
    UNSENT              # never sent
    UNKNOWN             # sent, but not confirmed on that connection


cdef class ConfirmWaiter:
    cdef public object future
    cdef public bint reported
    cdef readonly Py_ssize_t remaining
    cdef readonly bint sealed, unsent, doubtful
    cdef readonly uint64_t count, first_refused
    cdef readonly list errors
    cdef readonly tuple too_large

    cdef int _refuse(
        self, uint64_t id, int code, uint32_t order, Py_ssize_t count, bint resent
    ) except -1
    cdef int _add_unconfirmed(self, uint64_t index, Py_ssize_t count, Unconfirmed why) except -1
    cdef int _skip(self) except -1


cdef class SubEntrySpan:
    cdef ConfirmWaiter waiter
    cdef Py_ssize_t count
    cdef uint32_t order


cdef inline ConfirmWaiter waiter_of(object item):
    return (<SubEntrySpan> item).waiter if type(item) is SubEntrySpan else <ConfirmWaiter> item


cdef Py_ssize_t count_of(object item) noexcept
cdef int give_up(object item, uint32_t order, bint unsent, list done) except -1
cdef uint64_t first_of(object item, uint32_t order) noexcept
