"""What open-loop lanes share: pacing, timing and checks.

Message `i` is due at `start + i / rate` and is sent then, no matter how many messages are
unconfirmed.  Both its latencies, to its confirm and to its consumption, are measured from the time
when it was due.  If a lane sends late because it or its event loop is busy, its latencies show it.

The same code paces all lanes: it wakes the event loop at most once per millisecond and sends all
messages that are due.  At 1,000 messages per second this only adds the time of a wake-up.  At
10,000, messages wait for up to 0.9 ms, or 0.45 ms on average, in all lanes.  A kernel timer wakes
the loop if available (Linux), because timers of event loops have a resolution of milliseconds: they
add another 0.6 ms or so at 1,000 messages per second.

One wake-up per message takes CPU time that the broker needs, also for handling 10,000 frames per
second; spinning takes all the CPU there is, so it gains nothing when CPU is scarce.
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
from typing import Any

from ..histogram import Histogram
from ..lanes import Kind
from .base import Target, Work, numbered

TICK = 1_000  # maximum wake-ups per second
LEAD = 1_000_000  # nanoseconds from setting the clock to the first message
LATE = 1.0  # a lane that ends more seconds behind schedule has not kept the rate
PATIENCE = 10.0  # maximum seconds without a confirm or a consumed message

NANO = 1_000_000_000
TFD_TIMER_ABSTIME = 1
TIMER_SPEC = struct.Struct('@llll')


class KernelPace:
    """Calls `tick` with the number of messages that have become due since the last call.

    A kernel timer (Linux), which the event loop reads like a socket.
    """

    def __init__(self, rate: int, start: int, tick: Callable[[int], None]) -> None:
        self.tick = tick
        self.step = max(rate // TICK, 1)
        self.loop = asyncio.get_running_loop()
        interval = NANO * self.step // rate
        first = start + NANO * (self.step - 1) // rate  # when the whole first step is due
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        spec = TIMER_SPEC.pack(*divmod(interval, NANO), *divmod(first, NANO))
        if self.fd < 0 or libc.timerfd_settime(self.fd, TFD_TIMER_ABSTIME, spec, None):
            raise OSError(ctypes.get_errno(), 'cannot create a kernel timer')
        self.loop.add_reader(self.fd, self.ready)

    def ready(self) -> None:
        with suppress(BlockingIOError):
            self.tick(self.step * int.from_bytes(os.read(self.fd, 8), sys.byteorder))

    def stop(self) -> None:
        self.loop.remove_reader(self.fd)
        os.close(self.fd)


class LoopPace:
    """The same with a timer of the event loop, whose resolution delays messages."""

    def __init__(self, rate: int, start: int, tick: Callable[[int], None]) -> None:
        self.tick = tick
        self.rate = rate
        self.start = start
        self.ticked = 0
        self.loop = asyncio.get_running_loop()
        self.timer = self.loop.call_later(1 / TICK, self.ready)

    def ready(self) -> None:
        self.timer = self.loop.call_later(1 / TICK, self.ready)
        due = max((time.monotonic_ns() - self.start) * self.rate // NANO + 1, 0)
        if due > self.ticked:
            count, self.ticked = due - self.ticked, due
            self.tick(count)

    def stop(self) -> None:
        self.timer.cancel()


PACE: type[KernelPace | LoopPace] = KernelPace if sys.platform == 'linux' else LoopPace


class OpenLoop(Work):
    """Sends at the rate of its kind, and checks and times the results.

    A lane sends in `send` and calls `confirmed` and `consumed`.  Its consumer subscribes in `open`
    and stays subscribed for all rounds.

    :ivar late: seconds by which the last round exceeded its schedule, if it did not keep the rate;
        otherwise 0.
    """

    patience = PATIENCE

    def __init__(self, kind: Kind, target: Target) -> None:
        super().__init__(kind, target)
        self.rate = kind.rate
        self.number = 0  # of the first message of the round; message numbers are never reused
        self.tasks: set[asyncio.Task[None]] = set()
        self.error: Exception | None = None
        self.done = asyncio.Event()

    @abstractmethod
    def send(self, first: int, end: int) -> None:
        """Start sending the messages with these indices, without waiting."""

    async def prepare(self, count: int) -> None:
        self.number += self.count
        self.count = self.unconfirmed = count
        self.bodies = [numbered(self.number + i) for i in range(count)]
        self.waiting = bytearray(b'\x01') * count  # 1: unconfirmed
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
        await super().finish()
        self.bodies = []

    async def wait(self) -> None:
        """Wait until all messages are confirmed and consumed, or the round fails or stalls."""
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
        """Send the next `count` messages, which are due now."""
        first = self.begun
        self.begun = end = min(first + count, self.count)
        if first < end:
            try:
                self.send(first, end)
            except Exception as ex:
                self.fail(ex)

    # -- called by lanes

    def confirmed(self, index: int) -> None:
        """The message with this index was confirmed."""
        now = time.monotonic()
        if not (0 <= index < self.begun and self.waiting[index]):
            self.fail(ValueError(f'confirm for message {index}, which is not unconfirmed'))
            return
        self.waiting[index] = 0
        self.unconfirmed -= 1
        self.add_confirm(now - self.start - index / self.rate)
        if not self.unconfirmed and self.seen == self.count:
            self.done.set()

    def consumed(self, body: Any) -> None:
        """The consumer has received the next message and decoded its body."""
        now = time.monotonic()
        index = self.seen
        if index >= self.begun or body != self.bodies[index]:
            self.fail(ValueError(f'expected message {index}, but received the body {body!r}'))
            return
        self.seen = index + 1
        self.add_end_to_end(now - self.start - index / self.rate)
        if self.seen == self.count and not self.unconfirmed:
            self.done.set()

    def fail(self, error: Exception) -> None:
        """End this round and all later ones with the first error."""
        self.error = self.error or error
        self.done.set()

    # -- tasks of lanes

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task; if it fails, so does the round."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.ended)

    def ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, Exception)
            self.fail(error)

    async def end_tasks(self) -> None:
        """Cancel tasks that are still running, such as the consumer."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
