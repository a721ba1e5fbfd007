from collections.abc import Callable
from typing import final

@final
class SubEntry:
    @property
    def limit(self) -> int: ...
    @property
    def code(self) -> int: ...
    @property
    def count(self) -> int: ...
    def __init__(
        self,
        limit: int,
        code: int = 0,
        compress: Callable[[memoryview], bytes] | None = None,
    ) -> None: ...
