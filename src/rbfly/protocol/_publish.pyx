"""The publish window: messages of a publisher that are queued or in flight.

It keeps the bytes of a frame until all entries of the frame are settled, so that the publisher can
resend the messages that the broker has not confirmed.
"""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rbfly._wire cimport load_u16, load_u64, out_discard, out_size
from rbfly.protocol._frames cimport PREFIX, Entry, Frame, offset
from rbfly.protocol._pending cimport (
    PendingConfirms, SubEntrySpan, count_of, first_of, give_up, waiter_of,
)
from rbfly.protocol._queue cimport GIVEN_UP, SETTLED, FrameQueue, messages_of

cdef enum:
    CONFIRMED = -1          # every code in a PublishError is a refusal, even 0 and OK
    FRAME_TOO_LARGE = 0x0E
    PUBLISHER_DOES_NOT_EXIST = 0x12


@cython.final
cdef class PublishWindow(FrameQueue):
    """Messages of one publisher that the broker has not confirmed.

    :ivar resent: number of messages that replays have queued again, in total (int).
    :ivar needs_redeclare: the broker does not know the publisher: redeclare it, then call `replay`
        (bool).
    """

    def __cinit__(self):
        self.too_large = []

    def listen(self, on_settled):
        """Set the function to call with the list of waiters that a frame of confirms settles."""
        self.on_settled = on_settled

    def start_at(self, uint64_t next_id):
        """Set the publishing id of the first message; call it before that message."""
        self.next_id = next_id

    @property
    def unsettled(self):
        """Number of messages that are queued or in flight (int)."""
        return self.in_flight + self.queued

    @property
    def last_sent(self):
        """Highest publishing id that `take` has returned, on any connection; 0 for none (int)."""
        return self.written

    cpdef bytes take(self):
        """Return the next frame to write (bytes); None if the queue is empty or the window full."""
        cdef Frame frame
        self._enter()
        try:
            if self.withdrawn:
                self._repack(self.sent)
            if self.next_frame == self.frames_base + <uint64_t> len(self.frames):
                # All that is queued is in the open frame and the open sub-entry.
                if self.queued == 0:
                    return None
                if self.in_flight and self.in_flight + self.queued > self.max_unconfirmed:
                    return None
                self._close_open()
            frame = <Frame> self.frames[self.next_frame - self.frames_base]
            if self.in_flight and self.in_flight + frame.count > self.max_unconfirmed:
                return None
            self.next_frame += 1
            self.in_flight += frame.count
            self.queued -= frame.count
            self.sent += <uint64_t> frame.entries
            self.written = max(self.written, self.ring[(self.sent - 1) & self.mask].id)
            self.any_written = True
            return frame.data
        finally:
            self.busy = False

    def replay(self, uint8_t publisher_id, Py_ssize_t frame_max):
        """Queue all unsettled messages again, in order, for a redeclared publisher.

        Drops those whose callers have given up, unless the publisher has a name.  Refuses messages
        that no longer fit into a frame, with code 0x0e (frame too large).

        :returns: waiters that these refusals settle (list).
        """
        cdef list done
        self._enter()
        try:
            self.publisher_id = publisher_id
            self._set_frame_max(frame_max)
            self.needs_redeclare = False
            self.any_replayed, self.replayed = self.any_written, self.written
            self._close_open()
            if self.given_up and not self.named:
                self._drop_given_up()
            self._refuse_too_large()
            self._repack(self.head)
            self.queued += self.in_flight
            self.resent += self.in_flight
            self.in_flight = 0
            done, self.too_large = self.too_large, []
            return done
        finally:
            self.busy = False

    def count_unsent(self):
        """Count the unsettled messages that `take` has never returned, on any connection."""
        return sum([count_of(item) for item, _, unsent in self._unsettled() if unsent])

    def count_unreported(self):
        """Count the unsettled messages whose callers have neither given up nor returned.

        Returns how many may be stored, and how many were never sent.
        """
        cdef Py_ssize_t sent = 0, unsent = 0
        for item, _, is_unsent in self._unsettled():
            if waiter_of(item).reported:
                continue
            if is_unsent:
                unsent += count_of(item)
            else:
                sent += count_of(item)
        return sent, unsent

    def fail_pending(self):
        """Drop all unsettled messages; return the waiters that they belong to (list)."""
        cdef list unsettled = self._unsettled()
        cdef list done
        done, self.too_large = self.too_large, []
        self.frames_base += <uint64_t> len(self.frames) + (self.open is not None)
        self.next_frame = self.frames_base
        self.frames = []
        self.open = None
        out_discard(&self.out)
        if self.sub_entry is not None:
            self.sub_entry_spans = []
            self.sub_entry._drop(out_size(&self.sub_entry.out))
        self.head = self.sent = self.cursor = self.tail
        self.in_flight = self.queued = self.given_up = self.withdrawn = 0
        self._roll_back()
        for item, order, unsent in unsettled:
            give_up(item, order, unsent, done)
        return done

    def unsettled_of(self, PendingConfirms waiter not None):
        """Return the indexes of a waiter's messages that are queued or in flight (list of int)."""
        cdef list found = []
        cdef uint64_t first
        for item, order, _ in self._unsettled():
            if waiter_of(item) is waiter:
                first = first_of(item, order)
                found.extend(range(first, first + count_of(item)))
        return found

    cdef list _unsettled(self):
        # (item, order, whether it was never sent) of everything queued or in flight.
        cdef list found = []
        cdef list frames = [*self.frames, self.open]
        cdef list waiters
        cdef Entry *entry
        cdef uint64_t i
        cdef Py_ssize_t n
        cdef bint unsent
        self._enter()
        try:
            for i in range(self.head, self.tail):
                entry = &self.ring[i & self.mask]
                if entry.settled != SETTLED:
                    unsent = i >= self.sent and not self._was_written(entry.id)
                    waiters = (<Frame> frames[offset(entry.frame, self.frames_base)]).waiters
                    for n in range(entry.waiter, entry.waiter + max(1, entry.spans)):
                        found.append((waiters[n], entry.order, unsent))
            for span in self.sub_entry_spans:
                found.append((span, 0, True))
        finally:
            self.busy = False
        return found

    # -- resending

    cdef int _refuse_too_large(self) except -1:
        # A sub-entry is refused as a whole, because it has one id.
        cdef Py_ssize_t n, limit, count
        cdef Entry *entry
        cdef Frame frame
        cdef PendingConfirms waiter
        cdef uint64_t i
        for i in range(self.head, self.tail):
            entry = &self.ring[i & self.mask]
            if entry.settled == SETTLED or PREFIX - 4 + <Py_ssize_t> entry.size <= self.frame_max:
                continue
            frame = <Frame> self.frames[offset(entry.frame, self.frames_base)]
            for n in range(entry.waiter, entry.waiter + max(1, entry.spans)):
                waiter = waiter_of(frame.waiters[n])
                if waiter.too_large is None:
                    limit = max(self.frame_max - (PREFIX - 4), 0)
                    count = messages_of(frame, entry)
                    waiter.too_large = (entry.id, entry.size, limit, count)
            count = self._settle_entries(frame, entry, 1, FRAME_TOO_LARGE, self.too_large)
            self._retire(entry, i, count)
        return 0

    # -- settling

    cdef Entry *_find(self, uint64_t id) noexcept:
        # Entries that were sent ascend by id.
        cdef uint64_t position
        cdef Entry *entry
        if self.cursor < self.sent:
            entry = &self.ring[self.cursor & self.mask]
            if entry.id == id:
                self.cursor += 1
                return entry
        position = self._search(id, self.sent)
        if position == self.sent:
            return NULL
        self.cursor = position + 1
        return &self.ring[position & self.mask]

    cdef Py_ssize_t _follow(self, Entry *entry, const uint8_t *p, Py_ssize_t count) noexcept:
        # Count the entries from `entry` on, which `_find` has just found, that have the ids at `p`
        # and belong to the same waiter and frame.
        cdef uint64_t position = self.cursor
        cdef Py_ssize_t run = 1
        cdef Entry *next
        if entry.spans:
            return 1
        while run < count and position < self.sent:
            next = &self.ring[position & self.mask]
            if (
                next.id != load_u64(p + 8 * run)
                or place_of(next) != place_of(entry)
                or next.spans | next.settled
            ):
                break
            position += 1
            run += 1
        self.cursor = position
        return run

    cdef Py_ssize_t _settle_entries(
        self, Frame frame, Entry *entry, Py_ssize_t run, int code, list done
    ) except -1:
        # Returns the number of their messages.
        cdef SubEntrySpan span
        cdef Py_ssize_t i, count = 0
        if entry.spans == 0:
            settle_messages(
                self, <PendingConfirms> frame.waiters[entry.waiter], entry.id, code, entry.order,
                run, done,
            )
            return run
        for i in range(entry.waiter, entry.waiter + entry.spans):
            span = <SubEntrySpan> frame.waiters[i]
            count += span.count
            settle_messages(self, span.waiter, entry.id, code, span.order, span.count, done)
        return count

    cdef int _release(self) except -1:
        cdef Py_ssize_t n = 0
        while self.head < self.sent and self.ring[self.head & self.mask].settled == SETTLED:
            self.head += 1
        while n < <Py_ssize_t> (self.next_frame - self.frames_base):
            if (<Frame> self.frames[n]).unsettled:
                break
            n += 1
        if n:
            self.frames_base += <uint64_t> n
            del self.frames[:n]
        if self.cursor < self.head:
            self.cursor = self.head
        return 0

    cdef list confirm(self, const uint8_t *p, Py_ssize_t count):
        cdef list done = []
        cdef Py_ssize_t i = 0
        while i < count:
            i += settle(self, p + 8 * i, count - i, CONFIRMED, done)
        self._release()
        return done

    cdef list refuse(self, const uint8_t *p, Py_ssize_t count):
        cdef list done = []
        cdef Py_ssize_t i
        cdef int code
        for i in range(count):
            code = load_u16(p + 10 * i + 8)
            if code == PUBLISHER_DOES_NOT_EXIST:
                self.needs_redeclare = True     # the redeclared publisher resends the message
            else:
                settle(self, p + 10 * i, 1, code, done)
        self._release()
        return done


cdef inline uint64_t place_of(Entry *entry) noexcept:
    # Its frame and waiter, in one load.
    return <uint64_t> entry.waiter << 32 | entry.frame


cdef inline int settle_messages(
    PublishWindow window, PendingConfirms waiter, uint64_t id, int code, uint32_t order,
    Py_ssize_t count, list done,
) except -1:
    if code != CONFIRMED:
        waiter._refuse(id, code, order, count, window.any_replayed and id <= window.replayed)
    if waiter.remaining == count and waiter.sealed:
        done.append(waiter)
    waiter.remaining -= count
    return 0


cdef inline Py_ssize_t settle(
    PublishWindow window, const uint8_t *p, Py_ssize_t count, int code, list done
) except -1:
    # Settle the message with the id at `p`, and those of up to `count` ids that directly follow it
    # in the window.  Returns the number of ids.
    cdef Entry *entry = window._find(load_u64(p))
    cdef uint64_t first, position
    cdef Py_ssize_t run
    cdef Frame frame
    # Ignore a late or repeated confirm, e.g. of a deduplicated message.
    if entry is NULL or entry.settled == SETTLED:
        return 1
    first = window.cursor - 1
    run = window._follow(entry, p, count)
    frame = <Frame> window.frames[offset(entry.frame, window.frames_base)]
    if entry.settled == GIVEN_UP:
        window.given_up -= 1
    window.in_flight -= window._settle_entries(frame, entry, run, code, done)
    if first == window.head:
        window.head += <uint64_t> run
    else:
        for position in range(first, first + <uint64_t> run):
            window.ring[position & window.mask].settled = SETTLED
    frame.unsettled -= run
    if frame.unsettled == 0:
        frame.data = None
        frame.waiters = None
    return run
