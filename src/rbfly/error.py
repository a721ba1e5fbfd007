"""Errors of the package; a leaf that every room may import.

Everything raised on purpose is a :class:`RbFlyError`.  Three families stand below it: wrong use
of the API, a value or bytes that AMQP 1.0 does not allow, and what a broker or the network
answered (:mod:`rbfly.streams.error`).
"""

from typing import Any

__all__ = [
    'AMQPDecoderError',
    'AMQPEncoderError',
    'AMQPEncoderIntegerError',
    'AMQPEncoderOverflowError',
    'AMQPEncoderTypeError',
    'AMQPEncoderValueError',
    'AMQPError',
    'MessageContextError',
    'MessageTypeError',
    'RbFlyBufferError',
    'RbFlyError',
]


class RbFlyError(Exception):
    """Base of every error that RbFly raises on purpose.

    :ivar index: which of the messages given to `send_many` it is about, counted from 0; else None.
    :ivar retriable: the same may work some time later (bool).
    """

    index: int | None = None
    retriable: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        reduced: Any = super().__reduce__()
        _, args, *state = reduced
        return _restore, (type(self), args), *state


def _restore(kind: type[RbFlyError], args: tuple[Any, ...]) -> RbFlyError:
    # Not by the class's own constructor: `args` is the finished text, not what that one takes.
    error = kind.__new__(kind, *args)
    builtin: Any = next(item for item in kind.__mro__ if item.__module__ == 'builtins')
    builtin.__init__(error, *args)
    return error


class RbFlyBufferError(RbFlyError):
    """The buffer given to :func:`rbfly.amqp.encode_amqp` is too small for the message."""


class MessageContextError(RbFlyError, LookupError):
    """There is no such message: this task, or this subscription, has received none."""


class MessageTypeError(RbFlyError, TypeError):
    """A body of another type than what was asked for needs."""


class AMQPError(RbFlyError):
    """Base of the codec's errors."""


class AMQPDecoderError(AMQPError):
    """Bytes that are not an AMQP 1.0 message.

    :ivar position: index of the byte, in the message, at which decoding stopped; None if unknown.
    :ivar offset: offset of the message in its stream (int); None outside of a subscription.
    :ivar data: the undecodable message (bytes); None outside of a subscription.
    """

    def __init__(self, message: str = '', position: int | None = None) -> None:
        super().__init__(message)
        self.position = position
        self.offset: int | None = None
        self.data: bytes | None = None


class AMQPEncoderError(AMQPError):
    """A Python value that cannot be written as AMQP 1.0."""


class AMQPEncoderTypeError(AMQPEncoderError, TypeError):
    """A type that AMQP 1.0 has no counterpart for, at that place of the message."""


class AMQPEncoderValueError(AMQPEncoderError, ValueError):
    """A value that its AMQP 1.0 type does not allow, e.g. a lone surrogate or a circular list."""


class AMQPEncoderOverflowError(AMQPEncoderError, OverflowError):
    """A number out of the range of its AMQP 1.0 type."""


class AMQPEncoderIntegerError(AMQPEncoderOverflowError, AMQPEncoderTypeError):
    """An integer of more than 64 bits, for which AMQP 1.0 has no type at all."""
