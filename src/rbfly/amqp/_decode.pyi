# Bytes to values: nothing for Python, _decode.pxd has what Cython code may cimport.

from typing import Any, Final

__pyx_capi__: Final[dict[str, Any]]
__test__: Final[dict[str, Any]]
