"""How a publisher chooses the partitions of a super stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from typing import Any

from ...error import ArgumentTypeError
from ._routing import HashRoute, KeyRoute

__all__ = ['Route', 'by_hash', 'by_key']

KEY = 'a function that returns the key of a message'

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
    check_function('key', key, KEY)
    return HashRoute(key)


def by_key(key: Callable[[Any], str]) -> KeyRoute:
    """Route each message to the partitions that are bound to its key in RabbitMQ.

    For super streams that were created with binding keys.  The publisher asks the broker once for
    each key; while a key has no partition, at most once per second.

    :param key: returns the binding key of a message, as it was passed to the publisher: a body or a
        context.
    """
    check_function('key', key, KEY)
    return KeyRoute(key)


def check_route(route: Route) -> None:
    """Check that an argument can choose partitions."""
    if not isinstance(route, KeyRoute):
        check_function('route', route, 'by_hash(...), by_key(...) or a function')


def check_function(name: str, value: object, expected: str) -> None:
    """Check that an argument can be called for each message; a call cannot await."""
    if not callable(value) or iscoroutinefunction(value):
        found = 'an async function' if callable(value) else type(value).__name__
        raise ArgumentTypeError(f'{name} must be {expected}, not {found}')
