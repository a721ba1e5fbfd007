"""Header, properties, and bodies with several sections (part 3, section 3.2)."""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport uint8_t

from rbfly._wire cimport OutBuffer, out_reserve, put_u8
from rbfly.amqp cimport _constructors as codes
from rbfly.amqp._decode cimport Cursor, decode_value
from rbfly.amqp._encode cimport close_compound, encode_value, open_compound
from rbfly.amqp._native cimport rbfly_add_attributes
from rbfly.amqp._scalars cimport encode_symbol, encode_text, encode_unsigned
from rbfly.amqp._types cimport (
    DECIMALS, Symbol, is_datetime, is_uuid, new_symbol, plain_bytes, plain_text,
)

from rbfly.amqp._types import Timestamp
from rbfly.error import AMQPEncoderOverflowError, AMQPEncoderTypeError

cdef extern from *:
    """
    /* AMQPProperties with keywords only: skip the cost of parsing them. */
    #define RBFLY_PROPERTIES 13
    static PyObject *(*rbfly_properties_of)(PyObject **);
    static PyObject *rbfly_property_names;
    static vectorcallfunc rbfly_any_properties;

    static PyObject *rbfly_new_properties(
            PyObject *type, PyObject *const *args, size_t n, PyObject *names) {
        if (PyVectorcall_NARGS(n) == 0 && names != NULL) {
            PyObject *values[RBFLY_PROPERTIES];
            /* in two parts: gcc would clear it with `rep stos`, which takes longer */
            memset(values, 0, 8 * sizeof(PyObject *));
            memset(values + 8, 0, (RBFLY_PROPERTIES - 8) * sizeof(PyObject *));
            if (rbfly_match_keywords(names, args, rbfly_property_names, values))
                return rbfly_properties_of(values);
        }
        return rbfly_any_properties(type, args, n, names);
    }
    static void rbfly_set_constructor(
            PyObject *type, PyObject *(*with_fields)(PyObject **), PyObject *names) {
        rbfly_properties_of = with_fields;
        rbfly_property_names = Py_NewRef(names);
        rbfly_any_properties = ((PyTypeObject *)type)->tp_vectorcall;
        if (rbfly_any_properties != NULL)
            ((PyTypeObject *)type)->tp_vectorcall = rbfly_new_properties;
    }
    """
    void rbfly_set_constructor(object type, object (*with_fields)(PyObject **), tuple names)

cdef extern from 'Python.h':
    PyObject **PySequence_Fast_ITEMS(object items) noexcept
    bint PyUnicode_IS_ASCII(object text) noexcept


cdef bytes data_section(object value):
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise AMQPEncoderTypeError(f'a data section must be bytes, not {type(value).__name__}')
    return plain_bytes(value)


class DataBody(bytes):
    """Body with several data sections; as bytes, their concatenation.

    :param sections: contents of each data section (iterable of bytes).
    :ivar sections: contents of each data section (tuple of bytes).
    """

    _sections = ()      # for a subclass that does not call this class's __new__

    def __new__(cls, sections=()):
        parts = tuple([data_section(part) for part in sections])
        if not parts:
            parts = (b'',)
        self = bytes.__new__(cls, b''.join(parts))
        self._sections = parts
        return self

    @property
    def sections(self):
        """Contents of each section (tuple of bytes)."""
        return self._sections or (plain_bytes(self),)

    def __reduce__(self):
        return type(self), (self.sections,)


class SequenceBody(list):
    """Body of sequence sections; as a list, their concatenation.

    :param sections: items of each sequence section (iterable of iterables).
    :ivar lengths: number of items in each section.  If the length of the list changes, it is
        encoded as one section.
    """

    _lengths = (0,)     # for a subclass that does not call this class's __init__

    def __init__(self, sections=()):
        parts = [list(part) for part in sections]
        list.__init__(self, [item for part in parts for item in part])
        self._lengths = tuple([len(part) for part in parts]) or (0,)

    @property
    def lengths(self):
        """Number of items in each section (tuple of int)."""
        return self._lengths

    @property
    def sections(self):
        """The sections (list of lists)."""
        if sum(self.lengths) != len(self):
            return [list(self)]
        result = []
        start = 0
        for n in self.lengths:
            result.append(list(self[start:start + n]))
            start += n
        return result

    def __reduce__(self):
        return type(self), (self.sections,)


cdef object check_uint(object value, object limit, str name):
    if not isinstance(value, int) or isinstance(value, bool):
        raise AMQPEncoderTypeError(f'{name} must be int, not {type(value).__name__}')
    if not 0 <= value <= limit:
        raise AMQPEncoderOverflowError(f'{name} must be from 0 to {limit}')
    return int(value)


cdef object check_bool(object value, str name):
    if value is not True and value is not False:
        raise AMQPEncoderTypeError(f'{name} must be bool, not {type(value).__name__}')
    return value


cdef int check_alone(tuple keywords) except -1:
    for value in keywords:
        if value is not None:
            raise AMQPEncoderTypeError('pass the fields as a list or as keywords, not both')
    return 0


@cython.final
cdef class AMQPHeader:
    """AMQPHeader(fields=None, *, durable=None, priority=None, ttl=None, first_acquirer=None, \
delivery_count=None)\n--\n
    Header section: delivery details of a message (part 3, section 3.2.1).

    Immutable.  Raises AMQPEncoderTypeError or AMQPEncoderOverflowError for an invalid value.  In a
    received message, a field may have another type: then it is as the sender wrote it.

    :param fields: values in the order of the specification (list), in place of keywords.
    :param durable: whether the message survives the failure of an intermediary (bool, default
        False).
    :param priority: 0 to 255, default 4.
    :param ttl: time to live in milliseconds, 0 to 2**32 - 1; None for no limit.
    :param first_acquirer: whether no other link acquired the message before (bool, default False).
    :param delivery_count: number of earlier unsuccessful deliveries, 0 to 2**32 - 1, default 0.
    """

    def __init__(
        self, fields=None, *, durable=None, priority=None, ttl=None, first_acquirer=None,
        delivery_count=None,
    ):
        if fields is not None:
            check_alone((durable, priority, ttl, first_acquirer, delivery_count))
            if len(fields) > 5:
                raise AMQPEncoderTypeError(f'a header has at most 5 fields, not {len(fields)}')
            durable, priority, ttl, first_acquirer, delivery_count = (
                list(fields) + [None] * (5 - len(fields))
            )
        self.durable = False if durable is None else check_bool(durable, 'durable')
        self.priority = 4 if priority is None else check_uint(priority, 0xff, 'priority')
        self.ttl = None if ttl is None else check_uint(ttl, 0xffffffff, 'ttl')
        self.first_acquirer = (
            False if first_acquirer is None else check_bool(first_acquirer, 'first_acquirer')
        )
        self.delivery_count = (
            0 if delivery_count is None
            else check_uint(delivery_count, 0xffffffff, 'delivery_count')
        )

    cdef tuple astuple(self):
        return self.durable, self.priority, self.ttl, self.first_acquirer, self.delivery_count

    def __repr__(self):
        return (
            f'AMQPHeader(durable={self.durable}, priority={self.priority}, ttl={self.ttl}, '
            f'first_acquirer={self.first_acquirer}, delivery_count={self.delivery_count})'
        )

    def __eq__(self, other):
        if type(other) is not AMQPHeader:
            return NotImplemented
        return self.astuple() == (<AMQPHeader> other).astuple()

    def __hash__(self):
        return hash(self.astuple())

    def __reduce__(self):
        return received_header, (list(self.astuple()),)


cdef tuple HEADER_DEFAULTS = (False, 4, None, False, 0)


cpdef AMQPHeader received_header(list fields):
    cdef AMQPHeader header = AMQPHeader.__new__(AMQPHeader)
    cdef list values = [*HEADER_DEFAULTS]
    cdef Py_ssize_t i
    if fields is not None:
        for i in range(min(len(fields), len(values))):
            if fields[i] is not None:
                values[i] = fields[i]
    (
        header.durable, header.priority, header.ttl, header.first_acquirer, header.delivery_count,
    ) = values
    return header


cdef tuple PROPERTY_NAMES = (
    'message_id', 'user_id', 'to', 'subject', 'reply_to', 'correlation_id', 'content_type',
    'content_encoding', 'absolute_expiry_time', 'creation_time', 'group_id', 'group_sequence',
    'reply_to_group_id',
)


# Indices of the properties.
cdef enum:
    MESSAGE_ID, USER_ID, TO, SUBJECT, REPLY_TO, CORRELATION_ID, CONTENT_TYPE, CONTENT_ENCODING
    ABSOLUTE_EXPIRY_TIME, CREATION_TIME, GROUP_ID, GROUP_SEQUENCE, REPLY_TO_GROUP_ID
    PROPERTIES_FIELDS       # their number

# Bit set of the properties that store a str as it is.
cdef enum:
    TEXT_FIELDS = (
        1 << MESSAGE_ID | 1 << TO | 1 << SUBJECT | 1 << REPLY_TO | 1 << CORRELATION_ID
        | 1 << GROUP_ID | 1 << REPLY_TO_GROUP_ID
    )


cdef object check_property(int index, object value):
    """Check a property and convert it to the type that is stored."""
    name = PROPERTY_NAMES[index]
    if index == MESSAGE_ID or index == CORRELATION_ID:
        if isinstance(value, int) and not isinstance(value, bool):
            return check_uint(value, 0xffffffffffffffff, name)
        if isinstance(value, bytes) and not isinstance(value, DECIMALS):
            return value
        if isinstance(value, (bytearray, memoryview)):
            return plain_bytes(value)
        if isinstance(value, str):
            return plain_text(value)
        if is_uuid(value):
            return value
        expected = 'int, UUID, bytes or str'
    elif index == USER_ID:
        if isinstance(value, (bytes, bytearray, memoryview)) and not isinstance(value, DECIMALS):
            return plain_bytes(value)
        expected = 'bytes'
    elif index == CONTENT_TYPE or index == CONTENT_ENCODING:
        if type(value) is Symbol:
            return value
        if type(value) is str and PyUnicode_IS_ASCII(value):
            return new_symbol(value)
        if isinstance(value, str):
            return Symbol(value)
        expected = 'Symbol or str'
    elif index == ABSOLUTE_EXPIRY_TIME or index == CREATION_TIME:
        if isinstance(value, Timestamp) or is_datetime(value):
            return value
        expected = 'datetime'
    elif index == GROUP_SEQUENCE:
        return check_uint(value, 0xffffffff, name)
    else:
        if isinstance(value, str):
            return plain_text(value)
        expected = 'str'
    raise AMQPEncoderTypeError(f'{name} must be {expected}, not {type(value).__name__}')


cdef tuple check_fields(PyObject **values):
    cdef tuple fields = PyTuple_New(PROPERTIES_FIELDS)
    cdef int i
    for i in range(PROPERTIES_FIELDS):
        value = None
        if values[i] is not NULL and values[i] is not <PyObject *> None:
            value = <object> values[i]
            if not ((TEXT_FIELDS >> i) & 1 and type(value) is str):
                value = check_property(i, value)
        Py_INCREF(value)
        PyTuple_SET_ITEM(fields, i, value)
    return fields


cdef tuple NO_FIELDS = (None,) * PROPERTIES_FIELDS


cdef tuple pad(object fields):
    cdef list items = [*fields]
    if len(items) > PROPERTIES_FIELDS:
        raise AMQPEncoderTypeError(
            f'properties have at most {PROPERTIES_FIELDS} fields, not {len(items)}'
        )
    return tuple(items) + NO_FIELDS[len(items):]


cpdef AMQPProperties received_properties(list fields):
    cdef AMQPProperties properties = AMQPProperties.__new__(AMQPProperties)
    cdef list values = [] if fields is None else fields[:PROPERTIES_FIELDS]
    cdef Py_ssize_t i
    for i in range(CONTENT_TYPE, min(CONTENT_ENCODING + 1, len(values))):
        if type(values[i]) is str:
            values[i] = new_symbol(values[i])
    properties._fields = tuple(values) + NO_FIELDS[len(values):]
    return properties


cdef AMQPProperties decode_properties(Cursor *c):
    cdef const uint8_t *p = c.p
    cdef const uint8_t *outer = c.end
    cdef const uint8_t *end
    cdef Py_ssize_t i, count
    cdef AMQPProperties properties
    cdef tuple fields
    cdef bint filled
    if outer - p < 3 or p[0] != codes.LIST8 or p[1] < 1 or p[1] > outer - p - 2:
        return None
    count = p[2]
    end = p + 2 + p[1]
    if count > PROPERTIES_FIELDS or count > end - p - 3:
        return None
    fields = PyTuple_New(PROPERTIES_FIELDS)
    c.p = p + 3
    for i in range(PROPERTIES_FIELDS):
        value = None
        if i < count:
            # leave one byte for each later item, as for other lists
            c.end = end - (count - 1 - i)
            value = decode_value(c, 1)
            if (i == CONTENT_TYPE or i == CONTENT_ENCODING) and type(value) is str:
                value = new_symbol(value)
        Py_INCREF(value)
        PyTuple_SET_ITEM(fields, i, value)
    filled = c.p == end
    c.p = p
    c.end = outer
    if not filled:
        return None
    properties = AMQPProperties.__new__(AMQPProperties)
    properties._fields = fields
    return properties


@cython.final
cdef class AMQPProperties:
    """AMQPProperties(fields=None, *, message_id=None, user_id=None, to=None, subject=None, \
reply_to=None, correlation_id=None, content_type=None, content_encoding=None, \
absolute_expiry_time=None, creation_time=None, group_id=None, group_sequence=None, \
reply_to_group_id=None)\n--\n
    Properties section (part 3, section 3.2.4).

    Immutable; absent fields are None.  Raises AMQPEncoderTypeError, AMQPEncoderValueError or
    AMQPEncoderOverflowError for an invalid value.  In a received message, a field may have another
    type: then it is as the sender wrote it, and a string that is not UTF-8 is bytes.

    :param fields: values in the order of the keywords (list), in place of keywords.
    :param message_id: int (0 to 2**64 - 1), UUID, bytes or str.
    :param user_id: bytes.
    :param to: address (str).
    :param subject: str.
    :param reply_to: address (str).
    :param correlation_id: int (0 to 2**64 - 1), UUID, bytes or str.
    :param content_type: Symbol; a str is converted.
    :param content_encoding: Symbol; a str is converted.
    :param absolute_expiry_time: datetime (naive: UTC; rounded down to milliseconds) or Timestamp.
    :param creation_time: datetime or Timestamp, likewise.
    :param group_id: str.
    :param group_sequence: int (0 to 2**32 - 1).
    :param reply_to_group_id: str.
    """

    def __init__(
        self, fields=None, *, message_id=None, user_id=None, to=None, subject=None, reply_to=None,
        correlation_id=None, content_type=None, content_encoding=None, absolute_expiry_time=None,
        creation_time=None, group_id=None, group_sequence=None, reply_to_group_id=None,
    ):
        cdef tuple keywords = (
            message_id, user_id, to, subject, reply_to, correlation_id, content_type,
            content_encoding, absolute_expiry_time, creation_time, group_id, group_sequence,
            reply_to_group_id,
        )
        if fields is not None:
            check_alone(keywords)
            keywords = pad(fields)
        self._fields = check_fields(PySequence_Fast_ITEMS(keywords))

    def __repr__(self):
        fields = ', '.join(
            f'{name}={value!r}' for name, value in zip(PROPERTY_NAMES, self._fields)
            if value is not None
        )
        return f'AMQPProperties({fields})'

    def __eq__(self, other):
        if type(other) is not AMQPProperties:
            return NotImplemented
        return self._fields == (<AMQPProperties> other)._fields

    def __hash__(self):
        return hash(self._fields)

    def __reduce__(self):
        return received_properties, (list(self._fields),)


cdef object get_property(object properties, void *index):
    return (<AMQPProperties> properties)._fields[<Py_ssize_t> index]


rbfly_add_attributes(AMQPProperties, dict.fromkeys(PROPERTY_NAMES), get_property, NULL)


cdef object properties_of(PyObject **values):
    cdef AMQPProperties properties = AMQPProperties.__new__(AMQPProperties)
    properties._fields = check_fields(values)
    return properties


rbfly_set_constructor(AMQPProperties, properties_of, PROPERTY_NAMES)


# --- encoding ---

cdef int encode_field(OutBuffer *out, object value, int code) except -1:
    """Append an int as uint or ulong; a received one may be out of range."""
    if 0 <= value <= (0xffffffff if code == codes.UINT else 0xffffffffffffffff):
        return encode_unsigned(out, value, code)
    return encode_value(out, value, 0)


cdef bint is_default(object value, Py_ssize_t index) except -1:
    """Whether a header field has its default; a received one may have another type."""
    cdef object default = HEADER_DEFAULTS[index]
    return type(value) is type(default) and value == default


cdef Py_ssize_t header_length(AMQPHeader header) except -1:
    """Number of fields up to the last one that differs from its default."""
    cdef tuple fields = header.astuple()
    cdef Py_ssize_t count = len(fields)
    while count > 0 and is_default(fields[count - 1], count - 1):
        count -= 1
    return count


cdef int encode_header(OutBuffer *out, AMQPHeader header, Py_ssize_t count) except -1:
    cdef Py_ssize_t first = open_compound(out, count)
    cdef tuple fields = header.astuple()
    cdef Py_ssize_t i
    for i in range(count):
        value = fields[i]
        if is_default(value, i):
            encode_value(out, None, 0)
        elif type(value) is not int:
            encode_value(out, value, 0)
        elif i == 1 and 0 <= value <= 0xff:
            out_reserve(out, 2)
            put_u8(out, codes.UBYTE)
            put_u8(out, value)
        else:
            encode_field(out, value, codes.UINT)
    return close_compound(out, first, count, codes.LIST8)


cdef Py_ssize_t properties_length(AMQPProperties properties) except -1:
    """Number of fields up to the last one that is set."""
    cdef Py_ssize_t count = PROPERTIES_FIELDS
    while count > 0 and properties._fields[count - 1] is None:
        count -= 1
    return count


cdef int encode_properties(OutBuffer *out, AMQPProperties properties, Py_ssize_t count) except -1:
    cdef Py_ssize_t first = open_compound(out, count)
    cdef Py_ssize_t i
    cdef tuple fields = properties._fields
    for i in range(count):
        value = fields[i]
        if value is None:
            out_reserve(out, 1)
            put_u8(out, codes.NULL)
        elif type(value) is str:
            encode_text(out, value)
        elif type(value) is Symbol:
            encode_symbol(out, value)
        elif type(value) is int:
            encode_field(out, value, codes.UINT if i == GROUP_SEQUENCE else codes.ULONG)
        else:
            encode_value(out, value, 0)
    return close_compound(out, first, count, codes.LIST8)
