# The C API of datetime.  Cython's own declarations would make each module import `datetime` for
# its classes; see `rbfly_datetime_api`.

from cpython.object cimport PyObject, PyTypeObject

from rbfly._cpython cimport rbfly_datetime_api


cdef extern from 'datetime.h':
    ctypedef struct PyDateTime_CAPI:
        PyTypeObject *DateTimeType
        object DateTime_FromDateAndTime(
            int year, int month, int day, int hour, int minute, int second, int microsecond,
            PyObject *tzinfo, PyTypeObject *cls
        )
    PyDateTime_CAPI *PyDateTimeAPI
    PyObject *PyDateTime_TimeZone_UTC

    bint PyDateTime_Check(object o) noexcept
    int PyDateTime_GET_YEAR(object o) noexcept
    int PyDateTime_GET_MONTH(object o) noexcept
    int PyDateTime_GET_DAY(object o) noexcept
    int PyDateTime_DATE_GET_HOUR(object o) noexcept
    int PyDateTime_DATE_GET_MINUTE(object o) noexcept
    int PyDateTime_DATE_GET_SECOND(object o) noexcept
    int PyDateTime_DATE_GET_MICROSECOND(object o) noexcept
    PyObject *PyDateTime_DATE_GET_TZINFO(object o) noexcept

    bint PyDelta_Check(object o) noexcept
    int PyDateTime_DELTA_GET_DAYS(object o) noexcept
    int PyDateTime_DELTA_GET_SECONDS(object o) noexcept
    int PyDateTime_DELTA_GET_MICROSECONDS(object o) noexcept


cdef inline int import_datetime() except -1:
    """Initialize the API; call this first in each module that uses it."""
    global PyDateTimeAPI
    PyDateTimeAPI = <PyDateTime_CAPI *> rbfly_datetime_api()
    return 0
