# Decoding of sections; there is no Python API.  Cython code can cimport from _layout.pxd.

from typing import Any, Final

__pyx_capi__: Final[dict[str, Any]]
__test__: Final[dict[str, Any]]
