"""Callers that wait for confirms: whose messages an entry holds, and what became of them."""

cimport cython
from libc.stdint cimport uint32_t, uint64_t


cdef uint64_t index_of(PendingConfirms waiter, uint32_t order) noexcept:
    # `order` wraps; what is in flight is far less than 2**32
    return waiter.count - <uint32_t> (<uint32_t> waiter.count - order)


cdef Py_ssize_t count_of(object item) noexcept:
    return (<SubEntrySpan> item).count if type(item) is SubEntrySpan else 1


cdef uint64_t first_of(object item, uint32_t order) noexcept:
    # Number of its first message among those of its waiter.
    if type(item) is SubEntrySpan:
        order = (<SubEntrySpan> item).order
    return index_of(waiter_of(item), order)


cdef int give_up(object item, uint32_t order, bint unsent, list done) except -1:
    # `unsent` of a waiter is that of its first message that is not settled.
    cdef PendingConfirms waiter = waiter_of(item)
    waiter._miss(first_of(item, order), count_of(item), UNSENT if unsent else UNKNOWN)
    if waiter.remaining:
        waiter.remaining = 0
        waiter.unsent = unsent
        done.append(waiter)
    return 0


cdef int add_indexes(object item, uint32_t order, PendingConfirms waiter, list found) except -1:
    # Those of the messages, if they are the waiter's.
    cdef uint64_t first
    if waiter_of(item) is waiter:
        first = first_of(item, order)
        found.extend(range(first, first + count_of(item)))
    return 0


@cython.freelist(256)
cdef class PendingConfirms:
    """Counts the unsettled messages that one caller waits for.

    :ivar future: anything of the caller's; not touched here.
    :ivar remaining: how many of its messages are not settled.
    :ivar count: how many messages were taken for it so far.
    :ivar errors: `(publish id, code)` of each message that was refused, or None.
    :ivar unsent: it was given up, and none of the messages that it still waited for was ever sent.
    :ivar too_large: `(publish id, size, limit, messages)` of the first entry that fits no frame of
        a new connection, sizes in bytes; or None.
    """

    def __init__(self, future=None, bint sealed=False):
        self.future = future
        self.sealed = sealed

    @cython.final
    cdef int _refuse(self, uint64_t id, int code, uint32_t order, Py_ssize_t count) except -1:
        if self.errors is None:
            self.errors = []
        self.errors.append((id, code))
        return self._miss(index_of(self, order), count, REFUSED)

    cdef int _miss(self, uint64_t index, Py_ssize_t count, Miss why) except -1:
        # Some of its messages, from `index` on, are not confirmed; a group notes which.
        return 0

    @cython.final
    cdef int _skip(self) except -1:
        # A message was taken that never enters the window.
        self._miss(self.count, 1, UNSENT)
        self.count += 1
        return 0

    def seal(self):
        """No more messages will be added; true if all of them are settled already."""
        self.sealed = True
        return self.remaining == 0


@cython.final
@cython.freelist(256)
cdef class SubEntrySpan:
    # Messages of one waiter in one sub-entry, one behind the other: `count`, from `order` on.
    pass
