# cython: language_level=3str
"""Target: any bytes as a message."""

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t

from fuzz.checks cimport check_position, check_round_trip, finding, same
from rbfly.amqp._codec cimport decode_body
from rbfly.amqp._message cimport MessageCtx

from rbfly.amqp import decode_amqp
from rbfly.error import AMQPDecoderError

cdef extern from 'Python.h':
    Py_ssize_t Py_REFCNT(PyObject *o) noexcept


cdef int check_view(object view, Py_ssize_t size, object body) except -1:
    """The body without copying it, from a context that has not decoded it yet."""
    try:
        found = decode_amqp(view).body_view()
    except TypeError:
        if isinstance(body, bytes):
            finding('a binary body has no view')
    else:
        if not isinstance(body, bytes) or found != body:
            finding(f'the view of {body!r} holds {bytes(found)!r}')
    return 0


cdef int check_message(object view, const uint8_t *data, Py_ssize_t size) except -1:
    cdef MessageCtx ctx
    cdef bint readable = True
    cdef bint whole = True
    cdef int i
    body = None
    try:
        body = decode_body(data, size)
    except AMQPDecoderError as ex:
        check_position(ex, size)
        readable = False
    try:
        ctx = decode_amqp(view)
    except AMQPDecoderError as ex:
        check_position(ex, size)
        if readable:
            finding('decode_amqp refuses what decode_body reads')
        return 0
    for i in range(6):
        try:
            ctx.section(i)
        except AMQPDecoderError as ex:
            check_position(ex, size)
            whole = False
    try:
        other = ctx.take_body()
    except AMQPDecoderError as ex:
        check_position(ex, size)
        if readable:
            finding('a context has no body where decode_body reads one')
        return 0
    if not readable or not same(body, other):
        finding(f'decode_body reads {body!r}, a context {other!r}')
    if whole:
        check_round_trip(ctx)
    check_view(view, size, body)
    if size & 7 == 0 and whole:
        repr(ctx)
        if ctx.raw != view:
            finding('raw is not what was decoded')
    return 0


cdef api int target(const uint8_t *data, Py_ssize_t size) except -1:
    view = PyMemoryView_FromMemory(<char *> data, size, PyBUF_READ)
    check_message(view, data, size)
    if Py_REFCNT(<PyObject *> view) != 1:
        finding('something still holds the input')
    return 0
