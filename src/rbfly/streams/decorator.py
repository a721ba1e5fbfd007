"""The `connection` decorator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar, cast

from ..error import RbFlyError
from .client import StreamsClient

F = TypeVar('F', bound=Callable[..., Any])


def connection(coro: F) -> F:
    """Decorator: close a client's connections when a coroutine or asynchronous generator ends.

    The client is the first argument that is a :class:`StreamsClient`.  If nested or parallel calls
    use the same client, the last one to end closes its connections.

    :raises RbFlyError: `coro` is not a coroutine or asynchronous generator function, or it was
        called without a client.
    """
    function: Any = coro
    while isinstance(function, functools.partial):
        function = function.func

    def client_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> StreamsClient:
        if isinstance(coro, functools.partial):
            args, kwargs = coro.args + args, coro.keywords | kwargs
        for value in (*args, *kwargs.values()):
            if isinstance(value, StreamsClient):
                return value
        raise RbFlyError(f'{function.__name__} was called without a StreamsClient')

    if inspect.iscoroutinefunction(function):

        async def run(*args: Any, **kwargs: Any) -> Any:
            async with client_of(args, kwargs):
                return await coro(*args, **kwargs)

        wrapper: Any = run
    elif inspect.isasyncgenfunction(function):

        async def iterate(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            async with client_of(args, kwargs):
                generator = coro(*args, **kwargs)
                try:
                    async for value in generator:
                        yield value
                finally:
                    await generator.aclose()

        wrapper = iterate
    else:
        raise RbFlyError(f'{coro!r} is not a coroutine function or asynchronous generator function')
    return cast(F, functools.update_wrapper(wrapper, function))
