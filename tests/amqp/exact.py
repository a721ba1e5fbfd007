"""Put input into memory of exactly its size, so that AddressSanitizer detects reads past its end.

A NUL follows the data of `bytes`, which hides such reads.
"""

import ctypes
import weakref

libc = ctypes.CDLL(None)
libc.malloc.argtypes = [ctypes.c_size_t]
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.free.restype = None


def exact(data: bytes) -> memoryview:
    """Copy data; return a read-only view that frees the copy when the last view is gone."""
    size = len(data)
    block = libc.malloc(max(size, 1))
    if not block:
        raise MemoryError
    # an empty input points past the only byte of its block, so that any read is detected
    array = (ctypes.c_ubyte * size).from_address(block if size else block + 1)
    weakref.finalize(array, libc.free, block).atexit = False
    ctypes.memmove(array, data, size)
    return memoryview(array).cast('B').toreadonly()
