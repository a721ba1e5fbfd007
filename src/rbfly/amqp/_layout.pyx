"""Find, check and decode the sections of a message (part 3, section 3.2)."""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_Next
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t

from rbfly._wire cimport load_u32, load_u64
from rbfly.amqp cimport _constructors as codes
from rbfly.amqp._decode cimport Cursor, cursor_open, decode_error, decode_value
from rbfly.amqp._sections cimport (
    decode_properties, received_header, received_properties,
)
from rbfly.amqp._types cimport Symbol, new_symbol

from rbfly.amqp._sections import DataBody, SequenceBody

cdef tuple SECTION_NAMES = (
    'header', 'delivery annotations', 'message annotations', 'properties',
    'application properties', 'footer',
)
cdef dict SYMBOLIC = {
    b'amqp:header:list': HEADER,
    b'amqp:delivery-annotations:map': DELIVERY_ANNOTATIONS,
    b'amqp:message-annotations:map': ANNOTATIONS,
    b'amqp:properties:list': PROPERTIES,
    b'amqp:application-properties:map': APP_PROPERTIES,
    b'amqp:data:binary': DATA,
    b'amqp:amqp-sequence:list': SEQUENCE,
    b'amqp:amqp-value:*': VALUE,
    b'amqp:footer:map': FOOTER,
}


cdef int fail_structure(Cursor *c, const uint8_t *at, str problem) except -1:
    decode_error(c, at, problem)
    return -1


cdef int skip_value(Cursor *c) except -1:
    """Skip one value without decoding it: its constructor determines its size."""
    cdef const uint8_t *p = c.p
    cdef const uint8_t *at
    cdef Py_ssize_t pending = 1, n, left
    cdef int width
    while pending > 0:
        at = p
        left = c.end - p
        if left < 1:
            return fail_structure(c, p, 'unexpected end of data where a value should begin')
        p += 1
        left -= 1
        width = at[0] >> 4
        if at[0] == codes.DESCRIBED:
            # a descriptor and a value follow
            pending += 1
            continue
        if width < codes.EMPTY:
            return fail_structure(c, at, f'unknown constructor 0x{at[0]:02x}')
        if width == codes.EMPTY:
            n = 0
        elif width <= codes.FIXED_SIXTEEN:
            n = 1 << (width - codes.FIXED_ONE)
        elif at[0] & codes.SIZE32:
            n = 4 + <Py_ssize_t> load_u32(p) if left >= 4 else 4
        else:
            n = 1 + <Py_ssize_t> p[0] if left >= 1 else 1
        if n > left:
            return fail_structure(
                c, at, f'data too short for constructor 0x{at[0]:02x}'
            )
        p += n
        pending -= 1
    c.p = p
    return 0


cdef int take_descriptor(Cursor *c) except -1:
    """Read the descriptor at the cursor, move the cursor past it and return the section."""
    cdef const uint8_t *p = c.p
    cdef Py_ssize_t left = c.end - p
    cdef Py_ssize_t n
    if left >= 3 and p[0] == codes.DESCRIBED and p[1] == codes.SMALLULONG:
        if HEADER <= p[2] <= FOOTER:
            c.p = p + 3
            return p[2]
        return fail_structure(c, p, f'section with unknown descriptor 0x{p[2]:02x}')
    if left < 3:
        return fail_structure(c, p, 'unexpected end of data in a section descriptor')
    if p[0] != codes.DESCRIBED:
        return fail_structure(c, p, f'constructor 0x{p[0]:02x} where a section should begin')
    if p[1] == codes.ULONG and left >= 10:
        if HEADER <= load_u64(p + 2) <= FOOTER:
            c.p = p + 10
            return <int> load_u64(p + 2)
        return fail_structure(c, p, f'section with unknown descriptor 0x{load_u64(p + 2):x}')
    if p[1] == codes.SYM8:
        n = p[2]
        p += 3
    elif p[1] == codes.SYM32 and left >= 6:
        n = load_u32(p + 2)
        p += 6
    else:
        return fail_structure(c, p, f'section descriptor with constructor 0x{p[1]:02x}')
    if n > c.end - p:
        return fail_structure(c, p, 'unexpected end of data in a section descriptor')
    # no section name is longer: do not copy a long symbol just to look it up
    section = SYMBOLIC.get(p[:n]) if n <= 32 else None
    if section is None:
        return fail_structure(c, c.p, 'section with unknown symbolic descriptor')
    c.p = p + n
    return section


# The constructor of each section's value, in the form with a one-byte size; for VALUE, any.
cdef uint8_t[9] USUAL
USUAL[HEADER - HEADER] = USUAL[PROPERTIES - HEADER] = USUAL[SEQUENCE - HEADER] = codes.LIST8
for _section in (DELIVERY_ANNOTATIONS, ANNOTATIONS, APP_PROPERTIES, FOOTER):
    USUAL[_section - HEADER] = codes.MAP8
USUAL[DATA - HEADER] = codes.VBIN8
USUAL[VALUE - HEADER] = 0xff


cdef int check_kind(Cursor *c, int section) except -1:
    """Check that a section has a value: in a data section, one that can always be decoded."""
    if c.p >= c.end:
        return fail_structure(c, c.p, 'section without a value')
    cdef uint8_t kind = c.p[0] & codes.NO_SIZE32
    if (
        section != DATA or c.p[0] == codes.NULL
        or kind == codes.VBIN8 or kind == codes.STR8 or kind == codes.SYM8
    ):
        return 0
    return fail_structure(c, c.p, f'constructor 0x{c.p[0]:02x} in section 0x{section:02x}')


cdef int scan(Cursor *c, Layout *layout) except -1:
    """Find the sections, and check that they fill the message.

    Other clients write them in any order, more than once, or without a body.
    """
    cdef int section, body = 0, i
    cdef const uint8_t *at
    cdef const uint8_t *p
    cdef Py_ssize_t n
    for i in range(6):
        layout.at[i] = -1
    while c.p < c.end:
        at = c.p
        if (
            c.end - at >= 3 and at[0] == codes.DESCRIBED and at[1] == codes.SMALLULONG
            and HEADER <= at[2] <= FOOTER
        ):
            section = at[2]
            c.p = at + 3
        else:
            section = take_descriptor(c)
        p = c.p
        # of a section that occurs twice, the last one counts; of several kinds of body, the first
        if section <= APP_PROPERTIES:
            layout.at[section - HEADER] = p - c.start
        elif section == FOOTER:
            layout.at[I_FOOTER] = p - c.start
        elif body == 0 or (section == VALUE and body == VALUE):
            body = section
            layout.body_at = at - c.start
        # a fast path for the usual form
        if c.end - p >= 5 and (
            (p[0] & codes.NO_SIZE32) == USUAL[section - HEADER]
            or (section == VALUE and p[0] >= codes.FIRST_SIZED)
        ):
            n = (
                2 + <Py_ssize_t> p[1] if (p[0] & codes.SIZE32) == 0
                else 5 + <Py_ssize_t> load_u32(p + 1)
            )
            if n <= c.end - p:
                c.p = p + n
                continue
        check_kind(c, section)
        skip_value(c)
    if body == 0:
        layout.body_at = c.end - c.start
    return 0


cdef object build_body(Cursor *c):
    """Build the body from its sections, already checked; the cursor is at the first of them."""
    cdef const uint8_t *p = c.p
    cdef Py_ssize_t head
    if p[1] == codes.SMALLULONG and p[2] == VALUE:
        c.p = p + 3
        return decode_value(c, 0)
    # memory under a view may have changed since it was checked, so this checks the bounds again
    head = data_head(p, c.end - p)
    if head:
        return PyBytes_FromStringAndSize(<const char *> p + head, c.end - p - head)
    return build_any_body(c)


cdef object build_any_body(Cursor *c):
    cdef int section = take_descriptor(c)
    cdef int kind = section
    cdef list parts
    value = decode_value(c, 0)
    if kind == VALUE or (kind == DATA and c.p >= c.end):
        return value
    parts = []
    while True:
        if section != kind:
            skip_value(c)
        elif value is not None:
            # pyamqp writes a sequence section for each item
            parts.append([value] if kind == SEQUENCE and type(value) is not list else value)
        if c.p >= c.end:
            break
        section = take_descriptor(c)
        value = decode_value(c, 0) if section == kind else None
    if not parts:
        return None
    if kind == SEQUENCE:
        return SequenceBody(parts)
    if len(parts) == 1:
        return parts[0]
    return DataBody([
        part if type(part) is bytes else str(part).encode('utf-8', 'surrogateescape')
        for part in parts
    ])


cdef object build_section(Cursor *c, int index):
    """Build a header, properties or map from the value at the cursor."""
    cdef const uint8_t *at = c.p
    if index == I_PROPERTIES:
        value = decode_properties(c)
        if value is not None:
            return value
    c.other_keys = False
    value = decode_value(c, 0)
    if index == I_HEADER or index == I_PROPERTIES:
        if value is None or type(value) is list:
            return received_header(value) if index == I_HEADER else received_properties(value)
    elif value is None:
        return {}
    elif type(value) is dict:
        if index == I_APP_PROPERTIES and not c.other_keys:
            return value
        return value if has_usual_keys(value, index) else with_usual_keys(value, index)
    kind = type(value).__name__
    return decode_error(c, at, f'{SECTION_NAMES[index]} of type {kind}')


cdef bint has_usual_keys(dict pairs, int index) except -1:
    cdef Py_ssize_t position = 0
    cdef PyObject *key = NULL
    while PyDict_Next(pairs, &position, &key, NULL):
        if index == I_APP_PROPERTIES:
            if type(<object> key) is Symbol:
                return False
        elif type(<object> key) is str:
            return False
    return True


cdef dict with_usual_keys(dict pairs, int index):
    """Convert keys of the other string type: application properties have str, others Symbol."""
    if index == I_APP_PROPERTIES:
        return {str(k) if type(k) is Symbol else k: v for k, v in pairs.items()}
    return {new_symbol(k) if type(k) is str else k: v for k, v in pairs.items()}


@cython.final
@cython.no_gc
cdef class Sections:
    pass


cdef Sections open_sections(const uint8_t *p, Py_ssize_t n):
    cdef Sections sections = Sections.__new__(Sections)
    cdef Cursor c
    cdef int i
    if p is NULL:
        for i in range(6):
            sections.layout.at[i] = -1
    else:
        cursor_open(&c, p, p, p + n)
        scan(&c, &sections.layout)
    return sections
