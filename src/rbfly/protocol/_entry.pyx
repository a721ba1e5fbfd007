"""Encodes one entry of a Publish frame.

    message      length u32 (bit 31 = 0) | bytes
    sub-entry    u8 (0x80 | compression << 4) | count u16 | size u32 | stored size u32 | messages

SubEntry collects messages until the sub-entry is full, then compresses them together.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memmove

from rbfly._wire cimport (
    OutBuffer, out_discard, out_open, out_reserve, out_size, put_bytes, put_u8, put_u16, put_u32,
    store_u32,
)
from rbfly.amqp._codec cimport encode_message
from rbfly.amqp._message cimport Message, new_message
from rbfly.amqp._path cimport name_part
from rbfly.amqp._types cimport clip

from rbfly.error import (
    AMQPEncoderTypeError, AMQPEncoderValueError, ArgumentError, ArgumentTypeError, MessageTooLarge,
)


cdef enum:
    FILTER_MAX = 0xFFFE
    RECORDS_MAX = 0xFFFF
    SLACK = 1 << 20         # unused bytes that `trim` does not free
    FIRST = 1 << 10

# Called without exception propagation: the caller adds to the error.
ctypedef int (*raw_encode_message)(OutBuffer *out, object message) noexcept


cdef int fail_long(str size, Py_ssize_t limit) except -1:
    limit = max(limit, 0)       # negative if frame_max is only a few bytes
    raise MessageTooLarge(f'a message of {size} does not fit into a frame;'
                          f' the limit is {limit} bytes')


cdef int refuse_long(object message, Py_ssize_t limit) except -1:
    # Refuse a message that is too long before copying it.
    cdef object body = message
    cdef Py_ssize_t size
    if type(message) is Message and (<Message> message)._body_ready:
        body = (<Message> message)._body
    if isinstance(body, (bytes, str, bytearray)):
        size = len(body)        # a str has at least as many bytes as characters
    elif isinstance(body, memoryview):
        size = body.nbytes
    else:
        return 0
    if size > limit:
        fail_long(f'{size} bytes', limit)
    return 0


cdef int put_any_message(
    OutBuffer *out, object message, bint amqp, Py_ssize_t limit
) except -1:
    cdef Py_ssize_t at = out_size(out)
    cdef Py_ssize_t n
    cdef Py_buffer view
    if type(message) is bytes:
        if PyBytes_GET_SIZE(message) > limit:
            refuse_long(message, limit)
    elif type(message) is not dict and type(message) is not int:
        refuse_long(message, limit)
        if not amqp and type(message) is Message:
            message = (<Message> message).take_body()
    out_reserve(out, 4)
    out.p += 4
    if amqp:
        if (<raw_encode_message> encode_message)(out, message) < 0:
            name_part(message)
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
    if n > limit:
        fail_long(f'{n} bytes with its headers', limit)
    store_u32(out.start + at, <uint32_t> n)
    return 0


cdef int put_custom(OutBuffer *out, object message, object encode, Py_ssize_t limit) except -1:
    if type(message) is Message:
        return put_message(out, with_encoded_body(message, encode), True, limit)
    return put_message(out, encoded_body(encode, message), True, limit)


cdef Message with_encoded_body(Message received, object encode):
    cdef Message made
    made = new_message()
    made._body = encoded_body(encode, received.take_body())
    made._body_ready = True
    made._body_at = -1
    made._owner = received._owner
    made._p = received._p
    made._n = received._n
    made._sections = received._sections
    return made


cdef bytes encoded_body(object encode, object body):
    try:
        data = encode(body)
    except MemoryError:
        raise
    except Exception as ex:
        raise AMQPEncoderValueError(
            f'the codec cannot encode {clip(body)}: {type(ex).__name__}: {ex}'
        ) from ex
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise AMQPEncoderTypeError(
            f'the codec must return bytes for a body, not {type(data).__name__}'
        )
    return bytes(data)


cdef int put_filter(OutBuffer *out, object value) except -1:
    cdef Py_ssize_t n = 0
    cdef const char *text = NULL
    if value is not None:
        try:
            text = PyUnicode_AsUTF8AndSize(value, &n)
        except UnicodeEncodeError as ex:
            raise ArgumentError(f'filter value is not valid Unicode: {ex}') from None
        if n > FILTER_MAX:
            raise ArgumentError(f'filter value of {n} bytes; the limit is {FILTER_MAX}')
    out_reserve(out, 2 + n)
    # Not null for None: on that, 4.0.5 crashes if it does not know the publisher.
    put_u16(out, <uint16_t> n)
    if n:
        put_bytes(out, text, n)
    return 0


cdef int trim(OutBuffer *out) except -1:
    cdef Py_ssize_t used = out_size(out)
    cdef OutBuffer large = out[0]
    if out.end - out.p < SLACK:
        return 0
    try:
        out_open(out, used + FIRST)
    except MemoryError:
        out[0] = large
        return 0
    put_bytes(out, large.start, used)
    out_discard(&large)
    return 0


@cython.final
cdef class SubEntry:
    """Messages that share a publishing id.

    :param limit: maximum number of messages, 1 to 65535.
    :param code: the protocol's code of the compression.
    :param compress: returns compressed bytes of a memoryview; None for no compression.
    :param encode: encodes the body of each message to bytes; None for AMQP 1.0 values.
    """

    def __init__(self, Py_ssize_t limit, uint8_t code=0, compress=None, encode=None):
        if not 1 <= limit <= RECORDS_MAX:
            raise ArgumentError(f'sub_entry_size must be from 1 to {RECORDS_MAX}, not {limit}')
        self.limit = limit
        self.code = code
        self.compress = compress
        self.encode = encode
        out_open(&self.out, FIRST)

    def __dealloc__(self):
        out_discard(&self.out)

    cdef Py_ssize_t _put(self, object message, bint amqp, Py_ssize_t limit) except -1:
        # Returns the position of the message, which the caller counts.  On an error, rolls back.
        cdef Py_ssize_t start = out_size(&self.out)
        try:
            if self.encode is None:
                put_message(&self.out, message, amqp, limit)
            else:
                put_custom(&self.out, message, self.encode, limit)
        except BaseException:
            self.out.p = self.out.start + start
            trim(&self.out)
            raise
        return start

    cdef bytes _compressed(self, Py_ssize_t size, Py_ssize_t limit):
        # None unless the result is below the limit.  The compressor must not keep the memoryview.
        cdef bytes stored
        if self.compress is None:
            return None
        stored = self.compress(PyMemoryView_FromMemory(<char *> self.out.start, size, PyBUF_READ))
        return stored if stored is not None and PyBytes_GET_SIZE(stored) < limit else None

    cdef Py_ssize_t _close(self, Py_ssize_t used) except -1:
        # Compress the first `used` bytes, all of its messages, if that makes the entry smaller.
        # Returns the size of the entry without its publishing id.
        cdef Py_ssize_t plain = used
        if self.count > 1:          # a single uncompressed message is a simple entry
            plain += SUB_HEADER
        self.stored = self._compressed(used, plain - SUB_HEADER)
        return plain if self.stored is None else SUB_HEADER + PyBytes_GET_SIZE(self.stored)

    cdef int _write(self, OutBuffer *out, Py_ssize_t used) except -1:
        # Append the closed entry, for which there is space, to its publishing id.
        cdef const char *data = <const char *> self.out.start
        cdef Py_ssize_t size = used
        if self.stored is not None:
            data = PyBytes_AS_STRING(self.stored)
            size = PyBytes_GET_SIZE(self.stored)
        if self.count > 1 or self.stored is not None:
            put_u8(out, 0x80 | (0 if self.stored is None else self.code << 4))
            put_u16(out, <uint16_t> self.count)
            put_u32(out, <uint32_t> used)
            put_u32(out, <uint32_t> size)
        put_bytes(out, data, size)
        return 0

    cdef int _drop(self, Py_ssize_t size) except -1:
        # Remove the first `size` bytes.
        cdef Py_ssize_t left = out_size(&self.out) - size
        self.stored = None
        if left:
            memmove(self.out.start, self.out.start + size, left)
        self.out.p = self.out.start + left
        self.count = 0
        return 0
