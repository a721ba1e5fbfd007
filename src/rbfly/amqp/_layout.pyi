# Sections out of bytes: nothing for Python, _layout.pxd has what Cython code may cimport.

from typing import Any, Final

__pyx_capi__: Final[dict[str, Any]]
__test__: Final[dict[str, Any]]
