from typing import Final, final

@final
class Turn:
    seconds: Final[float]
    number: Final[int]
    is_over: Final[bool]
    def __init__(self, seconds: float) -> None: ...
    def begin(self) -> None: ...
