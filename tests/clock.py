"""An event loop whose time passes at once: where everything waits, it is the next timer's turn.

For tests with a scripted broker in the same loop: what was written to a socket of loopback can be
read at once, so that nothing is under way when no socket is ready.
"""

import asyncio
import selectors
from typing import Any


class Selector(selectors.DefaultSelector):
    """Passes the time that it is to wait for, instead of waiting.

    :ivar passed: seconds that have passed so.
    """

    passed = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout is None:  # only another thread can end this
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
        await super().shutdown_default_executor()  # its threads have another clock
