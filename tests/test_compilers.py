"""Compilers without GNU extensions, such as Microsoft's, compile every extension module."""

import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / 'src' / 'rbfly'
GNU = re.compile(r'__attribute__|__builtin_|__asm__|__typeof__|__int128|pthread\.h|x86intrin\.h')
# what only compilers with these extensions define; Windows alone defines the last one
NAMED = re.compile(r'__GNUC__|__clang__|__x86_64__|__aarch64__|ifndef _WIN32')


def unguarded(text: str) -> list[str]:
    """The lines that use GNU extensions, but not below the name of a compiler that has them."""
    found, conditions = [], []
    for line in text.splitlines():
        code = line.strip()
        if code.startswith('#if'):
            conditions.append(code)
        elif code.startswith('#elif'):
            conditions[-1] = code
        elif code.startswith('#else'):
            conditions[-1] = ''
        elif code.startswith('#endif'):
            conditions.pop()
        elif GNU.search(code) and not any(map(NAMED.search, conditions)):
            found.append(code)
    return found


def test_gnu_extensions_are_used_only_where_the_compiler_has_them() -> None:
    sources = [path for path in PACKAGE.rglob('*.p[xy][xd]') if path.suffix in ('.pyx', '.pxd')]
    assert unguarded('__attribute__((cold)) static int f(void);')
    for path in sources:
        assert unguarded(path.read_text()) == [], path.relative_to(PACKAGE)
