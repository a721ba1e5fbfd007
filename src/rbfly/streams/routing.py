"""How a publisher chooses the partitions of a super stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..error import ArgumentTypeError
from ._routing import HashRoute, KeyRoute

__all__ = ['Route', 'by_hash', 'by_key']

Route = HashRoute | KeyRoute | Callable[[Any, Sequence[str]], str | Sequence[str]]
"""Chooses the partitions of a message: `by_hash(key)`, `by_key(key)`, or any function
`route(message, partitions)` that returns the name of a partition, or several names."""


def by_hash(key: Callable[[Any], str]) -> HashRoute:
    """Route each message to one partition, by the hash of its key.

    Equal keys have the same partition, which is also the one that the clients for Java, Go and .NET
    choose: they use the same hash (MurmurHash3) and the same order of partitions.

    :param key: returns the key of a message, as it was passed to the publisher: a body or a
        context.
    """
    return HashRoute(check(key))


def by_key(key: Callable[[Any], str]) -> KeyRoute:
    """Route each message to the partitions that are bound to its key in RabbitMQ.

    For super streams that were created with binding keys.  The publisher asks the broker once for
    each key.

    :param key: returns the binding key of a message, as it was passed to the publisher: a body or a
        context.
    """
    return KeyRoute(check(key))


def check(key: Callable[[Any], str]) -> Callable[[Any], str]:
    if not callable(key):
        raise ArgumentTypeError(
            f'key must be a function that returns the key of a message, not {type(key).__name__}'
        )
    return key


def check_route(route: Route) -> None:
    """Check that an argument can choose partitions."""
    if not (callable(route) or isinstance(route, KeyRoute)):
        raise ArgumentTypeError(
            f'route must be by_hash(...), by_key(...) or a function, not {type(route).__name__}'
        )
