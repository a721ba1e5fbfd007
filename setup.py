"""Build of the extension modules: every compiler directive and flag of the project stands here.

Environment switches, the first three with a build folder of their own so that objects never mix:

    RBFLY_DEBUG=1      assertions and invariants, -O0
    RBFLY_SANITIZE=1   AddressSanitizer and UndefinedBehaviorSanitizer, -O1
    RBFLY_PORTABLE=1   nothing of CPython's inside, see src/rbfly/_cpython.pxd
    RBFLY_WERROR=1     warnings of Cython and of the C compiler are errors (CI)

The generated C lies in build/cython, with annotated HTML beside it.  It is the same for every build
and every Python: what is checked is what is shipped.
"""

import os
import shutil
import sys
from pathlib import Path

from Cython.Build import cythonize
from Cython.Compiler import Options
from setuptools import Extension, setup


def switch(name: str) -> bool:
    return os.environ.get(name, '') not in ('', '0')


DEBUG = switch('RBFLY_DEBUG')
SANITIZE = switch('RBFLY_SANITIZE')
PORTABLE = switch('RBFLY_PORTABLE')
WERROR = switch('RBFLY_WERROR')

VARIANT = 'debug' if DEBUG else 'sanitize' if SANITIZE else 'portable' if PORTABLE else 'release'
BUILD = Path('build', f'{VARIANT}-{sys.implementation.cache_tag}')

TRANSLATED = Path('build', 'cython')
DIRECTIVES = {
    'language_level': '3str',
    'boundscheck': False,
    'wraparound': False,
    'initializedcheck': False,
    'nonecheck': False,
    'cdivision': True,
    'embedsignature': True,
    'embedsignature.format': 'clinic',
    'auto_pickle': False,
    # Caches without locks, one for all: a free-threaded Python runs with its GIL from the import
    # on, and the import fails in a second interpreter.
    'freethreading_compatible': False,
    'subinterpreters_compatible': 'no',
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


def keep_if(folder: Path, settings: object) -> None:
    """Empty a folder that was made with other settings: nobody else sees that they have changed."""
    noted = folder / 'settings'
    if not noted.exists() or noted.read_text() != repr(settings):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        noted.write_text(repr(settings))


MACROS = [('RBFLY_DEBUG', str(int(DEBUG or SANITIZE))), ('RBFLY_PORTABLE', str(int(PORTABLE)))]

keep_if(TRANSLATED, (DIRECTIVES, WERROR))
keep_if(BUILD, (CFLAGS, LDFLAGS, MACROS))

extensions = [
    Extension(
        '.'.join(path.relative_to('src').with_suffix('').parts),
        [str(path)],
        extra_compile_args=CFLAGS,
        extra_link_args=LDFLAGS,
        define_macros=MACROS,
    )
    for path in sorted(Path('src').rglob('*.pyx'))
]

modules = cythonize(
    extensions,
    build_dir=str(TRANSLATED),
    include_path=['src'],
    compiler_directives=DIRECTIVES,
    annotate=True,
)

setup(
    ext_modules=modules,
    options={'build': {'build_base': str(BUILD)}, 'build_ext': {'parallel': True}},
)
