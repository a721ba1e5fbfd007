# cython: language_level=3str
"""Properties that must hold for all messages and values."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp

from rbfly._wire cimport OutBuffer, out_fixed, out_size
from rbfly.amqp._codec cimport encode_message
from rbfly.amqp._message cimport Message

from rbfly.amqp import (
    AMQPHeader, AMQPProperties, DataBody, SequenceBody, decode_amqp, encode_amqp_bytes,
)
from rbfly.types import AMQPArray, Described, Symbol

# Space that the encoder may reserve beyond what it writes, see open_compound.
cdef enum:
    SLACK = 256
    APP_PROPERTIES = 4      # index of the section


class Finding(Exception):
    """A property was violated."""


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
    """Whether two values are equal, with equal types and order; a NaN equals a NaN."""
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
    if kind is AMQPHeader or kind is AMQPProperties:
        return same(a.__reduce__()[1], b.__reduce__()[1])
    return a == b


cdef int check_fixed(Message ctx, bytes expected, Py_ssize_t size) except -1:
    """Encode into exactly `size` bytes of memory: this gives the same bytes or a BufferError."""
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
                finding(f'{n} bytes do not fit in {size}')
        else:
            if out_size(&out) != n or memcmp(out.start, PyBytes_AS_STRING(expected), n) != 0:
                finding('encoding to a fixed buffer gives different bytes')
    finally:
        free(block)
    return 0


cdef Message rebuilt(Message ctx):
    """A context of the same parts that was not received: encoding it does not copy the message."""
    cdef int i
    return Message(ctx.take_body(), *[ctx.section(i) for i in range(6)])


cdef bint has_foreign_key(Message ctx) except -1:
    """Whether a section has a key that can only be received."""
    cdef int i
    for i in range(6):
        section = ctx.section(i)
        if type(section) is not dict:
            continue
        for key in section:
            if i == APP_PROPERTIES:
                if type(key) is not str or key != key.encode(errors='replace').decode():
                    return True
            elif type(key) is str:
                if not key.isascii():
                    return True
            elif type(key) is int:
                if not 0 <= key < 2**64:
                    return True
            elif type(key) is not Symbol:
                return True
    return False


cdef int check_round_trip(Message ctx) except -1:
    """Encode a decoded message: decoding returns the same values, encoding again the same bytes."""
    cdef Message again
    cdef bytes first
    cdef Py_ssize_t n
    cdef int i
    if encode_amqp_bytes(ctx) != ctx.raw:
        finding('a message that was not changed is not sent on as its bytes')
    if has_foreign_key(ctx):
        return 0
    ctx = rebuilt(ctx)
    first = encode_amqp_bytes(ctx)
    n = PyBytes_GET_SIZE(first)
    again = rebuilt(decode_amqp(first))
    if not same(ctx.take_body(), again.take_body()):
        finding(f'round trip changes body {ctx.body!r} to {again.body!r}')
    for i in range(6):
        if not same(ctx.section(i), again.section(i)):
            finding(f'round trip changes section {ctx.section(i)!r} to {again.section(i)!r}')
    if encode_amqp_bytes(again) != first:
        finding(f'encoding {first.hex()} again gives different bytes')
    # derive the size from the message, so that runs are reproducible
    check_fixed(ctx, first, n)
    check_fixed(ctx, first, n + SLACK)
    check_fixed(ctx, first, (n * PyBytes_AS_STRING(first)[n >> 1]) % n)
    return 0


cdef int check_position(object error, Py_ssize_t size) except -1:
    """Check that an AMQPDecoderError has a message and a position."""
    position = error.position
    if type(position) is not int or not 0 <= position <= size or not error.args[0]:
        finding(f'decoder error without a valid position: {error!r}, {position!r}')
    return 0
