from collections.abc import Callable
from typing import Any, Final, final

@final
class Turn:
    seconds: Final[float]
    number: Final[int]
    is_over: Final[bool]
    def __init__(self, seconds: float) -> None: ...
    def begin(self) -> None: ...

@final
class Sampler:
    record: Final[Callable[[Any], object]]
    def __init__(self, record: Callable[[Any], object]) -> None: ...
