"""Encodes messages into Publish frames.

Each message is encoded once, into the outgoing frame, after its publishing id.  A large body is not
copied, see `_large`.

    Publish v1   size u32 | key u16 | version u16 | publisher u8 | count u32 | entries
    entry v1     id u64 | length u32 | message;  or id u64 | sub-entry
    entry v2     id u64 | filter value (u16 length, 0 for none) | length u32 | message

All messages of a sub-entry share one publishing id and one confirm.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.mem cimport PyMem_Free
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from rbfly._turn cimport Turn
from rbfly._wire cimport (
    OutBuffer, out_discard, out_finish, out_open, out_reserve, out_size, put_bytes, put_u8,
    put_u16, put_u32, put_u64, store_u32, store_u64,
)
from rbfly.amqp._codec cimport SHORT_HEAD, store_short_head
from rbfly.amqp._decode cimport keep_error
from rbfly.amqp._layout cimport DATA8
from rbfly.amqp._message cimport Message
from rbfly.amqp._native cimport rbfly_copy
from rbfly.amqp._types cimport clip
from rbfly.protocol._entry cimport (
    SUB_HEADER, SUB_MAX, SubEntry, put_custom, put_filter, put_message, trim,
)
from rbfly.protocol._large cimport LARGE, LargeBodies, is_large, put_head
from rbfly.protocol._pending cimport ConfirmWaiter, SubEntrySpan
from rbfly.protocol._ring cimport Entry, contains, entry_at, ring_open, ring_reserve
from rbfly.protocol._spare cimport SPARE_SIZE, finish_spare, open_spare

from rbfly.amqp._message import Message as _Message
from rbfly.error import ArgumentError, ArgumentTypeError, PublisherError, of_callback


cdef enum:
    KEY_PUBLISH = 0x0002
    DEFAULT_MAX = 1 << 20   # RabbitMQ's frame_max, unless configured otherwise
    SMALLEST_FRAME = 128
    LARGEST_HINT = 1 << 16
    RUN_BYTES = 1 << 18     # `extend` returns to the event loop after encoding this many

cdef uint64_t LAST_ID = 0xFFFFFFFFFFFFFFFF
# Iterators and values (see is_plain) that run no user code.
cdef tuple PLAIN_ITERATORS = (type(iter([])), type(iter(())), type(iter(range(0))))


cdef inline bint is_plain(object message):
    return type(message) is bytes or type(message) is str or type(message) is int


@cython.final
@cython.freelist(64)
cdef class Frame:
    def __cinit__(self):
        self.waiters = []


# Called without exception propagation: cheaper than try and except.
ctypedef int (*raw_put_entry)(
    FrameBuilder builder, uint64_t id, object message, object value
) noexcept


cdef int fail_entry(FrameBuilder builder, Py_ssize_t start) except -1:
    """After an error: remove the entry at `start` from the open frame."""
    try:
        keep_error()
    except BaseException:
        builder.out.p = builder.out.start + start
        trim(&builder.out)
        raise


cdef int put_special(FrameBuilder builder, object message, object value) except -1:
    cdef OutBuffer *out = &builder.out
    cdef Py_ssize_t limit = builder.frame_max - (PREFIX - 4) - MESSAGE_HEAD
    cdef Py_ssize_t at = out_size(out)
    if builder.plain and is_large(message) and PyBytes_GET_SIZE(message) <= limit - 8:
        put_head(out, message, builder.amqp)
        return 1
    if builder.filter_extract is not None:
        put_filter(out, value)
        limit -= out_size(out) - at
    if builder.encode is not None:
        return put_custom(out, message, builder.encode, limit)
    return put_message(out, message, builder.amqp, limit)


cdef class FrameBuilder:
    """Frames of one publisher, finished or open, and a ring buffer of their entries.

    :param publisher_id: id of the publisher on its connection, 0 to 255.
    :param frame_max: limit for a frame's size field, in bytes; 0 for none.  None: not known before
        `replay`, which divides frames again, but no sub-entries; those assume RabbitMQ's default.
    :param max_unconfirmed: how many messages may be in flight.
    :param next_id: publishing id of the next message.
    :param filter_extract: returns a message's filter value (str or None); None for Publish v1.
    :param amqp: encode messages as AMQP 1.0; if false, they are bytes, sent unchanged.
    :param sub_entry: collects the messages of the open sub-entry; None for no sub-entries.
    :param encode: encodes the body of each message to bytes; None for AMQP 1.0 values.
    :ivar queued: number of messages that are encoded but not sent (int).
    """

    def __init__(
        self,
        uint8_t publisher_id,
        frame_max,
        Py_ssize_t max_unconfirmed,
        uint64_t next_id,
        filter_extract=None,
        bint amqp=True,
        SubEntry sub_entry=None,
        encode=None,
    ):
        if max_unconfirmed < 1:
            raise ArgumentError('max_unconfirmed must be at least 1')
        if sub_entry is not None:
            if filter_extract is not None:
                raise ArgumentError('messages in sub-entries cannot have filter values')
            if sub_entry.limit > max_unconfirmed:
                raise ArgumentError('max_unconfirmed must be at least sub_entry_size')
        self.publisher_id = publisher_id
        self.sub_entry = sub_entry
        self.resize(max_unconfirmed)
        self._set_frame_max(DEFAULT_MAX if frame_max is None else frame_max)
        if frame_max is None:
            self.frame_max = UNLIMITED
        self.next_id = next_id
        self.filter_extract = filter_extract
        self.amqp = amqp
        self.encode = encode
        self.plain = filter_extract is None and sub_entry is None and encode is None
        self.sub_entry_spans = []
        self.frames = []
        self.capacity_hint = SMALLEST_FRAME
        ring_open(&self.ring)

    def __dealloc__(self):
        out_discard(&self.out)
        PyMem_Free(self.ring.entries)

    def resize(self, Py_ssize_t max_unconfirmed):
        """Set how many messages may be in flight; at least a sub-entry."""
        cdef Py_ssize_t unit = 1 if self.sub_entry is None else self.sub_entry.limit
        self.max_unconfirmed = max(max_unconfirmed, unit)
        # A window of several frames: one is sent while another is being confirmed.
        self.frame_entries = max(1, self.max_unconfirmed // 10 // unit) * unit
        self.room = self.sub_entry_room = 0

    cdef int _set_frame_max(self, Py_ssize_t frame_max) except -1:
        self.frame_max = frame_max if 0 < frame_max < UNLIMITED else UNLIMITED
        self.sub_entry_max = min(self.frame_max - (PREFIX - 4 + 8 + SUB_HEADER), SUB_MAX)
        self.data_max = min(self.frame_max - (PREFIX - 4) - MESSAGE_HEAD - 8, LARGE - 1)
        return 0

    def append(self, object message, ConfirmWaiter waiter not None):
        """Encode a message into the open frame; return its publishing id.

        After an error, the window is unchanged.

        :raises AMQPEncoderError: the value cannot be encoded as AMQP 1.0.
        :raises ArgumentError: the message's explicit publishing id was used before, or is too low.
        :raises MessageTooLarge: the message does not fit into a frame.
        """
        return self._append(message, waiter)

    def put(self, object message, object future):
        """Append a message whose confirm completes a future; return its publishing id."""
        cdef ConfirmWaiter waiter = ConfirmWaiter.__new__(ConfirmWaiter)
        waiter.future = future
        waiter.sealed = True
        return self._append(message, waiter)

    def extend(
        self, object iterator, Py_ssize_t limit, ConfirmWaiter waiter not None, Turn turn=None
    ):
        """Append messages of an iterator until `limit`, about 256 kB, or the end of the turn.

        Returns False when the iterator is exhausted.  Stops at a message that cannot be appended.

        :param turn: the caller's turn of the event loop; None for no limit.
        :raises Exception: an error of the iterator, or of `append`; `waiter` counts that message.
        """
        cdef uint64_t full = self.bytes_encoded + RUN_BYTES
        cdef uint64_t end = waiter.count + <uint64_t> limit
        cdef Py_ssize_t left = limit
        # User code may be slow for any message; compression may be slow for any sub-entry.
        cdef bint timed = turn is not None and (
            type(iterator) not in PLAIN_ITERATORS
            or self.filter_extract is not None
            or self.encode is not None
        )
        if limit <= 0:
            return True
        try:
            for message in iterator:
                left -= 1
                append_next(self, message, waiter)
                if left == 0 or self.bytes_encoded >= full:
                    return True
                if turn is not None and (
                    timed
                    or self.sub_entry is None and not is_plain(message)
                    or self.sub_entry is not None and self.sub_entry.count == self.sub_entry.limit
                ) and turn._is_over():
                    return True
        except BaseException:
            if end - waiter.count > <uint64_t> left:
                waiter._skip()
            raise
        return False

    @cython.final
    cdef inline int _enter(self) except -1:
        # Encoders, filters, compressors (which release the GIL) and the garbage collector may run
        # any Python code: it must not use this object meanwhile.
        if self.busy:
            raise PublisherError('the publisher cannot be used while it encodes a message')
        self.busy = True
        self.room = self.sub_entry_room = 0
        return 0

    # -- appending

    cdef uint64_t _append(self, object message, ConfirmWaiter waiter) except? 0xdead:
        cdef uint64_t id = self.next_id
        cdef Py_ssize_t start
        cdef int found
        cdef object value = None
        self._enter()
        try:
            if type(message) is Message and (<Message> message).is_set_stream_publish_id:
                if self.sub_entry is not None:
                    self._close_sub_entry(out_size(&self.sub_entry.out))
                id = (<Message> message)._publish_id
                self._check_explicit(id)
            elif self.sub_entry is not None:
                return self._append_to_sub_entry(message, waiter)
            elif contains(&self.used, id):
                raise PublisherError(f'publishing id {id}, the highest, is used up')
            ring_reserve(&self.ring)
            if self.filter_extract is not None:
                value = self._filter_value(message)
            if self.open is None:
                self._open_frame()
            start = out_size(&self.out)
            found = (<raw_put_entry> put_entry)(self, id, message, value)
            if found:
                if found < 0:
                    fail_entry(self, start)
                start = self._add_large(message, start, waiter)
            elif out_size(&self.out) - 4 > self.out_max:
                self._move_entry(start)
                start = PREFIX
            self.bytes_encoded += <uint64_t> (out_size(&self.out) - start)
            add_simple(self, id, start, waiter, <uint32_t> waiter.count)
            self.queued += 1
            waiter.count += 1
            waiter.remaining += 1
            use_id(self, id)
            if self.open.count >= self.frame_entries:
                self._finish_frame()
            return id
        finally:
            self.busy = False

    @cython.final
    cdef bint _append_ready(self, object message, PyObject *waiter) noexcept:
        # Append a short message if `room`, or that of the open sub-entry, is for its waiter; else
        # return False.  Nothing here can fail or run other code, so objects are borrowed.
        cdef PyObject *open = <PyObject *> self.open
        cdef Py_ssize_t size = PyBytes_GET_SIZE(message)
        cdef uint8_t *start = self.out.p
        cdef uint8_t *p = start + MESSAGE_HEAD
        cdef uint64_t id = self.next_id
        cdef Entry *entry
        if (
            self.room == 0
            or <PyObject *> (<Frame> open).last != waiter
            or self.room_end - start < size
        ):
            return self.sub_entry_room and self._append_to_ready_sub_entry(message, waiter)
        if self.amqp:
            p = store_short_head(p, DATA8, size)
        rbfly_copy(p, <const uint8_t *> PyBytes_AS_STRING(message), size)
        self.out.p = p + size
        size = self.out.p - start
        store_u64(start, id)
        store_u32(start + 8, <uint32_t> (size - MESSAGE_HEAD))
        entry = entry_at(&self.ring, self.ring.tail)
        entry.id = id
        entry.frame = (<Frame> open).number
        entry.waiter = (<Frame> open).last_index
        entry.start = <uint32_t> (start - self.out.start)
        entry.size = <uint32_t> size
        entry.order = <uint32_t> (<ConfirmWaiter> waiter).count
        entry.spans = 0
        entry.state = 0
        # `+=` would count references
        (<Frame> open).entries = (<Frame> open).entries + 1
        (<Frame> open).unsettled = (<Frame> open).unsettled + 1
        (<Frame> open).count = (<Frame> open).count + 1
        (<ConfirmWaiter> waiter).count = (<ConfirmWaiter> waiter).count + 1
        (<ConfirmWaiter> waiter).remaining = (<ConfirmWaiter> waiter).remaining + 1
        self.bytes_encoded += <uint64_t> size
        self.room -= 1
        self.ring.tail += 1
        self.queued += 1
        self.used.last = id
        self.next_id = id + 1
        return True

    @cython.final
    cdef bint _append_to_ready_sub_entry(self, object message, PyObject *waiter) noexcept:
        # The same for the open sub-entry, which has a message.
        cdef PyObject *spans = <PyObject *> self.sub_entry_spans
        cdef PyObject *span = PyList_GET_ITEM(<list> spans, PyList_GET_SIZE(<list> spans) - 1)
        cdef OutBuffer *out = &self.sub_entry.out
        cdef Py_ssize_t size = PyBytes_GET_SIZE(message)
        cdef uint8_t *start = out.p
        cdef uint8_t *p = start + 4
        if (
            <PyObject *> (<SubEntrySpan> span).waiter != waiter
            or (<SubEntrySpan> span).order + <uint32_t> (<SubEntrySpan> span).count
            != <uint32_t> (<ConfirmWaiter> waiter).count
            or self.sub_entry_room_end - start < size
        ):
            return False
        if self.amqp:
            p = store_short_head(p, DATA8, size)
        rbfly_copy(p, <const uint8_t *> PyBytes_AS_STRING(message), size)
        out.p = p + size
        size = out.p - start
        store_u32(start, <uint32_t> (size - 4))
        (<SubEntrySpan> span).count = (<SubEntrySpan> span).count + 1
        (<ConfirmWaiter> waiter).count = (<ConfirmWaiter> waiter).count + 1
        (<ConfirmWaiter> waiter).remaining = (<ConfirmWaiter> waiter).remaining + 1
        self.bytes_encoded += <uint64_t> size
        self.sub_entry_room -= 1
        self.sub_entry.count += 1
        self.queued += 1
        return True

    @cython.final
    cdef int _append_first(self, object message, ConfirmWaiter waiter) except -1:
        # Append a message, and prepare for short ones that follow.
        cdef Py_ssize_t size
        self._append(message, waiter)
        if self.plain and self.open is not None:
            self.room = min(
                self.frame_entries - 1 - self.open.count,
                <Py_ssize_t> (self.ring.mask + 1 - (self.ring.tail - self.ring.head)),
            )
            if LAST_ID - self.next_id < <uint64_t> self.room:
                self.room = 0
            size = min(self.out.end - self.out.start, self.out_max + 4)
            self.room_end = self.out.start + size - (MESSAGE_HEAD + SHORT_HEAD)
        return 0

    @cython.final
    cdef uint64_t _append_to_sub_entry(self, object message, ConfirmWaiter waiter) except? 0xdead:
        cdef SubEntry sub_entry = self.sub_entry
        cdef Py_ssize_t start, end, limit = self.sub_entry_max
        cdef SubEntrySpan span = None
        start = sub_entry._put(message, self.amqp, self.frame_max - (PREFIX - 4 + 12))
        end = out_size(&sub_entry.out)
        # Close a full sub-entry only now, so that its errors concern no message queued before.
        if sub_entry.count == sub_entry.limit or end > limit and start:
            try:
                self._close_sub_entry(start)
            except BaseException:
                sub_entry.out.p = sub_entry.out.start + start
                raise
            end -= start
            start = 0
        self.bytes_encoded += <uint64_t> (end - start)
        if sub_entry.count == 0:
            if contains(&self.used, self.next_id):
                sub_entry._drop(end)
                raise PublisherError(f'publishing id {self.next_id}, the highest, is used up')
            self.sub_entry_id = self.next_id
            use_id(self, self.sub_entry_id)
        else:
            span = <SubEntrySpan> self.sub_entry_spans[len(self.sub_entry_spans) - 1]
        if (
            span is None or span.waiter is not waiter
            # its messages between went to other partitions
            or span.order + <uint32_t> span.count != <uint32_t> waiter.count
        ):
            span = SubEntrySpan.__new__(SubEntrySpan)
            span.waiter = waiter
            span.count = 0
            span.order = <uint32_t> waiter.count
            self.sub_entry_spans.append(span)
        span.count += 1
        sub_entry.count += 1
        self.queued += 1
        waiter.count += 1
        waiter.remaining += 1
        if sub_entry.encode is None:
            self.sub_entry_room = sub_entry.limit - sub_entry.count
            end = min(sub_entry.out.end - sub_entry.out.start, limit)
            self.sub_entry_room_end = sub_entry.out.start + end - (4 + SHORT_HEAD)
        return self.sub_entry_id

    cdef int _close_sub_entry(self, Py_ssize_t used) except -1:
        # Move the first `used` bytes of the open sub-entry, all of its messages, into a frame.
        cdef SubEntry sub_entry = self.sub_entry
        if sub_entry.count == 0:
            return 0
        self._put_sub_entry(
            sub_entry, used, sub_entry._close(used), self.sub_entry_id, self.sub_entry_spans
        )
        self.sub_entry_spans = []
        sub_entry._drop(used)
        if self.open.count >= self.frame_entries:
            self._finish_frame()
        return 0

    @cython.final
    cdef int _put_sub_entry(
        self, SubEntry sub_entry, Py_ssize_t used, Py_ssize_t size, uint64_t id, list spans
    ) except -1:
        # Add a closed sub-entry to the open frame.
        cdef Py_ssize_t start
        self._reserve(8 + size, sub_entry.count)
        start = out_size(&self.out)
        put_u64(&self.out, id)
        sub_entry._write(&self.out, used)
        return self._add_sub_entry(id, start, spans)

    cdef int _check_explicit(self, uint64_t id) except -1:
        raise NotImplementedError

    cdef object _filter_value(self, object message):
        cdef object value
        if type(message) is not Message:
            message = _Message(message)
        try:
            value = self.filter_extract(message)
        except BaseException as ex:
            raise of_callback(ex, f'filter_extract for the message {clip(message)}')
        if value is not None and not isinstance(value, str):
            raise ArgumentTypeError(f'filter value must be str or None, not {type(value).__name__}')
        return value

    # -- frames

    cdef int _open_frame(self) except -1:
        if self.capacity_hint == LARGEST_HINT:
            open_spare(&self.out)
        else:
            out_open(&self.out, self.capacity_hint)
        self.out.p += PREFIX
        self.open = self._new_frame()
        return 0

    cdef Py_ssize_t _add_large(
        self, object body, Py_ssize_t start, ConfirmWaiter waiter
    ) except -1:
        # Add a large body, and the waiter unless it is None, to the entry at `start`, whose head is
        # the end of the open frame; return where the entry starts now.  After an error, it is gone.
        cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
        if out_size(&self.out) - 4 + size > self.out_max:
            self._move_entry(start)
            start = PREFIX
        try:
            if self.open.large is None:
                self.open.large = LargeBodies.__new__(LargeBodies)
            if waiter is not None and self.open.last is not waiter:
                self._add_waiter(waiter)
            self.open.large.add(start, body)
        except BaseException:
            self.out.p = self.out.start + start
            raise
        self.out_max -= size
        self.bytes_encoded += <uint64_t> size
        return start

    cdef Frame _new_frame(self):
        # Its number stays the same while frames before it are released.
        cdef Frame frame = Frame.__new__(Frame)
        self.out_max = self.frame_max
        frame.number = <uint32_t> (self.frames_base + <uint64_t> len(self.frames))
        return frame

    cdef int _move_entry(self, Py_ssize_t start) except -1:
        # The entry at `start` does not fit into the open frame: move it into a new one.
        cdef Py_ssize_t size = out_size(&self.out) - start
        cdef OutBuffer full = self.out
        full.p = full.start + start
        self.out.owner = NULL
        try:
            out_open(&self.out, max(size + PREFIX, self.capacity_hint))
        except MemoryError:
            self.out = full
            raise
        self.out.p += PREFIX
        put_bytes(&self.out, full.start + start, size)
        full, self.out = self.out, full
        self._finish_frame()
        self.open = self._new_frame()
        self.out = full
        return 0

    cdef int _reserve(self, Py_ssize_t size, Py_ssize_t count) except -1:
        # Make space for an entry of this size and number of messages, also in the ring.
        ring_reserve(&self.ring)
        if self.open is not None and self.open.count and (
            self.open.count + count > self.frame_entries
            or out_size(&self.out) - 4 + size > self.out_max
        ):
            self._finish_frame()
        if self.open is None:
            self._open_frame()
        return out_reserve(&self.out, size)

    cdef int _close_open(self) except -1:
        # Afterwards all that is queued is in finished frames.
        if self.sub_entry is not None:
            self._close_sub_entry(out_size(&self.sub_entry.out))
        if self.open is not None:
            if self.open.count:
                self._finish_frame()
            else:
                self.open = None
                out_discard(&self.out)
        return 0

    cdef int _finish_frame(self) except -1:
        cdef uint8_t *p = self.out.start
        cdef Py_ssize_t size = out_size(&self.out)
        cdef Frame frame = self.open
        cdef uint8_t *end = self.out.p
        if p is NULL:               # an earlier call failed
            raise MemoryError
        store_u32(p, <uint32_t> (size - 4 + (0 if frame.large is None else frame.large.size)))
        self.out.p = p + 4
        put_u16(&self.out, KEY_PUBLISH)
        put_u16(&self.out, 1 if self.filter_extract is None else 2)
        put_u8(&self.out, self.publisher_id)
        put_u32(&self.out, <uint32_t> frame.entries)
        self.out.p = end
        if self.out.end - p == SPARE_SIZE and size > SPARE_SIZE // 2:
            frame.data = finish_spare(&self.out)
            frame.spare = True
        else:
            frame.data = out_finish(&self.out)
        frame.last = None
        self.frames.append(frame)
        self.open = None
        self.capacity_hint = max(SMALLEST_FRAME, min(size, LARGEST_HINT))
        return 0

    cdef int _add_waiter(self, ConfirmWaiter waiter) except -1:
        cdef Frame frame = self.open
        frame.waiters.append(waiter)
        frame.last = waiter
        frame.last_index = <uint32_t> (len(frame.waiters) - 1)
        return 0

    cdef int _add_sub_entry(self, uint64_t id, Py_ssize_t start, list spans) except -1:
        cdef Frame frame = self.open
        cdef Py_ssize_t count = 0
        cdef Entry *entry
        for span in spans:
            count += (<SubEntrySpan> span).count
        entry = add_entry(self, id, start, count)
        entry.waiter = <uint32_t> len(frame.waiters)
        entry.order = 0
        entry.spans = <uint16_t> len(spans)
        frame.waiters.extend(spans)
        frame.last = None
        return 0
