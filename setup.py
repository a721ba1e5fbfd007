"""Build the extension modules; this file sets all compiler directives and flags of the project.

Environment switches; the first three use separate build folders, so their objects never mix:

    RBFLY_DEBUG=1      assertions and invariants, -O0
    RBFLY_SANITIZE=1   AddressSanitizer and UndefinedBehaviorSanitizer, -O1
    RBFLY_PORTABLE=1   no CPython internals, see src/rbfly/_cpython.pxd
    RBFLY_FAST=1       -O1 instead of -O3, where speed does not matter (CI)
    RBFLY_WERROR=1     treat warnings of Cython and the C compiler as errors (CI)
    RBFLY_ANNOTATE=1   write annotated HTML beside the C

The generated C goes to build/cython.  It is the same for every build
variant and every Python version, so the code that is checked is the code that ships.
"""

import os
import shutil
import sys
from pathlib import Path

from Cython.Build import cythonize
from Cython.Compiler import Options
from Cython.Shadow import __version__ as cython_version
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

sys.path.append(str(Path(__file__).parent / 'tools'))
import sbom


def switch(name: str) -> bool:
    return os.environ.get(name, '') not in ('', '0')


DEBUG = switch('RBFLY_DEBUG')
SANITIZE = switch('RBFLY_SANITIZE')
PORTABLE = switch('RBFLY_PORTABLE')
FAST = switch('RBFLY_FAST')
WERROR = switch('RBFLY_WERROR')
ANNOTATE = switch('RBFLY_ANNOTATE')

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
    # Caches are global and not locked: importing rbfly turns the GIL on in a free-threaded Python,
    # and fails in a second interpreter.
    'freethreading_compatible': False,
    'subinterpreters_compatible': 'no',
    'warn.maybe_uninitialized': True,
    'show_performance_hints': False,
}
# One module holds the helpers that Cython would otherwise repeat in each; no memoryview is used.
HELPERS = 'rbfly._cyutility'
SHARED = {
    'shared_utility_qualified_name': HELPERS,
    'shared_utility_features_disabled': ['MemoryView'],
}
# Programs create these classes with keywords, which gcc reads faster where it knows their names.
UNSHARED = ('rbfly.amqp._message', 'rbfly.amqp._sections')

CFLAGS = ['-std=c11', '-Wall', '-Wextra', '-Wsign-compare', '-fno-strict-aliasing']
# Cython's generated helpers trigger these warnings; cython-lint checks the project's own code.
CFLAGS += ['-Wno-unused-function', '-Wno-unused-parameter', '-Wno-missing-field-initializers']
# Some of them set variables that gcc takes for uninitialized.
HELPER_CFLAGS = ['-Wno-maybe-uninitialized', '-Wno-unknown-warning-option']
LDFLAGS: list[str] = []
if DEBUG:
    CFLAGS += ['-O0', '-g', '-UNDEBUG']
elif SANITIZE:
    CFLAGS += ['-O1', '-g', '-UNDEBUG', '-fno-omit-frame-pointer']
else:
    # Call Python functions with one jump instead of two.
    CFLAGS += ['-O1' if FAST else '-O3', '-g0', '-fno-plt']
    # Functions with a single caller mostly handle rare cases and are separate on purpose: inlined,
    # they would cost the hot function registers.  (Clang lacks the first flag, gcc the second.)
    CFLAGS += ['-fno-inline-functions-called-once', '-Wno-ignored-optimization-argument']
if SANITIZE:
    CFLAGS += ['-fsanitize=address,undefined', '-fno-sanitize-recover=undefined']
    LDFLAGS += ['-fsanitize=address,undefined']
MSVC_CFLAGS = ['/std:c11', '/W3', *(['/Od', '/UNDEBUG'] if DEBUG or SANITIZE else ['/O2'])]
if WERROR:
    CFLAGS.append('-Werror')
    MSVC_CFLAGS.append('/WX')
    Options.warning_errors = True


class BuildExt(build_ext):
    """Replaces the flags if the compiler is Microsoft's: it takes none of those above."""

    def build_extensions(self) -> None:
        if self.compiler.compiler_type == 'msvc':
            for extension in self.extensions:
                extension.extra_compile_args = MSVC_CFLAGS
                extension.extra_link_args = []
        super().build_extensions()


def keep_if(folder: Path, settings: object) -> None:
    """Empty a folder that was built with other settings, which setuptools does not detect."""
    recorded = folder / 'settings'
    if not recorded.exists() or recorded.read_text() != repr(settings):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        recorded.write_text(repr(settings))


MACROS = [('RBFLY_DEBUG', str(int(DEBUG or SANITIZE))), ('RBFLY_PORTABLE', str(int(PORTABLE)))]

keep_if(TRANSLATED, (DIRECTIVES, SHARED, UNSHARED, WERROR, ANNOTATE))
keep_if(BUILD, (CFLAGS, HELPER_CFLAGS, MSVC_CFLAGS, LDFLAGS, MACROS))


def translate(sources: dict[str, Path], **options: object) -> list[Extension]:
    extensions = [
        Extension(
            name,
            [str(path)],
            extra_compile_args=CFLAGS + HELPER_CFLAGS * (name == HELPERS),
            extra_link_args=LDFLAGS,
            define_macros=MACROS,
        )
        for name, path in sources.items()
    ]
    modules: list[Extension] = cythonize(
        extensions,
        build_dir=str(TRANSLATED),
        include_path=['src'],
        compiler_directives=DIRECTIVES,
        annotate=ANNOTATE,
        **options,
    )
    return modules


SOURCES = {
    '.'.join(path.relative_to('src').with_suffix('').parts): path
    for path in sorted(Path('src').rglob('*.pyx'))
}
unshared = {name: SOURCES.pop(name) for name in UNSHARED}
SOURCES[HELPERS] = Path('src/rbfly/_cyutility.c')  # generated in TRANSLATED
modules = translate(unshared) + translate(SOURCES, **SHARED)


class Wheel(bdist_wheel):
    """Adds the SBOM to the metadata."""

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        super().egg2dist(egginfo_path, distinfo_path)
        about = self.distribution.metadata
        parts = (about.name, about.version, about.description, about.license_expression)
        text = sbom.document(*parts, cython_version)
        path = Path(distinfo_path, 'sboms', f'{about.name}.cdx.json')
        path.parent.mkdir()
        path.write_text(text)


setup(
    ext_modules=modules,
    cmdclass={'bdist_wheel': Wheel, 'build_ext': BuildExt},
    options={
        'build': {'build_base': str(BUILD)},
        'build_ext': {'parallel': True},
        'egg_info': {'egg_base': str(BUILD)},  # variants may be built at the same time
    },
)
