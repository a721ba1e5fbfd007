"""The broker's clock, which can be set forward."""

import time

from ..error import ArgumentError
from ..protocol.fields import TIME_MAX


class Clock:
    """Time of the chunks.

    :ivar ahead: seconds that it is ahead of the machine's.
    """

    def __init__(self) -> None:
        self.ahead = 0.0

    def advance(self, seconds: float) -> None:
        """
        :raises ArgumentError: the time does not fit the milliseconds of a chunk.
        """
        if time.time() + self.ahead + seconds > TIME_MAX / 1000:
            raise ArgumentError(f'the clock cannot be set forward by {seconds} seconds')
        self.ahead += seconds

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return int((time.time() + self.ahead) * 1000)
