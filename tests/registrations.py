"""A fake registration that runs callbacks of a test."""

from collections.abc import Callable
from typing import Any


def nothing(*args: object) -> None:
    pass


class FakeRegistration:
    """A registration whose methods are functions of the test."""

    def __init__(
        self,
        *,
        lost: Callable[..., Any] = nothing,
        resume: Callable[..., Any] = nothing,
        metadata_update: Callable[..., Any] = nothing,
        disconnect: Callable[..., Any] = nothing,
        leave_loop: Callable[..., Any] = nothing,
    ) -> None:
        self.on_lost = lost
        self.on_resume = resume
        self.on_metadata_update = metadata_update
        self.on_disconnect = disconnect
        self.on_leave_loop = leave_loop
