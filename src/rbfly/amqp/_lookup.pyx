"""Find a text in the sections of a message, without decoding the section that has it."""

from libc.stdint cimport uint8_t
from libc.string cimport memcmp

from rbfly._wire cimport load_u32
from rbfly.amqp cimport _constructors as codes
from rbfly.amqp._decode cimport Cursor, cursor_open
from rbfly.amqp._layout cimport (
    I_ANNOTATIONS, I_APP_PROPERTIES, Sections, get_field, open_sections, skip_value,
)
from rbfly.amqp._message cimport Message
from rbfly.amqp._types cimport Symbol, new_symbol, plain_dict

from rbfly.error import AMQPDecoderError, AMQPEncoderValueError


def find_text(Message message not None, str name not None):
    """Return a string or binary value of a message by its key: of the message annotations, else of
    the application properties (str).

    None if neither has it, or if it cannot be decoded.
    """
    cdef object found
    cdef Sections sections = message._sections
    try:
        if sections is None:
            sections = open_sections(message._p, message._n)
        found = find_in(sections, I_ANNOTATIONS, message._p, message._n, name)
        if found is None:
            found = find_in(sections, I_APP_PROPERTIES, message._p, message._n, name)
    except (AMQPDecoderError, AMQPEncoderValueError):     # or a mapping that cannot be read
        return None
    return found


cdef object find_in(Sections sections, int index, const uint8_t *p, Py_ssize_t n, str name):
    cdef Cursor c
    cdef object value = get_field(sections, index)
    cdef object found
    cdef dict pairs
    cdef Py_ssize_t at = sections.layout.at[index]
    if value is not None:       # decoded, or set by the program
        pairs = value if type(value) is dict else plain_dict(value)
        found = pairs.get(name)
        return as_text(pairs.get(new_symbol(name)) if found is None else found)
    if at < 0 or p is NULL:
        return None
    cursor_open(&c, p, p + at, p + n)
    return find_in_map(&c, name.encode())


cdef object as_text(object value):
    if isinstance(value, str):
        return str(value)
    if type(value) is Symbol:
        return decoded(value.name.encode('utf-8', 'surrogateescape'))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return decoded(bytes(value))
    return None


cdef object decoded(bytes value):
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


cdef object find_in_map(Cursor *c, bytes key):
    # The memory under a view may have changed since it was checked: check all bounds.
    cdef const uint8_t *p = c.p
    cdef const uint8_t *text = NULL
    cdef Py_ssize_t size = 0, length = len(key)
    cdef const uint8_t *wanted = key
    cdef Py_ssize_t width
    cdef object value = None
    cdef bint found
    if c.end - p < 1 or (p[0] & codes.NO_SIZE32) != codes.MAP8:
        return None
    width = 4 if p[0] & codes.SIZE32 else 1
    if c.end - p < 1 + 2 * width:
        return None
    size = load_u32(p + 1) if width == 4 else p[1]      # of the count and the items
    if size < width or size > c.end - p - 1 - width:
        return None
    c.end = p + 1 + width + size
    c.p = p + 1 + 2 * width
    while c.p < c.end:
        found = (
            (c.p[0] & codes.NO_SIZE32) != codes.VBIN8   # a binary key is another key
            and take_text(c, &text, &size) and size == length
            and memcmp(text, wanted, <size_t> length) == 0
        )
        skip_value(c)           # the key
        if found:               # of a key that occurs twice, the last one counts
            value = decoded(text[:size]) if take_text(c, &text, &size) else None
        skip_value(c)           # its value
    return value


cdef bint take_text(Cursor *c, const uint8_t **text, Py_ssize_t *size) noexcept:
    # Find the text at the cursor, which stays where it is; False if it is another kind of value.
    cdef const uint8_t *p = c.p
    cdef Py_ssize_t left = c.end - p
    cdef Py_ssize_t width, n
    cdef uint8_t kind
    if left < 1:
        return False
    kind = p[0] & codes.NO_SIZE32
    if kind != codes.VBIN8 and kind != codes.STR8 and kind != codes.SYM8:
        return False
    width = 4 if p[0] & codes.SIZE32 else 1
    if left < 1 + width:
        return False
    n = load_u32(p + 1) if width == 4 else p[1]
    if n > left - 1 - width:
        return False
    text[0] = p + 1 + width
    size[0] = n
    return True
