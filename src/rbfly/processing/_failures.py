"""What happens to a message whose work fails."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from ..amqp import decode_amqp
from ..checks import check_timeout, check_type
from ..error import AMQPDecoderError, ArgumentError, ArgumentTypeError
from ..record import CheckedRecord
from ..streams import BasePublisher, MessageCtx
from ._partition import Item

REASON_MAX = 1024  # characters

Last = Literal['fail', 'ignore']


class DeadLetter(CheckedRecord):
    """What :func:`dead_letter` returns.

    :param publisher: of the stream for messages that have failed.
    """

    publisher: BasePublisher

    def __post_init__(self) -> None:
        check_type('publisher', self.publisher, BasePublisher)


class Retry(CheckedRecord):
    """What :func:`retry` returns.

    :param delays: seconds before each further try.
    :param then: what to do when the last try has failed.
    """

    delays: tuple[float, ...]
    then: Last | DeadLetter = 'fail'

    def __post_init__(self) -> None:
        for delay in self.delays:
            check_type('a delay', delay, int, float)
            check_timeout('a delay', delay)
        if not self.delays:
            raise ArgumentError('delays must not be empty')
        if not (self.then in ('fail', 'ignore') or isinstance(self.then, DeadLetter)):
            raise ArgumentError(
                f"then must be 'fail', 'ignore' or dead_letter(publisher), not {self.then!r}"
            )


OnError = Last | Retry | DeadLetter
"""What to do if the work on a message fails."""


def retry(delays: Iterable[float], then: Last | DeadLetter = 'fail') -> Retry:
    """Try a message again, after a delay: pass the result as `on_error` to :func:`process`::

        await process(orders, bill, on_error=retry([0.1, 1], then=dead_letter(publisher)))

    Meanwhile, only messages with the same key wait; the worker takes other messages.

    :param delays: seconds before the second try, before the third, and so on.
    :param then: what to do when the last try has failed, see `on_error` of :func:`process`.
    :raises ValueError: there are no delays, one of them is negative, or `then` is unknown.
    """
    if isinstance(delays, str) or not isinstance(delays, Iterable):
        raise ArgumentTypeError(
            f'delays must be numbers of seconds in a list, such as [0.1, 1], not {delays!r}'
        )
    return Retry(tuple(delays), then)


def dead_letter(publisher: BasePublisher) -> DeadLetter:
    """Publish a message that has failed to another stream: pass the result as `on_error`.

    The message counts as finished when the broker has confirmed the dead letter.  That is the
    message as it was received, all sections of it, with these application properties:

    * `dead-letter-reason`: type and text of the error, up to 1,024 characters (str);
    * `dead-letter-stream`: name of the stream or partition (str);
    * `dead-letter-offset`: offset of the message (int);
    * `dead-letter-tries`: how often the work has failed (int); 0 if the message is not AMQP 1.0, or
      has no key;
    * `dead-letter-time`: time of the failure (datetime).

    :param publisher: of the stream or super stream for dead letters.  A `route` receives the
        message context.
    :raises TypeError: `publisher` is no publisher.
    """
    return DeadLetter(publisher)


class Policy(NamedTuple):
    """What to do on an error.

    :ivar delays: seconds before each further try.
    :ivar last: what to do when no further try is left.
    """

    delays: tuple[float, ...]
    last: Last | DeadLetter


def policy_of(on_error: object) -> Policy:
    """Check what a program has passed as `on_error`."""
    if isinstance(on_error, Retry):
        return Policy(on_error.delays, on_error.then)
    if isinstance(on_error, DeadLetter):
        return Policy((), on_error)
    if on_error == 'fail' or on_error == 'ignore':
        return Policy((), on_error)
    raise ArgumentError(
        "on_error must be 'fail', 'ignore', retry(delays) or dead_letter(publisher), not"
        f' {on_error!r}'
    )


def letter_for(item: Item, error: BaseException) -> MessageCtx[Any]:
    """Return a message with the reason why it has failed."""
    source = item.block.source
    text = ''.join(char for char in str(error) if char.isprintable() or char == '\n')
    facts = {
        'dead-letter-reason': f'{type(error).__name__}: {text}'[:REASON_MAX],
        'dead-letter-stream': item.block.partition.stream,
        'dead-letter-offset': item.offset,
        'dead-letter-tries': item.tries,
        'dead-letter-time': datetime.now(UTC),
    }
    if isinstance(source, bytes):
        raw: bytes | memoryview = source
    else:
        message = source.context(item.index)
        if message.raw is None:  # received with amqp=False
            return MessageCtx(message.body, app_properties=facts)
        raw = message.raw
    try:
        made = decode_amqp(raw)  # the program may have changed its body
        made.app_properties = {**made.app_properties, **facts}
    except AMQPDecoderError:
        return MessageCtx(bytes(raw), app_properties=facts)
    return made
