"""RbFly, consuming messages with all their properties."""

from . import Kind
from .base import Target, Work
from .rbfly import ConsumeMessages

__all__ = ['make']


def make(kind: Kind, target: Target) -> Work:
    return ConsumeMessages(target, kind)
