"""PUBLISH room, below the sans-IO line: builds Publish frames and keeps what is unconfirmed.

A value is encoded once, directly behind its publishing id in the outgoing frame.  The bytes of a
frame are kept until every id in it is settled, so that what is unsettled can be sent again.

    Publish v1   size u32 | key u16 | version u16 | publisher u8 | count u32 | entries
    entry v1     id u64 | length u32 | message
    entry v2     id u64 | filter value (u16 length, 0 for none) | length u32 | message

This room answers questions: it holds no future, calls no transport and knows no loop.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from rbfly._wire cimport (
    OutBuffer, load_u16, load_u64, out_discard, out_finish, out_open, out_reserve,
    out_size, put_bytes, put_u8, put_u16, put_u32, put_u64, store_u32,
)
from rbfly.amqp._codec cimport encode_message
from rbfly.amqp._message cimport MessageCtx

from rbfly.amqp._message import MessageCtx as _MessageCtx
from rbfly.streams.error import ArgumentError, ArgumentTypeError, PublisherError


cdef enum:
    KEY_PUBLISH = 0x0002
    PREFIX = 13             # size, key, version, publisher id, count
    COUNT_AT = 9
    SMALLEST_FRAME = 128
    LARGEST_HINT = 1 << 16
    FILTER_MAX = 0xFFFE
    FRAME_TOO_LARGE = 0x0E
    PUBLISHER_DOES_NOT_EXIST = 0x12
    RING = 64
    RUN_BYTES = 1 << 18     # what `extend` encodes at most before the loop has its turn

# A frame length is u32; an entry's start and size are kept as u32 too.
cdef Py_ssize_t UNLIMITED = 0x7FFFFFFF
cdef uint64_t LAST_ID = 0xFFFFFFFFFFFFFFFF


@cython.final
@cython.freelist(256)
cdef class Waiter:
    """Counts the unsettled messages that one caller waits for.

    :ivar future: anything of the caller's; not touched here.
    :ivar remaining: how many of its messages are not settled.
    :ivar count: how many messages it has been given so far.
    :ivar errors: `(publish id, code)` of each message that was refused, or None.
    :ivar first_refused: which of its messages that was, of the first in their order.
    """

    def __init__(self, future=None, bint sealed=False):
        self.future = future
        self.sealed = sealed

    cdef bint _settle(self, Py_ssize_t count) noexcept:
        self.remaining -= count
        return self.remaining == 0 and self.sealed

    cdef int _refuse(self, uint64_t id, int code, uint32_t order) except -1:
        # `order` wraps; what is in flight is far less than 2**32
        cdef uint64_t index = self.count - <uint32_t> (<uint32_t> self.count - order)
        if self.errors is None:
            self.errors = []
            self.first_refused = index
        self.first_refused = min(self.first_refused, index)
        self.errors.append((id, code))
        return 0

    def seal(self):
        """No more messages will be added; true if all of them are settled already."""
        self.sealed = True
        return self.remaining == 0


@cython.final
@cython.freelist(64)
cdef class Frame:
    pass


cdef inline Py_ssize_t offset(uint32_t number, uint64_t base) noexcept:
    # How far behind frame `base` a frame is; their numbers are kept modulo 2**32.
    return <Py_ssize_t> <uint32_t> (number - <uint32_t> base)


@cython.final
cdef class PublishWindow:
    """Frames of one publisher: open, waiting to be sent, and in flight.

    :param publisher_id: id of the publisher on its connection, 0 to 255.
    :param frame_max: limit of a frame's size field in bytes; 0 for none.
    :param max_unconfirmed: how many messages may be in flight.
    :param next_id: publishing id of the next message.
    :param filter_extract: gives a message's filter value (str or None); None for Publish v1.
    :param amqp: encode as AMQP 1.0; if false, messages are bytes and sent as they are.
    :param batched: messages wait for `release`, and may come in any order of their ids until then.
    :ivar gone: the broker does not know the publisher (any more); `replay` is to follow (bool).
    """

    def __init__(
        self,
        uint8_t publisher_id,
        Py_ssize_t frame_max,
        Py_ssize_t max_unconfirmed,
        uint64_t next_id,
        filter_extract=None,
        bint amqp=True,
        bint batched=False,
    ):
        if max_unconfirmed < 1:
            raise ArgumentError('max_unconfirmed must be at least 1')
        self.publisher_id = publisher_id
        self.frame_max = frame_max if 0 < frame_max < UNLIMITED else UNLIMITED
        self.max_unconfirmed = max_unconfirmed
        # Several frames fill the window, so that one is on its way while another is confirmed.
        self.frame_entries = max(1, max_unconfirmed // 10)
        self.next_id = next_id
        self.filter_extract = filter_extract
        self.amqp = amqp
        self.batched = batched
        self.frames = []
        self.capacity_hint = SMALLEST_FRAME
        self.ring = <Entry *> PyMem_Malloc(RING * sizeof(Entry))
        if self.ring is NULL:
            raise MemoryError
        self.mask = RING - 1

    def __dealloc__(self):
        out_discard(&self.out)
        PyMem_Free(self.ring)

    @property
    def unsettled(self):
        """How many messages are queued or in flight (int)."""
        return self.in_flight + <Py_ssize_t> (self.tail - self.sent)

    @property
    def is_full(self):
        """As many messages are queued or in flight as may be in flight (bool)."""
        return self.in_flight + <Py_ssize_t> (self.tail - self.sent) >= self.max_unconfirmed

    @property
    def queued(self):
        """How many messages are encoded and not yet sent (int)."""
        return self.tail - self.sent

    def append(self, object message, Waiter waiter not None):
        """Encode a message into the open frame; gives its publishing id.

        :raises AMQPEncoderError: the value has no AMQP 1.0 form; nothing has changed then.
        :raises ArgumentError: an explicit publishing id that was used before or is too low.
        :raises PublisherError: the message fits no frame; nothing has changed then.
        """
        return self._append(message, waiter)

    def put(self, object message, object future):
        """`append` with a waiter of its own, which has that future; gives the publishing id."""
        cdef Waiter waiter = Waiter.__new__(Waiter)
        waiter.future = future
        waiter.sealed = True
        return self._append(message, waiter)

    def extend(self, object iterator, Py_ssize_t limit, Waiter waiter not None):
        """Append what an iterator gives: at most `limit` messages, or about 256 kB.

        Gives whether there may be more.  Nothing is taken from the iterator behind a message that
        cannot be appended.

        :raises Exception: see `append`; `waiter.count` tells which message it was.
        """
        cdef uint64_t end = waiter.count + <uint64_t> limit
        cdef uint64_t full = self.bytes_pushed + RUN_BYTES
        if limit <= 0:
            return True
        for message in iterator:
            self._append(message, waiter)
            if waiter.count >= end or self.bytes_pushed >= full:
                return True
        return False

    cdef uint64_t _append(self, object message, Waiter waiter) except? 0xdead:
        cdef uint64_t id = self.next_id
        cdef Py_ssize_t start
        cdef object value = None
        cdef bint disorder = False
        if type(message) is MessageCtx and (<MessageCtx> message).is_set_stream_publish_id:
            id = (<MessageCtx> message).stream_publish_id
            disorder = self._check_explicit(id)
        elif self.has_last and id == self.last_id:
            raise PublisherError(f'publish id {self.last_id} was used; there is none above it')
        self._check_idle()
        self.busy = True
        try:
            if self.filter_extract is not None:
                value = self._filter_value(message)
            if self.open is None:
                self._open_frame()
            start = out_size(&self.out)
            try:
                self._put_entry(id, message, value)
            except BaseException:
                self.out.p = self.out.start + start
                raise
        finally:
            self.busy = False
        if out_size(&self.out) - 4 > self.frame_max:
            self._move_entry(start)
            start = PREFIX
        self._push(id, start, waiter, <uint32_t> waiter.count)
        waiter.count += 1
        if disorder:
            self.unsorted = True
        if self.batch_ids is not None:
            self.batch_ids.add(id)
        if not self.has_last or id > self.last_id:
            self.last_id = id
            self.has_last = True
        if id >= self.next_id:
            self.next_id = id + 1 if id < LAST_ID else id
        if self.open.count >= self.frame_entries:
            self._finish_frame()
        return id

    cdef bint _check_explicit(self, uint64_t id) except -1:
        # True if the id comes behind a higher one, in a batch.
        cdef uint64_t i
        if not self.has_last or id > self.last_id:
            return False
        if not self.batched or self.has_released and id <= self.last_released:
            raise ArgumentError(f'publish id {id} is not above those sent before')
        if self.batch_ids is None:
            self.batch_ids = {
                self.ring[i & self.mask].id for i in range(self.released_end, self.tail)
            }
        if id in self.batch_ids:
            raise ArgumentError(f'publish id {id} is in the batch already')
        return True

    cdef object _filter_value(self, object message):
        cdef object value = self.filter_extract(
            message if type(message) is MessageCtx
            else _MessageCtx(message, None, None, None, None, None, None)
        )
        if value is not None and not isinstance(value, str):
            raise ArgumentTypeError(f'filter value must be str or None, not {type(value).__name__}')
        return value

    def check_ids(self, object messages, Py_ssize_t start, Py_ssize_t stop, object before=None):
        """Check that explicit publishing ids in a list or tuple ascend, nothing else.

        Gives the highest id behind messages[start:stop] (int): `before` of the next call.

        :raises ArgumentError: an id that is not above the one before it; `index` tells which.
        """
        cdef bint has_last = self.has_last
        cdef uint64_t last = self.last_id
        cdef uint64_t next_id = self.next_id
        cdef uint64_t id
        cdef Py_ssize_t i
        if before is not None:
            has_last = True
            last = before
            next_id = max(next_id, last + 1)
        for i in range(start, min(stop, <Py_ssize_t> len(messages))):
            message = messages[i]
            if type(message) is MessageCtx and (<MessageCtx> message).is_set_stream_publish_id:
                id = (<MessageCtx> message).stream_publish_id
                if has_last and id <= last:
                    error = ArgumentError(f'publish id {id} is not above those before it')
                    error.index = i
                    error.add_note(f'message {i} of send_many')
                    raise error
                last = id
                next_id = max(next_id, id + 1)
            else:
                last = next_id
                next_id += 1
            has_last = True
        return last if has_last else None

    def take(self):
        """The next frame to write (bytes); None if nothing waits or the window is full."""
        cdef Frame frame
        self._check_idle()
        if self.batched:
            if self.next_frame == self.released:
                return None
        elif self.next_frame == self.frames_base + <uint64_t> len(self.frames):
            if self.open is None or self.open.count == 0:
                return None
            if self.in_flight and self.in_flight + self.open.count > self.max_unconfirmed:
                return None
            self._finish_frame()
        frame = <Frame> self.frames[self.next_frame - self.frames_base]
        if self.in_flight and self.in_flight + frame.count > self.max_unconfirmed:
            return None
        self.next_frame += 1
        self.in_flight += frame.count
        self.sent += <uint64_t> frame.count
        return frame.data

    def release(self):
        """Let `take` give what was appended so far, ascending by id."""
        self._check_idle()
        if self.unsorted:
            self._repack(self.released_end, None)
        self.batch_ids = None
        self._mark_released()
        if self.has_last:
            self.last_released = self.last_id
            self.has_released = True

    def replay(self, uint8_t publisher_id, Py_ssize_t frame_max):
        """Queue everything unsettled again, in order, for a publisher declared anew.

        Messages that fit no frame any more are refused with code 0x0e (frame too large).

        :returns: waiters that this has settled (list).
        """
        cdef list done = []
        self._check_idle()
        self.publisher_id = publisher_id
        self.frame_max = frame_max if 0 < frame_max < UNLIMITED else UNLIMITED
        self.gone = False
        self._repack(self.head, done)
        return done

    def abandon(self):
        """Forget everything unsettled; gives the waiters that had messages in it (list)."""
        cdef list done = []
        cdef Waiter waiter
        cdef Frame frame
        cdef object w
        self._check_idle()
        if self.open is not None:
            self.frames.append(self.open)
            self.open = None
            out_discard(&self.out)
        for f in self.frames:
            frame = <Frame> f
            if frame.waiters is None:       # settled, behind one that is not
                continue
            for w in frame.waiters:
                waiter = <Waiter> w
                if waiter.remaining:
                    waiter.remaining = 0
                    done.append(waiter)
        self.frames_base += <uint64_t> len(self.frames)
        self.next_frame = self.released = self.frames_base
        self.frames = []
        self.head = self.sent = self.cursor = self.released_end = self.tail
        self.batch_ids = None
        self.in_flight = 0
        self.unsorted = False
        return done

    def test_confirm(self, bytes ids not None):
        """Settle ids (u64, big-endian) as a PublishConfirm does; gives the finished waiters."""
        return self.confirm(
            <const uint8_t *> PyBytes_AS_STRING(ids), PyBytes_GET_SIZE(ids) // 8
        )

    cdef int _check_idle(self) except -1:
        # The encoder and the filter call the user's code, which must not come back to here.
        if self.busy:
            raise PublisherError('a publisher cannot be used while it encodes a message')
        return 0

    # -- frames

    cdef int _open_frame(self) except -1:
        self.open = None
        out_open(&self.out, self.capacity_hint)
        self.out.p += PREFIX
        self.open = Frame.__new__(Frame)
        self.open.waiters = []
        return 0

    cdef int _move_entry(self, Py_ssize_t start) except -1:
        # The entry at `start` is too much for the open frame: it opens the next one.
        cdef Py_ssize_t size = out_size(&self.out) - start
        cdef OutBuffer full
        self.out.p = self.out.start + start
        if size + PREFIX - 4 > self.frame_max:
            raise PublisherError(
                f'message of {size - 12} bytes with its headers fits no frame;'
                f' the limit is {self.frame_max - 21} bytes'
            )
        full = self.out
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
        self.open = Frame.__new__(Frame)
        self.open.waiters = []
        self.out = full
        return 0

    cdef int _finish_frame(self) except -1:
        cdef uint8_t *p = self.out.start
        cdef Py_ssize_t size = out_size(&self.out)
        cdef Frame frame = self.open
        cdef uint8_t *end = self.out.p
        store_u32(p, <uint32_t> (size - 4))
        self.out.p = p + 4
        put_u16(&self.out, KEY_PUBLISH)
        put_u16(&self.out, 1 if self.filter_extract is None else 2)
        put_u8(&self.out, self.publisher_id)
        put_u32(&self.out, <uint32_t> frame.count)
        self.out.p = end
        frame.data = out_finish(&self.out)
        frame.last = None
        self.frames.append(frame)
        self.open = None
        self.capacity_hint = max(SMALLEST_FRAME, min(size, LARGEST_HINT))
        return 0

    cdef int _put_entry(self, uint64_t id, object message, object value) except -1:
        cdef OutBuffer *out = &self.out
        cdef Py_ssize_t n = 0
        cdef Py_ssize_t at
        cdef const char *text
        cdef Py_buffer view
        if self.filter_extract is None:
            out_reserve(out, 12)
            put_u64(out, id)
        elif value is None or value == '':
            out_reserve(out, 14)
            put_u64(out, id)
            # not null: 4.0.5 crashes on that where it does not know the publisher
            put_u16(out, 0)
        else:
            try:
                text = PyUnicode_AsUTF8AndSize(value, &n)
            except UnicodeEncodeError as ex:
                raise ArgumentError(f'filter value is not valid Unicode: {ex}') from None
            if n > FILTER_MAX:
                raise ArgumentError(f'filter value of {n} bytes; the limit is {FILTER_MAX}')
            out_reserve(out, 14 + n)
            put_u64(out, id)
            put_u16(out, <uint16_t> n)
            put_bytes(out, text, n)
        at = out_size(out)
        out.p += 4
        if not self.amqp and type(message) is MessageCtx:
            message = (<MessageCtx> message).take_body()
        if self.amqp:
            encode_message(out, message)
        elif type(message) is bytes:
            n = PyBytes_GET_SIZE(message)
            out_reserve(out, n)
            put_bytes(out, PyBytes_AS_STRING(message), n)
        else:
            if not PyObject_CheckBuffer(message):
                raise ArgumentTypeError(
                    f'a publisher of raw messages takes bytes, not {type(message).__name__}'
                )
            try:
                PyObject_GetBuffer(message, &view, PyBUF_SIMPLE)
            except BufferError as ex:
                raise ArgumentTypeError(f'a raw message must be contiguous: {ex}') from None
            try:
                out_reserve(out, view.len)
                put_bytes(out, view.buf, view.len)
            finally:
                PyBuffer_Release(&view)
        n = out_size(out) - at - 4
        if n > UNLIMITED:
            raise PublisherError(f'message of {n} bytes is too long')
        store_u32(out.start + at, <uint32_t> n)
        return 0

    # -- the ring of entries

    cdef int _grow_ring(self) except -1:
        cdef uint64_t size = self.mask + 1
        cdef uint64_t i
        cdef Entry *ring = <Entry *> PyMem_Malloc(2 * size * sizeof(Entry))
        if ring is NULL:
            raise MemoryError
        for i in range(self.head, self.tail):
            ring[i & (2 * size - 1)] = self.ring[i & self.mask]
        PyMem_Free(self.ring)
        self.ring = ring
        self.mask = 2 * size - 1
        return 0

    cdef int _push(self, uint64_t id, Py_ssize_t start, Waiter waiter, uint32_t order) except -1:
        cdef Frame frame = self.open
        cdef Py_ssize_t size = out_size(&self.out) - start
        cdef Entry *entry
        if self.tail - self.head > self.mask:
            self._grow_ring()
        if frame.last is not waiter:
            frame.waiters.append(waiter)
            frame.last = waiter
        entry = &self.ring[self.tail & self.mask]
        entry.id = id
        entry.frame = <uint32_t> (self.frames_base + <uint64_t> len(self.frames))
        entry.start = <uint32_t> start
        entry.size = <uint32_t> size
        entry.waiter = <uint32_t> (len(frame.waiters) - 1)
        entry.order = order
        entry.settled = False
        self.tail += 1
        self.bytes_pushed += <uint64_t> size
        frame.count += 1
        frame.unsettled += 1
        waiter.remaining += 1
        return 0

    cdef int _repack(self, uint64_t first, list done) except -1:
        # Unsettled entries from `first` on move into new frames, ascending by id.
        cdef list old = self.frames
        cdef uint64_t old_base = self.frames_base
        cdef Py_ssize_t kept
        cdef uint64_t i, n = 0, released = 0
        cdef Entry *moved
        cdef Entry *entry
        cdef Frame source
        cdef Waiter waiter
        cdef list order
        if self.open is not None:
            if self.open.count:
                self._finish_frame()
            else:
                self.open = None
                out_discard(&self.out)
        if first == self.tail:
            return 0
        moved = <Entry *> PyMem_Malloc((self.tail - first) * sizeof(Entry))
        if moved is NULL:
            raise MemoryError
        try:
            for i in range(first, self.tail):
                entry = &self.ring[i & self.mask]
                if not entry.settled:
                    moved[n] = entry[0]
                    n += 1
                    if i < self.released_end:
                        released += 1
            order = list(range(n))
            if self.unsorted:
                order.sort(key=[moved[i].id for i in range(n)].__getitem__)
            kept = offset(self.ring[first & self.mask].frame, old_base)
            self.frames = old[:kept]
            self.tail = first
            self.sent = min(self.sent, first)
            self.cursor = min(self.cursor, first)
            self.next_frame = min(self.next_frame, old_base + <uint64_t> kept)
            if first == self.head:
                self.in_flight = 0
            self.unsorted = False
            for n, i in enumerate(order):
                if n == released:
                    self._mark_released()
                entry = &moved[i]
                source = <Frame> old[offset(entry.frame, old_base)]
                waiter = <Waiter> source.waiters[entry.waiter]
                if PREFIX - 4 + <Py_ssize_t> entry.size > self.frame_max:
                    waiter._refuse(entry.id, FRAME_TOO_LARGE, entry.order)
                    if waiter._settle(1):
                        done.append(waiter)
                    continue
                if self.open is not None and (
                    self.open.count >= self.frame_entries
                    or out_size(&self.out) - 4 + entry.size > self.frame_max
                ):
                    self._finish_frame()
                if self.open is None:
                    self._open_frame()
                out_reserve(&self.out, entry.size)
                put_bytes(&self.out, PyBytes_AS_STRING(source.data) + entry.start, entry.size)
                waiter.remaining -= 1       # _push counts it again
                self._push(
                    entry.id, out_size(&self.out) - entry.size, waiter, entry.order
                )
            if len(order) == <Py_ssize_t> released:
                self._mark_released()
        finally:
            PyMem_Free(moved)
        return 0

    cdef int _mark_released(self) except -1:
        # What a batched publisher released and what it did not never share a frame.
        if self.batched:
            if self.open is not None and self.open.count:
                self._finish_frame()
            self.released = self.frames_base + <uint64_t> len(self.frames)
            self.released_end = self.tail
        return 0

    # -- settling

    cdef Entry *_find(self, uint64_t id) noexcept:
        cdef uint64_t low = self.head, high = self.tail, middle
        cdef Entry *entry
        if self.cursor < self.tail:
            entry = &self.ring[self.cursor & self.mask]
            if entry.id == id:
                self.cursor += 1
                return entry
        if self.unsorted:
            for middle in range(self.head, self.tail):
                entry = &self.ring[middle & self.mask]
                if entry.id == id:
                    return entry
            return NULL
        while low < high:
            middle = low + (high - low) // 2
            entry = &self.ring[middle & self.mask]
            if entry.id < id:
                low = middle + 1
            elif entry.id > id:
                high = middle
            else:
                self.cursor = middle + 1
                return entry
        return NULL

    cdef int _settle(self, uint64_t id, int code, list done) except -1:
        cdef Entry *entry = self._find(id)
        cdef Py_ssize_t number
        cdef Frame frame
        cdef Waiter waiter
        # Unknown or settled: a late or a second confirm, e.g. of a deduplicated message.
        if entry is NULL or entry.settled:
            return 0
        number = offset(entry.frame, self.frames_base)
        if number >= <Py_ssize_t> (self.next_frame - self.frames_base):
            return 0
        entry.settled = True
        self.in_flight -= 1
        frame = <Frame> self.frames[number]
        waiter = <Waiter> frame.waiters[entry.waiter]
        frame.unsettled -= 1
        if frame.unsettled == 0:
            frame.data = None
            frame.waiters = None
        if code:
            waiter._refuse(id, code, entry.order)
        if waiter._settle(1):
            done.append(waiter)
        return 0

    cdef int _release(self) except -1:
        cdef Py_ssize_t n = 0
        while self.head < self.sent and self.ring[self.head & self.mask].settled:
            self.head += 1
        while n < <Py_ssize_t> (self.next_frame - self.frames_base):
            if (<Frame> self.frames[n]).unsettled:
                break
            n += 1
        if n:
            del self.frames[:n]
            self.frames_base += <uint64_t> n
        if self.cursor < self.head:
            self.cursor = self.head
        return 0

    cdef list confirm(self, const uint8_t *p, Py_ssize_t count):
        cdef list done = []
        cdef Py_ssize_t i
        for i in range(count):
            self._settle(load_u64(p + 8 * i), 0, done)
        self._release()
        return done

    cdef list refuse(self, const uint8_t *p, Py_ssize_t count):
        cdef list done = []
        cdef Py_ssize_t i
        cdef int code
        for i in range(count):
            code = load_u16(p + 10 * i + 8)
            if code == PUBLISHER_DOES_NOT_EXIST:
                self.gone = True        # what it refuses is sent again by the next one
            else:
                self._settle(load_u64(p + 10 * i), code, done)
        self._release()
        return done


cdef class BatchInput:
    """What a batch publisher does for each message; its fields are those of the publisher."""

    @cython.binding(False)
    def batch(self, message):
        """batch($self, message)\n--\n
        Encode a message and queue it; nothing leaves before `flush` or `close`.

        Never blocks.  Explicit publish ids may come in any order; `flush` sorts them.

        :param message: body, or context with a body; bytes if the publisher is not `amqp`.
        :raises AMQPEncoderError: the message has no AMQP 1.0 form; the batch is untouched.
        :raises ValueError: its explicit publish id is in the batch, or not above the last sent.
        :raises PublisherError: the publisher is closed, or the message fits no frame.
        """
        if self._closed or self._error is not None:
            self._check()
        self._window._append(message, self._waiter)
