"""RbFly with raw bytes instead of AMQP 1.0."""

from . import Kind
from .base import Target, Work
from .rbfly import MAKE

__all__ = ['make']


def make(kind: Kind, target: Target) -> Work:
    return MAKE[kind.work](target, kind, amqp=False)
