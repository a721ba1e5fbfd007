"""Messages: body, other sections, and stream data such as the offset."""

import operator
from contextvars import ContextVar
from types import GenericAlias

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint64_t

from rbfly._cpython cimport rbfly_keep_contexts, rbfly_kept_context, rbfly_next_body
from rbfly._wire cimport load_double, load_u32
from rbfly.amqp cimport _constructors as codes
from rbfly.amqp._decode cimport Cursor, cursor_open, keep_error
from rbfly.amqp._layout cimport (
    DATA, I_ANNOTATIONS, I_APP_PROPERTIES, I_HEADER, I_PROPERTIES, SECTION_NAMES, Sections,
    build_body, build_section, data_head, get_field, is_float, open_sections, set_field,
    skip_value, take_descriptor,
)
from rbfly.amqp._native cimport rbfly_add_attributes
from rbfly.amqp._sections cimport AMQPHeader, AMQPProperties, check_uint

from rbfly.error import (
    AMQPDecoderError, AMQPEncoderOverflowError, AMQPEncoderTypeError, MessageContextError,
    MessageTypeError, no_message,
)

cdef extern from *:
    """
    /* Message(body), also with keywords for its parts: skip the cost of parsing keywords. */
    #define RBFLY_PARTS 7
    static PyObject *(*rbfly_plain_message)(PyObject *);
    static PyObject *(*rbfly_message_of)(PyObject *, PyObject **);
    static PyObject *rbfly_full_message, *rbfly_parts;

    static PyObject *rbfly_new_message(
            PyObject *type, PyObject *const *args, size_t n, PyObject *names) {
        (void)type;
        if (PyVectorcall_NARGS(n) == 1) {
            if (names == NULL) return rbfly_plain_message(args[0]);
            PyObject *values[RBFLY_PARTS] = {NULL};
            if (rbfly_match_keywords(names, args + 1, rbfly_parts, values))
                return rbfly_message_of(args[0], values);
        }
        return PyObject_Vectorcall(rbfly_full_message, args, n, names);
    }
    static void rbfly_set_constructor(
            PyObject *type, PyObject *(*plain)(PyObject *),
            PyObject *(*with_parts)(PyObject *, PyObject **), PyObject *parts, PyObject *full) {
        rbfly_plain_message = plain;
        rbfly_message_of = with_parts;
        rbfly_parts = Py_NewRef(parts);
        rbfly_full_message = Py_NewRef(full);
        ((PyTypeObject *)type)->tp_vectorcall = rbfly_new_message;
    }
    """
    void rbfly_set_constructor(
        object type, object (*plain)(object), object (*with_parts)(object, PyObject **),
        tuple parts, object full)

cdef extern from *:
    """
    /* Take over a reference. */
    #define rbfly_given(found) (found)
    """
    object rbfly_given(PyObject *found)

# `build_section`, but returns NULL with an exception set: cheaper than try and except.
ctypedef PyObject *(*raw_build_section)(Cursor *c, int index) noexcept

cdef extern from 'Python.h':
    object PyFloat_FromDouble(double value)
    object PyObject_GenericGetAttr(object o, object name)

# a cimported class is not visible in the module's Python namespace
globals().update(AMQPHeader=AMQPHeader, AMQPProperties=AMQPProperties)

cdef object CONTEXT = ContextVar('rbfly_message_ctx')
cdef object LAST_SET = None


@cython.final
@cython.no_gc
cdef class Message:
    """Message(body, *, publish_id=None, properties=None, app_properties=None, annotations=None, \
delivery_annotations=None, header=None, footer=None, stream_offset=0, stream_timestamp=0)\n--\n
    A message: body, other sections, and stream data.

    Sections of a received message are decoded on first access, which raises AMQPDecoderError if
    they are malformed.  A string that is not UTF-8 is decoded as bytes.  A received message that
    the program has not changed is encoded as the bytes that were received.  Otherwise all sections
    that are set are encoded, except for empty ones: a header with default values, properties
    without a value, or an empty map.

    A received message keeps the bytes of its chunk alive; a copy (`copy.copy`) keeps only
    its own.

    See part 3, section 3.2 of the specification.  The cyclic garbage collector does not track
    messages: do not store a message in its own body.

    Raises AMQPEncoderTypeError or AMQPEncoderOverflowError for an invalid argument.

    :param body: AMQP value; `bytes`, bytearray, memoryview and DataBody are encoded as data
        sections, SequenceBody as sequence sections, anything else as a value section.
    :param publish_id: publishing id for deduplication (int, 0 to 2**64 - 1); None for the
        publisher's next one.
    :param properties: AMQPProperties.
    :param app_properties: application properties (dict with str keys).  The specification only
        allows simple values.  Lists, maps and arrays are encoded anyway, so that any received
        message can be sent; RabbitMQ converts them to arrays and tables for AMQP 0.9.1.  A
        Described or decimal value makes RabbitMQ close the connection of an AMQP 0.9.1 consumer.
    :param annotations: message annotations; dict with Symbol, str (converted to Symbol) or int
        keys.
    :param delivery_annotations: dict with Symbol, str (converted to Symbol) or int keys.
    :param header: AMQPHeader.
    :param footer: dict with Symbol, str (converted to Symbol) or int keys.
    :param stream_offset: offset in the stream (int, 0 to 2**64 - 1).
    :param stream_timestamp: time when the broker stored the message, seconds since 1970 UTC.
    """

    __class_getitem__ = classmethod(GenericAlias)

    def __init__(self, *args, **kwargs):
        cdef Message made = message(*args, **kwargs)
        self._body, self._body_ready = made._body, True
        self._owner, self._p, self._sections = None, NULL, made._sections
        self._offset, self._timestamp = made._offset, made._timestamp
        self._publish_id = made._publish_id
        self.is_set_stream_publish_id = made.is_set_stream_publish_id

    cdef object take_body(self):
        cdef const uint8_t *p = self._p
        cdef Py_ssize_t head
        if not self._body_ready:
            head = data_head(p, self._n)
            if head:
                self._body = rbfly_next_body(p + head, self._n - head)
            elif is_float(p, self._n):
                self._body = PyFloat_FromDouble(load_double(p + 4))
            else:
                return take_built(self)
            self._body_ready = True
        return self._body

    cdef object data_view(self):
        """View of a body that was received as a single data section; else None."""
        cdef Cursor c
        cdef Py_ssize_t n = -1
        if self._body_ready or self._p is NULL:
            return None
        cursor_open(&c, self._p, self._p + self._body_at, self._p + self._n)
        # check again: the memory under a read-only view may have changed
        if take_descriptor(&c) == DATA and c.end - c.p >= 2:
            if c.p[0] == codes.VBIN8:
                n = c.p[1]
                c.p += 2
            elif c.p[0] == codes.VBIN32 and c.end - c.p >= 5:
                n = load_u32(c.p + 1)
                c.p += 5
        if 0 <= n <= c.end - c.p and not has_data(c.p + n, &c):
            return view_of(self._owner, c.p, n)

    cdef object section(self, int index):
        cdef Sections sections = self._sections
        cdef Cursor c
        cdef PyObject *found
        cdef object owner = self._owner     # hold a reference, as in take_body
        if sections is None:
            sections = self._sections = open_sections(self._p, self._n)
        value = get_field(sections, index)
        if value is None:
            if sections.layout.at[index] >= 0 and owner is not None:
                cursor_open(&c, self._p, self._p + sections.layout.at[index], self._p + self._n)
                found = (<raw_build_section> build_section)(&c, index)
                if found is NULL:
                    fail_section(self)
                value = rbfly_given(found)
            elif index == I_HEADER:
                value = DEFAULT_HEADER
            elif index == I_PROPERTIES:
                value = DEFAULT_PROPERTIES
            else:
                value = {}
            set_field(sections, index, value)
        return value

    def __getattribute__(self, name):
        # the most used attributes skip the lookup through the type
        if name is BODY:
            return self._body if self._body_ready else self.take_body()
        if name is APP_PROPERTIES:
            return self.section(I_APP_PROPERTIES)
        if name is PROPERTIES:
            return self.section(I_PROPERTIES)
        return PyObject_GenericGetAttr(self, name)

    @property
    def body(self):
        """Message body."""
        return self.take_body()

    @body.setter
    def body(self, value):
        if type(value) is Message:
            fail_body()
        self._body = value
        self._body_at = -1
        self._body_ready = True

    @property
    def stream(self):
        """Name of the stream, or of the partition (str); None for a message not received."""
        return self._stream

    @property
    def stream_offset(self):
        """Offset in the stream (int)."""
        return self._offset

    @stream_offset.setter
    def stream_offset(self, value):
        self._offset = check_u64(value, 'stream_offset')

    @property
    def next_offset(self):
        """Offset after that of the message (int): a program that keeps offsets stores it."""
        cdef object offset = self._offset
        return offset + 1

    @property
    def stream_timestamp(self):
        """Time when the broker stored the message, seconds since 1970 UTC (float)."""
        return self._timestamp

    @stream_timestamp.setter
    def stream_timestamp(self, value):
        self._timestamp = check_time(value)

    @property
    def publish_id(self):
        """Publishing id for deduplication (int); None if the publisher assigns the next one."""
        return self._publish_id if self.is_set_stream_publish_id else None

    @publish_id.setter
    def publish_id(self, value):
        set_publish_id(self, value, 'publish_id')

    @property
    def stream_publish_id(self):
        """The same, with 0 for None: the name in RbFly 0.10."""
        return self._publish_id

    @stream_publish_id.setter
    def stream_publish_id(self, value):
        set_publish_id(self, value, 'stream_publish_id')

    @property
    def decode_error(self):
        """Why the message is not AMQP 1.0, or not of the requested type (AMQPDecoderError); None if
        it is.

        A subscription with `on_decode_error='raw'` delivers such messages; the body is their bytes.
        """
        cdef Cursor c
        cdef Sections sections = self._sections
        cdef object owner = self._owner
        if owner is None or sections is None:
            return None
        try:
            if sections.error is not None:
                raise sections.error
            sections = open_sections(self._p, self._n)
            if sections.layout.body_at < self._n:
                cursor_open(&c, self._p, self._p + sections.layout.body_at, self._p + self._n)
                build_body(&c)
        except AMQPDecoderError as ex:
            ex.stream = self._stream
            ex.offset = self._offset
            ex.data = bytes(self.raw)
            return ex

    @property
    def raw(self):
        """Bytes of the received message (memoryview); None if it was not received as AMQP 1.0."""
        if self._owner is None:
            return None
        return view_of(self._owner, self._p, self._n)

    def body_view(self):
        """Body as memoryview; not copied if the message was received with a single data section.

        Raises MessageTypeError, which is a TypeError, if the body is not binary.
        """
        view = self.data_view()
        if view is not None:
            return view
        body = self.take_body()
        if not isinstance(body, (bytes, bytearray, memoryview)):
            raise MessageTypeError(f'a body of type {type(body).__name__} is not binary')
        return memoryview(body)

    cdef object peek(self, int index):
        """A section, or the body; what cannot be decoded is represented by the whole message."""
        try:
            return self.take_body() if index == I_BODY else self.section(index)
        except AMQPDecoderError:
            return b'undecodable: ' + self.raw

    def __repr__(self):
        return (
            f'Message(body={clip_body(self.peek(I_BODY))}, '
            f'stream_offset={self._offset}, stream_timestamp={self._timestamp}, '
            f'publish_id={self.publish_id}, '
            f'annotations={section_repr(self.peek(I_ANNOTATIONS))}, '
            f'app_properties={section_repr(self.peek(I_APP_PROPERTIES))})'
        )

    def __eq__(self, other):
        cdef Message that
        cdef int i
        if type(other) is not Message:
            return NotImplemented
        if self is other:
            return True
        that = other
        if (
            self._offset != that._offset
            or self._timestamp != that._timestamp
            or self._publish_id != that._publish_id
        ):
            return False
        for i in range(I_BODY + 1):
            if self.peek(i) != that.peek(i):
                return False
        return True

    __hash__ = None

    def __reduce__(self):       # pickles and deep copies use `reduce_message` of the codec
        return restore_message, state_of(self, None)

    def __copy__(self):
        cdef Message copied = restore_message(*state_of(self, None))
        copied._plan = self._plan
        return copied


cdef tuple state_of(Message ctx, object encoded_form):
    cdef Sections sections = ctx._sections
    cdef object body = ctx._body
    cdef int i
    cdef int absent = 0     # all of them if the message is undecodable
    if sections is not None:
        for i in range(6):
            absent |= (sections.layout.at[i] < 0) << i
    if type(body) is memoryview and body.readonly:      # of a received chunk
        body = bytes(body)
    return (
        None if ctx._owner is None else bytes(ctx.raw),
        body,
        bool(ctx._body_ready),
        ctx._body_at < 0,
        None if sections is None else [get_field(sections, i) for i in range(6)],
        None if sections is None else sections.error,
        0 if sections is None else sections.replaced,
        absent,
        ctx._stream, ctx._offset, ctx._timestamp, ctx._publish_id,
        bool(ctx.is_set_stream_publish_id),
        encoded_form,
    )


def restore_message(
    bytes raw, body, bint body_ready, bint body_set, list fields, object error, int replaced,
    int absent, str stream, uint64_t offset, double timestamp, uint64_t publish_id,
    bint is_set_publish_id, object encoded_form,
):
    cdef Message ctx = new_message()
    cdef Sections sections
    cdef int i
    if raw is not None:
        ctx._owner = raw
        ctx._p = <const uint8_t *> PyBytes_AS_STRING(raw)
        ctx._n = len(raw)
    if fields is not None and len(fields) != 6:
        raise ValueError('not a pickled message')
    try:
        sections = open_sections(ctx._p, ctx._n)
    except AMQPDecoderError:        # received with on_decode_error='raw': the body is the message
        if not body_ready or type(body) not in (bytes, str):
            body_set = True
        sections = open_sections(NULL, 0)
        body_ready = True
    ctx._body = body
    ctx._body_ready = body_ready or sections.layout.body_at == ctx._n
    ctx._body_at = -1 if body_set else sections.layout.body_at
    if fields is not None:
        ctx._sections = sections
        sections.error = error
        sections.replaced = replaced
        for i in range(6):
            set_field(sections, i, fields[i])
            if absent >> i & 1:
                sections.layout.at[i] = -1
    ctx._stream = stream
    ctx._offset = offset
    ctx._timestamp = timestamp
    ctx._publish_id = publish_id
    ctx.is_set_stream_publish_id = is_set_publish_id
    ctx._plan = encoded_form
    return ctx


rbfly_keep_contexts(Message.__new__(Message), sizeof(Message))


cdef Message new_message():
    cdef PyObject *kept = rbfly_kept_context()
    if kept is not NULL:
        return <Message> rbfly_given(kept)
    return Message.__new__(Message)


cdef enum:
    I_BODY = 6      # the index of the body, for `peek`

# Compared by identity: attribute names in code are interned.
cdef str BODY = 'body'
cdef str PROPERTIES = 'properties'
cdef str APP_PROPERTIES = 'app_properties'
cdef object DEFAULT_HEADER = AMQPHeader()
cdef object DEFAULT_PROPERTIES = AMQPProperties()


cdef object take_built(Message ctx):
    """Decode a body other than a single data section or float."""
    cdef Cursor c
    # hold a reference: map keys may run foreign code, which may call __init__
    cdef object owner = ctx._owner
    if owner is not None:       # None if only __new__ was called
        cursor_open(&c, ctx._p, ctx._p + ctx._body_at, ctx._p + ctx._n)
        body = build_body(&c)
        if ctx._body_ready:     # set by foreign code during decoding
            return ctx._body
        ctx._body = body
    ctx._body_ready = True
    return ctx._body


cdef int fail_section(Message ctx) except -1:
    """Add stream and offset of a received message to the current exception."""
    try:
        keep_error()
    except AMQPDecoderError as ex:
        if ctx._stream is not None:
            ex.stream = ctx._stream
            ex.offset = ctx._offset
            ex.data = bytes(ctx.raw)
        raise


cdef bint has_data(const uint8_t *p, Cursor *c) except -1:
    """Whether a data section follows at `p`."""
    cdef Cursor other
    cursor_open(&other, c.start, p, c.end)
    while other.p < other.end:
        if take_descriptor(&other) == DATA:
            return True
        skip_value(&other)
    return False


cdef str clip_body(object body):
    if isinstance(body, (str, bytes)):
        return repr(body[:10] + ('...' if isinstance(body, str) else b'...')) if len(body) > 10 \
            else repr(body)
    text = repr(body)
    return text if len(text) <= 10 else text[:10] + '...'


cdef str section_repr(object value):
    return '<undecodable>' if type(value) is bytes else repr(value)


cdef object view_of(object owner, const uint8_t *p, Py_ssize_t n):
    cdef Py_ssize_t start
    if type(owner) is bytes:
        start = p - <const uint8_t *> PyBytes_AS_STRING(owner)
        owner = memoryview(owner)
    else:
        start = p - <const uint8_t *> PyMemoryView_GET_BUFFER(owner).buf
    return owner[start:start + n]


cdef int set_section(Message ctx, int index, object value) except -1:
    cdef Sections sections
    if value is not None:
        if index == I_HEADER:
            if type(value) is not AMQPHeader:
                raise AMQPEncoderTypeError(f'header must be AMQPHeader, not {type(value).__name__}')
        elif index == I_PROPERTIES:
            if type(value) is not AMQPProperties:
                raise AMQPEncoderTypeError(
                    f'properties must be AMQPProperties, not {type(value).__name__}'
                )
        elif type(value) is not dict and not hasattr(value, 'keys'):
            raise AMQPEncoderTypeError(
                f'{SECTION_NAMES[index]} must be dict, not {type(value).__name__}'
            )
    if ctx._sections is None:
        ctx._sections = open_sections(ctx._p, ctx._n)
    sections = ctx._sections    # freeing the old value may replace the context's
    sections.layout.at[index] = -1
    sections.replaced |= 1 << index
    set_field(sections, index, value)
    return 0


cdef int set_sections(Message ctx, PyObject **values) except -1:
    cdef int i
    for i in range(6):
        if values[i] is not NULL and values[i] is not <PyObject *> None:
            set_section(ctx, i, <object> values[i])
    return 0


cdef object get_attribute(object ctx, void *index):
    return (<Message> ctx).section(<Py_ssize_t> index)


cdef int set_attribute(object ctx, PyObject *value, void *index) except -1:
    if value is NULL:
        raise NotImplementedError('a section cannot be deleted: set it to None')
    return set_section(ctx, <Py_ssize_t> index, <object> value)


# in the order of the indices
rbfly_add_attributes(Message, {
    'header': 'Header (AMQPHeader).',
    'delivery_annotations': 'Delivery annotations (dict).',
    'annotations': 'Message annotations (dict).',
    'properties': 'Properties (AMQPProperties).',
    'app_properties': 'Application properties (dict).',
    'footer': 'Footer (dict).',
}, get_attribute, set_attribute)


cdef object fail_body():
    raise AMQPEncoderTypeError('a message body must be a value, not a Message')


cdef object plain_message(object body):
    if type(body) is Message:
        return fail_body()
    cdef Message ctx = new_message()
    ctx._body = body
    ctx._body_ready = True
    return ctx


# The order of the values of `message_of`.
cdef tuple PARTS = (
    'publish_id', 'header', 'delivery_annotations', 'annotations', 'properties', 'app_properties',
    'footer',
)


cdef object message_of(object body, PyObject **values):
    cdef Message made = plain_message(body)
    set_sections(made, values + 1)
    if values[0] is not NULL and values[0] is not <PyObject *> None:
        set_publish_id(made, <object> values[0], 'publish_id')
    return made


cdef uint64_t check_u64(object value, str name) except? 0:
    if not isinstance(value, int) and hasattr(value, '__index__'):
        value = operator.index(value)
    return check_uint(value, 0xffffffffffffffff, name)


cdef double check_time(object value) except? -1:
    if type(value) is float:
        return value
    if isinstance(value, bool) or not hasattr(value, '__float__'):
        raise AMQPEncoderTypeError(f'stream_timestamp must be float, not {type(value).__name__}')
    try:
        return float(value)
    except OverflowError:
        raise AMQPEncoderOverflowError('stream_timestamp is out of range for float') from None


cdef int set_publish_id(Message ctx, object value, str name) except -1:
    ctx._publish_id = 0 if value is None else check_u64(value, name)
    ctx.is_set_stream_publish_id = value is not None
    return 0


cdef object ZERO = 0     # small integers are compared by identity


def message(
    body, header=None, delivery_annotations=None, annotations=None, properties=None,
    app_properties=None, footer=None, *, publish_id=None, stream_offset=0, stream_timestamp=0,
    stream_publish_id=None, is_set_stream_publish_id=None,
):
    cdef Message made = plain_message(body)
    set_sections(made, [
        <PyObject *> header, <PyObject *> delivery_annotations, <PyObject *> annotations,
        <PyObject *> properties, <PyObject *> app_properties, <PyObject *> footer,
    ])
    if stream_offset is not ZERO:
        made._offset = check_u64(stream_offset, 'stream_offset')
    if stream_timestamp is not ZERO:
        made._timestamp = check_time(stream_timestamp)
    if publish_id is not None:
        set_publish_id(made, publish_id, 'publish_id')
    elif stream_publish_id is not None:
        set_publish_id(made, stream_publish_id, 'stream_publish_id')
    if is_set_stream_publish_id is not None:
        made.is_set_stream_publish_id = is_set_stream_publish_id
    return made


rbfly_set_constructor(Message, plain_message, message_of, PARTS, message)

# The names in RbFly 0.10.
MessageCtx = stream_message_ctx = Message


def get_message_ctx():
    """Return the context of the last message that the current task received.

    Raises MessageContextError, which is a LookupError, if the task has not received one.
    """
    context = CONTEXT.get(None)
    if type(context) is Message:
        return context
    current = getattr(context, '_current_message_ctx', None)
    if current is None:
        raise no_message()
    return current()


def last_offset(stream):
    """Offset of the message that the current task received last, which must be of that stream.

    Raises MessageContextError if there is none, or if it is of another stream.
    """
    context = get_message_ctx()
    # A context that the program has set itself names no stream.
    found = getattr(CONTEXT.get(None), 'stream', None)
    if found is not None and found != stream:
        raise MessageContextError(
            f'the last message that this task received is from stream {found!r}, not {stream!r}:'
            ' pass the offset to store'
        )
    return context.stream_offset


def last_partition(super_stream):
    """Partition of the message that the current task received last; None if it has none of it.

    :param super_stream: name of the super stream.
    """
    try:
        get_message_ctx()
    except MessageContextError:
        return None
    found = CONTEXT.get(None)
    return found.stream if getattr(found, 'super_stream', None) == super_stream else None


def last_super_stream(partition):
    """Super stream of the message that the current task received last; None if it is not from this
    partition, or from no super stream.

    :param partition: name of the stream.
    """
    found = CONTEXT.get(None)
    return getattr(found, 'super_stream', None) if (
        getattr(found, 'stream', None) == partition) else None


def set_message_ctx(context):
    """Set the context that :func:`get_message_ctx` returns.

    :param context: Message, or an object with a `_current_message_ctx` method that returns one.
    """
    global LAST_SET
    CONTEXT.set(context)
    LAST_SET = context
