"""Callers that wait for confirms.

For each entry, a frame has items that name the waiting callers: the ConfirmWaiter of a single
message, or a SubEntrySpan for several messages of one caller in a sub-entry.
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t


cdef uint64_t index_of(ConfirmWaiter waiter, uint32_t order) noexcept:
    # `order` is modulo 2**32; far fewer messages are in flight
    return waiter.count - <uint32_t> (<uint32_t> waiter.count - order)


cdef Py_ssize_t count_of(object item) noexcept:
    return (<SubEntrySpan> item).count if type(item) is SubEntrySpan else 1


cdef uint64_t first_of(object item, uint32_t order) noexcept:
    # Index of its first message among those of its waiter.
    if type(item) is SubEntrySpan:
        order = (<SubEntrySpan> item).order
    return index_of(waiter_of(item), order)


cdef int give_up(object item, uint32_t order, bint unsent, list done) except -1:
    # The first unsettled message decides `unsent` of its waiter.
    cdef ConfirmWaiter waiter = waiter_of(item)
    waiter._add_unconfirmed(first_of(item, order), count_of(item), UNSENT if unsent else UNKNOWN)
    if waiter.remaining:
        waiter.remaining = 0
        waiter.unsent = unsent
        done.append(waiter)
    return 0


@cython.freelist(256)
cdef class ConfirmWaiter:
    """Counts the unsettled messages of one caller.

    :ivar future: belongs to the caller; a list of the callers of one message; or None.
    :ivar reported: the caller has given up or returned, and knows that messages are unconfirmed.
    :ivar remaining: number of its messages that are not settled.
    :ivar count: number of its messages so far.
    :ivar errors: `(publishing id, code)` of each refused message; None for none.
    :ivar first_refused: lowest index of a refused message, if there are errors.
    :ivar doubtful: an earlier connection sent a refused message, and may have stored it.
    :ivar sealed: the caller adds no more messages.
    :ivar unsent: the publisher gave up before it sent the first of its unsettled messages.
    :ivar too_large: `(publishing id, size, limit, messages)` of its first entry that does not fit
        into the frames of a new connection, sizes in bytes; None for none.
    """

    def __init__(self, future=None, bint sealed=False):
        self.future = future
        self.sealed = sealed

    @cython.final
    cdef int _refuse(
        self, uint64_t id, int code, uint32_t order, Py_ssize_t count, bint resent
    ) except -1:
        cdef uint64_t index = index_of(self, order)
        if self.errors is None:
            self.errors = []
            self.first_refused = index
        self.errors.append((id, code))
        self.first_refused = min(self.first_refused, index)
        self.doubtful |= resent
        return self._add_unconfirmed(index, count, UNKNOWN if resent else REFUSED)

    cdef int _add_unconfirmed(self, uint64_t index, Py_ssize_t count, Unconfirmed why) except -1:
        # The `count` messages from `index` on are not confirmed: a group records them.
        return 0

    @cython.final
    cdef int _skip(self) except -1:
        # Count a message that was taken but does not enter the window.
        self._add_unconfirmed(self.count, 1, UNSENT)
        self.count += 1
        return 0

    @cython.binding(False)      # gcc 15 warns of uninitialized arguments otherwise
    def seal(self):
        """Add no more messages; return True if all of them are settled."""
        self.sealed = True
        return self.remaining == 0


@cython.final
@cython.freelist(256)
cdef class SubEntrySpan:
    # Consecutive messages of one waiter in one sub-entry: `count` of them, from `order` on.
    pass
