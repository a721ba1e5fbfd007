"""Errors, under the module name that programs know."""

from ..error import *  # noqa: F403
from ..error import __all__ as __all__
