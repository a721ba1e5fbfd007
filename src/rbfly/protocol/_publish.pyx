"""The publish window: messages of a publisher that are queued or in flight.

It keeps the bytes of a frame until all entries of the frame are settled, so that the publisher can
resend the messages that the broker has not confirmed.

The caller of a message may give up.  A message that was never sent is then withdrawn: its entry is
settled at once, and its bytes go when the queued frames are next repacked.  A message that was sent
stays in flight; only a publisher with a name resends it after a reconnect, because the broker
discards what it has already stored, and does not store a skipped id after a higher one.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from rbfly._turn cimport Sampler, rbfly_clock, rbfly_wall_time
from rbfly._wire cimport load_u16, load_u64, out_discard, out_size, put_bytes
from rbfly.amqp._message cimport Message
from rbfly.protocol._entry cimport trim
from rbfly.protocol._frames cimport (
    PREFIX, Frame, FrameBuilder, add_simple, offset, put_entry,
)
from rbfly.protocol._pending cimport (
    ConfirmWaiter, SubEntrySpan, count_of, first_of, give_up, waiter_of,
)
from rbfly.protocol._ring cimport (
    GIVEN_UP, SETTLED, Entry, Ids, Ring, contains, entry_at, reach, ring_find, ring_follow,
    ring_search,
)
from rbfly.protocol._spare cimport keep_spare

from rbfly.error import ArgumentError

cdef enum:
    CONFIRMED = -1          # every code in a PublishError is a refusal, even 0 and OK
    FRAME_TOO_LARGE = 0x0E
    PUBLISHER_DOES_NOT_EXIST = 0x12


cdef Py_ssize_t messages_of(Frame frame, Entry *entry) except -1:
    cdef Py_ssize_t i, count = 0
    if entry.spans == 0:
        return 1
    for i in range(entry.waiter, entry.waiter + entry.spans):
        count += (<SubEntrySpan> frame.waiters[i]).count
    return count


cdef bytes body_of(Frame frame, Entry *entry):
    # Its large body; None for none.
    return None if frame.large is None else frame.large.get(entry.start)


cdef Py_ssize_t size_of(Frame frame, Entry *entry) except -1:
    cdef bytes body = body_of(frame, entry)
    return entry.size if body is None else entry.size + PyBytes_GET_SIZE(body)


@cython.final
cdef class PublishWindow(FrameBuilder):
    """Messages of one publisher that the broker has not confirmed.

    :ivar in_flight: number of messages that are sent but not settled (int).
    :ivar given_up: number of messages that are not settled although their callers have given up
        (int).
    :ivar named: the publisher has a name, so that the broker discards duplicates (bool).
    :ivar resent: number of messages that replays have queued again, in total (int).
    :ivar published: number of messages that were sent, each counted once (int).
    :ivar repeated: number of messages that were sent again on another connection (int).
    :ivar confirmed: number of messages that the broker has confirmed (int).
    :ivar refused: number of messages that the broker has refused, or that do not fit into the
        frames of a new connection (int).
    :ivar needs_redeclare: the broker does not know the publisher: redeclare it, then call `replay`
        (bool).
    """

    def __cinit__(self):
        self.too_large = []

    def listen(self, on_settled):
        """Set the function to call with the list of waiters that a frame of confirms settles."""
        self.on_settled = on_settled

    def time_confirms(self, Sampler latency not None):
        """Record in seconds how long the broker takes to confirm a frame."""
        self.latency = latency
        self.timed = []

    def set_named(self, bint named):
        """Set whether the publisher has a name, so that the broker discards duplicates."""
        self.named = named

    def start_at(self, uint64_t next_id):
        """Set the publishing id of the first message; call it before that message."""
        self.next_id = next_id

    @property
    def unsettled(self):
        """Number of messages that are queued or in flight (int)."""
        return self.in_flight + self.queued

    @property
    def last_confirm(self):
        """Seconds since the epoch at the last confirm (float); None before the first one."""
        return self.confirmed_at / 1e3 if self.confirmed_at else None

    @property
    def last_sent(self):
        """Highest publishing id that `take` has returned, on any connection; 0 for none (int)."""
        return self.written.last

    @property
    def awaited(self):
        """Number of messages that are queued or in flight, and whose callers have not given up
        (int)."""
        return self.in_flight + self.queued - self.given_up

    @property
    def oldest(self):
        """Publishing id of the first message in flight (int); None if none is."""
        return entry_at(&self.ring, self.ring.head).id if self.in_flight else None

    def count_in_flight(self, uint64_t last):
        """Count the messages in flight up to a publishing id."""
        cdef Py_ssize_t count = 0
        cdef Entry *entry
        cdef uint64_t i
        self._enter()
        try:
            for i in range(self.ring.head, self.ring.sent):
                entry = entry_at(&self.ring, i)
                if entry.state != SETTLED and entry.id <= last:
                    count += messages_of(self._frame_of(entry), entry)
        finally:
            self.busy = False
        return count

    # -- publishing ids

    def check_ids(self, object messages, Py_ssize_t start, Py_ssize_t stop, object before=None):
        """Check that the explicit publishing ids in messages[start:stop] ascend.

        Returns the highest id so far (int), which is `before` of the next call.

        :raises ArgumentError: an id is not above the id before it; `index` says of which message.
        """
        cdef Ids used
        cdef uint64_t id
        cdef Py_ssize_t i
        cdef bint shared
        if self._last_is_withdrawn():   # the ids of withdrawn messages may be used again
            self._enter()
            try:
                self._repack(self.ring.sent)
            finally:
                self.busy = False
        used = self.used
        if before is not None:
            used.any, used.last = True, before
        # Messages of a sub-entry share an id; how many will fit into it is unknown.
        shared = self.sub_entry is not None and (before is not None or self.sub_entry.count > 0)
        for i in range(start, min(stop, <Py_ssize_t> len(messages))):
            message = messages[i]
            if type(message) is Message and (<Message> message).is_set_stream_publish_id:
                id = (<Message> message)._publish_id
                if contains(&used, id):
                    error = ArgumentError(
                        f'message {i} of send_many: publishing id {id} is not above {used.last}'
                    )
                    error.index = i
                    raise error
                shared = False
            elif shared:
                continue
            else:
                id = max(self.next_id, used.last + used.any)
                shared = self.sub_entry is not None
            reach(&used, id)
        return used.last if used.any else None

    cdef int _check_explicit(self, uint64_t id) except -1:
        if not contains(&self.used, id):
            return 0
        if contains(&self.written, id):
            error = ArgumentError(
                f'publishing id {id} is not above the ids sent before; an earlier message with this'
                ' id may be stored'
            )
            error.outcome = 'unknown'
            raise error
        if self._last_is_withdrawn():
            self._repack(self.ring.sent)    # the ids of withdrawn messages may be used again
        if contains(&self.used, id):
            raise ArgumentError(f'publishing id {id} is not above the ids sent before')
        return 0

    cdef bint _last_is_withdrawn(self) noexcept:
        # Otherwise, repacking makes no id free.
        return self.withdrawn and entry_at(&self.ring, self.ring.tail - 1).state == SETTLED

    cdef int _roll_back(self) noexcept:
        # Ids above all ids that were sent or are queued may be used again.
        self.used = self.written
        if self.ring.tail > self.ring.head:
            reach(&self.used, entry_at(&self.ring, self.ring.tail - 1).id)
        return 0

    # -- sending

    def take(self):
        """Return the next frame to write (bytes); None if the queue is empty or the window full."""
        found = self._take()
        return b''.join(found) if type(found) is list else found

    cdef object _take(self):
        # The same, but a frame with large bodies is a list of its parts.
        cdef Frame frame
        cdef object found
        cdef Py_ssize_t repeated = 0
        self._enter()
        try:
            if self.withdrawn:
                self._repack(self.ring.sent)
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
            found = frame.data
            if frame.large is not None:
                found = frame.large.parts(frame.data, self.amqp)
            if contains(&self.written, entry_at(&self.ring, self.ring.sent).id):
                repeated = self._count_repeated(frame)
            self.repeated += <uint64_t> repeated
            self.published += <uint64_t> (frame.count - repeated)
            if self.latency is not None:
                frame.sent_at = self.latency._now()
            self.next_frame += 1
            self.in_flight += frame.count
            self.queued -= frame.count
            self.ring.sent += <uint64_t> frame.entries
            reach(&self.written, entry_at(&self.ring, self.ring.sent - 1).id)
            return found
        finally:
            self.busy = False

    cdef Py_ssize_t _count_repeated(self, Frame frame) except -1:
        # Messages of the next frame that an earlier connection has sent.
        cdef Py_ssize_t count = 0
        cdef Entry *entry
        cdef uint64_t i
        for i in range(self.ring.sent, self.ring.sent + <uint64_t> frame.entries):
            entry = entry_at(&self.ring, i)
            if contains(&self.written, entry.id):
                count += messages_of(frame, entry)
        return count

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
            self.replayed = self.written
            self._close_open()
            if self.given_up and not self.named:
                self._drop_given_up()
            self._refuse_too_large()
            self._repack(self.ring.head)
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
        self._enter()
        try:
            done, self.too_large = self.too_large, []
            self.frames_base += <uint64_t> len(self.frames) + (self.open is not None)
            self.next_frame = self.frames_base
            self.frames = []        # may run code of the program: `__del__` of a future
            self.open = None
            out_discard(&self.out)
            if self.sub_entry is not None:
                self.sub_entry_spans = []
                self.sub_entry._drop(out_size(&self.sub_entry.out))
            self.ring.head = self.ring.sent = self.ring.cursor = self.ring.tail
            self.in_flight = self.queued = self.given_up = self.withdrawn = 0
            self._roll_back()
        finally:
            self.busy = False
        for item, order, unsent in unsettled:
            give_up(item, order, unsent, done)
        return done

    def unsettled_of(self, ConfirmWaiter waiter not None):
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
            for i in range(self.ring.head, self.ring.tail):
                entry = entry_at(&self.ring, i)
                if entry.state != SETTLED:
                    unsent = i >= self.ring.sent and not contains(&self.written, entry.id)
                    waiters = (<Frame> frames[offset(entry.frame, self.frames_base)]).waiters
                    for n in range(entry.waiter, entry.waiter + max(1, entry.spans)):
                        found.append((waiters[n], entry.order, unsent))
            for span in self.sub_entry_spans:
                found.append((span, 0, True))
        finally:
            self.busy = False
        return found

    cdef int _refuse_too_large(self) except -1:
        # A sub-entry is refused as a whole, because it has one id.
        cdef Py_ssize_t n, size, limit, count
        cdef Entry *entry
        cdef Frame frame
        cdef ConfirmWaiter waiter
        cdef uint64_t i
        for i in range(self.ring.head, self.ring.tail):
            entry = entry_at(&self.ring, i)
            if entry.state == SETTLED:
                continue
            frame = <Frame> self.frames[offset(entry.frame, self.frames_base)]
            size = size_of(frame, entry)
            if PREFIX - 4 + size <= self.frame_max:
                continue
            for n in range(entry.waiter, entry.waiter + max(1, entry.spans)):
                waiter = waiter_of(frame.waiters[n])
                if waiter.too_large is None:
                    limit = max(self.frame_max - (PREFIX - 4), 0)
                    count = messages_of(frame, entry)
                    waiter.too_large = (entry.id, size, limit, count)
            count = self._settle_entries(frame, entry, 1, FRAME_TOO_LARGE, self.too_large)
            self.refused += <uint64_t> count
            self._retire(entry, i, count)
        return 0

    cdef int _drop_given_up(self) except -1:
        # Those in flight: if queued, they were withdrawn.
        cdef Entry *entry
        cdef uint64_t i
        for i in range(self.ring.head, self.ring.sent):
            entry = entry_at(&self.ring, i)
            if entry.state == GIVEN_UP:
                self._retire(entry, i, messages_of(self._frame_of(entry), entry))
        return 0

    # -- moving entries

    cdef int _repack(self, uint64_t first) except -1:
        # Move unsettled entries from position `first` on into new frames.
        # On failure, restore the state before.
        cdef list old = self.frames
        cdef uint64_t old_base = self.frames_base
        cdef Py_ssize_t kept, start
        cdef bytes body
        cdef uint64_t size, n
        cdef Entry *saved
        cdef Entry *entry
        cdef Frame source
        self._close_open()
        size = self.ring.tail - first
        if size == 0:
            return 0
        before = (self.ring.tail, self.ring.sent, self.ring.cursor, self.next_frame)
        saved = <Entry *> PyMem_Malloc(size * sizeof(Entry))
        if saved is NULL:
            raise MemoryError
        for n in range(size):
            saved[n] = entry_at(&self.ring, first + n)[0]
        try:
            kept = offset(saved[0].frame, old_base)
            self.frames = old[:kept]
            self.ring.tail = first
            self.ring.sent = min(self.ring.sent, first)
            self.ring.cursor = min(self.ring.cursor, first)
            self.next_frame = min(self.next_frame, old_base + <uint64_t> kept)
            for n in range(size):
                entry = &saved[n]
                if entry.state == SETTLED:
                    continue
                source = <Frame> old[offset(entry.frame, old_base)]
                self._reserve(entry.size, messages_of(source, entry))
                put_bytes(&self.out, PyBytes_AS_STRING(source.data) + entry.start, entry.size)
                start = out_size(&self.out) - entry.size
                body = body_of(source, entry)
                if body is not None:
                    start = self._add_large(body, start, None)
                if entry.spans:
                    self._add_sub_entry(
                        entry.id,
                        start,
                        source.waiters[entry.waiter:entry.waiter + entry.spans],
                    )
                else:
                    add_simple(
                        self,
                        entry.id,
                        start,
                        <ConfirmWaiter> source.waiters[entry.waiter],
                        entry.order,
                    )
                entry_at(&self.ring, self.ring.tail - 1).state = entry.state
            if self.open is not None and self.open.count >= self.frame_entries:
                self._finish_frame()
            if self.withdrawn:
                self.withdrawn = 0
                self._roll_back()
        except BaseException:
            self.open = None
            out_discard(&self.out)
            self.frames = old
            self.ring.tail, self.ring.sent, self.ring.cursor, self.next_frame = before
            for n in range(size):
                entry_at(&self.ring, first + n)[0] = saved[n]
            raise
        finally:
            PyMem_Free(saved)
        return 0

    # -- callers that give up

    def give_up(self, uint64_t id, object waiter not None):
        """Note that the caller that waits for a message has given up.

        Returns True if the message was never sent and is now withdrawn.  A message that another
        caller has joined stays.

        :param waiter: the waiter of the message, or its future.
        """
        if self.busy:
            return False
        if self.sub_entry is not None:  # it belongs to several callers
            if isinstance(waiter, ConfirmWaiter):
                (<ConfirmWaiter> waiter).reported = True
            return False
        self._enter()
        try:
            return self._withdraw(id, waiter)
        finally:
            self.busy = False

    def resume(self, uint64_t id, object future not None):
        """Wait again for a message of `put` that the caller may have given up.

        Returns False if the window no longer has the message.
        """
        cdef uint64_t position = 0
        cdef Entry *entry = self._find_unsettled(id, &position)
        cdef ConfirmWaiter found
        if self.sub_entry is not None:
            return True         # nothing was given up
        if entry is NULL:
            return False
        found = waiter_of(self._frame_of(entry).waiters[entry.waiter])
        if found.future is not future:
            return False
        if entry.state == GIVEN_UP:
            entry.state = 0
            self.given_up -= 1
            found.reported = False
        return True

    def join(self, object message, ConfirmWaiter waiter not None):
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

    cdef bint _withdraw(self, uint64_t id, object waiter) except -1:
        cdef uint64_t position = 0
        cdef Entry *entry = self._find_unsettled(id, &position)
        cdef Py_ssize_t count
        cdef ConfirmWaiter found
        cdef Frame frame
        cdef bint written
        if entry is NULL or entry.state == GIVEN_UP:
            return False
        frame = self._frame_of(entry)
        found = waiter_of(frame.waiters[entry.waiter])
        if found is not waiter and found.future is not waiter:
            if type(found.future) is not list or waiter not in found.future:
                return False
            found.future.remove(waiter)
            if found.future:
                return False
        found.reported = True
        written = contains(&self.written, id)
        count = messages_of(frame, entry)
        if position < self.ring.sent or (written and self.named):
            entry.state = GIVEN_UP
            self.given_up += count
            return False
        self._retire(entry, position, count)
        self.withdrawn += 1
        if self.withdrawn > self.queued:
            # Repacking only now takes constant time per withdrawn message.
            try:
                self._repack(self.ring.sent)
            except MemoryError:
                pass        # unchanged; the next frame to send tries again
        return not written

    cdef bint _join(self, object message, uint64_t id, ConfirmWaiter waiter) except -1:
        cdef uint64_t position = 0
        cdef Py_ssize_t start, size
        cdef Entry *entry
        cdef bytes body
        cdef const uint8_t *new
        cdef Frame frame = None
        cdef ConfirmWaiter found, joined
        cdef const char *data
        cdef object value = None
        entry = self._find_unsettled(id, &position)
        if entry is NULL or entry.spans:    # an atomic batch is never joined
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
            if entry is NULL or entry.spans:    # foreign code may have run
                return False
            frame = self._frame_of(entry)
            if size != size_of(frame, entry):
                return False
            if frame is self.open:
                data = <const char *> self.out.start
            else:
                data = PyBytes_AS_STRING(frame.data)
            new = self.out.start + start
            if memcmp(data + entry.start, new, entry.size) != 0:
                return False
            body = body_of(frame, entry)
            if body is not None and memcmp(
                PyBytes_AS_STRING(body), new + entry.size, <size_t> PyBytes_GET_SIZE(body)
            ) != 0:
                return False
        finally:
            self.out.p = self.out.start + start
            trim(&self.out)
        found = <ConfirmWaiter> frame.waiters[entry.waiter]
        if type(found.future) is not list:
            if found.future is not None or type(found) is not type(waiter):
                return False
            joined = ConfirmWaiter.__new__(ConfirmWaiter)
            joined.future = [found]
            joined.sealed = True
            joined.count = joined.remaining = 1
            frame.waiters[entry.waiter] = found = joined
        if entry.state == GIVEN_UP:
            entry.state = 0
            self.given_up -= 1
            found.future = []
            found.reported = False
        found.future.append(waiter)
        return True

    # -- settling

    cdef Frame _frame_of(self, Entry *entry):
        cdef Py_ssize_t n = offset(entry.frame, self.frames_base)
        return self.open if n == len(self.frames) else <Frame> self.frames[n]

    cdef Entry *_find_unsettled(self, uint64_t id, uint64_t *position) noexcept:
        cdef Entry *entry
        position[0] = ring_search(&self.ring, id, self.ring.tail)
        entry = entry_at(&self.ring, position[0])
        return NULL if position[0] == self.ring.tail or entry.state == SETTLED else entry

    cdef int _retire(self, Entry *entry, uint64_t position, Py_ssize_t count) except -1:
        # Settle an entry of `count` messages that is not confirmed.
        cdef Frame frame = self._frame_of(entry)
        frame.unsettled -= 1
        if entry.state == GIVEN_UP:
            self.given_up -= count
        entry.state = SETTLED
        if position < self.ring.sent:
            self.in_flight -= count
        else:
            self.queued -= count
        return 0

    cdef Py_ssize_t _settle_entries(
        self, Frame frame, Entry *entry, Py_ssize_t run, int code, list done
    ) except -1:
        # Returns the number of their messages.
        cdef SubEntrySpan span
        cdef Py_ssize_t i, count = 0
        if entry.spans == 0:
            settle_messages(
                self, <ConfirmWaiter> frame.waiters[entry.waiter], entry.id, code, entry.order,
                run, done,
            )
            return run
        for i in range(entry.waiter, entry.waiter + entry.spans):
            span = <SubEntrySpan> frame.waiters[i]
            count += span.count
            settle_messages(self, span.waiter, entry.id, code, span.order, span.count, done)
        return count

    cdef int _release(self) except -1:
        cdef Ring *ring = &self.ring
        cdef Py_ssize_t n = 0
        while ring.head < ring.sent and entry_at(ring, ring.head).state == SETTLED:
            ring.head += 1
        while n < <Py_ssize_t> (self.next_frame - self.frames_base):
            if (<Frame> self.frames[n]).unsettled:
                break
            n += 1
        if n:
            self.frames_base += <uint64_t> n
            del self.frames[:n]
        ring.cursor = max(ring.cursor, ring.head)
        return 0

    cdef list confirm(self, const uint8_t *p, Py_ssize_t count):
        cdef list done = []
        cdef Py_ssize_t i = 0
        cdef Py_ssize_t in_flight = self.in_flight
        while i < count:
            i += settle(self, p + 8 * i, count - i, CONFIRMED, done)
        self._release()
        self.confirmed += <uint64_t> (in_flight - self.in_flight)
        self.confirmed_at = rbfly_wall_time()
        if self.latency is not None:
            self._record_latency()
        return done

    cdef void _note_timed(self, uint64_t sent_at) noexcept:
        self.timed.append(sent_at)

    cdef void _record_latency(self) noexcept:
        # An error of `record` concerns no confirm: Python reports it.
        cdef list timed = self.timed
        cdef uint64_t now
        if timed:
            self.timed = []
            now = rbfly_clock()
            for sent_at in timed:
                self.latency.record((now - <uint64_t> sent_at) / 1e9)

    cdef list refuse(self, const uint8_t *p, Py_ssize_t count):
        cdef list done = []
        cdef Py_ssize_t i
        cdef Py_ssize_t in_flight = self.in_flight
        cdef int code
        for i in range(count):
            code = load_u16(p + 10 * i + 8)
            if code == PUBLISHER_DOES_NOT_EXIST:
                self.needs_redeclare = True     # the redeclared publisher resends the message
            else:
                settle(self, p + 10 * i, 1, code, done)
        self._release()
        self.refused += <uint64_t> (in_flight - self.in_flight)
        return done


cdef inline int settle_messages(
    PublishWindow window, ConfirmWaiter waiter, uint64_t id, int code, uint32_t order,
    Py_ssize_t count, list done,
) except -1:
    if code != CONFIRMED:
        waiter._refuse(id, code, order, count, contains(&window.replayed, id))
    if waiter.remaining == count and waiter.sealed:
        done.append(waiter)
    waiter.remaining -= count
    return 0


cdef int release(Frame frame) except -1:
    # Release the large parts of a settled frame.
    frame.large = None
    if frame.spare:
        keep_spare(<PyObject *> frame.data)
    return 0


cdef inline Py_ssize_t settle(
    PublishWindow window, const uint8_t *p, Py_ssize_t count, int code, list done
) except -1:
    # Settle the message with the id at `p`, and those of up to `count` ids that directly follow it
    # in the window.  Returns the number of ids.
    cdef Entry *entry = ring_find(&window.ring, load_u64(p))
    cdef uint64_t first, position
    cdef Py_ssize_t run
    cdef Frame frame
    # Ignore a late or repeated confirm, e.g. of a deduplicated message.
    if entry is NULL or entry.state == SETTLED:
        return 1
    first = window.ring.cursor - 1
    run = ring_follow(&window.ring, entry, p, count)
    frame = <Frame> window.frames[offset(entry.frame, window.frames_base)]
    if entry.state == GIVEN_UP:
        window.given_up -= messages_of(frame, entry)
    window.in_flight -= window._settle_entries(frame, entry, run, code, done)
    if first == window.ring.head:
        window.ring.head += <uint64_t> run
    else:
        for position in range(first, first + <uint64_t> run):
            entry_at(&window.ring, position).state = SETTLED
    frame.unsettled -= run
    if frame.unsettled == 0:
        if frame.spare or frame.large is not None:
            release(frame)
        frame.data = None
        frame.waiters = None
        if frame.sent_at and code == CONFIRMED:
            window._note_timed(frame.sent_at)
    return run
