"""The broker's clock, which can be set forward."""

import time


class Clock:
    """Time of the chunks.

    :ivar ahead: seconds that it is ahead of the machine's.
    """

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return int((time.time() + self.ahead) * 1000)
