"""The frames of a publisher, queued or in flight: finds, withdraws and moves their entries.

The caller of a message may give up.  A message that was never sent is then withdrawn: its entry is
settled at once, and its bytes go when the queued frames are next repacked.  A message that was sent
stays in flight; only a publisher with a name resends it after a reconnect, because the broker
discards what it has already stored, and does not store a skipped id after a higher one.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport uint64_t
from libc.string cimport memcmp

from rbfly._wire cimport out_discard, out_size, put_bytes
from rbfly.amqp._message cimport Message
from rbfly.protocol._entry cimport trim
from rbfly.protocol._frames cimport Entry, Frame, FrameBuilder, add_simple, offset, put_entry
from rbfly.protocol._pending cimport PendingConfirms, SubEntrySpan

from rbfly.error import ArgumentError


cdef Py_ssize_t messages_of(Frame frame, Entry *entry) except -1:
    cdef Py_ssize_t i, count = 0
    if entry.spans == 0:
        return 1
    for i in range(entry.waiter, entry.waiter + entry.spans):
        count += (<SubEntrySpan> frame.waiters[i]).count
    return count


cdef class FrameQueue(FrameBuilder):
    """Frames of one publisher that are queued or in flight.

    :ivar in_flight: number of messages that are sent but not settled (int).
    :ivar given_up: number of messages that are not settled although their callers have given up
        (int).
    :ivar named: the publisher has a name, so that the broker discards duplicates (bool).
    """

    @property
    def awaited(self):
        """Number of messages that are queued or in flight, and whose callers have not given up
        (int)."""
        return self.in_flight + self.queued - self.given_up

    def check_ids(self, object messages, Py_ssize_t start, Py_ssize_t stop, object before=None):
        self._free_ids()
        return FrameBuilder.check_ids(self, messages, start, stop, before)

    cdef bint _has_used(self, uint64_t id) except -1:
        self._free_ids()
        return self.has_last and id <= self.last_id

    cdef int _free_ids(self) except -1:
        # The ids of withdrawn messages may be used again.
        if self._last_is_withdrawn():
            self._enter()
            try:
                self._repack(self.sent)
            finally:
                self.busy = False
        return 0

    cdef int _check_explicit(self, uint64_t id) except -1:
        if self.has_last and id <= self.last_id:
            if self._was_written(id):
                error = ArgumentError(
                    f'publishing id {id} is not above the ids sent before; an earlier message with'
                    ' this id may be stored'
                )
                error.outcome = 'unknown'
                raise error
            if self._last_is_withdrawn():
                self._repack(self.sent)     # the ids of withdrawn messages may be used again
        return FrameBuilder._check_explicit(self, id)

    cdef bint _last_is_withdrawn(self) noexcept:
        # Otherwise, repacking makes no id free.
        return self.withdrawn and self.ring[(self.tail - 1) & self.mask].settled == SETTLED

    # -- callers that give up

    def give_up(self, uint64_t id, PendingConfirms waiter not None):
        """Note that the caller that waits for a message has given up.

        Returns True if the message was never sent and is now withdrawn.  A message that another
        caller has joined stays.
        """
        # A sub-entry belongs to several callers.
        if self.busy or self.sub_entry is not None:
            return False
        self._enter()
        try:
            return self._withdraw(id, waiter)
        finally:
            self.busy = False

    def join(self, object message, PendingConfirms waiter not None):
        """Let a caller wait for an unsettled message that another caller has put.

        The messages must have the same explicit publishing id and the same bytes, and both callers
        must wait for a single message.

        Returns the id; None if there is no such message.

        :raises AMQPEncoderError: the value cannot be encoded as AMQP 1.0.
        :raises MessageTooLarge: the message does not fit into a frame.
        """
        cdef uint64_t id
        if (
            type(message) is not Message
            or not (<Message> message).is_set_stream_publish_id
            or self.sub_entry is not None
        ):
            return None
        id = (<Message> message)._publish_id
        self._enter()
        try:
            return id if self._join(message, id, waiter) else None
        finally:
            self.busy = False

    cdef bint _was_written(self, uint64_t id) noexcept:
        # Entries are sent in ascending order of their ids.
        return self.any_written and id <= self.written

    cdef Frame _frame_of(self, Entry *entry):
        cdef Py_ssize_t n = offset(entry.frame, self.frames_base)
        return self.open if n == len(self.frames) else <Frame> self.frames[n]

    cdef uint64_t _search(self, uint64_t id, uint64_t end) noexcept:
        # Position of the entry with this id before `end`, where ids ascend; `end` if there is none.
        cdef uint64_t low = self.head, high = end, middle, found
        while low < high:
            middle = low + (high - low) // 2
            found = self.ring[middle & self.mask].id
            if found == id:
                return middle
            if found < id:
                low = middle + 1
            else:
                high = middle
        return end

    cdef Entry *_find_unsettled(self, uint64_t id, uint64_t *position) noexcept:
        # All entries ascend by id.
        cdef Entry *entry
        position[0] = self._search(id, self.tail)
        entry = &self.ring[position[0] & self.mask]
        return NULL if position[0] == self.tail or entry.settled == SETTLED else entry

    cdef int _retire(self, Entry *entry, uint64_t position, Py_ssize_t count) except -1:
        # Settle an entry of `count` messages that is not confirmed.
        cdef Frame frame = self._frame_of(entry)
        frame.unsettled -= 1
        if entry.settled == GIVEN_UP:
            self.given_up -= 1
        entry.settled = SETTLED
        if position < self.sent:
            self.in_flight -= count
        else:
            self.queued -= count
        return 0

    cdef bint _withdraw(self, uint64_t id, PendingConfirms waiter) except -1:
        cdef uint64_t position = 0
        cdef Entry *entry = self._find_unsettled(id, &position)
        cdef PendingConfirms found
        cdef bint written
        if entry is NULL or entry.settled == GIVEN_UP:
            return False
        found = <PendingConfirms> self._frame_of(entry).waiters[entry.waiter]
        if found is not waiter:
            if type(found.future) is not list or waiter not in found.future:
                return False
            found.future.remove(waiter)
            if found.future:
                return False
        found.reported = True
        written = self._was_written(id)
        if position < self.sent or (written and self.named):
            entry.settled = GIVEN_UP
            self.given_up += 1
            return False
        self._retire(entry, position, 1)
        self.withdrawn += 1
        if self.withdrawn > self.queued:
            # Repacking only now takes constant time per withdrawn message.
            try:
                self._repack(self.sent)
            except MemoryError:
                pass        # unchanged; the next frame to send tries again
        return not written

    cdef bint _join(self, object message, uint64_t id, PendingConfirms waiter) except -1:
        cdef uint64_t position = 0
        cdef Py_ssize_t start, size
        cdef Entry *entry
        cdef Frame frame = None
        cdef PendingConfirms found, joined
        cdef const char *data
        cdef object value = None
        if self._find_unsettled(id, &position) is NULL:
            return False
        if self.filter_extract is not None:
            value = self._filter_value(message)
        if self.open is None:
            self._open_frame()
        start = out_size(&self.out)
        try:
            put_entry(self, id, message, value)
            size = out_size(&self.out) - start
            entry = self._find_unsettled(id, &position)
            if entry is NULL or size != <Py_ssize_t> entry.size:
                return False
            frame = self._frame_of(entry)
            if frame is self.open:
                data = <const char *> self.out.start
            else:
                data = PyBytes_AS_STRING(frame.data)
            if memcmp(data + entry.start, self.out.start + start, <size_t> size) != 0:
                return False
        finally:
            self.out.p = self.out.start + start
            trim(&self.out)
        found = <PendingConfirms> frame.waiters[entry.waiter]
        if type(found.future) is not list:
            if found.future is not None or type(found) is not type(waiter):
                return False
            joined = PendingConfirms.__new__(PendingConfirms)
            joined.future = [found]
            joined.sealed = True
            joined.count = joined.remaining = 1
            frame.waiters[entry.waiter] = found = joined
        if entry.settled == GIVEN_UP:
            entry.settled = 0
            self.given_up -= 1
            found.future = []
            found.reported = False
        found.future.append(waiter)
        return True

    cdef int _drop_given_up(self) except -1:
        # Those in flight: if queued, they were withdrawn.
        cdef uint64_t i
        for i in range(self.head, self.sent):
            if self.ring[i & self.mask].settled == GIVEN_UP:
                self._retire(&self.ring[i & self.mask], i, 1)
        return 0

    cdef int _roll_back(self) noexcept:
        # Ids above all ids that were sent or are queued may be used again.
        cdef uint64_t last = self.written if self.any_written else 0
        if self.tail > self.head:
            last = max(last, self.ring[(self.tail - 1) & self.mask].id)
        self.has_last = self.any_written or self.tail > self.head
        self.last_id = last
        return 0

    # -- moving entries

    cdef int _repack(self, uint64_t first) except -1:
        # Move unsettled entries from position `first` on into new frames.
        # On failure, restore the state before.
        cdef list old = self.frames
        cdef uint64_t old_base = self.frames_base
        cdef Py_ssize_t kept
        cdef uint64_t size, n
        cdef Entry *saved
        cdef Entry *entry
        cdef Frame source
        self._close_open()
        size = self.tail - first
        if size == 0:
            return 0
        before = (self.tail, self.sent, self.cursor, self.next_frame)
        saved = <Entry *> PyMem_Malloc(size * sizeof(Entry))
        if saved is NULL:
            raise MemoryError
        for n in range(size):
            saved[n] = self.ring[(first + n) & self.mask]
        try:
            kept = offset(saved[0].frame, old_base)
            self.frames = old[:kept]
            self.tail = first
            self.sent = min(self.sent, first)
            self.cursor = min(self.cursor, first)
            self.next_frame = min(self.next_frame, old_base + <uint64_t> kept)
            for n in range(size):
                entry = &saved[n]
                if entry.settled == SETTLED:
                    continue
                source = <Frame> old[offset(entry.frame, old_base)]
                self._reserve(entry.size, messages_of(source, entry))
                put_bytes(&self.out, PyBytes_AS_STRING(source.data) + entry.start, entry.size)
                if entry.spans:
                    self._add_sub_entry(
                        entry.id,
                        out_size(&self.out) - entry.size,
                        source.waiters[entry.waiter:entry.waiter + entry.spans],
                    )
                else:
                    add_simple(
                        self,
                        entry.id,
                        out_size(&self.out) - entry.size,
                        <PendingConfirms> source.waiters[entry.waiter],
                        entry.order,
                    )
                self.ring[(self.tail - 1) & self.mask].settled = entry.settled
            if self.open is not None and self.open.count >= self.frame_entries:
                self._finish_frame()
            if self.withdrawn:
                self.withdrawn = 0
                self._roll_back()
        except BaseException:
            self.open = None
            out_discard(&self.out)
            self.frames = old
            self.tail, self.sent, self.cursor, self.next_frame = before
            for n in range(size):
                self.ring[(first + n) & self.mask] = saved[n]
            raise
        finally:
            PyMem_Free(saved)
        return 0
