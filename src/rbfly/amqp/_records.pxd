# Objects with fields, which are encoded as maps.  No ABI promise between releases.

# How to read the fields of a class, for those whose objects were encoded before; None: it has none.
cdef dict READERS

# The fields of an object by key, as values that the encoder takes; None if it has no fields.
cdef dict fields_of(object value)
