# cython: language_level=3str
"""Target: decode arbitrary bytes as a message."""

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t

from fuzz.checks cimport check_position, check_round_trip, finding, same
from rbfly.amqp._codec cimport decode_body
from rbfly.amqp._message cimport Message

from rbfly.amqp import decode_amqp
from rbfly.amqp._lookup import find_text
from rbfly.error import AMQPDecoderError

KEY = 'k'       # short enough for the fuzzer to find

cdef extern from 'Python.h':
    Py_ssize_t Py_REFCNT(PyObject *o) noexcept


cdef int check_view(object view, Py_ssize_t size, object body) except -1:
    """Check body_view() of a context that has not decoded its body."""
    try:
        body_bytes = decode_amqp(view).body_view()
    except TypeError:
        if isinstance(body, bytes):
            finding('body_view() rejects a binary body')
    else:
        if not isinstance(body, bytes) or body_bytes != body:
            finding(f'body_view() returns {bytes(body_bytes)!r} for body {body!r}')
    return 0


cdef int check_message(object view, const uint8_t *data, Py_ssize_t size) except -1:
    cdef Message ctx
    cdef bint has_body = True
    cdef bint has_sections = True
    cdef int i
    body = None
    try:
        body = decode_body(data, size)
    except AMQPDecoderError as ex:
        check_position(ex, size)
        has_body = False
    try:
        ctx = decode_amqp(view)
    except AMQPDecoderError as ex:
        check_position(ex, size)
        if has_body:
            finding('decode_amqp rejects what decode_body accepts')
        return 0
    text = find_text(ctx, KEY)
    for i in range(6):
        try:
            ctx.section(i)
        except AMQPDecoderError as ex:
            check_position(ex, size)
            has_sections = False
    try:
        other = ctx.take_body()
    except AMQPDecoderError as ex:
        check_position(ex, size)
        if has_body:
            finding('the context rejects the body that decode_body accepts')
        return 0
    if not has_body or not same(body, other):
        finding(f'decode_body returns {body!r}, but the context has {other!r}')
    if has_sections:
        if find_text(ctx, KEY) != text:
            finding(f'find_text returns {text!r}, but {find_text(ctx, KEY)!r} of decoded sections')
        check_round_trip(ctx)
    check_view(view, size, body)
    if size & 7 == 0 and has_sections:
        repr(ctx)
        if ctx.raw != view:
            finding('raw differs from the input')
    return 0


cdef api int target(const uint8_t *data, Py_ssize_t size) except -1:
    view = PyMemoryView_FromMemory(<char *> data, size, PyBUF_READ)
    check_message(view, data, size)
    if Py_REFCNT(<PyObject *> view) != 1:
        finding('an object still holds a reference to the input')
    return 0
