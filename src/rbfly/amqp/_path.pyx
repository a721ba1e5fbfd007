"""Find the part of a message that AMQP 1.0 cannot represent, after the encoder has failed.

The encoder keeps no record of where it is: the search visits the values again, in the same order,
and encodes each of them alone.
"""

from collections.abc import Mapping

from cpython.exc cimport PyErr_ExceptionMatches

from rbfly._wire cimport OutBuffer, out_discard, out_open
from rbfly.amqp._decode cimport keep_error
from rbfly.amqp._encode cimport (
    KEYS_ANNOTATION, KEYS_ANY, KEYS_STRING, encode_map, encode_value,
)
from rbfly.amqp._message cimport Message
from rbfly.amqp._records cimport NO_FIELDS, fields_of
from rbfly.amqp._sections cimport PROPERTY_NAMES, AMQPProperties
from rbfly.amqp._types cimport (
    MAX_DEPTH, AMQPArray, Described, Symbol, clip, is_datetime, is_uuid, plain_dict, plain_list,
)

from rbfly.error import AMQPEncoderError, add_text

cdef extern from 'Python.h':
    bint PySequence_Check(object o) noexcept

cdef enum:
    VISITED_MAX = 1 << 16       # values, visited in less than 50 ms
    PATH_MAX = 200              # characters
    NO_KEY = -1
    FIELDS = -2

# Classes whose values have no parts, although some are sequences.
cdef tuple SCALARS = (
    str, int, float, bytes, bytearray, memoryview, Symbol, type, type(None),
)
cdef tuple SECTIONS = (
    ('delivery_annotations', KEYS_ANNOTATION), ('annotations', KEYS_ANNOTATION),
    ('properties', FIELDS), ('app_properties', KEYS_STRING), ('body', NO_KEY),
    ('footer', KEYS_ANNOTATION),
)


cdef class Search:
    """A search; `left` is the number of values that it may still visit."""

    cdef OutBuffer out
    cdef Py_ssize_t left

    def __cinit__(self):
        out_open(&self.out, 64)
        self.left = VISITED_MAX

    def __dealloc__(self):
        out_discard(&self.out)

    cdef bint fails(self, object value, int depth, int keys) except -1:
        # Whether a value fails, or a key of a map unless `keys` is NO_KEY.
        self.out.p = self.out.start
        try:
            if keys == NO_KEY:
                encode_value(&self.out, value, depth)
            else:
                encode_map(&self.out, {value: None}, depth, keys)
        except MemoryError:
            raise
        except Exception:
            return True
        return False

    cdef str find(self, object value, int depth):
        # The path from a value to its part that fails: '' if that is the value, None if none fails.
        cdef dict pairs = None
        cdef list items = None
        self.left -= 1
        if self.left < 0:
            raise LookupError('too many values')
        if isinstance(value, SCALARS) or is_datetime(value) or is_uuid(value):
            return '' if self.fails(value, depth, NO_KEY) else None
        if depth >= MAX_DEPTH:
            return ''
        if type(value) is Described:
            return self.find_in_described(value, depth)
        if type(value) is AMQPArray and (<AMQPArray> value).items is not None:
            return self.find_in_array(value, depth)
        try:
            if isinstance(value, Mapping):
                pairs = plain_dict(value)
            elif (fields := fields_of(value)) is not NO_FIELDS:
                if type(fields) is not dict:
                    return self.find(fields, depth + 1)
                pairs = fields
            elif PySequence_Check(value):
                items = plain_list(value)
            elif self.fails(value, depth, NO_KEY):
                return ''
        except AMQPEncoderError:        # its own code failed
            return ''
        if pairs is not None:
            return self.find_in_map(pairs, depth, KEYS_ANY)
        return None if items is None else self.find_in_items(items, depth)

    cdef str find_in_items(self, list items, int depth):
        for i, item in enumerate(items):
            found = self.find(item, depth + 1)
            if found is not None:
                return f'[{i}]{found}'
        return None

    cdef str find_in_map(self, dict pairs, int depth, int keys):
        for key, item in pairs.items():
            found = '' if self.fails(key, depth, keys) else self.find(item, depth + 1)
            if found is not None:
                return f'[{clip(key)}]{found}'
        return None

    cdef str find_in_properties(self, AMQPProperties properties):
        for name, value in zip(PROPERTY_NAMES, properties._fields):
            if self.find(value, 0) is not None:
                return f'.{name}'
        return None

    cdef str find_in_described(self, Described value, int depth):
        found = self.find(value.descriptor, depth + 1)
        if found is not None:
            return f'.descriptor{found}'
        found = self.find(value.value, depth + 1)
        return None if found is None else f'.value{found}'

    cdef str find_in_array(self, AMQPArray value, int depth):
        for i, item in enumerate(value.items):
            found = self.find(item, depth + 1)
            if found is None and self.fails(
                AMQPArray(value.element_type, [item]), depth, NO_KEY
            ):
                found = ''
            if found is not None:
                return f'[{i}]{found}'
        return '' if self.fails(value, depth, NO_KEY) else None


cdef str find_path(object message):
    # The path in a message; '' if it is that of the body, or unknown.
    cdef Search search = Search()
    cdef str found
    if type(message) is not Message:
        found = search.find(message, 0)
        return f'body{found}' if found else ''
    for name, keys in SECTIONS:
        value = getattr(message, name)
        if keys == FIELDS:
            found = None if value is None else search.find_in_properties(value)
        elif keys == NO_KEY:
            found = search.find(value, 0)
        else:
            found = search.find_in_map(plain_dict(value), 0, keys)
        if found is not None:
            return f'{name}{found}' if found else ''
    return ''


cdef int add_path(object error, object message) except -1:
    try:
        path = find_path(message)
    except Exception:           # no memory, too many values, or raised by a value
        return 0
    if len(path) > PATH_MAX:
        path = f'{path[:PATH_MAX // 2]}...{path[-PATH_MAX // 2:]}'
    if path:
        add_text(error, f'{path}: ')
    return 0


cdef int name_part(object message) except -1:
    if not PyErr_ExceptionMatches(AMQPEncoderError):
        return -1
    try:
        keep_error()
    except AMQPEncoderError as ex:
        add_path(ex, message)
        raise
