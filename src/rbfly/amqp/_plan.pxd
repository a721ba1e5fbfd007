# How to decode values of a type.  No ABI promise between releases.

from cpython.object cimport PyObject
from libc.stdint cimport uint8_t


# How to decode a value.
cdef enum:
    ANY, NULL_, BOOL, INT, FLOAT, STR, BYTES, DATETIME, UUID, LIST, DICT, TUPLE, RECORD, UNION,
    MADE, ONE_OF, INSTANCE, FOREIGN, BODY

# How to make a record: by position, by keyword, a dict, or an object whose attributes are set.
cdef enum:
    POSITIONS, KEYWORDS, PAIRS, ATTRIBUTES

# Kinds of values on the wire.
cdef enum:
    K_NULL, K_BOOL, K_INT, K_FLOAT, K_STR, K_BYTES, K_LIST, K_MAP, K_TIME, K_UUID, K_OTHER

# A field of a record.  The objects belong to tuples of the plan.
ctypedef struct Field:
    const uint8_t *key
    Py_ssize_t size             # of the key, in bytes
    PyObject *plan
    PyObject *name              # of the attribute
    PyObject *default           # NULL for none
    PyObject *factory           # of the default; NULL for none


cdef enum:
    KINDS = 11                  # of values on the wire, see `kind_of`


cdef class Plan:
    cdef int work               # how to decode a value
    cdef readonly str name      # of the type, for errors
    cdef tuple parts            # everything that is borrowed below
    cdef Plan item, key         # of a list or map
    cdef object make            # class or function that makes the result
    cdef object explain         # returns path and text for an exception of `make`
    cdef dict members           # of an enumeration or Literal
    cdef tuple plans            # of a tuple's items
    cdef PyObject *choices[KINDS]      # plans of a union
    cdef Field *fields
    cdef Py_ssize_t count       # of fields
    cdef int construction       # how to make a record
    cdef tuple names            # of fields passed by keyword
    cdef dict blank             # with the keys of a dict, to copy; None for other records
    cdef object after           # name of the method to call on a record; None for none
    cdef bint strict            # unknown fields are errors


cdef object NO_DEFAULT

# Index of the field with a key; -1 for none.
cdef Py_ssize_t find_field(Plan plan, const uint8_t *key, Py_ssize_t n) noexcept
# Set the value of a field that a map lacks; the position is that of the map, for errors.
cdef int use_default(Plan plan, Field *field, PyObject **value, Py_ssize_t position) except -1
# Make a record from the values of its fields.
cdef object make_record(Plan plan, PyObject **values)

cdef str name_of(object value)
# Put a step before the path of the current error: a field, a key or index, or a text.
cdef object fail_at(Field *field, object key, str step)
# Fail because a function of the program, or of the type, has refused a value.
cdef object fail_made(Plan plan, object value, object error, Py_ssize_t position)
# Fail because the class of a record has raised the current error.
cdef object fail_making(Plan plan)
