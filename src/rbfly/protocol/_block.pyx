"""Memory of large received frames, which later frames use again.

The kernel maps and clears each page of fresh memory when it is first written, which takes as long
as receiving the data.  The memory of a block is free when the object is: no chunk and no view of a
message refers to it.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport uint8_t

cdef enum:
    SMALLEST = 1 << 20          # bytes
    SPARES = 16                 # a subscription has 10 chunks in flight by default
    SPARE_MAX = 1 << 24         # bytes of all spare memory of the process

cdef struct Spare:
    uint8_t *start
    Py_ssize_t capacity

cdef Spare SPARE[SPARES]        # a stack: the last one is in the caches of the processor
cdef int spare_count = 0
cdef Py_ssize_t spare_size = 0


cdef Block new_block():
    """Return a block of 1 MiB or more, with any content."""
    global spare_count, spare_size
    cdef Block block = Block.__new__(Block)
    if spare_count:
        spare_count -= 1
        block.start = SPARE[spare_count].start
        block.capacity = SPARE[spare_count].capacity
        spare_size -= block.capacity
    else:
        block.start = <uint8_t *> PyMem_Malloc(SMALLEST)
        if block.start is NULL:
            raise MemoryError
        block.capacity = SMALLEST
    return block


@cython.final
cdef class Block:
    """A read-only buffer of `size` bytes."""

    def __dealloc__(self):
        global spare_count, spare_size
        if self.start is NULL:
            return
        if spare_count < SPARES and spare_size + self.capacity <= SPARE_MAX:
            SPARE[spare_count] = Spare(self.start, self.capacity)
            spare_count += 1
            spare_size += self.capacity
        else:
            PyMem_Free(self.start)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if flags & PyBUF_WRITABLE:
            raise BufferError('received messages are read-only')
        view.obj = self
        view.buf = self.start
        view.len = self.size
        view.readonly = True
        view.itemsize = view.ndim = 1
        view.format = b'B'
        view.shape = &view.len
        view.strides = &view.itemsize
        view.suboffsets = NULL
        view.internal = NULL

    cdef int grow(self, Py_ssize_t capacity) except -1:
        """Add memory, before anything refers to the block."""
        cdef void *start = PyMem_Realloc(self.start, capacity)
        if start is NULL:
            raise MemoryError
        self.start = <uint8_t *> start
        self.capacity = capacity
        return 0
