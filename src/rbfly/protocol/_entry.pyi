from collections.abc import Callable
from typing import Any, Final, final

@final
class SubEntry:
    limit: Final[int]
    code: Final[int]
    count: Final[int]
    def __init__(
        self,
        limit: int,
        code: int = 0,
        compress: Callable[[memoryview], bytes] | None = None,
        encode: Callable[[Any], bytes] | None = None,
    ) -> None: ...
