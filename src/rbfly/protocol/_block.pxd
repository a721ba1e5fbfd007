from libc.stdint cimport uint8_t


cdef class Block:
    cdef uint8_t *start
    cdef Py_ssize_t capacity
    cdef Py_ssize_t size            # of its content

    cdef int grow(self, Py_ssize_t capacity) except -1

cdef Block new_block()
