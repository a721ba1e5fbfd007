"""RbFly, consuming a super stream a chunk at a time."""

from . import Kind
from .base import Target, Work
from .rbfly_super import MergedBatches

__all__ = ['make']


def make(kind: Kind, target: Target) -> Work:
    return MergedBatches(target, kind)
