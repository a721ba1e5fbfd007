"""The module that RbFly 0.10 and 0.11 kept the publishers in: the same names."""

from . import *  # noqa: F403
from . import __all__ as __all__
