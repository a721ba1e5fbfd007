"""An event loop with a virtual clock: when nothing is ready, time jumps to the next timer.

It suits tests with a scripted broker in the same loop: data written to a loopback socket can be
read at once, so nothing is in flight when no socket is ready.
"""

import asyncio
import selectors
from typing import Any


class Selector(selectors.DefaultSelector):
    """Advances the clock instead of waiting.

    :ivar passed: virtual time in seconds.
    """

    passed = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout is None:  # only another thread can wake the loop
            return super().select()
        if not found and timeout:
            self.passed += timeout
        return found


class ClockLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.passed

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        await super().shutdown_default_executor()  # its threads use the real clock
