"""A format of message bodies other than AMQP 1.0 values, such as JSON, Avro or Protobuf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from ..error import ArgumentTypeError

T = TypeVar('T')


class Codec(Generic[T]):
    """Two functions that encode and decode the bodies of messages, such as JSON.

    The bytes of a body travel in a data section of AMQP 1.0, as other clients write and read them;
    properties and annotations are as with other messages.

    :param encode: returns the bytes of a body; a publisher calls it.
    :param decode: returns the body for these bytes; a subscription calls it.
    :raises ArgumentTypeError: one of them is not callable.
    """

    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]

    def __init__(self, encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> None:
        for name, function in (('encode', encode), ('decode', decode)):
            if not callable(function):
                raise ArgumentTypeError(f'{name} must be a function, not {type(function).__name__}')
        self.encode = encode
        self.decode = decode

    def __repr__(self) -> str:
        return f'Codec({self.encode!r}, {self.decode!r})'
