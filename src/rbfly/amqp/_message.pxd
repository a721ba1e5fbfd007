# The message context.  No ABI promise between releases.

from libc.stdint cimport uint8_t, uint64_t

from rbfly.amqp._layout cimport Sections


cdef class Message:
    # Read the body with take_body().  `_body` is valid if `_body_ready` is set; otherwise the body
    # is decoded from the bytes at `_p`, which `_owner` keeps alive.  `_body_at` is -1 if the
    # program has set the body.  `_plan` has decoded it to a type of the program; an unpickled
    # message has the body's `encoded_form` instead, see `_codec.pyx`; else it is None.
    cdef object _body
    cdef object _owner
    cdef str _stream
    cdef Sections _sections
    cdef object _plan
    cdef const uint8_t *_p
    cdef Py_ssize_t _n
    cdef Py_ssize_t _body_at
    cdef uint64_t _offset
    cdef double _timestamp
    cdef uint64_t _publish_id
    cdef public bint is_set_stream_publish_id
    cdef bint _body_ready

    cdef object take_body(self)
    cdef object data_view(self)
    cdef object section(self, int index)
    cdef object peek(self, int index)


# A message without a body, which is cheaper than Message.__new__.
cdef Message new_message()

# The arguments of `restore_message`; `encoded_form` is that of a body which is as received.
cdef tuple state_of(Message ctx, object encoded_form)

# A part of the bytes that `owner`, bytes or a memoryview, keeps alive.
cdef object view_of(object owner, const uint8_t *p, Py_ssize_t n)

# The context that `set_message_ctx` has set last, in any task.
cdef object LAST_SET
