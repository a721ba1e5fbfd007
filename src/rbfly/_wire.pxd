# Big-endian loads and stores and a growing output buffer, all inline.
# This file knows nothing about AMQP, frames, or any Python type but `bytes`.

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from *:
    """
    #ifndef RBFLY_WIRE_H
    #define RBFLY_WIRE_H
    #include <stdint.h>
    #include <string.h>

    /* Shifts instead of casts: correct for any byte order and alignment, and compilers turn them
       into a single load or store with a byte swap. */
    static inline uint16_t load_u16(const uint8_t *p) {
        return (uint16_t)(((uint32_t)p[0] << 8) | p[1]);
    }
    static inline uint32_t load_u32(const uint8_t *p) {
        return ((uint32_t)p[0] << 24) | ((uint32_t)p[1] << 16) | ((uint32_t)p[2] << 8) | p[3];
    }
    static inline uint64_t load_u64(const uint8_t *p) {
        return ((uint64_t)load_u32(p) << 32) | load_u32(p + 4);
    }
    static inline void store_u16(uint8_t *p, uint16_t v) {
        p[0] = (uint8_t)(v >> 8); p[1] = (uint8_t)v;
    }
    static inline void store_u32(uint8_t *p, uint32_t v) {
        p[0] = (uint8_t)(v >> 24); p[1] = (uint8_t)(v >> 16);
        p[2] = (uint8_t)(v >> 8); p[3] = (uint8_t)v;
    }
    static inline void store_u64(uint8_t *p, uint64_t v) {
        store_u32(p, (uint32_t)(v >> 32)); store_u32(p + 4, (uint32_t)v);
    }

    /* IEEE 754; 32-bit floats are held as doubles. */
    static inline double load_double(const uint8_t *p) {
        uint64_t bits = load_u64(p); double v; memcpy(&v, &bits, 8); return v;
    }
    static inline double load_float(const uint8_t *p) {
        uint32_t bits = load_u32(p); float v; memcpy(&v, &bits, 4); return (double)v;
    }
    static inline uint64_t double_bits(double v) {
        uint64_t bits; memcpy(&bits, &v, 8); return bits;
    }
    static inline uint32_t float_bits(double v) {
        float f = (float)v; uint32_t bits; memcpy(&bits, &f, 4); return bits;
    }

    /* Output: a `bytes` object that grows; memory of the caller, to be copied to one at the end or
       when it is full (owner is None); or fixed memory (owner is NULL), which raises BufferError
       when full. */
    typedef struct {
        PyObject *owner;
        uint8_t *start;
        uint8_t *p;
        uint8_t *end;
    } OutBuffer;

    static inline int out_open(OutBuffer *out, Py_ssize_t capacity) {
        out->owner = PyBytes_FromStringAndSize(NULL, capacity);
        if (out->owner == NULL) {
            out->start = out->p = out->end = NULL;
            return -1;
        }
        out->start = out->p = (uint8_t *)PyBytes_AS_STRING(out->owner);
        out->end = out->start + capacity;
        return 0;
    }

    static inline void out_fixed(OutBuffer *out, uint8_t *start, Py_ssize_t size) {
        out->owner = NULL;
        out->start = out->p = start;
        out->end = start + size;
    }

    /* Begin in memory on the stack: allocating exact `bytes` at the end takes less time than
       allocating too many and shrinking them. */
    static inline void out_local(OutBuffer *out, uint8_t *start, Py_ssize_t size) {
        out_fixed(out, start, size);
        Py_INCREF(Py_None);
        out->owner = Py_None;
    }

    /* Whether a size does not fit in 32 bits; Cython would compare a literal as a Python int. */
    static inline int is_beyond_u32(Py_ssize_t n) { return (uint64_t)n >> 32 != 0; }

    static inline Py_ssize_t out_size(const OutBuffer *out) { return out->p - out->start; }

    #ifdef __GNUC__
    #define RBFLY_UNUSED __attribute__((unused))
    #else
    #define RBFLY_UNUSED
    #endif
    /* Not `cold`: gcc would copy with `rep movsb`, which takes longer than memcpy. */
    RBFLY_UNUSED Py_NO_INLINE static int out_grow(OutBuffer *out, Py_ssize_t n) {
        Py_ssize_t used = out_size(out), capacity = out->end - out->start;
        if (out->owner == NULL) {
            PyErr_SetString(PyExc_BufferError, "output buffer is too small");
            return -1;
        }
        if (n > PY_SSIZE_T_MAX / 2 - used) {
            PyErr_NoMemory();
            return -1;
        }
        capacity += capacity;
        if (capacity < used + n) capacity = used + n;
        /* allocate instead of resizing, so that the old bytes survive a MemoryError */
        PyObject *grown = PyBytes_FromStringAndSize(NULL, capacity);
        if (grown == NULL) return -1;
        memcpy(PyBytes_AS_STRING(grown), out->start, (size_t)used);
        Py_SETREF(out->owner, grown);
        out->start = (uint8_t *)PyBytes_AS_STRING(out->owner);
        out->p = out->start + used;
        out->end = out->start + capacity;
        return 0;
    }

    /* Ensure space for n more bytes at out->p. */
    static inline int out_reserve(OutBuffer *out, Py_ssize_t n) {
        return out->end - out->p >= n ? 0 : out_grow(out, n);
    }

    /* Return the written bytes as an exact `bytes` and close the buffer. */
    static inline PyObject *out_finish(OutBuffer *out) {
        PyObject *owner = out->owner;
        const char *start = (const char *)out->start;
        Py_ssize_t used = out_size(out);
        out->owner = NULL;
        out->start = out->p = out->end = NULL;
        if (owner == NULL) {
            PyErr_SetString(PyExc_SystemError, "output buffer is closed");
            return NULL;
        }
        if (owner == Py_None) {
            Py_DECREF(owner);
            return PyBytes_FromStringAndSize(start, used);
        }
        if (_PyBytes_Resize(&owner, used) < 0) return NULL;
        return owner;
    }

    static inline void out_discard(OutBuffer *out) {
        Py_CLEAR(out->owner);
        out->start = out->p = out->end = NULL;
    }

    /* Unchecked writes; call out_reserve first. */
    static inline void put_u8(OutBuffer *out, uint8_t v) { *out->p++ = v; }
    static inline void put_u16(OutBuffer *out, uint16_t v) { store_u16(out->p, v); out->p += 2; }
    static inline void put_u32(OutBuffer *out, uint32_t v) { store_u32(out->p, v); out->p += 4; }
    static inline void put_u64(OutBuffer *out, uint64_t v) { store_u64(out->p, v); out->p += 8; }
    static inline void put_bytes(OutBuffer *out, const void *data, Py_ssize_t n) {
        memcpy(out->p, data, (size_t)n); out->p += n;
    }
    #endif
    """
    uint16_t load_u16(const uint8_t *p) noexcept nogil
    uint32_t load_u32(const uint8_t *p) noexcept nogil
    uint64_t load_u64(const uint8_t *p) noexcept nogil
    double load_double(const uint8_t *p) noexcept nogil
    double load_float(const uint8_t *p) noexcept nogil
    uint64_t double_bits(double v) noexcept nogil
    uint32_t float_bits(double v) noexcept nogil
    void store_u32(uint8_t *p, uint32_t v) noexcept nogil
    void store_u64(uint8_t *p, uint64_t v) noexcept nogil

    ctypedef struct OutBuffer:
        PyObject *owner
        uint8_t *start
        uint8_t *p
        uint8_t *end

    int out_open(OutBuffer *out, Py_ssize_t capacity) except -1
    void out_fixed(OutBuffer *out, uint8_t *start, Py_ssize_t size) noexcept nogil
    void out_local(OutBuffer *out, uint8_t *start, Py_ssize_t size) noexcept
    bint is_beyond_u32(Py_ssize_t n) noexcept nogil
    Py_ssize_t out_size(const OutBuffer *out) noexcept nogil
    int out_reserve(OutBuffer *out, Py_ssize_t n) except -1
    bytes out_finish(OutBuffer *out)
    void out_discard(OutBuffer *out) noexcept
    void put_u8(OutBuffer *out, uint8_t v) noexcept nogil
    void put_u16(OutBuffer *out, uint16_t v) noexcept nogil
    void put_u32(OutBuffer *out, uint32_t v) noexcept nogil
    void put_u64(OutBuffer *out, uint64_t v) noexcept nogil
    void put_bytes(OutBuffer *out, const void *data, Py_ssize_t n) noexcept nogil
