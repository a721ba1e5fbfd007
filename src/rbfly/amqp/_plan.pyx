"""Plans: how to decode the values of a type, without a dict in between, and make its objects.

:mod:`rbfly.amqp.schema` makes them from annotations.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Copy
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint8_t
from libc.string cimport memcmp

from rbfly.amqp._decode cimport keep_error
from rbfly.amqp._types cimport clip

from rbfly.error import AMQPDecoderError

cdef extern from *:
    """
    /* An object of a class without its own __new__. */
    static PyObject *rbfly_blank(PyObject *type, PyObject *no_arguments) {
        return ((PyTypeObject *)type)->tp_new((PyTypeObject *)type, no_arguments, NULL);
    }
    """
    object rbfly_blank(object cls, tuple no_arguments)

cdef extern from 'Python.h':
    object PyObject_Vectorcall(object make, PyObject **values, size_t n, PyObject *names)
    int PyObject_GenericSetAttr(object record, object name, object value) except -1
    int PyDict_SetItem(object pairs, object key, object value) except -1

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
        """Member of an enumeration by its value; if `make` is None, of a Literal by type and value.
        """
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
        if self.construction == PAIRS:
            self.blank = dict.fromkeys([field[0] for field in kept])
        self.work = RECORD
        return self


# --- fields ---

cdef Py_ssize_t find_field(Plan plan, const uint8_t *key, Py_ssize_t n) noexcept:
    cdef Py_ssize_t i
    for i in range(plan.count):
        if plan.fields[i].size == n and memcmp(plan.fields[i].key, key, <size_t> n) == 0:
            return i
    return -1


cdef int use_default(
    Plan plan, Field *field, PyObject **value, Py_ssize_t position
) except -1:
    cdef object found = None
    if field.default is not NULL:
        found = <object> field.default
    elif field.factory is not NULL:
        try:
            found = (<object> field.factory)()
        except MemoryError:
            raise
        except Exception as ex:
            fail_record(plan, ex)
    elif plan.construction == PAIRS and <object> field.name in plan.names:
        return 0                # may be missing
    else:
        error = AMQPDecoderError(f'required field of {plan.name} is missing', position)
        error.path = step_to(field)
        raise error
    Py_INCREF(found)
    value[0] = <PyObject *> found
    return 0


cdef bint is_whole(Plan plan, PyObject **values) noexcept:
    cdef Py_ssize_t i
    for i in range(plan.count):
        if values[i] is NULL:
            return False
    return True


cdef object make_pairs(Plan plan, PyObject **values):
    cdef Py_ssize_t i
    # a copy has room for all keys, which are already in it
    cdef dict record = PyDict_Copy(plan.blank) if is_whole(plan, values) else {}
    for i in range(plan.count):
        if values[i] is not NULL:
            PyDict_SetItem(record, <object> plan.fields[i].name, <object> values[i])
    return record


cdef object make_record(Plan plan, PyObject **values):
    cdef Py_ssize_t i, n = plan.count
    if plan.construction == POSITIONS:
        return PyObject_Vectorcall(plan.make, values, <size_t> n, NULL)
    if plan.construction == KEYWORDS:
        return PyObject_Vectorcall(
            plan.make, values, <size_t> (n - len(plan.names)), <PyObject *> plan.names
        )
    if plan.construction == PAIRS:
        return make_pairs(plan, values)
    record = rbfly_blank(plan.make, ())
    for i in range(n):
        PyObject_GenericSetAttr(record, <object> plan.fields[i].name, <object> values[i])
    if plan.after is not None:
        getattr(record, plan.after)()
    return record


# --- errors ---

cdef object fail_at(Field *field, object key, str step):
    try:
        keep_error()
    except AMQPDecoderError as ex:
        if field is not NULL:
            step = step_to(field)
        elif step is None:
            step = f'[{clip(key)}]'
        ex.path = step + (ex.path or '')
        raise


cdef str step_to(Field *field):
    cdef bytes key = PyBytes_FromStringAndSize(<const char *> field.key, field.size)
    cdef str name = key.decode('utf-8', 'surrogatepass')
    return f'.{name}' if name.isidentifier() else f'[{name!r}]'


cdef str name_of(object value):
    return 'None' if value is None else type(value).__name__


cdef object fail_made(Plan plan, object value, object error, Py_ssize_t position):
    path, text = '', f'expected {plan.name}, got {clip(value)}'
    if plan.explain is not None:
        path, text = plan.explain(error)
    found = AMQPDecoderError(text, position)
    found.path = path
    raise found from error


cdef object fail_record(Plan plan, object error):
    text = str(error) or type(error).__name__
    raise AMQPDecoderError(f'{plan.name} refused the values: {text}') from error


cdef object fail_making(Plan plan):
    try:
        keep_error()
    except (AMQPDecoderError, MemoryError):
        raise
    except Exception as ex:
        fail_record(plan, ex)
