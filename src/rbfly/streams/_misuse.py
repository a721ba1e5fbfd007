"""What a program gets that forgets `await` or `async`.

Type checkers do not see these attributes: they report the mistake themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ..error import ArgumentTypeError


class AsyncWith:
    """An object that `with` does not accept, because it needs `async with`."""

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise ArgumentTypeError(f'{type(self).__name__} needs `async with`, not `with`')

        def __exit__(self, *_: object) -> None:
            pass


class AsyncFor(AsyncWith):
    """The same, and neither `for` nor `await` accepts it, because it needs `async for`."""

    if not TYPE_CHECKING:

        def __iter__(self) -> NoReturn:
            raise ArgumentTypeError(f'{type(self).__name__} needs `async for`, not `for`')

        def __await__(self) -> NoReturn:
            raise ArgumentTypeError(
                f'{type(self).__name__} needs `async for` or `async with`, not `await`; its method'
                ' open() can be awaited'
            )
