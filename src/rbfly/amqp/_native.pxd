# C that Cython cannot say: text, cached map keys and small integers without function calls.
# Only `_codec` cimports this: the caches are static, one for each module.

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t


cdef extern from *:
    """
    #ifndef RBFLY_NATIVE_H
    #define RBFLY_NATIVE_H
    /* Bytes that must follow a constructor of this width class, before its lengths are known. */
    static const uint8_t rbfly_need[16] = {1, 0, 0, 0, 0, 1, 2, 4, 8, 16, 1, 4, 2, 8, 3, 9};

    static inline int rbfly_is_ascii(const uint8_t *p, Py_ssize_t n) {
        uint64_t word, seen = 0;
        while (n >= 8) { memcpy(&word, p, 8); seen |= word; p += 8; n -= 8; }
        while (n > 0) { seen |= *p++; n--; }
        return (seen & 0x8080808080808080ULL) == 0;
    }
    static inline int rbfly_ascii_data(PyObject *s, const char **data, Py_ssize_t *n) {
        if (!PyUnicode_IS_COMPACT_ASCII(s)) return 0;
        *data = (const char *)PyUnicode_1BYTE_DATA(s);
        *n = PyUnicode_GET_LENGTH(s);
        return 1;
    }
    static inline PyObject *rbfly_ascii(const uint8_t *p, Py_ssize_t n) {
        PyObject *s = PyUnicode_New(n, 127);
        if (s != NULL && n > 0) memcpy(PyUnicode_1BYTE_DATA(s), p, (size_t)n);
        return s;
    }

    /* 1 and the value, if it is one that needs no function call to be read. */
    static inline int rbfly_small_integer(PyObject *o, int64_t *value) {
    #if PY_VERSION_HEX >= 0x030C0000
        if (!PyUnstable_Long_IsCompact((PyLongObject *)o)) return 0;
        *value = (int64_t)PyUnstable_Long_CompactValue((PyLongObject *)o);
        return 1;
    #else
        const digit *digits = ((PyLongObject *)o)->ob_digit;
        switch (Py_SIZE(o)) {
            case 0: *value = 0; return 1;
            case 1: *value = (int64_t)digits[0]; return 1;
            case -1: *value = -(int64_t)digits[0]; return 1;
            case 2: *value = (int64_t)digits[0] | ((int64_t)digits[1] << PyLong_SHIFT); return 1;
            default: return 0;
        }
    #endif
    }

    /* The integers of one byte. */
    static PyObject *rbfly_integers[384];

    static int rbfly_make_integers(void) {
        for (int i = 0; i < 384; i++) {
            rbfly_integers[i] = PyLong_FromLong(i - 128);
            if (rbfly_integers[i] == NULL) return -1;
        }
        return 0;
    }
    static inline PyObject *rbfly_integer(int v) {
        PyObject *o = rbfly_integers[v + 128];
        Py_INCREF(o);
        return o;
    }

    /* Direct-mapped cache of short ASCII strings: map keys repeat from message to message. */
    #define RBFLY_CACHE_SLOTS 512
    #define RBFLY_CACHE_MAX 32
    static PyObject *rbfly_cache[RBFLY_CACHE_SLOTS];

    static inline uint64_t rbfly_mix(uint64_t h, uint64_t word) {
        h = (h ^ word) * 0xff51afd7ed558ccdULL;
        return h ^ (h >> 32);
    }

    /* The string of n <= RBFLY_CACHE_MAX bytes; None if they are not ASCII. */
    static inline PyObject *rbfly_cached_ascii(const uint8_t *p, Py_ssize_t n) {
        uint64_t h = (uint64_t)n * 0x9E3779B97F4A7C15ULL, word;
        uint32_t half;
        Py_ssize_t i;
        PyObject *s, **slot;
        if (n >= 8) {
            for (i = 0; i + 8 < n; i += 8) { memcpy(&word, p + i, 8); h = rbfly_mix(h, word); }
            memcpy(&word, p + n - 8, 8);
        } else if (n >= 4) {
            memcpy(&half, p, 4); word = half;
            memcpy(&half, p + n - 4, 4); word = (word << 32) | half;
        } else {
            word = n == 0 ? 0 : ((uint64_t)p[0] << 16) | ((uint64_t)p[n >> 1] << 8) | p[n - 1];
        }
        h = rbfly_mix(h, word);
        slot = &rbfly_cache[h % RBFLY_CACHE_SLOTS];
        s = *slot;
        if (s != NULL && PyUnicode_GET_LENGTH(s) == n
                && memcmp(PyUnicode_1BYTE_DATA(s), p, (size_t)n) == 0) {
            Py_INCREF(s);
            return s;
        }
        if (!rbfly_is_ascii(p, n)) Py_RETURN_NONE;
        s = rbfly_ascii(p, n);
        if (s == NULL) return NULL;
    #ifndef Py_GIL_DISABLED
        Py_INCREF(s);
        Py_XSETREF(*slot, s);
    #endif
        return s;
    }
    #endif
    """
    const uint8_t[16] rbfly_need
    bint rbfly_is_ascii(const uint8_t *p, Py_ssize_t n) noexcept
    bint rbfly_ascii_data(PyObject *s, const char **data, Py_ssize_t *n) noexcept
    str rbfly_ascii(const uint8_t *p, Py_ssize_t n)
    object rbfly_cached_ascii(const uint8_t *p, Py_ssize_t n)
    int rbfly_make_integers() except -1
    object rbfly_integer(int v)
    bint rbfly_small_integer(PyObject *o, int64_t *value) noexcept
    enum:
        RBFLY_CACHE_MAX
