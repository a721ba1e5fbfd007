# ruff: noqa: N999  (PyInstaller prescribes the name)
"""Tell PyInstaller what compiled modules import, which it does not see."""

from PyInstaller.utils.hooks import collect_submodules

LAYERS = ('rbfly.amqp', 'rbfly.net', 'rbfly.protocol', 'rbfly.streams')
hiddenimports = ['rbfly._cyutility', 'rbfly._turn', 'rbfly.checks', 'rbfly.error', 'rbfly.types']
hiddenimports += [name for layer in LAYERS for name in collect_submodules(layer)]
# of the standard library
hiddenimports += [
    'asyncio',
    'binascii',
    'collections.abc',
    'contextvars',
    'copyreg',
    'datetime',
    'functools',
    'enum',
    'itertools',
    'operator',
    'struct',
    'types',
    'uuid',
    'weakref',
    'zlib',
]
