# Python classes for AMQP types, and conversions of Python's own types.
# No ABI promise between releases.

cimport cython
from libc.stdint cimport int64_t, uint8_t

# Limits on nesting, on zero-width elements in a message, and on keys of a map with the same hash.
cdef enum:
    MAX_DEPTH = 100
    MAX_ZERO_WIDTH = 65536
    MAX_SAME_HASH = 64
    MAX_ITEMS = 1 << 28         # in a sequence other than list and tuple

cdef enum:
    SYMBOL_HASH = 0x53594d      # makes the hash of a symbol differ from that of its name


@cython.final
cdef class Symbol:
    cdef readonly str name
    cdef Py_hash_t _hash


@cython.final
cdef class Described:
    cdef readonly object descriptor, value


@cython.final
cdef class AMQPArray:
    cdef readonly type element_type
    cdef readonly tuple items, descriptors
    cdef int _code


cdef inline int set_name(Symbol symbol, str name) except -1:
    symbol.name = name
    symbol._hash = hash(name) ^ SYMBOL_HASH
    if symbol._hash == -1:
        symbol._hash = -2
    return 0


cdef inline Symbol new_symbol(str name):
    """Create a symbol from a name that is known to be ASCII."""
    cdef Symbol symbol = Symbol.__new__(Symbol)
    set_name(symbol, name)
    return symbol


# Classes of array elements by their wide constructor, and the reverse.
cdef dict ELEMENT_TYPES
cdef dict ELEMENT_CODES
# Constructors of classes that are not encoded like the Python type they inherit from.
cdef dict WIRE_CLASSES
# Classes that inherit from bytes but are not encoded as binary.
cdef tuple DECIMALS
cdef object DATETIME            # None until `datetime_class` has imported it
cdef object datetime_class()
cdef bint is_datetime(object value) except -1
cdef object element_class(int code)
cdef object UUID                # None until `uuid_class` has imported it
cdef object uuid_class()

cdef inline bint is_uuid(object value) except -1:
    return isinstance(value, uuid_class() if UUID is None else UUID)

cdef str clip(object value)
cdef str plain_text(object value)
cdef bytes plain_bytes(object value)
cdef bytes copy_buffer(object value)
cdef dict plain_dict(object value)
cdef list plain_list(object value)
cdef int64_t milliseconds(object value) except? -1
cdef object from_milliseconds(int64_t ms)
cdef object uuid_of(const uint8_t *p)
