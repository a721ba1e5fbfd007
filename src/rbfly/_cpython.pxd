# All uses of CPython internals, except for the future protocol in `streams/_publish/_confirm.pyx`.
#
# Each has a portable fallback, used on every Python version other than 3.11 to 3.15;
# `RBFLY_PORTABLE=1` builds the fallbacks only.  Gains are in instructions, on Python 3.11.

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef extern from *:
    """
    #ifndef RBFLY_CPYTHON_H
    #define RBFLY_CPYTHON_H

    #include <stdint.h>
    #include <string.h>
    #ifndef _WIN32
    #include <pthread.h>
    #endif

    /* Tested with these versions, with the GIL. */
    #define RBFLY_TESTED (PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x03100000)
    #if RBFLY_TESTED && !RBFLY_PORTABLE && !defined(Py_GIL_DISABLED) && !defined(PYPY_VERSION) \\
        && !defined(Py_TRACE_REFS)
    #define RBFLY_INTERNALS 1
    #else
    #define RBFLY_INTERNALS 0
    #endif

    /* -- The thread that runs this code; in a forked child it counts as another one. */
    static unsigned long rbfly_forks = 0;

    static void rbfly_forked(void) { rbfly_forks++; }
    static int rbfly_watch_forks(void) {
    #ifdef _WIN32
        return 0;
    #else
        if (pthread_atfork(NULL, NULL, rbfly_forked) == 0) return 0;
        PyErr_NoMemory();
        return -1;
    #endif
    }
    /* Thread identifiers are aligned addresses: adding a small number keeps them unique. */
    static inline unsigned long rbfly_place(void) {
        return PyThread_get_thread_ident() + rbfly_forks;
    }

    /* -- Steps of a task: asyncio enters a context for each step, which changes the context
       version.  Comparing versions lets the cursor look up the current task and check the event
       loop once per step, not once per message.
       Gain: 2,700 of 3,670 for a message of `async for`. */
    typedef struct { uint64_t thread, version; unsigned long forks; } rbfly_step;

    #if RBFLY_INTERNALS
    static inline int rbfly_same_step(const rbfly_step *step) {
        PyThreadState *thread = PyThreadState_Get();
        return thread->context_ver == step->version && thread->id == step->thread
            && rbfly_forks == step->forks;
    }
    static inline void rbfly_mark_step(rbfly_step *step) {
        PyThreadState *thread = PyThreadState_Get();
        step->thread = thread->id;
        step->version = thread->context_ver;
        step->forks = rbfly_forks;
    }
    #else
    static inline int rbfly_same_step(const rbfly_step *step) { (void)step; return 0; }
    static inline void rbfly_mark_step(rbfly_step *step) { (void)step; }
    #endif

    /* -- Type slots.  Cython's `raise StopIteration` with its traceback costs as much as several
       messages: `await` returns through am_send, or else with a StopIteration set in C.  And a
       subclass written in Python would look up its __anext__ for each message.
       Gain: 2,380 of 3,350 for a message of `async for`. */
    static inline void rbfly_set_next(PyObject *type, sendfunc send, iternextfunc next) {
    #if RBFLY_INTERNALS
        ((PyTypeObject *)type)->tp_as_async->am_send = send;
        ((PyTypeObject *)type)->tp_iternext = next;
        PyType_Modified((PyTypeObject *)type);
    #else
        (void)type; (void)send; (void)next;
    #endif
    }
    static inline void rbfly_inherit_anext(PyObject *type, PyObject *base) {
    #if RBFLY_INTERNALS
        PyAsyncMethods *methods = ((PyTypeObject *)type)->tp_as_async;
        methods->am_anext = ((PyTypeObject *)base)->tp_as_async->am_anext;
    #else
        (void)type; (void)base;
    #endif
    }

    /* -- Return a value from tp_iternext.  From 3.12 to 3.14, `await` asks no am_send: it takes the
       value out of a StopIteration, drops that at once, and then the awaitable.  So one exception
       can serve all messages, unless a program or a debugger has seen it.
       Gain: 155 of 292 ns for a message of `async for` on Python 3.14. */
    #if RBFLY_INTERNALS && PY_VERSION_HEX >= 0x030C0000
    static PyStopIterationObject *rbfly_stop;  /* has a value until its awaitable is dropped */
    static PyObject *rbfly_no_args;

    /* Steals the value. */
    static inline void rbfly_return(PyObject *value) {
        PyObject *stop;
        if (rbfly_stop == NULL || rbfly_stop->value != NULL) {
            stop = PyObject_CallNoArgs(PyExc_StopIteration);
            if (stop == NULL) {
                Py_DECREF(value);
                return;
            }
            Py_CLEAR(((PyStopIterationObject *)stop)->value);
            Py_XSETREF(rbfly_stop, (PyStopIterationObject *)stop);
        }
        rbfly_stop->value = value;
        PyErr_SetRaisedException(Py_NewRef(rbfly_stop));
    }
    static inline void rbfly_returned(void) {
        PyStopIterationObject *stop = rbfly_stop;
        if (stop == NULL || stop->value == NULL) return;
        if (Py_REFCNT(stop) != 1 || stop->traceback != NULL || stop->context != NULL
            || stop->cause != NULL || stop->notes != NULL || stop->dict != NULL
            || stop->suppress_context || stop->args != rbfly_no_args)
            Py_CLEAR(rbfly_stop);
        else
            Py_CLEAR(stop->value);
    }
    static int rbfly_ready_return(void) {
        rbfly_no_args = PyTuple_New(0);
        return rbfly_no_args == NULL ? -1 : 0;
    }
    #else
    static inline void rbfly_return(PyObject *value) {
        PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, value);
        Py_DECREF(value);
        if (stop != NULL) {
            PyErr_SetObject(PyExc_StopIteration, stop);
            Py_DECREF(stop);
        }
    }
    static inline void rbfly_returned(void) {}
    static int rbfly_ready_return(void) { return 0; }
    #endif

    /* -- Keep the awaitable that was freed last, as it is, for the next one: a loop frees one for
       each message.  Its first field is its only reference.
       Gain, with `_copy_body` of the cursor: 24 of 108 ns for a message of `async for`. */
    #if RBFLY_INTERNALS
    static PyObject *rbfly_kept;
    static destructor rbfly_free_next;

    static void rbfly_drop_next(PyObject *o) {
        PyObject **source = (PyObject **)(o + 1), *released = *source;
        if (rbfly_kept != NULL) {
            rbfly_free_next(o);
        } else {
            Py_INCREF(Py_None);
            *source = Py_None;
            Py_SET_REFCNT(o, 1);
            rbfly_kept = o;
            Py_DECREF(released);
        }
        rbfly_returned();
    }
    static inline int rbfly_keep_next(PyObject *item, PyObject *first) {
        if (*(PyObject **)(item + 1) != first) {
            PyErr_SetString(PyExc_SystemError, "layout of NextMessage");
            return -1;
        }
        rbfly_free_next = Py_TYPE(item)->tp_dealloc;
        Py_TYPE(item)->tp_dealloc = rbfly_drop_next;
        return rbfly_ready_return();
    }
    /* A new reference; NULL if none is kept. */
    static inline PyObject *rbfly_kept_next(void) {
        PyObject *o = rbfly_kept;
        rbfly_kept = NULL;
        return o;
    }
    #else
    static inline int rbfly_keep_next(PyObject *item, PyObject *first) {
        (void)item; (void)first;
        return 0;
    }
    static inline PyObject *rbfly_kept_next(void) { return NULL; }
    #endif

    /* -- Append to a list without a function call while it has room.
       Gain: 30 of 537 for a message of a batch. */
    static inline PyObject *rbfly_list(Py_ssize_t room) {
    #if RBFLY_INTERNALS
        PyObject *list = PyList_New(room);
        if (list != NULL) Py_SET_SIZE((PyVarObject *)list, 0);
        return list;
    #else
        (void)room;
        return PyList_New(0);
    #endif
    }
    /* Append an object and steal its reference. */
    static inline int rbfly_list_give(PyObject *list, PyObject *item) {
        int result;
    #if RBFLY_INTERNALS
        PyListObject *self = (PyListObject *)list;
        Py_ssize_t n = Py_SIZE(self);
        if (n < self->allocated) {
            self->ob_item[n] = item;
            Py_SET_SIZE((PyVarObject *)self, n + 1);
            return 0;
        }
    #endif
        result = PyList_Append(list, item);
        Py_DECREF(item);
        return result;
    }

    /* -- Export a bytearray without a view, to keep it from being resized.
       Gain: 96 of 1,555 for a message of ten bytes. */
    #if RBFLY_INTERNALS
    typedef char rbfly_export;
    static inline int rbfly_pin(PyObject *buffer, rbfly_export *pin) {
        (void)pin;
        ((PyByteArrayObject *)buffer)->ob_exports++;
        return 0;
    }
    static inline void rbfly_unpin(PyObject *buffer, rbfly_export *pin) {
        (void)pin;
        ((PyByteArrayObject *)buffer)->ob_exports--;
    }
    #else
    typedef Py_buffer rbfly_export;
    static inline int rbfly_pin(PyObject *buffer, rbfly_export *pin) {
        return PyObject_GetBuffer(buffer, pin, PyBUF_SIMPLE);
    }
    static inline void rbfly_unpin(PyObject *buffer, rbfly_export *pin) {
        (void)buffer;
        PyBuffer_Release(pin);
    }
    #endif

    /* -- Change the size of bytes within their memory, which bytes of the first size have; the
       caller has the only reference.  Return 0 if that is impossible.
       Gain: no fresh pages for large frames, whose messages are encoded in a third of the time. */
    #if RBFLY_INTERNALS
    static inline void rbfly_forget_hash(PyObject *bytes) {
    #ifdef __GNUC__
    #pragma GCC diagnostic push
    #pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    #endif
        ((PyBytesObject *)bytes)->ob_shash = -1;
    #ifdef __GNUC__
    #pragma GCC diagnostic pop
    #endif
    }
    #endif
    static inline int rbfly_set_size(PyObject *bytes, Py_ssize_t size) {
    #if RBFLY_INTERNALS
        rbfly_forget_hash(bytes);
        Py_SET_SIZE((PyVarObject *)bytes, size);
        PyBytes_AS_STRING(bytes)[size] = 0;
        return 1;
    #else
        (void)bytes; (void)size;
        return 0;
    #endif
    }

    /* -- New bytes; NULL with an exception set.  Short ones are copied without a function call.
       Gain: 5 of 39 ns for a message of a batch. */
    static inline void rbfly_fill(PyObject *bytes, const uint8_t *p, Py_ssize_t n) {
        char *to = PyBytes_AS_STRING(bytes);
        if (n < 8 || n > 32) {
            memcpy(to, p, (size_t)n);
        } else if (n <= 16) {
            memcpy(to, p, 8);
            memcpy(to + n - 8, p + n - 8, 8);
        } else {
            memcpy(to, p, 16);
            memcpy(to + n - 16, p + n - 16, 16);
        }
    }
    static inline PyObject *rbfly_bytes(const uint8_t *p, Py_ssize_t n) {
        PyObject *found;
        if (n < 8 || n > 32) return PyBytes_FromStringAndSize((const char *)p, n);
        found = PyBytes_FromStringAndSize(NULL, n);
        if (found != NULL) rbfly_fill(found, p, n);
        return found;
    }

    /* -- The bodies of the batch that was freed last, for the bodies of the next one.  Nothing else
       refers to those with one reference, so that nobody sees them change.
       Gain: 162 of 310 for a message of a batch. */
    #if RBFLY_INTERNALS
    static PyObject *rbfly_spare;  /* a list; NULL for none */

    static inline PyObject *rbfly_take_spare(void) {
        PyObject *spare = rbfly_spare;
        rbfly_spare = NULL;
        return spare;
    }
    /* Steal the reference to the list, or NULL. */
    static inline void rbfly_give_spare(PyObject *spare) {
        Py_XSETREF(rbfly_spare, spare);
    }
    static inline void rbfly_keep_bodies(PyObject *bodies) {
        if (Py_REFCNT(bodies) != 1 || !PyList_CheckExact(bodies)) return;
        PyObject_GC_UnTrack(bodies);
        rbfly_give_spare(Py_NewRef(bodies));
    }
    static inline int rbfly_is_spare(PyObject *found, Py_ssize_t size) {
        return Py_REFCNT(found) == 1 && PyBytes_CheckExact(found) && Py_SIZE(found) == size;
    }
    /* Append the data of the message at `p`, `size` bytes after `head` bytes, and of those that
       follow with the same head, if spare bytes fit.  Return the number of messages, at most
       `count`.  Runs no other code: an object that is not bytes stays in the list. */
    Py_NO_INLINE static Py_ssize_t rbfly_reuse(
        PyObject *list, PyObject *spare, const uint8_t *p, const uint8_t *end, Py_ssize_t head,
        Py_ssize_t size, Py_ssize_t count
    ) {
        PyListObject *self = (PyListObject *)list, *other = (PyListObject *)spare;
        Py_ssize_t n = Py_SIZE(self), left = Py_SIZE(other), i = 0;
        PyObject **to = self->ob_item + n, **from = other->ob_item + left, *found;
        uint64_t first, next;
        uint8_t last;
        if (count > left) count = left;
        if (count > self->allocated - n) count = self->allocated - n;
        if (count > (end - p) / (head + size)) count = (end - p) / (head + size);
        if (count <= 0) return 0;
        found = from[-1];
        if (!rbfly_is_spare(found, size)) {
            if (PyBytes_CheckExact(found)) {
                Py_SET_SIZE((PyVarObject *)other, left - 1);
                Py_DECREF(found);
            }
            return 0;
        }
        if (head != 9) {
            rbfly_forget_hash(found);
            rbfly_fill(found, p + head, size);
            to[0] = found;
            i = 1;
        } else {
            memcpy(&first, p, 8);
            last = p[8];
            do {
                rbfly_forget_hash(found);
                rbfly_fill(found, p + 9, size);
                to[i++] = found;
                if (i == count) break;
                p += 9 + size;
                memcpy(&next, p, 8);
                found = from[-1 - i];
            } while (next == first && p[8] == last && rbfly_is_spare(found, size));
        }
        Py_SET_SIZE((PyVarObject *)self, n + i);
        Py_SET_SIZE((PyVarObject *)other, left - i);
        return i;
    }
    #else
    static inline PyObject *rbfly_take_spare(void) { return NULL; }
    static inline void rbfly_give_spare(PyObject *spare) { (void)spare; }
    static inline void rbfly_keep_bodies(PyObject *bodies) { (void)bodies; }
    static inline Py_ssize_t rbfly_reuse(
        PyObject *list, PyObject *spare, const uint8_t *p, const uint8_t *end, Py_ssize_t head,
        Py_ssize_t size, Py_ssize_t count
    ) {
        (void)list; (void)spare; (void)p; (void)end; (void)head; (void)size; (void)count;
        return 0;
    }
    #endif

    /* -- Bytes for the body of a message in a loop: its variable still refers to the last body, so
       that the one before, if nothing else refers to it, becomes the next one.  If several bodies
       do not fit, e.g. because the program keeps them, the next ones are allocated at once.  Large
       ones benefit most: the kernel maps and clears each page of fresh memory.
       Gain: 108 of 678 for a message of `async for`. */
    #if RBFLY_INTERNALS
    #define RBFLY_RECENT_MAX (1 << 20)
    #define RBFLY_RECENT_MISSES 4
    #define RBFLY_RECENT_REST 250
    static PyObject *rbfly_recent[2];
    static unsigned rbfly_recent_turn, rbfly_recent_misses, rbfly_recent_rest;

    Py_NO_INLINE static PyObject *rbfly_other_bytes(
        PyObject **recent, const uint8_t *p, Py_ssize_t n
    ) {
        PyObject *made = rbfly_bytes(p, n);
        if (++rbfly_recent_misses == RBFLY_RECENT_MISSES) {
            rbfly_recent_misses = 0;
            rbfly_recent_rest = RBFLY_RECENT_REST;
        }
        if (made != NULL && n <= RBFLY_RECENT_MAX) {
            Py_INCREF(made);
            Py_XSETREF(*recent, made);
        }
        return made;
    }
    static inline PyObject *rbfly_next_bytes(const uint8_t *p, Py_ssize_t n) {
        PyObject **recent, *found;
        if (rbfly_recent_rest) {
            rbfly_recent_rest--;
            return rbfly_bytes(p, n);
        }
        recent = &rbfly_recent[rbfly_recent_turn ^= 1];
        found = *recent;
        if (found == NULL || Py_REFCNT(found) != 1 || Py_SIZE(found) != n)
            return rbfly_other_bytes(recent, p, n);
        rbfly_recent_misses = 0;
        rbfly_forget_hash(found);
        rbfly_fill(found, p, n);
        Py_INCREF(found);
        return found;
    }
    #else
    static inline PyObject *rbfly_next_bytes(const uint8_t *p, Py_ssize_t n) {
        return rbfly_bytes(p, n);
    }
    #endif

    /* -- Read an integer without a function call; return 0 if it is too large for that.
       Gain: 252 of 2,525 for a map with four small integers. */
    static inline int rbfly_small_integer(PyObject *o, int64_t *value) {
    #if RBFLY_INTERNALS && PY_VERSION_HEX >= 0x030C0000
        if (!PyUnstable_Long_IsCompact((PyLongObject *)o)) return 0;
        *value = (int64_t)PyUnstable_Long_CompactValue((PyLongObject *)o);
        return 1;
    #elif RBFLY_INTERNALS
        const digit *digits = ((PyLongObject *)o)->ob_digit;
        switch (Py_SIZE(o)) {
            case 0: *value = 0; return 1;
            case 1: *value = (int64_t)digits[0]; return 1;
            case -1: *value = -(int64_t)digits[0]; return 1;
            case 2: *value = (int64_t)digits[0] | ((int64_t)digits[1] << PyLong_SHIFT); return 1;
            default: return 0;
        }
    #else
        (void)o; (void)value;
        return 0;
    #endif
    }

    /* -- Keep freed Message objects for new ones: they come and go by the million.  A kept object
       still has its type, and its references are None.  @freelist would clear an object with one
       memset, of a size for which gcc emits `rep stos`, whose startup takes as long as encoding a
       message.
       Gain: 137 of 1,556 for the context of a message of ten bytes, encoded. */
    #define RBFLY_CONTEXTS 64
    #define RBFLY_CONTEXT_REFERENCES 5
    #define RBFLY_CONTEXT_HEAD (sizeof(PyObject) + sizeof(void *))
    #define RBFLY_CONTEXT_TAIL 56
    #define RBFLY_CONTEXT_SIZE \
        (RBFLY_CONTEXT_HEAD + RBFLY_CONTEXT_REFERENCES * sizeof(PyObject *) + RBFLY_CONTEXT_TAIL)

    #if RBFLY_INTERNALS
    static PyObject *rbfly_contexts[RBFLY_CONTEXTS];
    static int rbfly_context_count;
    static destructor rbfly_free_context;

    static inline PyObject **rbfly_context_references(PyObject *o) {
        return (PyObject **)((char *)o + RBFLY_CONTEXT_HEAD);
    }
    static void rbfly_drop_context(PyObject *o) {
        PyObject **references = rbfly_context_references(o), *released;
        for (int i = 0; i < RBFLY_CONTEXT_REFERENCES; i++) {
            released = references[i];
            if (released == Py_None) continue;
            Py_INCREF(Py_None);
            references[i] = Py_None;
            Py_DECREF(released);
        }
        if (rbfly_context_count < RBFLY_CONTEXTS) rbfly_contexts[rbfly_context_count++] = o;
        else rbfly_free_context(o);
    }
    static int rbfly_keep_contexts(PyObject *fresh, Py_ssize_t size) {
        int fits = size == (Py_ssize_t)RBFLY_CONTEXT_SIZE;
        for (int i = 0; fits && i < RBFLY_CONTEXT_REFERENCES; i++)
            fits = rbfly_context_references(fresh)[i] == Py_None;
        if (!fits || PyType_HasFeature(Py_TYPE(fresh), Py_TPFLAGS_HEAPTYPE)) {
            PyErr_SetString(PyExc_SystemError, "layout of Message");
            return -1;
        }
        rbfly_free_context = Py_TYPE(fresh)->tp_dealloc;
        Py_TYPE(fresh)->tp_dealloc = rbfly_drop_context;
        return 0;
    }
    /* A new reference to an object as after `__new__`; NULL if none is kept. */
    static inline PyObject *rbfly_kept_context(void) {
        PyObject *o;
        if (rbfly_context_count == 0) return NULL;
        o = rbfly_contexts[--rbfly_context_count];
        memset(rbfly_context_references(o) + RBFLY_CONTEXT_REFERENCES, 0, RBFLY_CONTEXT_TAIL);
        Py_SET_REFCNT(o, 1);
        return o;
    }
    #else
    static inline int rbfly_keep_contexts(PyObject *fresh, Py_ssize_t size) {
        (void)fresh; (void)size;
        return 0;
    }
    static inline PyObject *rbfly_kept_context(void) { return NULL; }
    #endif
    #endif
    """
    ctypedef int PySendResult
    ctypedef PySendResult (*sendfunc)(PyObject *, PyObject *, PyObject **)
    ctypedef PyObject *(*iternextfunc)(PyObject *)
    ctypedef struct rbfly_export:
        pass

    ctypedef struct rbfly_step:
        pass

    unsigned long rbfly_forks
    int rbfly_watch_forks() except -1
    unsigned long rbfly_place() noexcept
    bint rbfly_same_step(const rbfly_step *step) noexcept
    void rbfly_mark_step(rbfly_step *step) noexcept
    void rbfly_set_next(object type, sendfunc send, iternextfunc next) noexcept
    int rbfly_keep_next(object item, object first) except -1
    PyObject *rbfly_kept_next() noexcept
    void rbfly_inherit_anext(object type, object base) noexcept
    list rbfly_list(Py_ssize_t room)
    int rbfly_list_give(list items, PyObject *item) noexcept
    int rbfly_pin(object buffer, rbfly_export *pin) except -1
    void rbfly_unpin(object buffer, rbfly_export *pin) noexcept
    bint rbfly_set_size(PyObject *data, Py_ssize_t size) noexcept
    PyObject *rbfly_bytes(const uint8_t *p, Py_ssize_t n) noexcept
    PyObject *rbfly_next_bytes(const uint8_t *p, Py_ssize_t n) noexcept
    object rbfly_next_body "rbfly_next_bytes" (const uint8_t *p, Py_ssize_t n)
    PyObject *rbfly_take_spare() noexcept
    void rbfly_give_spare(PyObject *spare) noexcept
    void rbfly_keep_bodies(PyObject *bodies) noexcept
    Py_ssize_t rbfly_reuse(
        list items, PyObject *spare, const uint8_t *p, const uint8_t *end, Py_ssize_t head,
        Py_ssize_t size, Py_ssize_t count
    ) noexcept
    bint rbfly_small_integer(PyObject *o, int64_t *value) noexcept
    int rbfly_keep_contexts(object fresh, Py_ssize_t size) except -1
    PyObject *rbfly_kept_context() noexcept
