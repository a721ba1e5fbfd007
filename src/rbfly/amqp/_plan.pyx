"""Plans: how to decode the values of a type, without a dict in between.

:mod:`rbfly.amqp.schema` makes them from annotations.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t

cdef dict SCALARS = {
    'Any': ANY, 'None': NULL_, 'bool': BOOL, 'int': INT, 'float': FLOAT, 'str': STR,
    'bytes': BYTES, 'datetime': DATETIME, 'UUID': UUID,
}
cdef dict CONSTRUCTIONS = {
    'positions': POSITIONS, 'keywords': KEYWORDS, 'pairs': PAIRS, 'attributes': ATTRIBUTES,
}
cdef list KIND_NAMES = [
    'None', 'bool', 'int', 'float', 'str', 'bytes', 'list', 'dict', 'datetime', 'UUID', 'other',
]

cdef object NO_DEFAULT = object()
globals().update(NO_DEFAULT=NO_DEFAULT)     # for Python modules


@cython.final
cdef class Plan:
    """How to decode values of a type; one of the methods sets it up, and returns it.

    :param name: name of the type, for errors.
    """

    def __init__(self, str name not None):
        self.name = name
        self.work = ANY

    def __dealloc__(self):
        PyMem_Free(self.fields)

    def scalar(self, str kind):
        """A value without parts, by its name in SCALARS."""
        self.work = SCALARS[kind]
        return self

    def list_of(self, Plan item not None):
        """A list of items of one type."""
        self.item = item
        self.work = LIST
        return self

    def dict_of(self, Plan key not None, Plan item not None):
        """A map from keys of one type to values of one type."""
        self.key = key
        self.item = item
        self.work = DICT
        return self

    def tuple_of(self, items):
        """A tuple with a fixed number of items."""
        self.plans = tuple(items)
        self.work = TUPLE
        return self

    def made_by(self, make, Plan item not None):
        """What a function returns for a decoded item."""
        self.make = make
        self.item = item
        self.work = MADE
        return self

    def one_of(self, dict members not None, make):
        """A member of an enumeration, or with `make=None` of a Literal, by its value."""
        self.members = members
        self.make = make
        self.work = ONE_OF
        return self

    def instance(self, cls):
        """An instance of a class that the codec itself returns."""
        self.make = cls
        self.work = INSTANCE
        return self

    def foreign(self, make, explain, bint is_body=False):
        """What a function of another library returns for a decoded value, or for the bytes of the
        body; `explain` returns path and text of an error."""
        self.make = make
        self.explain = explain
        self.work = BODY if is_body else FOREIGN
        return self

    def union_of(self, dict choices not None):
        """A value of one of several types, by its kind on the wire, as in KIND_NAMES."""
        self.parts = tuple(choices.values())
        for kind, plan in choices.items():
            self.choices[<int> KIND_NAMES.index(kind)] = <PyObject *> <Plan?> plan
        self.work = UNION
        return self

    def record(
        self, make, str construction, fields, tuple keywords=(), after=None, bint strict=False
    ):
        """An object with fields, from a map.

        :param make: its class.
        :param construction: by `positions` or `keywords`, or set `attributes`; or `pairs`, a dict.
        :param fields: names of the attribute and of the key, plan, default, and factory of it.
        :param keywords: names of the last fields, passed by keyword; of a dict, those that may be
            missing.
        :param after: name of the method to call when the attributes are set; None for none.
        :param strict: unknown fields are errors.
        """
        cdef Py_ssize_t i
        cdef bytes key
        cdef tuple kept = tuple([(*field, field[1].encode()) for field in fields])
        cdef Field *memory = <Field *> PyMem_Calloc(<size_t> len(kept) + 1, sizeof(Field))
        if memory is NULL:
            raise MemoryError()
        for i in range(len(kept)):
            name, _, plan, default, factory, key = kept[i]
            memory[i].key = <const uint8_t *> PyBytes_AS_STRING(key)
            memory[i].size = PyBytes_GET_SIZE(key)
            memory[i].plan = <PyObject *> <Plan?> plan
            memory[i].name = <PyObject *> name
            memory[i].default = NULL if default is NO_DEFAULT else <PyObject *> default
            memory[i].factory = NULL if factory is None else <PyObject *> factory
        self.parts = kept
        self.fields = memory
        self.count = len(kept)
        self.make = make
        self.names = keywords
        self.after = after
        self.strict = strict
        self.construction = CONSTRUCTIONS[construction]
        self.work = RECORD
        return self
