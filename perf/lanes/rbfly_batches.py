"""This client, a chunk at a time."""

from . import KINDS
from .base import Target, Work
from .rbfly import ConsumeBatches

__all__ = ['make']


def make(kind: str, target: Target) -> Work:
    stored = KINDS[kind].stored
    assert stored is not None
    return ConsumeBatches(target, stored)
