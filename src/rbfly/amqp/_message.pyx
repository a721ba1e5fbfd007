# cython: language_level=3str
"""Messages of AMQP 1.0: sections, and the context that holds them (part 3 of the specification)."""

from contextvars import ContextVar

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_Clear, PyErr_ExceptionMatches
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rbfly._wire cimport (
    OutBuffer, load_u32, load_u64, out_discard, out_finish, out_fixed, out_open, out_reserve,
    out_size, put_bytes, put_u8, put_u32,
)
from rbfly.amqp._codec cimport (
    KEYS_ANNOTATION, KEYS_STRING, Cursor, cursor_open, decode_error, decode_value, encode_binary,
    encode_map, encode_sequence, encode_value,
)
from rbfly.amqp._sections cimport (
    AMQPHeader, AMQPProperties, encode_header, encode_properties, header_length, properties_length,
)
from rbfly.amqp._types cimport Symbol

from rbfly.amqp._sections import DataBody, SequenceBody
from rbfly.error import (
    AMQPEncoderError, AMQPEncoderOverflowError, AMQPEncoderTypeError, RbFlyBufferError,
)

cdef extern from *:
    """
    /* An export held without a view: the bytearray cannot be resized meanwhile. */
    #define rbfly_hold(b) (((PyByteArrayObject *)(b))->ob_exports++)
    #define rbfly_release(b) (((PyByteArrayObject *)(b))->ob_exports--)

    /* stream_message_ctx: a body alone skips the cost of seven keywords. */
    static PyObject *(*rbfly_fast_context)(PyObject *);
    static PyObject *rbfly_full_context;

    static PyObject *rbfly_factory(
            PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *names) {
        (void)module;
        if (n == 1 && names == NULL) return rbfly_fast_context(args[0]);
        return PyObject_Vectorcall(rbfly_full_context, args, (size_t)n, names);
    }
    static PyMethodDef rbfly_factory_def = {
        "stream_message_ctx", (PyCFunction)(void (*)(void))rbfly_factory,
        METH_FASTCALL | METH_KEYWORDS, NULL,
    };
    static PyObject *rbfly_make_factory(
            PyObject *(*fast)(PyObject *), PyObject *full, PyObject *doc, PyObject *module) {
        rbfly_fast_context = fast;
        Py_INCREF(full);
        rbfly_full_context = full;
        Py_INCREF(doc);
        rbfly_factory_def.ml_doc = PyUnicode_AsUTF8(doc);
        return PyCFunction_NewEx(&rbfly_factory_def, NULL, module);
    }
    """
    object rbfly_make_factory(object (*fast)(object), object full, str doc, object module)
    void rbfly_hold(object b) noexcept
    void rbfly_release(object b) noexcept

# Sections by the last byte of their descriptor.
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

# The same sections as indices of Sections.values and Sections.at.
cdef enum:
    I_HEADER = 0
    I_DELIVERY_ANNOTATIONS = 1
    I_ANNOTATIONS = 2
    I_PROPERTIES = 3
    I_APP_PROPERTIES = 4
    I_FOOTER = 5

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

# a cimported class is no name of the module for Python
globals().update(AMQPHeader=AMQPHeader, AMQPProperties=AMQPProperties)

cdef object CONTEXT = ContextVar('rbfly_message_ctx')


@cython.final
@cython.auto_pickle(False)
cdef class Sections:
    # Sections but the body: as they are, or where they begin in the bytes (-1: absent).
    def __cinit__(self):
        cdef int i
        self.values = [None] * 6
        for i in range(6):
            self.at[i] = -1


# --- structure of a message ---

# Where the values of sections begin; the body's is that of its first section.
ctypedef struct Layout:
    Py_ssize_t[6] at
    Py_ssize_t body_at


cdef int fail_structure(Cursor *c, const uint8_t *at, str problem) except -1:
    decode_error(c, at, problem)
    return -1


cdef int skip_value(Cursor *c) except -1:
    """Move behind one value, by the widths of its constructors."""
    cdef const uint8_t *p = c.p
    cdef const uint8_t *at
    cdef Py_ssize_t pending = 1, n, left
    cdef int width
    while pending > 0:
        at = p
        left = c.end - p
        if left < 1:
            return fail_structure(c, p, 'the bytes end where a value must begin')
        p += 1
        left -= 1
        width = at[0] >> 4
        if at[0] == 0:
            # a descriptor and a value in place of the one value
            pending += 1
            continue
        if width < 4:
            return fail_structure(c, at, f'unknown constructor 0x{at[0]:02x}')
        if width == 4:
            n = 0
        elif width <= 9:
            n = 1 << (width - 5)
        elif width == 0xb or width == 0xd or width == 0xf:
            n = 4 + <Py_ssize_t> load_u32(p) if left >= 4 else 4
        else:
            n = 1 + <Py_ssize_t> p[0] if left >= 1 else 1
        if n > left:
            return fail_structure(
                c, at, f'constructor 0x{at[0]:02x} needs more bytes than there are'
            )
        p += n
        pending -= 1
    c.p = p
    return 0


cdef int take_descriptor(Cursor *c) except -1:
    """Section that begins at the cursor, which moves behind the descriptor."""
    cdef const uint8_t *p = c.p
    cdef Py_ssize_t left = c.end - p
    cdef Py_ssize_t n
    if left >= 3 and p[0] == 0 and p[1] == 0x53:
        if 0x70 <= p[2] <= 0x78:
            c.p = p + 3
            return p[2]
        return fail_structure(c, p, f'a section with unknown descriptor 0x{p[2]:02x}')
    if left < 3:
        return fail_structure(c, p, 'the bytes end within a section descriptor')
    if p[0] != 0:
        return fail_structure(c, p, f'constructor 0x{p[0]:02x} where a section must begin')
    if p[1] == 0x80 and left >= 10:
        if 0x70 <= load_u64(p + 2) <= 0x78:
            c.p = p + 10
            return <int> load_u64(p + 2)
        return fail_structure(c, p, f'a section with unknown descriptor 0x{load_u64(p + 2):x}')
    if p[1] == 0xa3:
        n = p[2]
        p += 3
    elif p[1] == 0xb3 and left >= 6:
        n = load_u32(p + 2)
        p += 6
    else:
        return fail_structure(c, p, f'a section descriptor with constructor 0x{p[1]:02x}')
    if n > c.end - p:
        return fail_structure(c, p, 'the bytes end within a section descriptor')
    # no name is longer, and nothing is copied that is
    section = SYMBOLIC.get(p[:n]) if n <= 32 else None
    if section is None:
        return fail_structure(c, c.p, 'a section with unknown symbolic descriptor')
    c.p = p + n
    return section


cdef int check_kind(Cursor *c, int section) except -1:
    """The constructor of a section's value against the type of the section."""
    cdef uint8_t code
    if c.p >= c.end:
        return fail_structure(c, c.p, 'a section without value')
    code = c.p[0]
    if section == VALUE:
        return 0
    if section == DATA:
        if code == 0xa0 or code == 0xb0:
            return 0
    elif section == SEQUENCE:
        if code == 0x45 or code == 0xc0 or code == 0xd0:
            return 0
    elif section == HEADER or section == PROPERTIES:
        if code == 0x45 or code == 0xc0 or code == 0xd0 or code == 0x40:
            return 0
    elif code == 0xc1 or code == 0xd1 or code == 0x40:
        return 0
    return fail_structure(c, c.p, f'constructor 0x{code:02x} in section 0x{section:02x}')


cdef inline bint is_one_section(const uint8_t *p, Py_ssize_t n) noexcept:
    """One data or value section, canonical and with a length that fills all: most messages."""
    if n < 8 or p[0] != 0 or p[1] != 0x53:
        return False
    if p[2] == DATA:
        return (p[3] == 0xa0 and p[4] == n - 5) or (p[3] == 0xb0 and load_u32(p + 4) == n - 8)
    # widths with a size of one byte are a, c and e, those with four bytes b, d and f
    return p[2] == VALUE and p[3] >= 0xa0 and (
        p[4] == n - 5 if (p[3] & 0x10) == 0 else load_u32(p + 4) == n - 8
    )


cdef int scan(Cursor *c, Layout *layout) except -1:
    """Check of what sections there are, in what order, and that they fill the bytes."""
    cdef int section, last = 0, i
    cdef const uint8_t *at
    for i in range(6):
        layout.at[i] = -1
    layout.body_at = -1
    while c.p < c.end:
        at = c.p
        section = take_descriptor(c)
        if section <= last and not (section == last and (section == DATA or section == SEQUENCE)):
            return fail_structure(
                c, at, f'section 0x{section:02x} behind section 0x{last:02x}'
            )
        if DATA <= section <= VALUE and section != last:
            if layout.body_at >= 0:
                return fail_structure(
                    c, at, f'section 0x{section:02x} behind section 0x{last:02x}'
                )
            layout.body_at = at - c.start
        check_kind(c, section)
        if section <= APP_PROPERTIES:
            layout.at[section - HEADER] = c.p - c.start
        elif section == FOOTER:
            layout.at[I_FOOTER] = c.p - c.start
        skip_value(c)
        last = section
    if layout.body_at < 0:
        return fail_structure(c, c.p, 'a message without body')
    return 0


cdef object build_body(Cursor *c):
    """Body out of its sections; the cursor is where the first of them begins."""
    cdef int section = take_descriptor(c)
    cdef list parts
    value = decode_value(c, 0)
    if section == VALUE:
        return value
    parts = [value]
    while c.p < c.end and take_descriptor(c) == section:
        parts.append(decode_value(c, 0))
    if section == SEQUENCE:
        return SequenceBody(parts)
    if len(parts) == 1:
        return value
    return DataBody(parts)


cdef object build_section(Cursor *c, int index):
    """Header, properties or a map out of the value at the cursor."""
    cdef const uint8_t *at = c.p
    value = decode_value(c, 0)
    if index == I_HEADER or index == I_PROPERTIES:
        try:
            return AMQPHeader(value) if index == I_HEADER else AMQPProperties(value)
        except AMQPEncoderError as ex:
            problem = f'{SECTION_NAMES[index]} with a wrong field: {ex}'
        return decode_error(c, at, problem)
    if value is None:
        return {}
    for key in value:
        if index == I_APP_PROPERTIES:
            if type(key) is str:
                continue
        elif type(key) is Symbol or (type(key) is int and key >= 0):
            continue
        return decode_error(c, at, f'{SECTION_NAMES[index]} with a key of {type(key).__name__}')
    return value


# --- context ---

@cython.final
@cython.freelist(64)
@cython.no_gc
cdef class MessageCtx:
    """A message: body, the other sections, and what the stream knows of it.

    Sections of a received message are decoded when first asked for; that raises AMQPDecoderError
    if they are malformed.  Sections that are set are encoded, none is left out; an empty section
    (a header of defaults, properties of None, an empty map) is not written.

    Part 3, section 3.2 of the specification.  A context is not tracked by Python's cyclic garbage
    collector: do not store it in its own body.

    :param body: AMQP value; `bytes`, DataBody and other buffers are data sections, SequenceBody
        is sequence sections, anything else a value section.
    :param header: AMQPHeader.
    :param delivery_annotations: dict by Symbol (a str is made one) or int.
    :param annotations: message annotations; dict by Symbol (a str is made one) or int.
    :param properties: AMQPProperties.
    :param app_properties: dict by str.
    :param footer: dict by Symbol (a str is made one) or int.
    :param stream_offset: offset in the stream.
    :param stream_timestamp: time at which the broker stored the message, seconds since 1970 UTC.
    :param stream_publish_id: publishing id for deduplication.
    :param is_set_stream_publish_id: the publishing id was given by the application.
    """

    def __init__(
        self, body, header=None, delivery_annotations=None, annotations=None, properties=None,
        app_properties=None, footer=None, *, uint64_t stream_offset=0, double stream_timestamp=0,
        uint64_t stream_publish_id=0, bint is_set_stream_publish_id=False,
    ):
        self._body = body
        self._body_ready = True
        self._owner = None
        self._sections = None
        self._p = NULL
        set_sections(
            self, header, delivery_annotations, annotations, properties, app_properties, footer
        )
        self.stream_offset = stream_offset
        self.stream_timestamp = stream_timestamp
        self.stream_publish_id = stream_publish_id
        self.is_set_stream_publish_id = is_set_stream_publish_id

    cdef object take_body(self):
        cdef Cursor c
        if not self._body_ready:
            cursor_open(&c, self._p, self._p + self._body_at, self._p + self._n)
            self._body = build_body(&c)
            self._body_ready = True
        return self._body

    cdef object section(self, int index):
        cdef Sections sections = self._sections
        cdef Cursor c
        if sections is None:
            sections = self._sections = open_sections(self)
        value = sections.values[index]
        if value is None:
            if sections.at[index] >= 0:
                cursor_open(&c, self._p, self._p + sections.at[index], self._p + self._n)
                value = build_section(&c, index)
            elif index == I_HEADER:
                value = DEFAULT_HEADER
            elif index == I_PROPERTIES:
                value = DEFAULT_PROPERTIES
            else:
                value = {}
            sections.values[index] = value
        return value

    @property
    def body(self):
        """Body of the message."""
        if self._body_ready:
            return self._body
        return self.take_body()

    @body.setter
    def body(self, value):
        self._body = value
        self._body_ready = True

    @property
    def header(self):
        """Header (AMQPHeader)."""
        return self.section(I_HEADER)

    @header.setter
    def header(self, value):
        set_section(self, I_HEADER, value)

    @property
    def delivery_annotations(self):
        """Delivery annotations (dict)."""
        return self.section(I_DELIVERY_ANNOTATIONS)

    @delivery_annotations.setter
    def delivery_annotations(self, value):
        set_section(self, I_DELIVERY_ANNOTATIONS, value)

    @property
    def annotations(self):
        """Message annotations (dict)."""
        return self.section(I_ANNOTATIONS)

    @annotations.setter
    def annotations(self, value):
        set_section(self, I_ANNOTATIONS, value)

    @property
    def properties(self):
        """Properties (AMQPProperties)."""
        return self.section(I_PROPERTIES)

    @properties.setter
    def properties(self, value):
        set_section(self, I_PROPERTIES, value)

    @property
    def app_properties(self):
        """Application properties (dict)."""
        return self.section(I_APP_PROPERTIES)

    @app_properties.setter
    def app_properties(self, value):
        set_section(self, I_APP_PROPERTIES, value)

    @property
    def footer(self):
        """Footer (dict)."""
        return self.section(I_FOOTER)

    @footer.setter
    def footer(self, value):
        set_section(self, I_FOOTER, value)

    @property
    def raw(self):
        """Bytes that the message was decoded from (memoryview), untouched; None for others."""
        if self._owner is None:
            return None
        return view_of(self._owner, self._p, self._n)

    def body_view(self):
        """Body as memoryview: of a received message with one data section, without copying it.

        Raises TypeError if the body is not binary.
        """
        cdef Cursor c
        cdef Py_ssize_t n
        if not self._body_ready:
            cursor_open(&c, self._p, self._p + self._body_at, self._p + self._n)
            if take_descriptor(&c) == DATA:
                if c.p[0] == 0xa0:
                    n = c.p[1]
                    c.p += 2
                else:
                    n = load_u32(c.p + 1)
                    c.p += 5
                if c.p + n == c.end or take_descriptor_at(c.p + n, &c) != DATA:
                    return view_of(self._owner, c.p, n)
        body = self.take_body()
        if not isinstance(body, (bytes, bytearray, memoryview)):
            raise TypeError(f'a body of {type(body).__name__} has no view')
        return memoryview(body)

    def __repr__(self):
        return (
            f'MessageCtx(body={clip_body(self.take_body())}, '
            f'stream_offset={self.stream_offset}, stream_timestamp={self.stream_timestamp}, '
            f'stream_publish_id={self.stream_publish_id}, '
            f'annotations={self.annotations!r}, app_properties={self.app_properties!r})'
        )

    def __eq__(self, other):
        cdef MessageCtx that
        cdef int i
        if type(other) is not MessageCtx:
            return NotImplemented
        if self is other:
            return True
        that = other
        if (
            self.stream_offset != that.stream_offset
            or self.stream_timestamp != that.stream_timestamp
            or self.stream_publish_id != that.stream_publish_id
            or self.take_body() != that.take_body()
        ):
            return False
        for i in range(6):
            if self.section(i) != that.section(i):
                return False
        return True

    __hash__ = None

    def __reduce__(self):
        return restore_message, (
            self.take_body(), self.header, self.delivery_annotations, self.annotations,
            self.properties, self.app_properties, self.footer, self.stream_offset,
            self.stream_timestamp, self.stream_publish_id, bool(self.is_set_stream_publish_id),
        )


def restore_message(*args):
    return MessageCtx(
        *args[:7], stream_offset=args[7], stream_timestamp=args[8], stream_publish_id=args[9],
        is_set_stream_publish_id=args[10],
    )


cdef object DEFAULT_HEADER = AMQPHeader()
cdef object DEFAULT_PROPERTIES = AMQPProperties()


cdef int take_descriptor_at(const uint8_t *p, Cursor *c) except -1:
    cdef Cursor other
    cursor_open(&other, c.start, p, c.end)
    return take_descriptor(&other)


cdef str clip_body(object body):
    if isinstance(body, (str, bytes)):
        return repr(body[:10] + ('...' if isinstance(body, str) else b'...')) if len(body) > 10 \
            else repr(body)
    text = repr(body)
    return text if len(text) <= 10 else text[:10] + '...'


cdef object view_of(object owner, const uint8_t *p, Py_ssize_t n):
    cdef Py_ssize_t start
    if type(owner) is bytes:
        start = p - <const uint8_t *> PyBytes_AS_STRING(owner)
    else:
        start = p - <const uint8_t *> PyMemoryView_GET_BUFFER(owner).buf
    return memoryview(owner)[start:start + n]


cdef Sections open_sections(MessageCtx ctx):
    cdef Sections sections = Sections.__new__(Sections)
    cdef Layout layout
    cdef Cursor c
    cdef int i
    if ctx._owner is not None:
        cursor_open(&c, ctx._p, ctx._p, ctx._p + ctx._n)
        scan(&c, &layout)
        for i in range(6):
            sections.at[i] = layout.at[i]
    return sections


cdef int set_section(MessageCtx ctx, int index, object value) except -1:
    if value is not None:
        if index == I_HEADER:
            if type(value) is not AMQPHeader:
                raise AMQPEncoderTypeError(f'header is AMQPHeader, not {type(value).__name__}')
        elif index == I_PROPERTIES:
            if type(value) is not AMQPProperties:
                raise AMQPEncoderTypeError(
                    f'properties is AMQPProperties, not {type(value).__name__}'
                )
        elif not hasattr(value, 'keys'):
            raise AMQPEncoderTypeError(
                f'{SECTION_NAMES[index]} is dict, not {type(value).__name__}'
            )
    if ctx._sections is None:
        ctx._sections = open_sections(ctx)
    ctx._sections.values[index] = value
    ctx._sections.at[index] = -1
    return 0


cdef int set_sections(
    MessageCtx ctx, object header, object delivery_annotations, object annotations,
    object properties, object app_properties, object footer,
) except -1:
    if header is not None:
        set_section(ctx, I_HEADER, header)
    if delivery_annotations is not None:
        set_section(ctx, I_DELIVERY_ANNOTATIONS, delivery_annotations)
    if annotations is not None:
        set_section(ctx, I_ANNOTATIONS, annotations)
    if properties is not None:
        set_section(ctx, I_PROPERTIES, properties)
    if app_properties is not None:
        set_section(ctx, I_APP_PROPERTIES, app_properties)
    if footer is not None:
        set_section(ctx, I_FOOTER, footer)
    return 0


# --- encoding ---

cdef inline int put_descriptor(OutBuffer *out, uint8_t section) except -1:
    out_reserve(out, 3)
    put_u8(out, 0x00)
    put_u8(out, 0x53)
    put_u8(out, section)
    return 0


cdef inline int put_data(OutBuffer *out, object body) except -1:
    cdef Py_ssize_t n = PyBytes_GET_SIZE(body)
    out_reserve(out, n + 8)
    put_u8(out, 0x00)
    put_u8(out, 0x53)
    put_u8(out, DATA)
    if n <= 255:
        put_u8(out, 0xa0)
        put_u8(out, <uint8_t> n)
    else:
        if n > 0xffffffff:
            raise AMQPEncoderOverflowError(f'{n} bytes are more than a data section can hold')
        put_u8(out, 0xb0)
        put_u32(out, <uint32_t> n)
    put_bytes(out, PyBytes_AS_STRING(body), n)
    return 0


cdef int put_special_body(OutBuffer *out, object body) except -1:
    """Bodies that are not a value section, or are one with an unusual type."""
    if isinstance(body, DataBody):
        for part in body.sections:
            if type(part) is not bytes:
                raise AMQPEncoderTypeError(f'a data section is bytes, not {type(part).__name__}')
            put_data(out, part)
    elif isinstance(body, SequenceBody):
        for part in body.sections:
            if type(part) is not list:
                raise AMQPEncoderTypeError(f'a sequence is list, not {type(part).__name__}')
            put_descriptor(out, SEQUENCE)
            encode_sequence(out, part, 0)
    elif (
        isinstance(body, (bytes, bytearray, memoryview))
    ):
        put_descriptor(out, DATA)
        encode_binary(out, body)
    else:
        put_descriptor(out, VALUE)
        encode_value(out, body, 0)
    return 0


cdef int put_body(OutBuffer *out, object body) except -1:
    if type(body) is bytes:
        return put_data(out, body)
    if type(body) is dict or type(body) is str or type(body) is list or type(body) is int:
        put_descriptor(out, VALUE)
        return encode_value(out, body, 0)
    return put_special_body(out, body)


cdef int put_map(OutBuffer *out, uint8_t section, object value, int keys) except -1:
    if not value:
        return 0
    put_descriptor(out, section)
    return encode_map(out, value, 0, keys)


cdef int put_sections(OutBuffer *out, MessageCtx ctx) except -1:
    cdef AMQPHeader header = ctx.section(I_HEADER)
    cdef AMQPProperties properties = ctx.section(I_PROPERTIES)
    cdef Py_ssize_t count = header_length(header)
    if count > 0:
        put_descriptor(out, HEADER)
        encode_header(out, header, count)
    put_map(
        out, DELIVERY_ANNOTATIONS, ctx.section(I_DELIVERY_ANNOTATIONS), KEYS_ANNOTATION
    )
    put_map(out, ANNOTATIONS, ctx.section(I_ANNOTATIONS), KEYS_ANNOTATION)
    count = properties_length(properties)
    if count > 0:
        put_descriptor(out, PROPERTIES)
        encode_properties(out, properties, count)
    return put_map(out, APP_PROPERTIES, ctx.section(I_APP_PROPERTIES), KEYS_STRING)


cdef int put_context(OutBuffer *out, MessageCtx ctx) except -1:
    if ctx._sections is None and ctx._owner is None:
        return put_body(out, ctx._body)
    put_sections(out, ctx)
    put_body(out, ctx.take_body())
    return put_map(out, FOOTER, ctx.section(I_FOOTER), KEYS_ANNOTATION)


cdef int encode_message(OutBuffer *out, object message) except -1:
    if type(message) is bytes:
        return put_data(out, message)
    if type(message) is MessageCtx:
        return put_context(out, message)
    return put_body(out, message)


# The same function with its error left set, which costs less than try and finally.
ctypedef int (*raw_put_context)(OutBuffer *out, MessageCtx ctx) noexcept


cdef Py_ssize_t encode_again(bytearray buffer, MessageCtx message) except -1:
    """After an error: room is asked for generously, so that a message may fit all the same."""
    if not PyErr_ExceptionMatches(BufferError):
        return -1
    PyErr_Clear()
    data = encode_amqp_bytes(message)
    if len(data) > len(buffer):
        raise RbFlyBufferError(
            f'a buffer of {len(buffer)} bytes is too small for a message of {len(data)}'
        )
    buffer[:len(data)] = data
    return len(data)


@cython.binding(False)
def encode_amqp(bytearray buffer not None, MessageCtx message not None):
    """Encode a message into the front of a buffer.

    Raises RbFlyBufferError if the buffer is too small, and an AMQPEncoderError for a value that
    AMQP 1.0 does not know; what the buffer holds then is undefined.

    :param buffer: where to write (bytearray); its size does not change.
    :param message: the message (MessageCtx).
    :returns: number of bytes written (int).
    """
    cdef OutBuffer out
    cdef bint failed
    out_fixed(
        &out, <uint8_t *> PyByteArray_AS_STRING(buffer), PyByteArray_GET_SIZE(buffer)
    )
    rbfly_hold(buffer)
    failed = (<raw_put_context> put_context)(&out, message) < 0
    rbfly_release(buffer)
    if failed:
        return encode_again(buffer, message)
    return out_size(&out)


@cython.binding(False)
def encode_amqp_bytes(message):
    """Encode a message into new bytes.

    Raises an AMQPEncoderError for a value that AMQP 1.0 does not know.

    :param message: MessageCtx, or a body of any type.
    :returns: the encoded message (bytes).
    """
    cdef OutBuffer out
    out_open(&out, 256)
    try:
        encode_message(&out, message)
    except BaseException:
        out_discard(&out)
        raise
    return out_finish(&out)


# --- decoding ---

cdef object decode_body(const uint8_t *p, Py_ssize_t n):
    cdef Cursor c
    cdef Layout layout
    if n >= 5 and p[0] == 0 and p[1] == 0x53 and p[2] == DATA and p[3] == 0xa0 and p[4] == n - 5:
        return PyBytes_FromStringAndSize(<const char *> p + 5, n - 5)
    cursor_open(&c, p, p, p + n)
    scan(&c, &layout)
    c.p = p + layout.body_at
    return build_body(&c)


cdef MessageCtx decode_context(
    object owner, const uint8_t *p, Py_ssize_t n, uint64_t stream_offset, double stream_timestamp
):
    cdef MessageCtx ctx
    cdef Cursor c
    cdef Layout layout
    layout.body_at = 0
    if not is_one_section(p, n):
        cursor_open(&c, p, p, p + n)
        scan(&c, &layout)
    ctx = MessageCtx.__new__(MessageCtx)
    ctx._owner = owner
    ctx._p = p
    ctx._n = n
    ctx._body_at = layout.body_at
    ctx.stream_offset = stream_offset
    ctx.stream_timestamp = stream_timestamp
    return ctx


@cython.binding(False)
def decode_amqp(buffer):
    """Decode a message.

    What sections there are, their order, and that they fill the buffer exactly is checked at once,
    values when a section is first asked for; both raise AMQPDecoderError.  Neither `bytes` nor a
    read-only memoryview is copied, the context keeps it alive; a writable buffer is copied once.

    :param buffer: one encoded message (bytes, bytearray or memoryview).
    :returns: the message (MessageCtx).
    """
    data = buffer if type(buffer) is bytes else readable(buffer)
    if type(data) is bytes:
        return decode_context(
            data, <const uint8_t *> PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), 0, 0
        )
    return decode_context(
        data, <const uint8_t *> PyMemoryView_GET_BUFFER(data).buf, len(data), 0, 0
    )


cdef object readable(object data):
    """Exact bytes, or a memoryview of bytes that nobody writes to."""
    cdef object view = memoryview(data)
    if not view.readonly or not view.c_contiguous:
        return view.tobytes()
    if view.format != 'B' or view.ndim != 1:
        return view.cast('B')
    return view


# With the signature in front, where inspect looks for it.
cdef str FACTORY_DOC = """stream_message_ctx(body, *, publish_id=None, header=None, \
properties=None, annotations=None, delivery_annotations=None, app_properties=None, footer=None)
--

Message context for publishing.

:param body: body of the message, see :class:`MessageCtx`.
:param publish_id: publishing id for deduplication (int, 0 to 2**64 - 1); None for the next one.
:param header: AMQPHeader.
:param properties: AMQPProperties.
:param annotations: message annotations (dict).
:param delivery_annotations: dict.
:param app_properties: application properties (dict).
:param footer: dict.
"""


cdef object new_context(object body):
    cdef MessageCtx ctx = MessageCtx.__new__(MessageCtx)
    ctx._body = body
    ctx._body_ready = True
    return ctx


def full_context(
    body, *, publish_id=None, header=None, properties=None, annotations=None,
    delivery_annotations=None, app_properties=None, footer=None,
):
    cdef MessageCtx ctx = new_context(body)
    if publish_id is not None:
        ctx.stream_publish_id = publish_id
        ctx.is_set_stream_publish_id = True
    set_sections(
        ctx, header, delivery_annotations, annotations, properties, app_properties, footer
    )
    return ctx


stream_message_ctx = rbfly_make_factory(new_context, full_context, FACTORY_DOC, __name__)


def get_message_ctx():
    """Context of the message that the current task received last.

    Raises LookupError if there is none.
    """
    context = CONTEXT.get()
    if type(context) is MessageCtx:
        return context
    return context._current_message_ctx()


def set_message_ctx(context):
    """Set the context that :func:`get_message_ctx` returns.

    :param context: MessageCtx, or an object whose method `_current_message_ctx` returns one.
    """
    CONTEXT.set(context)
