# The structure of a message (part 3 of the AMQP 1.0 specification).  No ABI promise.

from libc.stdint cimport uint8_t

from rbfly._wire cimport load_u32
from rbfly.amqp cimport _constructors as codes
from rbfly.amqp._decode cimport Cursor
from rbfly.amqp._native cimport rbfly_need

# Sections, by the last byte of their descriptor.
cdef enum:
    HEADER = 0x70
    DELIVERY_ANNOTATIONS = 0x71
    ANNOTATIONS = 0x72
    PROPERTIES = 0x73
    APP_PROPERTIES = 0x74
    DATA = 0x75
    SEQUENCE = 0x76
    VALUE = 0x77
    FOOTER = 0x78

# The first bytes of a message that consists of one data section.
cdef enum:
    DATA8 = codes.DESCRIBED << 24 | codes.SMALLULONG << 16 | DATA << 8 | codes.VBIN8
    DATA32 = codes.DESCRIBED << 24 | codes.SMALLULONG << 16 | DATA << 8 | codes.VBIN32

# The first bytes of a message that consists of a short text, or of a float.
cdef enum:
    TEXT8 = codes.DESCRIBED << 24 | codes.SMALLULONG << 16 | VALUE << 8 | codes.STR8
    FLOAT8 = codes.DESCRIBED << 24 | codes.SMALLULONG << 16 | VALUE << 8 | codes.DOUBLE

# Indices of the sections other than the body.
cdef enum:
    I_HEADER, I_DELIVERY_ANNOTATIONS, I_ANNOTATIONS, I_PROPERTIES, I_APP_PROPERTIES, I_FOOTER

# Positions of the section values; for the body, of its first section (the end: no body).
ctypedef struct Layout:
    Py_ssize_t[6] at
    Py_ssize_t body_at

cdef tuple SECTION_NAMES

cdef int take_descriptor(Cursor *c) except -1
cdef int skip_value(Cursor *c) except -1
cdef int scan(Cursor *c, Layout *layout) except -1
cdef object build_body(Cursor *c)
cdef object build_section(Cursor *c, int index)


cdef inline bint is_one_section(const uint8_t *p, Py_ssize_t n) noexcept:
    """Whether the message is a single canonical data or value section, as most messages are."""
    if n < 8 or p[0] != codes.DESCRIBED or p[1] != codes.SMALLULONG:
        return False
    if p[2] == DATA:
        return (p[3] == codes.VBIN8 and p[4] == n - 5) or (
            p[3] == codes.VBIN32 and load_u32(p + 4) == n - 8
        )
    if p[2] != VALUE:
        return False
    if p[3] < codes.FIRST_SIZED:
        return p[3] >= codes.EMPTY << 4 and n - 4 == rbfly_need(p[3])
    return p[4] == n - 5 if (p[3] & codes.SIZE32) == 0 else load_u32(p + 4) == n - 8


cdef inline Py_ssize_t data_head(const uint8_t *p, Py_ssize_t n) noexcept:
    """Bytes before the data if the message is a single data section; otherwise 0."""
    if n >= 5 and load_u32(p) == DATA8 and p[4] == n - 5:
        return 5
    if n >= 8 and load_u32(p) == DATA32 and load_u32(p + 4) == n - 8:
        return 8
    return 0


cdef inline bint is_float(const uint8_t *p, Py_ssize_t n) noexcept:
    """Whether the message is a single value section with a float, of 64 bits."""
    return n == 12 and load_u32(p) == FLOAT8


# The sections other than the body: their values, and positions (-1: absent or replaced).  The bits
# of `replaced` are the indices of those that the program has set.  `error` says why the body is not
# of the requested type.
cdef class Sections:
    cdef object error
    cdef object header, delivery_annotations, annotations, properties, app_properties, footer
    cdef Layout layout
    cdef int replaced


cdef inline object get_field(Sections sections, int index):
    if index == I_HEADER:
        return sections.header
    if index == I_DELIVERY_ANNOTATIONS:
        return sections.delivery_annotations
    if index == I_ANNOTATIONS:
        return sections.annotations
    if index == I_PROPERTIES:
        return sections.properties
    if index == I_APP_PROPERTIES:
        return sections.app_properties
    return sections.footer


cdef inline int set_field(Sections sections, int index, object value) except -1:
    if index == I_HEADER:
        sections.header = value
    elif index == I_DELIVERY_ANNOTATIONS:
        sections.delivery_annotations = value
    elif index == I_ANNOTATIONS:
        sections.annotations = value
    elif index == I_PROPERTIES:
        sections.properties = value
    elif index == I_APP_PROPERTIES:
        sections.app_properties = value
    else:
        sections.footer = value
    return 0


# Find the sections in the bytes of a message; all are absent if there are no bytes.
cdef Sections open_sections(const uint8_t *p, Py_ssize_t n)
