"""asyncio client for RabbitMQ Streams, with a Cython AMQP 1.0 codec."""

import os as _os

__version__ = '1.0.0.dev0'

# Modules of the package `rbfly` on the package index, none of which this one has.  Where both are
# installed, Python would import its compiled modules in place of ours.
_FOREIGN = ('_buffer.', '_codec.')
try:
    _names = _os.listdir(__path__[0])
except OSError:  # in an archive
    _names = []
if any(name.startswith(_FOREIGN) for name in _names):
    raise ImportError(
        f'{__path__[0]} contains files of another project, the package `rbfly`. Uninstall both and'
        ' install this one again: pip uninstall rbfly rbfly-streams; pip install rbfly-streams'
    )
del _FOREIGN, _names, _os
