"""RbFly with busy polling."""

from . import BUSY_POLL, Kind
from .base import Target, Work
from .rbfly import MAKE

__all__ = ['make']


def make(kind: Kind, target: Target) -> Work:
    return MAKE[kind.work](target, kind, busy_poll=BUSY_POLL)
