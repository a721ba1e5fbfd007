from typing import Any, Final

class ConfirmWaiter:
    future: Any
    reported: bool
    remaining: Final[int]
    sealed: Final[bool]
    unsent: Final[bool]
    doubtful: Final[bool]
    count: Final[int]
    first_refused: Final[int]
    errors: Final[list[tuple[int, int]] | None]
    too_large: Final[tuple[int, int, int, int] | None]
    def __init__(self, future: Any = None, sealed: bool = False) -> None: ...
    def seal(self) -> bool: ...
