/* libFuzzer's entry points around an embedded CPython.

   The target is the C function that the Cython module named by RBFLY_FUZZ_TARGET exports as
   `target`.  Each input is copied to a block of exactly its size, so that AddressSanitizer detects
   reads past its end. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*target_function)(const uint8_t *data, Py_ssize_t size);

static target_function target;

/* Counters for code without compiler instrumentation: targets record what an input reached. */
__attribute__((section("__libfuzzer_extra_counters"))) uint8_t fuzz_coverage[1 << 12];

static void die(const char *what) {
    fprintf(stderr, "fuzz: %s\n", what);
    if (PyErr_Occurred()) PyErr_Print();
    fflush(NULL);
    abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *name = getenv("RBFLY_FUZZ_TARGET");
    PyObject *module, *exports, *capsule;
    (void)argc;
    (void)argv;
    if (name == NULL) die("RBFLY_FUZZ_TARGET is not set");
    Py_InitializeEx(0);
    module = PyImport_ImportModule(name);
    if (module == NULL) die("the target cannot be imported");
    exports = PyObject_GetAttrString(module, "__pyx_capi__");
    capsule = exports == NULL ? NULL : PyDict_GetItemString(exports, "target");
    if (capsule == NULL) die("the module exports no target");
    target = (target_function)PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule));
    if (target == NULL) die("the target is no function");
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    /* an empty input points past the only byte of its block, so that any read is detected */
    uint8_t *block = malloc(size == 0 ? 1 : size);
    int result;
    if (block == NULL) die("out of memory");
    if (size > 0) memcpy(block, data, size);
    result = target(size == 0 ? block + 1 : block, (Py_ssize_t)size);
    if (result < 0 || PyErr_Occurred()) die("finding");
    free(block);
    return 0;
}
