# C helpers that Cython cannot express: strings, cached map keys and small integers without calls,
# keyword arguments, and attributes from a table.  The caches are static, one per module; only
# `_decode` uses them.

from cpython.object cimport PyObject
from libc.stdint cimport uint8_t


cdef extern from *:
    """
    #ifndef RBFLY_NATIVE_H
    #define RBFLY_NATIVE_H
    /* Minimum number of bytes after a constructor, before its sizes are known. */
    static inline Py_ssize_t rbfly_need(uint8_t code) {
        static const uint8_t by_width[16] = {1, 0, 0, 0, 0, 1, 2, 4, 8, 16, 1, 4, 2, 8, 2, 8};
        return by_width[code >> 4];
    }

    /* memcpy, inline for small sizes.  A compiler that knows a bound for n uses `rep movs`,
       whose startup takes longer than copying most keys and strings. */
    static inline void rbfly_copy(uint8_t *to, const uint8_t *from, Py_ssize_t n) {
        if (n > 64) {
            size_t size = (size_t)n;
    #ifdef __GNUC__
            __asm__("" : "+r"(size));   /* makes it forget the bound */
    #endif
            memcpy(to, from, size);
        } else if (n > 16) {
            for (Py_ssize_t i = 0; i < n - 16; i += 16) memcpy(to + i, from + i, 16);
            memcpy(to + n - 16, from + n - 16, 16);
        } else if (n >= 8) {
            uint64_t first, last;
            memcpy(&first, from, 8); memcpy(&last, from + n - 8, 8);
            memcpy(to, &first, 8); memcpy(to + n - 8, &last, 8);
        } else if (n >= 4) {
            uint32_t first, last;
            memcpy(&first, from, 4); memcpy(&last, from + n - 4, 4);
            memcpy(to, &first, 4); memcpy(to + n - 4, &last, 4);
        } else if (n > 0) {
            to[0] = from[0]; to[n >> 1] = from[n >> 1]; to[n - 1] = from[n - 1];
        }
    }
    /* Whether two short blocks are equal. */
    static inline int rbfly_same(const uint8_t *a, const uint8_t *b, Py_ssize_t n) {
        uint64_t x, y, u, v;
        uint32_t s, t;
        if (n >= 8) {
            for (Py_ssize_t i = 0; i < n - 8; i += 8) {
                memcpy(&x, a + i, 8); memcpy(&y, b + i, 8);
                if (x != y) return 0;
            }
            memcpy(&u, a + n - 8, 8); memcpy(&v, b + n - 8, 8);
            return u == v;
        }
        if (n >= 4) {
            memcpy(&s, a, 4); memcpy(&t, b, 4);
            if (s != t) return 0;
            memcpy(&s, a + n - 4, 4); memcpy(&t, b + n - 4, 4);
            return s == t;
        }
        return n == 0 || (a[0] == b[0] && a[n >> 1] == b[n >> 1] && a[n - 1] == b[n - 1]);
    }

    static inline int rbfly_is_ascii(const uint8_t *p, Py_ssize_t n) {
        uint64_t word, seen = 0;
        uint32_t first, last;
        if (n >= 8) {
            for (Py_ssize_t i = 0; i < n - 8; i += 8) { memcpy(&word, p + i, 8); seen |= word; }
            memcpy(&word, p + n - 8, 8);
            seen |= word;
        } else if (n >= 4) {
            memcpy(&first, p, 4); memcpy(&last, p + n - 4, 4);
            seen = first | last;
        } else if (n > 0) {
            seen = p[0] | p[n >> 1] | p[n - 1];
        }
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
        if (s == NULL || n == 0) return s;
        rbfly_copy(PyUnicode_1BYTE_DATA(s), p, n);
        return s;
    }

    /* Preallocated integers, -128 to 255. */
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

    static inline void rbfly_set_integer(PyObject *list, Py_ssize_t i, int v) {
        PyList_SET_ITEM(list, i, rbfly_integer(v));
    }

    /* Direct-mapped cache of short ASCII strings, since messages repeat the same map keys. */
    #define RBFLY_CACHE_SLOTS 512
    #define RBFLY_CACHE_SHIFT 55
    #define RBFLY_CACHE_MAX 32
    static PyObject *rbfly_cache[RBFLY_CACHE_SLOTS];

    static inline uint64_t rbfly_mix(uint64_t h, uint64_t word) {
        return ((h << 23) | (h >> 41)) ^ word;
    }

    Py_NO_INLINE static PyObject *rbfly_cache_miss(
            PyObject **slot, const uint8_t *p, Py_ssize_t n) {
        PyObject *s;
        if (!rbfly_is_ascii(p, n)) Py_RETURN_NONE;
        s = rbfly_ascii(p, n);
        if (s == NULL) return NULL;
    #ifndef Py_GIL_DISABLED
        Py_INCREF(s);
        Py_XSETREF(*slot, s);
    #endif
        return s;
    }

    /* The string for n <= RBFLY_CACHE_MAX bytes; None if they are not ASCII. */
    Py_ALWAYS_INLINE static inline PyObject *rbfly_cached_ascii(const uint8_t *p, Py_ssize_t n) {
        uint64_t h = (uint64_t)n, word;
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
        /* all bits affect the highest bits of the product */
        h = rbfly_mix(h, word) * 0x9E3779B97F4A7C15ULL;
        slot = &rbfly_cache[h >> RBFLY_CACHE_SHIFT];
        s = *slot;
        if (s != NULL && PyUnicode_GET_LENGTH(s) == n
                && rbfly_same(PyUnicode_1BYTE_DATA(s), p, n)) {
            Py_INCREF(s);
            return s;
        }
        return rbfly_cache_miss(slot, p, n);
    }

    /* Where to keep an object that belongs to a cached string; NULL for nowhere. */
    static PyObject *rbfly_kept_objects[RBFLY_CACHE_SLOTS];
    static inline PyObject **rbfly_place_for(PyObject *s) {
    #ifdef Py_GIL_DISABLED
        (void)s;
        return NULL;
    #else
        return &rbfly_kept_objects[((uintptr_t)s >> 4) % RBFLY_CACHE_SLOTS];
    #endif
    }

    /* Sort keyword arguments by a tuple of known names; return 0 if another one is among them.
       Names in code are interned, and mostly in the order of the tuple. */
    static inline int rbfly_match_keywords(
            PyObject *names, PyObject *const *values, PyObject *known, PyObject **found) {
        Py_ssize_t count = PyTuple_GET_SIZE(known), at = 0, tried;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
            for (tried = 0; PyTuple_GET_ITEM(known, at) != PyTuple_GET_ITEM(names, i); tried++) {
                if (tried == count) return 0;
                at = at + 1 == count ? 0 : at + 1;
            }
            found[at] = values[i];
        }
        return 1;
    }

    /* Add attributes to a class.  `docs` maps their names to docstrings or None; `get` and `set`
       receive the index of the attribute. */
    static int rbfly_add_attributes(PyObject *type, PyObject *docs, getter get, setter set) {
        PyGetSetDef *item = PyMem_Calloc((size_t)PyDict_GET_SIZE(docs), sizeof(PyGetSetDef));
        PyObject *name, *doc, *attribute, *members = ((PyTypeObject *)type)->tp_dict;
        Py_ssize_t position = 0;
        if (item == NULL) { PyErr_NoMemory(); return -1; }
        Py_INCREF(docs);    /* the class uses its strings, and the items, forever */
        for (intptr_t i = 0; PyDict_Next(docs, &position, &name, &doc); i++, item++) {
            item->name = PyUnicode_AsUTF8(name);
            item->doc = doc == Py_None ? NULL : PyUnicode_AsUTF8(doc);
            item->get = get; item->set = set; item->closure = (void *)i;
            attribute = PyDescr_NewGetSet((PyTypeObject *)type, item);
            if (attribute == NULL || PyDict_SetItem(members, name, attribute) < 0) return -1;
            Py_DECREF(attribute);
        }
        PyType_Modified((PyTypeObject *)type);
        return 0;
    }
    #endif
    """
    ctypedef object (*getter)(object, void *)
    ctypedef int (*setter)(object, PyObject *, void *) except -1

    Py_ssize_t rbfly_need(uint8_t code) noexcept
    void rbfly_copy(uint8_t *to, const uint8_t *source, Py_ssize_t n) noexcept
    bint rbfly_same(const uint8_t *a, const uint8_t *b, Py_ssize_t n) noexcept
    bint rbfly_is_ascii(const uint8_t *p, Py_ssize_t n) noexcept
    bint rbfly_ascii_data(PyObject *s, const char **data, Py_ssize_t *n) noexcept
    str rbfly_ascii(const uint8_t *p, Py_ssize_t n)
    object rbfly_cached_ascii(const uint8_t *p, Py_ssize_t n)
    PyObject **rbfly_place_for(object s) noexcept
    int rbfly_make_integers() except -1
    object rbfly_integer(int v)
    void rbfly_set_integer(list items, Py_ssize_t i, int v) noexcept
    int rbfly_add_attributes(object type, dict docs, getter get, setter set) except -1
    enum:
        RBFLY_CACHE_MAX
