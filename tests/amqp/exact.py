"""Input in memory of exactly its size: under AddressSanitizer a read of one byte more is an error.

`bytes` have a NUL behind their end that hides such a read.
"""

import ctypes
import weakref

libc = ctypes.CDLL(None)
libc.malloc.argtypes = [ctypes.c_size_t]
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.free.restype = None


def exact(data: bytes) -> memoryview:
    """A read-only view of a copy of the data, which is freed with the last view of it."""
    size = len(data)
    block = libc.malloc(max(size, 1))
    if not block:
        raise MemoryError
    # nothing lies behind the only byte of its block that an empty input could read
    array = (ctypes.c_ubyte * size).from_address(block if size else block + 1)
    weakref.finalize(array, libc.free, block).atexit = False
    ctypes.memmove(array, data, size)
    return memoryview(array).cast('B').toreadonly()
