from cpython.object cimport PyObject

from rbfly._wire cimport OutBuffer


cdef enum:
    SPARE_SIZE = 288 << 10      # bytes: what `extend` encodes before it returns, and a message

# Open a buffer of SPARE_SIZE bytes.
cdef int open_spare(OutBuffer *out) except -1

# Close such a buffer, and return the written bytes.
cdef bytes finish_spare(OutBuffer *out)

# Keep the memory of what `finish_spare` has returned, if there is one reference to it, which the
# caller drops without looking at it again.
cdef bint keep_spare(PyObject *data) noexcept
