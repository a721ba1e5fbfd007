# Properties that must hold for all messages and values.

from rbfly.amqp._message cimport Message

cdef bint same(object a, object b) except -1
cdef int check_round_trip(Message ctx) except -1
cdef int check_position(object error, Py_ssize_t size) except -1
cdef int finding(str problem) except -1
