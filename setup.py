"""Build of the extension modules: every compiler directive and flag of the project stands here.

Environment switches, each with a build folder of its own so that objects never mix:

    RBFLY_DEBUG=1      bounds checks, assertions and invariants, -O0
    RBFLY_SANITIZE=1   AddressSanitizer and UndefinedBehaviorSanitizer, -O1
    RBFLY_ANNOTATE=1   annotated HTML of the translation beside the generated C
    RBFLY_WERROR=1     warnings of Cython and of the C compiler are errors (CI)
"""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from Cython.Compiler import Options
from setuptools import Extension, setup


def switch(name: str) -> bool:
    return os.environ.get(name, '') not in ('', '0')


DEBUG = switch('RBFLY_DEBUG')
SANITIZE = switch('RBFLY_SANITIZE')
ANNOTATE = switch('RBFLY_ANNOTATE')
WERROR = switch('RBFLY_WERROR')

VARIANT = (
    '-'.join(
        word
        for word, on in (('debug', DEBUG), ('sanitize', SANITIZE), ('annotate', ANNOTATE))
        if on
    )
    or 'release'
)
BUILD = os.path.join('build', f'{VARIANT}-{sys.implementation.cache_tag}')

MODULES = (
    'rbfly.amqp._types',
    'rbfly.amqp._scalars',
    'rbfly.amqp._encode',
    'rbfly.amqp._decode',
    'rbfly.amqp._sections',
    'rbfly.amqp._layout',
    'rbfly.amqp._message',
    'rbfly.amqp._codec',
    'rbfly.streams._entry',
    'rbfly.streams._frames',
    'rbfly.streams._publish',
    'rbfly.streams._sending',
    'rbfly.streams._chunk',
    'rbfly.streams._batch',
    'rbfly.streams._cursor',
    'rbfly.streams._engine',
)

CHECKED = DEBUG or SANITIZE
DIRECTIVES = {
    'language_level': '3str',
    'boundscheck': CHECKED,
    'wraparound': CHECKED,
    'initializedcheck': CHECKED,
    'nonecheck': CHECKED,
    'cdivision': True,
    'embedsignature': True,
    'embedsignature.format': 'clinic',
    'auto_pickle': False,
    'warn.maybe_uninitialized': True,
    'show_performance_hints': False,
}

CFLAGS = ['-std=c11', '-Wall', '-Wextra', '-Wsign-compare', '-fno-strict-aliasing']
# Cython's own generated helpers raise these; the project's code is read by cython-lint.
CFLAGS += ['-Wno-unused-function', '-Wno-unused-parameter', '-Wno-missing-field-initializers']
LDFLAGS: list[str] = []
if DEBUG:
    CFLAGS += ['-O0', '-g', '-UNDEBUG']
elif SANITIZE:
    CFLAGS += ['-O1', '-g', '-UNDEBUG', '-fno-omit-frame-pointer']
else:
    # A call into Python costs one jump, not two.
    CFLAGS += ['-O3', '-g0', '-fno-plt']
    # What is called from one place only is mostly the rare case, and stands apart on purpose: in
    # the hot function it would cost registers.  (clang does not know the first, gcc the second.)
    CFLAGS += ['-fno-inline-functions-called-once', '-Wno-ignored-optimization-argument']
if SANITIZE:
    CFLAGS += ['-fsanitize=address,undefined', '-fno-sanitize-recover=undefined']
    LDFLAGS += ['-fsanitize=address,undefined']
if WERROR:
    CFLAGS.append('-Werror')
    Options.warning_errors = True

# Neither Cython nor setuptools sees that a directive or a flag has changed.
SETTINGS = Path(BUILD, 'settings')
CHANGED = repr((DIRECTIVES, CFLAGS, LDFLAGS))
FORCE = not SETTINGS.exists() or SETTINGS.read_text() != CHANGED

extensions = [
    Extension(
        name,
        [os.path.join('src', *name.split('.')) + '.pyx'],
        extra_compile_args=CFLAGS,
        extra_link_args=LDFLAGS,
        define_macros=[('RBFLY_DEBUG', '1' if CHECKED else '0')],
    )
    for name in MODULES
]

modules = cythonize(
    extensions,
    build_dir=os.path.join(BUILD, 'cython'),
    include_path=['src'],
    compiler_directives=DIRECTIVES,
    annotate=ANNOTATE,
    force=FORCE,
)
SETTINGS.parent.mkdir(parents=True, exist_ok=True)
SETTINGS.write_text(CHANGED)

setup(
    ext_modules=modules,
    options={'build': {'build_base': BUILD}, 'build_ext': {'parallel': True}},
)
