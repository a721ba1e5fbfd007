# Find the part of a message that cannot be encoded.  No ABI promise between releases.

# After an error of `encode_message`: add the path of that part to the text of an encoder error.
cdef int name_part(object message) except -1
