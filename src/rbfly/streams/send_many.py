"""Sending many messages at once, as many as the window takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from ..error import ConfirmTimeout
from ._confirm import ConfirmGroup
from .types import AMQPBody, MessageCtx
from .waiting import of_message, publish_error

if TYPE_CHECKING:
    from .publishing import PublisherDriver

__all__ = ['ManyMessages']

TURN = 0.005  # seconds that it keeps the loop at most, if messages come that fast
RUN = 200  # messages between two looks at the clock
CHECK = 100_000  # messages whose publish ids are looked at in a turn

Message = AMQPBody | MessageCtx


class ManyMessages:
    """One call of `send_many`.

    :param driver: of the publisher.
    """

    def __init__(self, driver: PublisherDriver) -> None:
        self._driver = driver
        self._core = driver.core
        self._waiter = ConfirmGroup(driver.core.loop)

    async def send(
        self, messages: Iterable[Message] | AsyncIterable[Message], timeout: float | None
    ) -> int:
        """Send them and wait until all are confirmed; how many there were."""
        waiter = self._waiter
        error: Exception | None = None
        late = False
        limit = asyncio.timeout(timeout or None)
        try:
            async with limit:
                if isinstance(messages, AsyncIterable):
                    error = await self._send_aiter_until(aiter(messages))
                else:
                    if isinstance(messages, list | tuple):
                        await self._check_ids(messages)
                    error = await self._send_iter(iter(messages))
                if not waiter.seal():
                    await waiter.wait()
        except TimeoutError:
            if not limit.expired():
                raise
            late = True
        finally:
            del limit  # it refers to the task
        if late:
            raise ConfirmTimeout(
                f'{waiter.count - waiter.remaining} of {waiter.count} messages were confirmed'
                f' within {timeout} s; the others may still be stored'
            ) from error
        if waiter.errors:
            raise of_message(publish_error(waiter), waiter.first_refused) from error
        if waiter.error is not None:  # others may raise it, too: it keeps its cause
            if error is None:
                raise waiter.error.with_traceback(None)
            raise waiter.error.with_traceback(None) from error
        if error is not None:
            raise of_message(error, waiter.count)
        return waiter.count

    async def _send_iter(self, messages: Iterator[Message]) -> Exception | None:
        """Send what an iterator gives; the error of the message behind them, if that ends it."""
        driver, core, waiter = self._driver, self._core, self._waiter
        step = core.window.frame_entries  # whole frames
        more = True
        while more:
            await driver.wait_room(step)
            driver.check()
            if waiter.errors or waiter.settled:
                core.room.grant()  # the room that it does not need
                break
            try:
                more = self._fill(messages, step)
            except Exception as ex:
                return ex
            finally:
                core.write()
            if more and not core.room.waiting and core.has_room(step):
                await asyncio.sleep(0)  # its time was up
        return None

    def _fill(self, messages: Iterator[Message], step: int) -> bool:
        """Fill the window, for a short time; true if there may be more messages."""
        core, waiter = self._core, self._waiter
        window = core.window
        end = monotonic() + TURN
        room = window.max_unconfirmed - window.unsettled - core.room.reserved
        goal = waiter.count + room - room % step
        more = True
        while more and waiter.count < goal and monotonic() < end:
            run = min(goal - waiter.count, RUN)
            limit = waiter.count + run
            more = window.extend(messages, run, waiter)
            if more and waiter.count < limit:  # large messages: not all of the window at once
                core.write()
                if core.is_paused():
                    break
        return more

    async def _send_aiter_until(self, messages: AsyncIterator[Message]) -> Exception | None:
        """`_send_aiter`; what fails meanwhile is not kept back until the next message comes."""
        receiving = self._driver.receiving
        stop = receiving[self._waiter] = asyncio.timeout(None)
        try:
            async with stop:
                return await self._send_aiter(messages)
        except TimeoutError:
            if not stop.expired():
                raise
        finally:
            del receiving[self._waiter], stop  # it refers to the task
        return None  # the waiter knows what was refused, or lost

    async def _send_aiter(self, messages: AsyncIterator[Message]) -> Exception | None:
        """`_send_iter` of an asynchronous iterator."""
        driver, core, waiter = self._driver, self._core, self._waiter
        end = monotonic() + TURN
        while not waiter.errors and not waiter.settled:
            try:
                message = await anext(messages)
            except StopAsyncIteration:
                break
            except Exception as ex:
                return ex
            await driver.wait_room()
            driver.check()
            if waiter.settled:  # what was sent before is lost
                core.room.grant()
                break
            try:
                core.window.append(message, waiter)
            except Exception as ex:
                core.room.grant()
                return ex
            if not core.scheduled:
                core.schedule()
            if monotonic() > end:  # perhaps nothing has waited so far
                await asyncio.sleep(0)
                end = monotonic() + TURN
        return None

    async def _check_ids(self, messages: Sequence[Message]) -> None:
        """Raise ValueError for explicit publish ids that do not ascend."""
        last: int | None = None
        for start in range(0, len(messages), CHECK):
            if start:
                await asyncio.sleep(0)
            last = self._core.window.check_ids(messages, start, start + CHECK, last)
