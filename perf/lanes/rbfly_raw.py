"""This client with raw bytes in place of AMQP 1.0."""

from .base import Target, Work
from .rbfly import MAKE

__all__ = ['make']


def make(kind: str, target: Target) -> Work:
    return MAKE[kind](target, amqp=False)
