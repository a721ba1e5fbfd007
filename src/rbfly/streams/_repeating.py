"""Requests of a client that are repeated if they lose their connection."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from ..error import RbFlyError, about
from ..net.cluster import Cluster

P = ParamSpec('P')
T = TypeVar('T')


class Requesting(Protocol):
    """An object whose methods send requests: a client, or a super stream, which has a name."""

    _cluster: Cluster
    name: str


def repeated(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Repeat a method if it loses its connection, see `Cluster.repeat`.

    Its errors say which stream and reference they are about: its arguments of those names, or the
    name of the object.
    """

    @functools.wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        cluster = cast(Requesting, args[0])._cluster
        try:
            return await cluster.repeat(lambda: method(*args, **kwargs))
        except RbFlyError as ex:
            given = inspect.signature(method).bind(*args, **kwargs).arguments
            stream = given['stream'] if 'stream' in given else cast(Requesting, args[0]).name
            about(ex, stream, given.get('reference'))
            raise

    return call
