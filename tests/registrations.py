"""A fake registration that runs callbacks of a test."""

from collections.abc import Callable
from typing import Any


def do_nothing(*args: object) -> None:
    pass


class FakeRegistration:
    """A registration whose methods are functions of the test."""

    def __init__(
        self,
        *,
        lost: Callable[..., Any] = do_nothing,
        resume: Callable[..., Any] = do_nothing,
        metadata_update: Callable[..., Any] = do_nothing,
        disconnect: Callable[..., Any] = do_nothing,
        leave_loop: Callable[..., Any] = do_nothing,
    ) -> None:
        self.on_lost = lost
        self.on_resume = resume
        self.on_metadata_update = metadata_update
        self.on_disconnect = disconnect
        self.on_leave_loop = leave_loop
