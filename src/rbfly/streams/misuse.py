"""What a program gets that forgets `await` or `async`, or calls a method of another class.

Type checkers do not see these attributes: they report the mistake themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ..error import ArgumentTypeError

SEND = 'use send, submit or send_many, or open a batch publisher'
BATCH = 'queue messages with batch, then await flush'


class AsyncWith:
    """An object that `with` does not accept, because it needs `async with`."""

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise ArgumentTypeError(f'{type(self).__name__} needs `async with`, not `with`')

        def __exit__(self, *_: object) -> None:
            pass


class AsyncFor(AsyncWith):
    """The same, and `for` does not accept it, because it needs `async for`."""

    if not TYPE_CHECKING:

        def __iter__(self) -> NoReturn:
            raise ArgumentTypeError(f'{type(self).__name__} needs `async for`, not `for`')


class Lacking:
    """A method that a class does not have, although similar classes do.

    :param advice: what the program should use instead.
    """

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._name = ''

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(f'{owner.__name__} has no method {self._name!r}: {self._advice}')


class NoBatch:
    """A publisher that sends each message at once."""

    if not TYPE_CHECKING:
        batch = Lacking(SEND)
        flush = Lacking(SEND)


class BatchOnly:
    """A publisher that queues messages until it is flushed."""

    if not TYPE_CHECKING:
        send = Lacking(BATCH)
        submit = Lacking(BATCH)
        send_many = Lacking(BATCH)
