"""Objects with fields, which are encoded as maps: dataclasses, Structs and models.

Values that AMQP 1.0 has no type for are encoded, as fields, in the form in which
:mod:`rbfly.amqp.schema` decodes them: members of enumerations as their values, sets as lists, and
decimal numbers, dates and times as text.
"""

from enum import Enum

from rbfly.amqp._types cimport MAX_DEPTH, plain_dict

cdef enum:
    CLASSES_MAX = 1024      # to keep

cdef dict READERS = {}
cdef dict CONVERTERS = {}   # by class; None for values that need none
cdef object NO_READER = object()
cdef object NO_FIELDS = object()

# Classes whose objects are sent as text, by module and name: the modules need not be imported.
cdef set TEXTS = {('decimal', 'Decimal'), ('datetime', 'date'), ('datetime', 'time')}
cdef tuple ENCODED = (str, int, float, bytes)


def as_value(member):
    return member.value


def as_dict(mapping):
    return plain_dict(mapping)


cdef object converter_of(object kind):
    cdef object names = {(base.__module__, base.__name__) for base in type.mro(kind)}
    if issubclass(kind, ENCODED) or ('datetime', 'datetime') in names:
        return None
    if issubclass(kind, Enum):
        return as_value
    if issubclass(kind, (set, frozenset)):
        return list
    if not hasattr(kind, '__dataclass_fields__'):
        if issubclass(kind, (list, tuple)) or ('collections', 'deque') in names:
            return list
        if issubclass(kind, dict):
            return as_dict
    return None if names.isdisjoint(TEXTS) else str


cdef object plain(object value, int depth):
    """Replace what the encoder does not take, also in lists and dicts."""
    cdef object kind = type(value)
    cdef object convert
    if kind is dict or kind is list or kind is tuple:
        if not value or depth >= MAX_DEPTH:
            return value
        if kind is dict:
            return {plain_key(key): plain(item, depth + 1) for key, item in value.items()}
        return [plain(item, depth + 1) for item in value]
    convert = CONVERTERS.get(kind, NO_READER)
    if convert is NO_READER:
        if len(CONVERTERS) >= CLASSES_MAX:
            CONVERTERS.clear()
        convert = CONVERTERS[kind] = converter_of(kind)
    if convert is None:
        return value
    return plain(convert(value), depth + 1) if depth < MAX_DEPTH else value


cdef object plain_key(object key):
    cdef object found = plain(key, 0)
    return key if type(found) is list else found    # a list: the encoder refuses the key


def sent_as(value):
    """The value of a field as a subscription receives it, if AMQP 1.0 has a type for it."""
    return plain(value, 0)


def dump_model(model):
    return model.model_dump(by_alias=True)


def dump_struct(struct):
    from datetime import datetime
    from uuid import UUID

    from msgspec import to_builtins

    return to_builtins(struct, builtin_types=(bytes, bytearray, datetime, UUID))


cdef object reader_of(object kind):
    """Keys and names of the fields of a class, or a function that returns a dict; None for none."""
    config = getattr(kind, '__struct_config__', None)
    if hasattr(kind, 'model_dump') and hasattr(kind, '__pydantic_serializer__'):
        return dump_model
    if config is not None and hasattr(kind, '__struct_encode_fields__'):
        if config.tag is not None or config.array_like:
            return dump_struct
        return tuple(zip(kind.__struct_encode_fields__, kind.__struct_fields__))
    fields = None
    # A metaclass may replace `__mro__`.
    for base in type.mro(kind):
        fields = vars(base).get('__dataclass_fields__')
        if fields is not None:
            break
    if type(fields) is not dict:        # values of RbFly itself make theirs when asked
        return None
    return tuple([
        (name, name) for name, field in fields.items() if field._field_type.name == '_FIELD'
    ])


cdef object fields_of(object value):
    cdef object kind = type(value)
    cdef object reader = READERS.get(kind, NO_READER)
    cdef dict pairs
    if reader is NO_READER:
        if len(READERS) >= CLASSES_MAX:
            READERS.clear()
        reader = READERS[kind] = reader_of(kind)
    if reader is None:
        return NO_FIELDS
    if type(reader) is not tuple:
        return plain(reader(value), 0)
    pairs = {}
    for key, name in <tuple> reader:
        item = getattr(value, name)
        if type(item).__name__ != 'UnsetType':      # of msgspec
            pairs[key] = plain(item, 0)
    return pairs
