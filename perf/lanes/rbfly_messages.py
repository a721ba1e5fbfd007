"""This client, all that a message has."""

from . import KINDS
from .base import Target, Work
from .rbfly import ConsumeMessages

__all__ = ['make']


def make(kind: str, target: Target) -> Work:
    stored = KINDS[kind].stored
    assert stored is not None
    return ConsumeMessages(target, stored)
