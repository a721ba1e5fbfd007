# cython: language_level=3str
"""What must hold of messages and values, whatever they were made of."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp

from rbfly._wire cimport OutBuffer, out_fixed, out_size
from rbfly.amqp._codec cimport encode_message
from rbfly.amqp._message cimport MessageCtx

from rbfly.amqp import AMQPProperties, DataBody, SequenceBody, decode_amqp, encode_amqp_bytes
from rbfly.types import AMQPArray, Described

# What the encoder may ask for beyond the bytes that it leaves: see open_compound.
cdef enum:
    SLACK = 256


class Finding(Exception):
    """A property that does not hold."""


cdef int finding(str problem) except -1:
    raise Finding(problem)


cdef bint same_items(object a, object b) except -1:
    if len(a) != len(b):
        return False
    for x, y in zip(a, b):
        if not same(x, y):
            return False
    return True


cdef bint same(object a, object b) except -1:
    """Equal, of one type and in one order; a NaN is equal to a NaN."""
    cdef double x, y
    kind = type(a)
    if kind is not type(b):
        return False
    if kind is float:
        x = a
        y = b
        return memcmp(&x, &y, sizeof(double)) == 0 or (x != x and y != y)
    if kind is list or kind is tuple:
        return same_items(a, b)
    if kind is dict:
        return same_items(list(a), list(b)) and same_items(list(a.values()), list(b.values()))
    if kind is Described:
        return same(a.descriptor, b.descriptor) and same(a.value, b.value)
    if kind is AMQPArray:
        return (
            a.element_type is b.element_type
            and same(a.items, b.items)
            and same(a.descriptors, b.descriptors)
        )
    if kind is DataBody or kind is SequenceBody:
        return same(list(a.sections), list(b.sections))
    if kind is AMQPProperties:
        return (
            a == b
            and type(a.message_id) is type(b.message_id)
            and type(a.correlation_id) is type(b.correlation_id)
        )
    return a == b


cdef int check_fixed(MessageCtx ctx, bytes expected, Py_ssize_t size) except -1:
    """Encode into memory of exactly `size` bytes: the same bytes, or a BufferError."""
    cdef OutBuffer out
    cdef Py_ssize_t n = PyBytes_GET_SIZE(expected)
    cdef uint8_t *block = <uint8_t *> malloc(size if size > 0 else 1)
    if block is NULL:
        raise MemoryError
    try:
        out_fixed(&out, block + (0 if size > 0 else 1), size)
        try:
            encode_message(&out, ctx)
        except BufferError:
            if size >= n + SLACK:
                finding(f'{n} bytes do not fit into {size}')
        else:
            if out_size(&out) != n or memcmp(out.start, PyBytes_AS_STRING(expected), n) != 0:
                finding('a message is written differently into a fixed buffer')
    finally:
        free(block)
    return 0


cdef int check_round_trip(MessageCtx ctx) except -1:
    """A decoded message is encoded, decoded to the same values, and encoded to the same bytes."""
    cdef MessageCtx again
    cdef bytes first = encode_amqp_bytes(ctx)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(first)
    cdef int i
    again = decode_amqp(first)
    if not same(ctx.take_body(), again.take_body()):
        finding(f'a body of {ctx.body!r} comes back as {again.body!r}')
    for i in range(6):
        if not same(ctx.section(i), again.section(i)):
            finding(f'a section of {ctx.section(i)!r} comes back as {again.section(i)!r}')
    if encode_amqp_bytes(again) != first:
        finding(f'{first.hex()} is encoded differently the second time')
    # a size that follows from the bytes, so that an input does the same each time
    check_fixed(ctx, first, n)
    check_fixed(ctx, first, n + SLACK)
    check_fixed(ctx, first, (n * PyBytes_AS_STRING(first)[n >> 1]) % n)
    return 0


cdef int check_position(object error, Py_ssize_t size) except -1:
    """An AMQPDecoderError tells what is wrong and where."""
    position = error.position
    if type(position) is not int or not 0 <= position <= size or not error.args[0]:
        finding(f'a decoder error without position: {error!r}, {position!r}')
    return 0
