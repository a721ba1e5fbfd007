"""The codec: encode and decode whole messages (part 3 of the specification)."""

import copyreg

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.exc cimport PyErr_Clear, PyErr_ExceptionMatches, PyErr_Occurred
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from rbfly._cpython cimport rbfly_export, rbfly_pin, rbfly_unpin
from rbfly._wire cimport (
    OutBuffer, double_bits, is_beyond_u32, out_discard, out_finish, out_fixed, out_local,
    out_reserve, out_size, put_bytes, put_u8, put_u32, store_u32, store_u64,
)
from rbfly.amqp cimport _constructors as codes
from rbfly.amqp._decode cimport Cursor, cursor_open, keep_error
from rbfly.amqp._encode cimport (
    KEYS_ANNOTATION, KEYS_ANY, KEYS_STRING, encode_map, encode_sequence, encode_value,
)
from rbfly.amqp._layout cimport (
    DATA, DATA8, DATA32, FLOAT8, FOOTER, HEADER, I_ANNOTATIONS, I_APP_PROPERTIES,
    I_DELIVERY_ANNOTATIONS, I_FOOTER, I_HEADER, I_PROPERTIES, PROPERTIES, SEQUENCE, TEXT8, VALUE,
    Layout, Sections, build_body, build_section, data_head, get_field, is_one_section,
    open_sections, scan, skip_value, take_descriptor,
)
from rbfly.amqp._message cimport Message, new_message, state_of
from rbfly.amqp._native cimport rbfly_ascii_data, rbfly_copy
from rbfly.amqp._path cimport name_part
from rbfly.amqp._plan cimport Plan
from rbfly.amqp._scalars cimport encode_binary, encode_text, put_double
from rbfly.amqp._sections cimport (
    AMQPHeader, AMQPProperties, encode_header, encode_properties, header_length, properties_length,
)
from rbfly.amqp._typed cimport decode_typed, type_body
from rbfly.amqp._types cimport DECIMALS, Symbol, clip, plain_dict

from rbfly.amqp._message import restore_message
from rbfly.amqp._sections import DataBody, SequenceBody
from rbfly.error import (
    AMQPDecoderError, AMQPEncoderOverflowError, AMQPEncoderTypeError, AMQPEncoderValueError,
    AMQPError, MessageTypeError, RbFlyBufferError,
)

cdef extern from 'Python.h':
    double PyFloat_AS_DOUBLE(object value) noexcept
    PyObject *PyDict_GetItemWithError(dict pairs, object key) noexcept

cdef extern from *:
    """
    /* decode_amqp(buffer) and decode_amqp(buffer, type=kind): skip the cost of parsing keywords. */
    static PyObject *(*rbfly_decode_plain)(PyObject *);
    static PyObject *(*rbfly_decode_as)(PyObject *, PyObject *);
    static PyObject *rbfly_decode_any, *rbfly_type_keyword;

    static PyObject *rbfly_decode(
            PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *names) {
        (void)module;
        if (n == 1) {
            if (names == NULL) return rbfly_decode_plain(args[0]);
            if (PyTuple_GET_SIZE(names) == 1 && PyTuple_GET_ITEM(names, 0) == rbfly_type_keyword)
                return rbfly_decode_as(args[0], args[1]);
        }
        return PyObject_Vectorcall(rbfly_decode_any, args, (size_t)n, names);
    }
    /* The same function as `any`, with its name and docstring. */
    static PyObject *rbfly_decoder(
            PyObject *any, PyObject *(*plain)(PyObject *), PyObject *(*as)(PyObject *, PyObject *),
            PyObject *module) {
        static PyMethodDef method;
        method = *((PyCFunctionObject *)any)->m_ml;
        method.ml_meth = (PyCFunction)(void (*)(void))rbfly_decode;
        method.ml_flags = METH_FASTCALL | METH_KEYWORDS;
        rbfly_decode_plain = plain;
        rbfly_decode_as = as;
        rbfly_decode_any = Py_NewRef(any);
        rbfly_type_keyword = PyUnicode_InternFromString("type");
        return PyCFunction_NewEx(&method, NULL, module);
    }
    """
    object rbfly_decoder(
        object any, object (*plain)(object), object (*decode_as)(object, object), object module)


# --- encoding ---

cdef inline int put_section_head(OutBuffer *out, uint8_t section) except -1:
    out_reserve(out, 3)
    put_u8(out, codes.DESCRIBED)
    put_u8(out, codes.SMALLULONG)
    put_u8(out, section)
    return 0


cdef int put_long_data(OutBuffer *out, object body) except -1:
    cdef Py_ssize_t n = PyBytes_GET_SIZE(body)
    if is_beyond_u32(n):
        raise AMQPEncoderOverflowError(f'{n} bytes do not fit in a data section')
    out_reserve(out, n + 8)
    put_u32(out, DATA32)
    put_u32(out, <uint32_t> n)
    put_bytes(out, PyBytes_AS_STRING(body), n)
    return 0


cdef int put_special_body(OutBuffer *out, object body) except -1:
    """Write bodies other than value sections, and value sections of unusual types."""
    if isinstance(body, DataBody):
        for part in body.sections:
            if type(part) is not bytes:
                raise AMQPEncoderTypeError(
                    f'a data section must be bytes, not {type(part).__name__}'
                )
            put_data(out, part)
    elif isinstance(body, SequenceBody):
        for part in body.sections:
            if type(part) is not list:
                raise AMQPEncoderTypeError(
                    f'a sequence section must be list, not {type(part).__name__}'
                )
            put_section_head(out, SEQUENCE)
            encode_sequence(out, part, 0)
    elif isinstance(body, (bytes, bytearray, memoryview)) and not isinstance(body, DECIMALS):
        put_section_head(out, DATA)
        encode_binary(out, body)
    else:
        put_section_head(out, VALUE)
        encode_value(out, body, 0)
    return 0


cdef int put_body(OutBuffer *out, object body) except -1:
    if type(body) is bytes:
        return put_data(out, body)
    if type(body) is dict:
        put_section_head(out, VALUE)
        return encode_map(out, body, 0, KEYS_ANY)
    if type(body) is str:
        put_section_head(out, VALUE)
        return encode_text(out, body)
    if type(body) is list:
        put_section_head(out, VALUE)
        return encode_sequence(out, body, 0)
    if type(body) is float:
        put_section_head(out, VALUE)
        return put_double(out, PyFloat_AS_DOUBLE(body))
    if type(body) is int or body is None or body is True or body is False:
        put_section_head(out, VALUE)
        return encode_value(out, body, 0)
    return put_special_body(out, body)


cdef int put_map(OutBuffer *out, uint8_t section, object value, int keys) except -1:
    cdef dict pairs
    # copy a non-dict mapping first: only its items show whether it is empty
    pairs = value if type(value) is dict else plain_dict(value)
    if not pairs:
        return 0
    put_section_head(out, section)
    return encode_map(out, pairs, 0, keys)


cdef int put_header(OutBuffer *out, AMQPHeader header) except -1:
    cdef Py_ssize_t count = header_length(header)
    if count > 0:
        put_section_head(out, HEADER)
        encode_header(out, header, count)
    return 0


cdef int put_properties(OutBuffer *out, AMQPProperties properties) except -1:
    cdef Py_ssize_t count = properties_length(properties)
    if count > 0:
        put_section_head(out, PROPERTIES)
        encode_properties(out, properties, count)
    return 0


cdef int put_received(
    OutBuffer *out, const uint8_t *p, const uint8_t *end, uint8_t section
) except -1:
    """Write a section as it was received."""
    cdef Cursor c
    cursor_open(&c, p, p, end)
    skip_value(&c)
    put_section_head(out, section)
    out_reserve(out, c.p - p)
    put_bytes(out, p, c.p - p)
    return 0


cdef inline int put_section(
    OutBuffer *out, Sections sections, int index, const uint8_t *p, Py_ssize_t n
) except -1:
    cdef uint8_t section = FOOTER if index == I_FOOTER else <uint8_t> (HEADER + index)
    cdef Py_ssize_t at = sections.layout.at[index]
    if at >= 0 and keeps_section(sections, index, p, n):
        return put_received(out, p + at, p + n, section)
    value = get_field(sections, index)
    if value is None:
        return 0
    if index == I_HEADER:
        return put_header(out, value)
    if index == I_PROPERTIES:
        return put_properties(out, value)
    return put_map(
        out, section, value, KEYS_STRING if index == I_APP_PROPERTIES else KEYS_ANNOTATION
    )


cdef object encoded_form(object value):
    """How a decoded value is encoded: this differs once the program has changed the value."""
    try:
        return encode_amqp_bytes(value)
    except AMQPError:       # other clients write what cannot be encoded: symbols beyond ASCII
        return repr(value)


cdef bint is_same(object value, object received) except -1:
    """Whether a value, which was decoded, has not been changed."""
    return encoded_form(value) == encoded_form(received)


cdef bint keeps_section(
    Sections sections, int index, const uint8_t *p, Py_ssize_t n
) except -1:
    """Whether a section of a received message, or its absence, is as received."""
    cdef Cursor c
    value = get_field(sections, index)
    if sections.replaced >> index & 1:
        return False
    if value is None or index == I_HEADER or index == I_PROPERTIES:
        return True
    if sections.layout.at[index] < 0:
        return not value
    cursor_open(&c, p, p + sections.layout.at[index], p + n)
    return is_same(value, build_section(&c, index))


# Bodies that a program cannot change, or does not.
cdef tuple UNCHANGING = (str, bytes, int, float, type(None), Symbol)


cdef bint keeps_body(Message ctx) except -1:
    cdef Cursor c
    cdef object body = ctx._body
    if ctx._body_at < 0:
        return False
    if not ctx._body_ready or isinstance(body, UNCHANGING):
        return True
    if ctx._plan is not None:   # a type may lack fields of the message
        if type(ctx._plan) is not Plan:
            return encoded_form(body) == ctx._plan
        try:
            received = decode_typed(ctx._plan, ctx._p, ctx._n)
        except AMQPDecoderError:        # the program's validators refuse them now
            return False
        return is_same(body, received)
    cursor_open(&c, ctx._p, ctx._p + ctx._body_at, ctx._p + ctx._n)
    return is_same(body, build_body(&c))


def reduce_message(Message ctx):
    """Reduce a message; instead of the plan, a pickle has an unchanged body's encoded form."""
    received = None if ctx._plan is None or not keeps_body(ctx) else encoded_form(ctx._body)
    return restore_message, state_of(ctx, received)


copyreg.pickle(Message, reduce_message)


cdef bint is_as_received(Message ctx) except -1:
    # values may run foreign code, which may call __init__
    cdef const uint8_t *p = ctx._p
    cdef Py_ssize_t n = ctx._n
    cdef Sections sections = ctx._sections
    cdef int i
    if not keeps_body(ctx):
        return False
    if sections is not None:
        for i in range(6):
            if not keeps_section(sections, i, p, n):
                return False
    return True


cdef int put_context(OutBuffer *out, Message ctx) except -1:
    if ctx._sections is None and ctx._owner is None:
        return put_body(out, ctx._body)
    return put_sections(out, ctx)


cdef int put_sections(OutBuffer *out, Message ctx) except -1:
    cdef Sections sections
    cdef object owner = ctx._owner      # hold a reference: values may run foreign code
    cdef const uint8_t *p = ctx._p
    cdef Py_ssize_t n = ctx._n
    if owner is not None and is_as_received(ctx):
        out_reserve(out, n)
        put_bytes(out, p, n)
        return 0
    if ctx._sections is None:
        ctx._sections = open_sections(ctx._p, ctx._n)
    sections = ctx._sections
    put_section(out, sections, I_HEADER, p, n)
    put_section(out, sections, I_DELIVERY_ANNOTATIONS, p, n)
    put_section(out, sections, I_ANNOTATIONS, p, n)
    put_section(out, sections, I_PROPERTIES, p, n)
    put_section(out, sections, I_APP_PROPERTIES, p, n)
    if owner is not None and keeps_body(ctx):
        put_received_body(out, p + ctx._body_at, p + n)
    else:
        put_body(out, ctx.take_body())
    return put_section(out, sections, I_FOOTER, p, n)


cdef int put_received_body(OutBuffer *out, const uint8_t *p, const uint8_t *end) except -1:
    """Write the sections of a body as they were received; other sections are between them."""
    cdef Cursor c
    cdef const uint8_t *at
    cdef int section
    cursor_open(&c, p, p, end)
    while c.p < end:
        at = c.p
        section = take_descriptor(&c)
        skip_value(&c)
        if DATA <= section <= VALUE:
            out_reserve(out, c.p - at)
            put_bytes(out, at, c.p - at)
    return 0


cdef int encode_message(OutBuffer *out, object message) except -1:
    if type(message) is bytes:
        return put_data(out, message)
    cdef bint failed
    if type(message) is Message:
        failed = (<raw_put_context> put_context)(out, message) < 0
    else:
        failed = (<raw_put_body> put_body)(out, message) < 0
    return fail_foreign(out) if failed else 0


# The same functions, called without exception propagation: cheaper than try and finally.
ctypedef int (*raw_put_context)(OutBuffer *out, Message ctx) noexcept
ctypedef int (*raw_put_body)(OutBuffer *out, object body) noexcept
ctypedef int (*raw_encode_message)(OutBuffer *out, object message) noexcept
ctypedef int (*raw_fail_foreign)(OutBuffer *out) noexcept
ctypedef int (*raw_name_part)(object message) noexcept


cdef int fail_foreign(OutBuffer *out) except -1:
    """After an error: wrap exceptions raised by a value's own code in an encoder error."""
    if (
        PyErr_ExceptionMatches(AMQPError) or PyErr_ExceptionMatches(MemoryError)
        or not PyErr_ExceptionMatches(Exception)
        or (out.owner is NULL and PyErr_ExceptionMatches(BufferError))
    ):
        return -1
    try:
        keep_error()
    except Exception as ex:
        raise AMQPEncoderValueError(f'cannot read a value: {clip(ex)}') from ex


cdef Py_ssize_t retry_encode(
    OutBuffer *out, bytearray buffer, rbfly_export *pin, object message
) except -1:
    """After an error: retry, as the encoder may have reserved more space than it needs."""
    cdef bint too_small = PyErr_ExceptionMatches(BufferError)
    if not too_small:
        (<raw_fail_foreign> fail_foreign)(out)
        (<raw_name_part> name_part)(message)
    rbfly_unpin(buffer, pin)
    if not too_small:
        return -1
    PyErr_Clear()
    data = encode_amqp_bytes(message)
    if len(data) > len(buffer):
        raise RbFlyBufferError(
            f'a message of {len(data)} bytes does not fit in a buffer of {len(buffer)} bytes'
        )
    buffer[:len(data)] = data
    return len(data)


# `part`: what `only_part` returns.
cdef Py_ssize_t encode_into(bytearray buffer, object message, PyObject *part) except -1:
    cdef OutBuffer out
    cdef rbfly_export pin
    cdef int put
    out_fixed(
        &out, <uint8_t *> PyByteArray_AS_STRING(buffer), PyByteArray_GET_SIZE(buffer)
    )
    rbfly_pin(buffer, &pin)
    if <PyObject *> message == part and type(message) is Message:
        put = (<raw_put_context> put_context)(&out, message)
    else:
        body = <object> part        # hold a reference: values may run foreign code
        put = (<raw_put_body> put_body)(&out, body)
    if put < 0:
        return retry_encode(&out, buffer, &pin, message)
    rbfly_unpin(buffer, &pin)
    return out_size(&out)


cdef inline PyObject *only_part(object message) noexcept:
    """The body of a message that has no other section; otherwise the message, or other body."""
    if (
        type(message) is Message
        and (<Message> message)._sections is None and (<Message> message)._owner is None
    ):
        return <PyObject *> (<Message> message)._body
    return <PyObject *> message


cdef inline bint is_plain(object body) noexcept:
    return type(body) is bytes or type(body) is str or type(body) is float


# A body of bytes, ASCII text or a float: the size of its message is known before it is encoded.
cdef struct Plain:
    uint32_t head           # DATA8, TEXT8 or FLOAT8
    const char *data
    Py_ssize_t n
    uint64_t bits           # of the float


cdef inline Py_ssize_t plain_size(object body, Plain *plain) noexcept:
    """The size of a message with this plain body only; 0 for other text than ASCII."""
    plain.data = NULL
    plain.n = 0
    plain.bits = 0
    if type(body) is bytes:
        plain.head = DATA8
        plain.data = PyBytes_AS_STRING(body)
        plain.n = PyBytes_GET_SIZE(body)
    elif type(body) is float:
        plain.head = FLOAT8
        plain.bits = double_bits(PyFloat_AS_DOUBLE(body))
        return 12
    elif rbfly_ascii_data(<PyObject *> body, &plain.data, &plain.n):
        plain.head = TEXT8
    else:
        return 0
    return 0 if is_beyond_u32(plain.n) else section_size(plain.n)


cdef inline void store_plain(uint8_t *p, const Plain *plain) noexcept:
    if plain.head == FLOAT8:
        store_u32(p, FLOAT8)
        store_u64(p + 4, plain.bits)
    elif plain.n <= SHORT:
        p = store_short_head(p, plain.head, plain.n)
        rbfly_copy(p, <const uint8_t *> plain.data, plain.n)
    else:
        store_u32(p, plain.head | codes.SIZE32)
        store_u32(p + 4, <uint32_t> plain.n)
        memcpy(p + 8, plain.data, <size_t> plain.n)


cdef Py_ssize_t put_plain(bytearray buffer, object body) noexcept:
    """The size of the message; 0 if the body is not ASCII text, or the buffer is too small."""
    cdef Plain plain
    cdef Py_ssize_t size = plain_size(body, &plain)
    if not size or size > PyByteArray_GET_SIZE(buffer):
        return 0
    store_plain(<uint8_t *> PyByteArray_AS_STRING(buffer), &plain)
    return size


cdef object encode_plain(object body, object message):
    cdef Plain plain
    cdef object encoded
    cdef Py_ssize_t size = plain_size(body, &plain)
    if not size:
        return encode_any(message)
    encoded = PyBytes_FromStringAndSize(NULL, size)
    store_plain(<uint8_t *> PyBytes_AS_STRING(encoded), &plain)
    return encoded


cdef enum:
    SIZES = 4096

cdef PyObject *sizes[SIZES]     # each is created once


cdef inline object size_object(Py_ssize_t size):
    """The size as an int; creating one takes as long as encoding a short message."""
    cdef object found
    if size >= SIZES:
        return size
    if sizes[size] is NULL:
        found = size
        Py_INCREF(found)
        sizes[size] = <PyObject *> found
    return <object> sizes[size]


@cython.binding(False)
def encode_amqp(bytearray buffer not None, message):
    """Encode a message to the start of a buffer.

    Raises RbFlyBufferError if the buffer is too small, and an AMQPEncoderError for a value that
    AMQP 1.0 cannot represent; the contents of the buffer are then undefined.  Other threads, and
    code run by the values, must not encode to the same buffer at the same time.

    :param buffer: destination (bytearray); its size does not change.
    :param message: Message, or a body of any type.
    :returns: number of bytes written (int).
    """
    cdef PyObject *body = only_part(message)
    cdef Py_ssize_t size = put_plain(buffer, <object> body) if is_plain(<object> body) else 0
    if not size:
        size = encode_into(buffer, message, body)
    return size_object(size)


cdef enum:
    LOCAL = 2048        # bytes on the stack


cdef object encode_any(object message):
    cdef OutBuffer out
    cdef uint8_t[LOCAL] space
    out_local(&out, space, LOCAL)
    if (<raw_encode_message> encode_message)(&out, message) < 0:
        out_discard(&out)
        name_part(message)
    return out_finish(&out)


@cython.binding(False)
def encode_amqp_bytes(message):
    """Encode a message and return its bytes.

    Raises an AMQPEncoderError for a value that AMQP 1.0 cannot represent.

    A datetime loses its microseconds, rounded down to milliseconds; a naive one is taken as UTC.

    :param message: Message, or a body of any type.
    :returns: the encoded message (bytes).
    """
    cdef PyObject *body = only_part(message)
    if is_plain(<object> body):
        return encode_plain(<object> body, message)
    return encode_any(message)


# --- decoding ---

cdef object decode_body(const uint8_t *p, Py_ssize_t n):
    cdef Cursor c
    cdef Py_ssize_t head = data_head(p, n)
    if head:
        return PyBytes_FromStringAndSize(<const char *> p + head, n - head)
    cursor_open(&c, p, p, p + n)
    if not is_one_section(p, n):
        find_body(&c)
    return build_body(&c)


cdef uint8_t[4] NO_BODY = [codes.DESCRIBED, codes.SMALLULONG, VALUE, codes.NULL]


cdef int find_body(Cursor *c) except -1:
    """Move the cursor to the body; to a null if the message has none."""
    cdef Layout layout
    scan(c, &layout)
    c.p = c.start + layout.body_at
    if c.p == c.end:
        c.start = c.p = NO_BODY
        c.end = c.p + sizeof(NO_BODY)
    return 0


cdef Message decode_context(
    object owner, const uint8_t *p, Py_ssize_t n, uint64_t stream_offset, double stream_timestamp
):
    cdef Message ctx = new_message()
    ctx._owner = owner
    ctx._p = p
    ctx._n = n
    ctx._offset = stream_offset
    ctx._timestamp = stream_timestamp
    if not is_one_section(p, n):
        place_body(ctx)
    return ctx


cdef int place_body(Message ctx) except -1:
    cdef Cursor c
    cdef Layout layout
    cursor_open(&c, ctx._p, ctx._p, ctx._p + ctx._n)
    scan(&c, &layout)
    ctx._body_at = layout.body_at
    ctx._body_ready = layout.body_at == ctx._n  # without a body section, the body is None
    return 0


@cython.binding(False)
def decode_amqp(buffer, *, type=None):
    """Decode a message.

    The structure of the message (its sections, and that they fill the buffer) is checked
    immediately; values are checked when their section is first accessed.  Both checks raise
    AMQPDecoderError.  Sections may come in any order: of one that occurs twice, the last one
    counts; several data or sequence sections are one body; without a body section, the body is
    None.  The context keeps `bytes` and read-only memoryviews alive without copying them; it
    copies a writable buffer once.

    Raises MessageTypeError if the argument has no buffer, and ArgumentTypeError for a type that
    cannot be decoded.

    :param buffer: one encoded message (bytes, bytearray or memoryview).
    :param type: type of the body, which is checked and built immediately: a dataclass, a Struct of
        msgspec, a TypedDict, a model of pydantic, or any other annotation; None for what the
        message contains.
    :returns: the message (Message).
    """
    return decode_as(buffer, type)


cdef object decode_buffer(object buffer):
    if PyBytes_CheckExact(buffer):
        return decode_context(
            buffer, <const uint8_t *> PyBytes_AS_STRING(buffer), PyBytes_GET_SIZE(buffer), 0, 0
        )
    data = readonly_buffer(buffer)
    if PyBytes_CheckExact(data):
        return decode_buffer(data)
    return decode_context(
        data, <const uint8_t *> PyMemoryView_GET_BUFFER(data).buf, len(data), 0, 0
    )


cdef object decode_as(object buffer, object kind):
    cdef Message ctx = decode_buffer(buffer)
    if kind is not None:
        type_body(typed_plan(kind), ctx)
    return ctx


globals().update(
    decode_amqp=rbfly_decoder(decode_amqp, decode_buffer, decode_as, __name__)
)


cdef dict PLANS = None      # of types, see `rbfly.amqp.schema`
cdef object plan_of = None


cdef Plan typed_plan(object kind):
    """The plan of a type; what makes plans is imported for the first one."""
    global PLANS, plan_of
    if PLANS is None:
        from rbfly.amqp.schema import PLANS, plan_of
    cdef PyObject *found = PyDict_GetItemWithError(PLANS, kind)
    if found is not NULL:
        return <Plan> found
    if PyErr_ExceptionMatches(TypeError):       # it has no hash, as its annotations
        PyErr_Clear()
    elif PyErr_Occurred():
        keep_error()
    return plan_of(kind)


cdef object readonly_buffer(object data):
    """Return exact bytes, or a memoryview of bytes that cannot be written to."""
    cdef object view
    try:
        view = memoryview(data)
    except TypeError:
        raise MessageTypeError(
            f'a message must be bytes, bytearray or memoryview, not {type(data).__name__}'
        ) from None
    if not view.nbytes:
        return b''
    if not view.readonly or not view.c_contiguous:
        return view.tobytes()
    if view.format != 'B' or view.ndim != 1:
        return view.cast('B')
    return view
