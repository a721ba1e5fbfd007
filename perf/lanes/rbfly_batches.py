"""RbFly, consuming a chunk at a time."""

from . import Kind
from .base import Target, Work
from .rbfly import ConsumeBatches

__all__ = ['make']


def make(kind: Kind, target: Target) -> Work:
    return ConsumeBatches(target, kind)
