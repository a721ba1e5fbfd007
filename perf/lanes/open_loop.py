"""What the lanes of an open loop have in common: the pace, the clock and the checks.

Message `i` is due at `start + i / rate` and is sent then, whatever is unconfirmed; both of its
latencies, until its confirm and until it is consumed, count from when it was due.  So a lane that
sends late, because it or its event loop is busy, has that in its latencies.

All lanes are paced by the same code: the event loop is woken once a millisecond at most, and what
is due then is sent at once.  At 1,000 messages a second that adds nothing but the time of a
wake-up; at 10,000 a message waits for up to 0.9 ms, 0.45 ms on average, in every lane alike.  The
wake-ups are those of a timer of the kernel's where there is one (Linux), because those of event
loops count in milliseconds: they add about 0.6 ms more at 1,000 messages a second.

Figures of the floor lane, on two cores that were busy with other things, too: CPU of the process,
and medians over rounds of the median time from due to sent and to the confirm, in milliseconds.

====================================  ================  ================
wake-ups                              1,000 a second    10,000 a second
====================================  ================  ================
kernel's timer, one a millisecond     15 %, 0.15, 1.0   20 %, 0.88, 2.1
kernel's timer, one a message         the same          27 %, 0.58, 3.3
event loop's timer, one a millisecond 13 %, 0.73, 1.8   19 %, 0.87, 2.4
`sleep(0)` until due                  14 %, 0.96, 4.2   25 %, 0.92, 4.9
====================================  ================  ================

One wake-up a message takes CPU that the broker wants, for 10,000 frames a second, too; spinning
takes what there is, so it gains nothing where there is little.
"""

import asyncio
import ctypes
import os
import struct
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from ..histogram import Histogram
from . import Kind
from .base import Target, Work, numbered

__all__ = ['OpenLoop']

TICK = 1_000  # wake-ups a second, at most
LEAD = 1_000_000  # nanoseconds from the setting of the clock to the first message
LATE = 1.0  # seconds behind the schedule at the end, from which on a lane has not kept the rate
PATIENCE = 10.0  # seconds without a confirm or a message consumed

NANO = 1_000_000_000
TFD_TIMER_ABSTIME = 1
TIMER_SPEC = struct.Struct('@llll')


class Pace(Protocol):
    """Calls `tick` with the number of messages that have become due since it was called last."""

    def __init__(self, rate: int, start: int, tick: Callable[[int], None]) -> None: ...

    def stop(self) -> None: ...


class KernelPace:
    """A timer of the kernel's (Linux), read by the event loop as it reads a socket."""

    def __init__(self, rate: int, start: int, tick: Callable[[int], None]) -> None:
        self.tick = tick
        self.step = max(rate // TICK, 1)
        self.loop = asyncio.get_running_loop()
        interval = NANO * self.step // rate
        first = start + NANO * (self.step - 1) // rate  # when all of the first step are due
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        spec = TIMER_SPEC.pack(*divmod(interval, NANO), *divmod(first, NANO))
        if self.fd < 0 or libc.timerfd_settime(self.fd, TFD_TIMER_ABSTIME, spec, None):
            raise OSError(ctypes.get_errno(), 'no timer of the kernel')
        self.loop.add_reader(self.fd, self.ready)

    def ready(self) -> None:
        with suppress(BlockingIOError):
            self.tick(self.step * int.from_bytes(os.read(self.fd, 8), sys.byteorder))

    def stop(self) -> None:
        self.loop.remove_reader(self.fd)
        os.close(self.fd)


class LoopPace:
    """A timer of the event loop: what has become due within its millisecond is sent at once."""

    def __init__(self, rate: int, start: int, tick: Callable[[int], None]) -> None:
        self.tick = tick
        self.rate = rate
        self.start = start
        self.told = 0
        self.loop = asyncio.get_running_loop()
        self.timer = self.loop.call_later(1 / TICK, self.ready)

    def ready(self) -> None:
        self.timer = self.loop.call_later(1 / TICK, self.ready)
        due = max((time.monotonic_ns() - self.start) * self.rate // NANO + 1, 0)
        if due > self.told:
            count, self.told = due - self.told, due
            self.tick(count)

    def stop(self) -> None:
        self.timer.cancel()


PACE: type[Pace] = KernelPace if sys.platform == 'linux' else LoopPace


class OpenLoop(Work):
    """Sends at the rate of its kind, and checks and times what comes back.

    A lane sends in `send`, and tells by `confirmed` and `consumed`.  Its consumer is subscribed
    in `open`, and stays for all rounds.

    :ivar late: seconds that the last round took longer than its schedule, if it was so long that
        the rate was not kept; else 0.
    """

    patience = PATIENCE

    def __init__(self, kind: Kind, target: Target) -> None:
        super().__init__(target)
        self.rate = kind.rate
        self.number = 0  # of the first message of the round; no two rounds have the same
        self.count = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.error: Exception | None = None
        self.done = asyncio.Event()

    @abstractmethod
    def send(self, first: int, end: int) -> None:
        """Begin to send the messages of these indices, without waiting for anything."""

    async def prepare(self, count: int) -> None:
        self.number += self.count
        self.count = self.unconfirmed = count
        self.bodies = [numbered(self.number + i) for i in range(count)]
        self.waiting = bytearray(b'\x01') * count  # for their confirms
        self.begun = self.seen = 0
        self.histograms = {'confirm': Histogram(), 'end to end': Histogram()}
        self.add_confirm = self.histograms['confirm'].add
        self.add_end_to_end = self.histograms['end to end'].add

    async def run(self) -> int:
        self.done.clear()
        start = time.monotonic_ns() + LEAD
        self.start = start / NANO
        pace = PACE(self.rate, start, self.tick)
        try:
            await self.wait()
        finally:
            pace.stop()
        behind = time.monotonic() - self.start - self.count / self.rate
        self.late = behind if behind > LATE else 0.0
        return self.count

    async def finish(self) -> None:
        self.bodies = []

    async def wait(self) -> None:
        """Wait until all is confirmed and consumed, or fails, or nothing happens any more."""
        while self.error is None and not self.done.is_set():
            before = self.begun, self.unconfirmed, self.seen
            try:
                await asyncio.wait_for(self.done.wait(), self.patience)
            except TimeoutError:
                if before == (self.begun, self.unconfirmed, self.seen):
                    raise ValueError(
                        f'{self.unconfirmed:,} of {self.count:,} messages were not confirmed,'
                        f' {self.count - self.seen:,} not consumed'
                    ) from None
        if self.error is not None:
            raise self.error

    def tick(self, count: int) -> None:
        """So many more messages are due."""
        first = self.begun
        self.begun = end = min(first + count, self.count)
        if first < end:
            try:
                self.send(first, end)
            except Exception as ex:
                self.fail(ex)

    # -- what a lane tells

    def confirmed(self, index: int) -> None:
        """The message of that index was confirmed."""
        now = time.monotonic()
        if not (0 <= index < self.begun and self.waiting[index]):
            self.fail(ValueError(f'message {index} was confirmed, which is not unconfirmed'))
            return
        self.waiting[index] = 0
        self.unconfirmed -= 1
        self.add_confirm(now - self.start - index / self.rate)
        if not self.unconfirmed and self.seen == self.count:
            self.done.set()

    def consumed(self, body: Any) -> None:
        """The consumer has the next message, its body decoded."""
        now = time.monotonic()
        index = self.seen
        if index >= self.begun or body != self.bodies[index]:
            self.fail(ValueError(f'in place of message {index} came one with the body {body!r}'))
            return
        self.seen = index + 1
        self.add_end_to_end(now - self.start - index / self.rate)
        if self.seen == self.count and not self.unconfirmed:
            self.done.set()

    def fail(self, error: Exception) -> None:
        """The first of them ends the round, and every later one."""
        self.error = self.error or error
        self.done.set()

    # -- tasks, where a lane has some

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task; the round fails if it does."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.ended)

    def ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, Exception)
            self.fail(error)

    async def end_tasks(self) -> None:
        """Cancel what runs yet, such as the consumer."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
