from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rbfly._wire cimport OutBuffer, out_reserve, out_size, put_u64
from rbfly.amqp._codec cimport SHORT
from rbfly.protocol._entry cimport SubEntry, put_any_message, put_data_message
from rbfly.protocol._large cimport LargeBodies, is_large
from rbfly.protocol._pending cimport ConfirmWaiter
from rbfly.protocol._ring cimport Entry, Ids, Ring, entry_at, reach


cdef enum:
    PREFIX = 13             # bytes: size, key, version, publisher id, count
    MESSAGE_HEAD = 12       # bytes: publishing id, length

# Positions in a frame are stored as u32.
cdef enum:
    UNLIMITED = 0x7FFFFFFF


cdef class Frame:
    cdef bytes data                 # without its large bodies
    cdef LargeBodies large          # None for none
    cdef bint spare                 # `data` is from `finish_spare`
    cdef list waiters               # of simple entries; SubEntrySpan of sub-entries
    cdef ConfirmWaiter last         # last item of `waiters`; None behind a span
    cdef uint32_t number            # modulo 2**32
    cdef uint32_t last_index        # of `last` in `waiters`
    cdef Py_ssize_t count           # messages
    cdef Py_ssize_t entries
    cdef Py_ssize_t unsettled       # entries
    cdef uint64_t sent_at           # nanoseconds; 0 if its confirm is not timed


cdef inline Py_ssize_t offset(uint32_t number, uint64_t base) noexcept:
    # Index of a frame in a list that begins with frame `base`.
    return <Py_ssize_t> <uint32_t> (number - <uint32_t> base)


cdef class FrameBuilder:
    cdef readonly uint8_t publisher_id
    cdef readonly uint64_t next_id
    cdef readonly Py_ssize_t queued, frame_max, max_unconfirmed, frame_entries
    cdef object filter_extract
    cdef readonly bint amqp
    cdef readonly object encode     # encodes bodies to bytes; None for none
    cdef bint busy
    cdef bint plain                 # neither sub-entries, nor filter values, nor `encode`
    # How many short messages the open frame certainly takes, and where the last one may start if
    # it is empty; 0 if unknown.
    cdef Py_ssize_t room
    cdef uint8_t *room_end
    # The same of the open sub-entry.
    cdef Py_ssize_t sub_entry_room
    cdef uint8_t *sub_entry_room_end
    cdef Ids used                   # up to the highest one used so far
    cdef Py_ssize_t capacity_hint
    cdef SubEntry sub_entry         # messages of the open sub-entry, in no frame yet; or None
    cdef uint64_t sub_entry_id
    cdef list sub_entry_spans
    cdef OutBuffer out              # the open frame, without its large bodies
    cdef Py_ssize_t out_max         # limit of its size field
    cdef Py_ssize_t sub_entry_max   # size of a sub-entry's messages
    cdef Py_ssize_t data_max        # size of the longest data body that needs no `put_special`
    cdef Frame open
    cdef list frames                # finished frames that are not settled, in order
    cdef uint64_t frames_base       # number of frames[0]
    cdef Ring ring
    cdef uint64_t bytes_encoded     # in total

    cdef int _set_frame_max(self, Py_ssize_t frame_max) except -1
    cdef int _enter(self) except -1
    cdef uint64_t _append(self, object message, ConfirmWaiter waiter) except? 0xdead
    cdef bint _append_ready(self, object message, PyObject *waiter) noexcept
    cdef bint _append_to_ready_sub_entry(self, object message, PyObject *waiter) noexcept
    cdef int _append_first(self, object message, ConfirmWaiter waiter) except -1
    cdef uint64_t _append_to_sub_entry(self, object message, ConfirmWaiter waiter) except? 0xdead
    cdef int _close_sub_entry(self, Py_ssize_t used) except -1
    cdef int _put_sub_entry(
        self, SubEntry sub_entry, Py_ssize_t used, Py_ssize_t size, uint64_t id, list spans
    ) except -1
    cdef Py_ssize_t _add_large(
        self, object body, Py_ssize_t start, ConfirmWaiter waiter
    ) except -1
    cdef Frame _new_frame(self)
    cdef int _check_explicit(self, uint64_t id) except -1
    cdef object _filter_value(self, object message)
    cdef int _open_frame(self) except -1
    cdef int _move_entry(self, Py_ssize_t start) except -1
    cdef int _reserve(self, Py_ssize_t size, Py_ssize_t count) except -1
    cdef int _close_open(self) except -1
    cdef int _finish_frame(self) except -1
    cdef int _add_waiter(self, ConfirmWaiter waiter) except -1
    cdef int _add_sub_entry(self, uint64_t id, Py_ssize_t start, list spans) except -1


cdef inline bint is_short(object message) noexcept:
    return type(message) is bytes and PyBytes_GET_SIZE(message) <= SHORT


# The same as `_append`, but faster for short messages that follow each other.
cdef inline int append_next(
    FrameBuilder builder, object message, ConfirmWaiter waiter
) except -1:
    if not is_short(message):
        builder._append(message, waiter)
    elif not builder._append_ready(message, <PyObject *> waiter):
        builder._append_first(message, waiter)
    return 0


# Note that the open frame has an entry with an id.
cdef inline int use_id(FrameBuilder builder, uint64_t id) except -1:
    reach(&builder.used, id)
    if id >= builder.next_id:
        builder.next_id = id + (id + 1 != 0)    # the highest one has no successor
    return 0


# Append filter value and message, for `put_entry`: of a publisher that is not plain, or large.
cdef int put_special(FrameBuilder builder, object message, object value) except -1


# Append publishing id, filter value and message to the open frame.  Return 1 if the body is large
# and `_add_large` has to add it.  On an error, the caller rolls back.
cdef inline int put_entry(
    FrameBuilder builder, uint64_t id, object message, object value
) except -1:
    cdef OutBuffer *out = &builder.out
    cdef Py_ssize_t limit
    out_reserve(out, 8)
    put_u64(out, id)
    if not builder.plain:
        return put_special(builder, message, value)
    if type(message) is not bytes or not builder.amqp:
        limit = builder.frame_max - (PREFIX - 4) - MESSAGE_HEAD
        if is_large(message):
            return put_special(builder, message, value)
        return put_any_message(out, message, builder.amqp, limit)
    if PyBytes_GET_SIZE(message) > builder.data_max:
        return put_special(builder, message, value)
    return put_data_message(out, message)


# Add the entry from `start` to the end of the open frame; the ring has space.
cdef inline Entry *add_entry(
    FrameBuilder builder, uint64_t id, Py_ssize_t start, Py_ssize_t count
) noexcept:
    cdef Entry *entry = entry_at(&builder.ring, builder.ring.tail)
    entry.id = id
    entry.frame = builder.open.number
    entry.start = <uint32_t> start
    entry.size = <uint32_t> (out_size(&builder.out) - start)
    entry.state = 0
    builder.ring.tail += 1
    builder.open.entries += 1
    builder.open.unsettled += 1
    builder.open.count += count
    return entry


cdef inline int add_simple(
    FrameBuilder builder, uint64_t id, Py_ssize_t start, ConfirmWaiter waiter, uint32_t order
) except -1:
    cdef Entry *entry
    if builder.open.last is not waiter:
        builder._add_waiter(waiter)
    entry = add_entry(builder, id, start, 1)
    entry.waiter = builder.open.last_index
    entry.order = order
    entry.spans = 0
    return 0
