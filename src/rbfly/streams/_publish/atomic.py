"""Atomic batches: of their messages, the broker stores all or none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable, Sequence
from itertools import islice
from typing import TypeAlias

from ...checks import check_integer
from ...error import ArgumentTypeError, of_callback
from ...protocol._atomic import ATOMIC_MAX, AtomicBatch
from .. import types
from .._waiting import NOW, end_of, in_time
from ..types import MessageCtx
from ._confirm import ConfirmFuture
from .confirmation import SEQUENCES, SINGLE, of_message
from .session import PublisherSession

Message: TypeAlias = 'types.AMQPBody | MessageCtx'


def as_sequence(messages: Iterable[Message]) -> Sequence[Message]:
    """Return the messages of a batch, which can then be iterated several times.

    :raises ArgumentTypeError: it is a single message, or not an iterable.
    :raises Exception: an error of the iterator.
    """
    if isinstance(messages, SEQUENCES):
        return messages
    if isinstance(messages, SINGLE):
        kind = type(messages).__name__
        raise ArgumentTypeError(f'send_atomic takes an iterable of messages, not a single {kind}')
    if not isinstance(messages, Iterable):
        kind = 'an asynchronous one' if isinstance(messages, AsyncIterable) else repr(messages)
        raise ArgumentTypeError(f'send_atomic takes an iterable of messages, not {kind}')
    try:
        return tuple(islice(messages, ATOMIC_MAX + 1))  # one more, which is refused
    except BaseException as ex:
        raise of_callback(ex, 'the iterator given to send_atomic') from None


def check_publish_id(publish_id: int | None) -> None:
    """Check the explicit publishing id of a batch."""
    if publish_id is not None:
        check_integer('publish_id', publish_id, 0, 2**64 - 1)


async def send_atomic(
    session: PublisherSession,
    messages: Iterable[Message],
    timeout: float | None,
    publish_id: int | None,
) -> None:
    """Send a batch and wait until the broker has confirmed it."""
    until = end_of(timeout)
    core = session.core
    session.check()
    if until == NOW:
        raise session.no_time()
    check_publish_id(publish_id)
    batch = encoded(session, as_sequence(messages))
    if batch.count == 0:
        return
    # A batch larger than the window waits until the window is empty.
    needed = min(batch.count, core.window.max_unconfirmed)
    if not await session.wait_capacity(needed, until):
        raise session.window_timeout(timeout)
    try:
        wait = core.put_atomic(batch, publish_id)
    except BaseException:
        core.capacity.grant()  # the capacity that this batch does not need
        raise
    await confirmed(session, wait, timeout, until, 'the batch')


def encoded(session: PublisherSession, messages: Sequence[Message]) -> AtomicBatch:
    """Return the batch of some messages; nothing is sent."""
    batch = AtomicBatch(session.core.window)
    try:
        batch.extend(messages)
    except Exception as ex:
        raise of_message(ex, batch.count, 'send_atomic')  # noqa: B904 - the same error
    batch.close()
    return batch


async def confirmed(
    session: PublisherSession,
    wait: ConfirmFuture,
    timeout: float | None,
    until: float | None,
    what: str,
) -> None:
    """Wait for a confirm; the caller gives up if the time is up, or if it is cancelled.

    :param what: names the sent messages in the error.
    """
    try:
        if await in_time(wait, until):
            return
    except asyncio.CancelledError:
        session.give_up(wait)
        raise
    if session.give_up(wait):
        text = f'it could not send {what} within {timeout} s, and withdrew it'
        raise session.late(text, sent=False)
    raise session.late(
        f'the broker did not confirm {what} within {timeout} s; it may still be stored'
    )
