"""The methods of records; see `record.py`."""

cdef extern from 'Python.h':
    int PyObject_GenericSetAttr(object o, object name, object value) except -1


cdef class Base:
    def __init__(self, *args, **kwargs):
        cls = type(self)
        cdef tuple names = cls.__match_args__
        cdef Py_ssize_t given = len(args)
        cdef Py_ssize_t named = 0
        cdef Py_ssize_t i
        if given > len(names):
            raise TypeError(f'{cls.__name__} takes {len(names)} arguments, not {given}')
        for i in range(len(names)):
            name = names[i]
            if i < given:
                value = args[i]
            elif name in kwargs:
                named += 1
                value = kwargs[name]
            else:
                try:
                    value = getattr(cls, name)
                except AttributeError:
                    raise TypeError(f'{cls.__name__} misses the argument {name!r}') from None
            PyObject_GenericSetAttr(self, name, value)
        if named < len(kwargs):
            raise wrong_argument(cls.__name__, names, given, kwargs)

    def __eq__(self, other):
        return values(self) == values(other) if type(self) is type(other) else NotImplemented

    def __hash__(self):
        return hash(values(self))

    def __repr__(self):
        fields = zip(type(self).__match_args__, values(self))
        parts = [f'{name}={value!r}' for name, value in fields]
        return f'{type(self).__qualname__}({", ".join(parts)})'


cdef object wrong_argument(str owner, tuple names, Py_ssize_t given, dict kwargs):
    for name in kwargs:
        if name not in names:
            return TypeError(f'{owner} has no argument {name!r}')
        if name in names[:given]:
            return TypeError(f'{owner} takes {name!r} once')
    raise AssertionError(owner)


cdef tuple values(object record):
    return tuple([getattr(record, name) for name in type(record).__match_args__])
