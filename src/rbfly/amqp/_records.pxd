# Objects with fields, which are encoded as maps.  No ABI promise between releases.

# How to read the fields of a class, for those whose objects were encoded before; None: it has none.
cdef dict READERS

# The fields of an object by key, as values that the encoder takes; NO_FIELDS if it has none.  A
# Struct may be sent as a list instead, and a model as any value.
cdef object fields_of(object value)
cdef object NO_FIELDS
