from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t

from rbfly._cpython cimport rbfly_bytes
from rbfly.amqp._codec cimport decode_body, decode_context
from rbfly.amqp._layout cimport DATA, data_head
from rbfly.amqp._message cimport Message
from rbfly.amqp._plan cimport Plan

cdef extern from *:
    """
    #ifndef RBFLY_DECODER_H
    #define RBFLY_DECODER_H
    /* Take over a reference. */
    #define rbfly_steal(found) (found)
    #endif
    """
    object rbfly_steal(PyObject *found)

# `decode_body`, but returns NULL with an exception set: cheaper than try and except.
ctypedef PyObject *(*raw_decode_body)(const uint8_t *p, Py_ssize_t n) noexcept

cdef class Decoder

# The body or the context of a message that is plain bytes, a view, or of a requested type.
cdef object special(Decoder decoder, object owner, const uint8_t *p, Py_ssize_t n)
cdef Message special_context(
    Decoder decoder, object owner, const uint8_t *p, Py_ssize_t n, uint64_t offset,
    int64_t timestamp,
)
ctypedef PyObject *(*raw_special)(
    Decoder decoder, object owner, const uint8_t *p, Py_ssize_t n
) noexcept

# What to do with a message that is not AMQP 1.0.
cdef enum:
    RAISE, SKIP, RAW

# The context of a message that was received as plain bytes, which are its body.
cdef Message raw_context(object body, uint64_t offset, int64_t timestamp)


cdef class Decoder:
    cdef readonly bint amqp
    cdef readonly Plan plan         # of the requested type or codec; None for none
    cdef bint copies                # binary bodies are bytes; if false, views
    cdef bint plain                 # AMQP 1.0 without a plan, copied
    cdef int policy

    # A context whose body is the bytes of a message that cannot be decoded, and is sent on as such.
    cdef Message _undecodable_context(
        self, const uint8_t *p, Py_ssize_t n, uint64_t offset, int64_t timestamp
    )
    # The error of a message that does not have the requested type; None if it has.
    cdef object _type_error(self, const uint8_t *p, Py_ssize_t n)
    cdef object _undecodable(self, const uint8_t *p, Py_ssize_t n, uint64_t offset, str stream)
    cdef object _handle(
        self, object error, const uint8_t *p, Py_ssize_t n, uint64_t offset, str stream
    )

    # The body of a message, without the shortcut for data; NULL with an exception set.
    cdef inline PyObject *_decode(self, const uint8_t *p, Py_ssize_t n, object owner) noexcept:
        if self.plain:
            return (<raw_decode_body> decode_body)(p, n)
        return (<raw_special> special)(self, owner, p, n)

    # The body of a message; NULL with an exception set.  `owner` keeps its bytes alive, even if a
    # finalizer that runs meanwhile goes on reading.
    cdef inline PyObject *_body(self, const uint8_t *p, Py_ssize_t n, PyObject *owner) noexcept:
        cdef bint plain = self.plain
        cdef Py_ssize_t head = data_head(p, n) if plain else 0
        cdef object _owner
        if head:
            return rbfly_bytes(p + head, n - head)
        _owner = <object> owner
        if plain:
            return (<raw_decode_body> decode_body)(p, n)
        return (<raw_special> special)(self, _owner, p, n)

    cdef inline Message _context(
        self, object owner, const uint8_t *p, Py_ssize_t n, uint64_t offset, int64_t timestamp
    ):
        if self.plain:
            return decode_context(owner, p, n, offset, timestamp / 1000.0)
        return special_context(self, owner, p, n, offset, timestamp)

    # A context whose body is decodable: only data is checked when a context is created.
    cdef inline Message _full_context(
        self, object owner, const uint8_t *p, Py_ssize_t n, uint64_t offset, int64_t timestamp
    ):
        cdef Message ctx = self._context(owner, p, n, offset, timestamp)
        if self.plan is None and not ctx._body_ready and ctx._p[ctx._body_at + 2] != DATA:
            ctx.take_body()
        return ctx
