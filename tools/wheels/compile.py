"""Build the wheel of a target in an unpacked sdist, which is the current folder.

The compiler of the `ziglang` package makes extension modules for any platform. What they are, and
their flags, comes from setup.py, whose commands this file extends.

Arguments: the target's Python, processor and C library, the folder of Python's headers, the folder
of the wheel.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import setuptools  # provides distutils, which Python 3.12 dropped
import ziglang

from .target import Target

# What Python itself is compiled with, and what its headers assume.
CFLAGS = ['-DNDEBUG', '-fwrapv', '-fPIC']
# Distributions that use musl call its library by another name, which auditwheel asks for.
RENAME = ['patchelf', '--replace-needed', 'libc.so']


def compilers(target: Target) -> dict[str, list[str]]:
    """The command lines that setuptools calls the executables of a compiler."""
    zig = str(Path(ziglang.__file__).with_name('zig'))
    # The objects may not name the folder of the build.
    cc = [zig, 'cc', '-target', target.triple, f'-ffile-prefix-map={os.getcwd()}=.']
    link = [*cc, '-shared', '-Wl,-s']
    return {'compiler_so': [*cc, *CFLAGS], 'linker_so': link}


def commands(target: Target, headers: Path, classes: dict[str, Any]) -> dict[str, Any]:
    """Commands of setuptools, or of setup.py, that build for the target."""
    from setuptools.command.bdist_wheel import bdist_wheel
    from setuptools.command.build_ext import build_ext

    extend: Any = classes.get('build_ext', build_ext)
    package: Any = classes.get('bdist_wheel', bdist_wheel)

    class BuildExt(extend):  # type: ignore[misc]
        def build_extensions(self) -> None:
            self.compiler.set_executables(**compilers(target))
            self.compiler.set_include_dirs([str(headers)])
            super().build_extensions()
            if target.libc == 'musl':
                for path in self.get_outputs():
                    subprocess.run([*RENAME, f'libc.musl-{target.arch}.so.1', path], check=True)

        def get_ext_filename(self, fullname: str) -> str:
            return fullname.replace('.', '/') + target.suffix

    class BdistWheel(package):  # type: ignore[misc]
        def get_tag(self) -> tuple[str, str, str]:
            return target.interpreter, target.interpreter, f'linux_{target.arch}'

    return {**classes, 'build_ext': BuildExt, 'bdist_wheel': BdistWheel}


def main() -> None:
    target, headers, out = Target(*sys.argv[1:4]), Path(sys.argv[4]), sys.argv[5]
    assert setuptools
    run_setup = importlib.import_module('distutils.core').run_setup
    dist = run_setup('setup.py', [], stop_after='commandline')
    dist.cmdclass = commands(target, headers, dist.cmdclass)
    dist.get_option_dict('build')['build_base'] = ('tools.wheels', f'build/{target}')
    dist.get_option_dict('bdist_wheel')['dist_dir'] = ('tools.wheels', out)
    dist.run_command('bdist_wheel')


if __name__ == '__main__':
    main()
