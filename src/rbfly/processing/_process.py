"""The public function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Literal, TypeVar, overload

from ..amqp import Message
from ..checks import check_integer, check_timeout, check_type
from ..error import ArgumentError, ArgumentTypeError
from ..streams import Subscription, SuperStreamSubscription
from ._failures import OnError
from ._processing import Processing, ProcessSummary
from ._workers import Workers, limited

B = TypeVar('B')

WORKERS_MAX = 100_000


@overload
async def process(
    messages: Subscription[B] | SuperStreamSubscription[B],
    work: Callable[[B], Awaitable[object]],
    *,
    workers: int = 16,
    key: Callable[[B], Hashable] | None = None,
    context: Literal[False] = False,
    on_error: OnError = 'fail',
    timeout: float | None = None,
    max_pending: int = 10_000,
    every: int = 10_000,
    interval: float = 5.0,
    finish_timeout: float = 25.0,
) -> ProcessSummary: ...


@overload
async def process(
    messages: Subscription[B] | SuperStreamSubscription[B],
    work: Callable[[Message[B]], Awaitable[object]],
    *,
    workers: int = 16,
    key: Callable[[Message[B]], Hashable] | None = None,
    context: Literal[True],
    on_error: OnError = 'fail',
    timeout: float | None = None,
    max_pending: int = 10_000,
    every: int = 10_000,
    interval: float = 5.0,
    finish_timeout: float = 25.0,
) -> ProcessSummary: ...


async def process(
    messages: Any,
    work: Any,
    *,
    workers: int = 16,
    key: Any = None,
    context: bool = False,
    on_error: OnError = 'fail',
    timeout: float | None = None,
    max_pending: int = 10_000,
    every: int = 10_000,
    interval: float = 5.0,
    finish_timeout: float = 25.0,
) -> ProcessSummary:
    """Work on several messages at once, in order by key::

        orders = client.subscribe('orders', group='billing', commit='manual')
        await process(orders, bill, workers=16, key=lambda order: order['customer'])

    Reads the subscription to its end, and closes it.  Returns after `stop`, or at `until`.

    A message is *finished* when `work` has returned.  With `commit='manual'`, `process` stores the
    offset below which all messages are finished, every so often and at the end.  A program that
    starts again, or the next member of the group, receives the messages after that offset: each
    message is worked on at least once.

    After `stop` and before a handover, `process` begins no more messages, waits for those in work,
    cancels those that take too long, and stores the offset.  At `until`, it first works on all
    messages that were delivered.  If the member of a group loses its activity, `process` cancels
    the work on the messages of that partition, and waits for its end before it works on messages of
    the partition again.  If `process` is cancelled, it cancels the work, stores the offset if that
    takes less than 2 seconds, and closes the subscription without waiting.

    :param messages: a subscription with `commit='manual'`; or with `commit='off'`, to store no
        offsets.  `process` must be the first to read from it.
    :param work: async function of a message body.  Errors that it raises are for `on_error`; a
        result is ignored.
    :param workers: number of messages to work on at the same time.
    :param key: function that returns the key of a message, any hashable value.  Messages of a
        stream or partition with the same key are worked on one after the other, in order.  None if
        messages need no order.
    :param context: call `work` and `key` with the message context instead of the body.
    :param on_error: what to do if the work on a message fails: `'fail'` stops, and raises the
        error when the other messages in work are finished, the offset is stored, and the
        subscription is closed; `'ignore'` counts the message as finished; :func:`retry` tries
        again; :func:`dead_letter` publishes the message to another stream.
    :param timeout: seconds for the work on a message; then it is cancelled, and has failed with a
        TimeoutError.  None for no limit.
    :param max_pending: number of messages of each stream or partition, from the lowest unfinished
        one to the last one taken; `process` takes no more messages of any partition until that one
        is finished.
    :param every: store offsets after this many messages; 0 not to count messages.
    :param interval: store offsets after this many seconds; 0 for no timer.
    :param finish_timeout: seconds for the messages in work after `stop` or an error; at a handover,
        at most four fifths of the group's `handover_timeout`.
    :raises Exception: the error of `work` with `on_error='fail'`, with a note that names the stream
        and the offset; of the publisher for dead letters; or of the subscription, see
        :class:`.Subscription`.
    :raises OffsetNotStored: the last offset could not be stored.
    :raises ValueError: an argument is out of range, or the subscription has `commit='auto'`.
    :raises TypeError: an argument has another type.
    """
    check_type('messages', messages, Subscription, SuperStreamSubscription)
    if messages.offset_tracking is not None and not messages.offset_tracking.manual:
        raise ArgumentError(
            "process needs a subscription with commit='manual', because commit='auto' stores"
            ' offsets of messages that are still in work'
        )
    for name, value in (('work', work), ('key', key)):
        if not (callable(value) or (value is None and name == 'key')):
            kind = 'an async function' if name == 'work' else 'a function'
            raise ArgumentTypeError(f'{name} must be {kind}, not {type(value).__name__}')
    check_integer('workers', workers, 1, WORKERS_MAX)
    check_type('context', context, bool)
    check_timeout('timeout', timeout, positive=True)
    check_integer('max_pending', max_pending, 1, 2**31 - 1)
    check_integer('every', every, 0, 2**63 - 1)
    for name, seconds in (('interval', interval), ('finish_timeout', finish_timeout)):
        check_type(name, seconds, int, float)
        check_timeout(name, seconds)
    running = Processing(messages, context, on_error, max_pending, every, interval, finish_timeout)
    if timeout is not None:
        work = limited(work, timeout)
    running.attach(Workers(workers, work, key, running))
    return await running.run()
