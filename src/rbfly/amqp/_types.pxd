# Python classes of AMQP types, and conversions of Python's own ones.
# No ABI promise between releases.

cimport cython
from libc.stdint cimport int64_t, uint8_t

# Compounds and described values in one another, and elements without bytes in one message.
cdef enum:
    MAX_DEPTH = 100
    MAX_ZERO_WIDTH = 65536
    MAX_ITEMS = 1 << 28         # of a sequence that is no list or tuple

cdef enum:
    SYMBOL_HASH = 0x53594d      # a symbol does not hash as its name does


@cython.final
cdef class Symbol:
    cdef readonly str name
    cdef Py_hash_t _hash


@cython.final
cdef class Described:
    cdef readonly object descriptor
    cdef readonly object value


@cython.final
cdef class AMQPArray:
    cdef readonly type element_type
    cdef readonly tuple items
    cdef readonly tuple descriptors
    cdef int _code


cdef inline Symbol new_symbol(str name):
    """A symbol whose name is known to be ASCII."""
    cdef Symbol symbol = Symbol.__new__(Symbol)
    symbol.name = name
    symbol._hash = hash(name) ^ SYMBOL_HASH
    if symbol._hash == -1:
        symbol._hash = -2
    return symbol


# Classes of array elements by their wide constructor, and constructors by class.
cdef dict ELEMENT_TYPES
cdef dict ELEMENT_CODES
# Constructors of classes that are not written as the Python type that they inherit from.
cdef dict WIRE_CLASSES
# They inherit from bytes and are none.
cdef tuple DECIMALS

cdef str clip(object value)
cdef str plain_text(object value)
cdef bytes plain_bytes(object value)
cdef bytes copy_buffer(object value)
cdef dict plain_dict(object value)
cdef list plain_list(object value)
cdef int64_t milliseconds(object value) except? -1
cdef object from_milliseconds(int64_t ms)
cdef object class_of(int code)
cdef bint is_uuid(object value) except -1
cdef object uuid_of(const uint8_t *p)
