from typing import Literal, final

POLICIES: dict[str, int]

@final
class Decoder:
    @property
    def amqp(self) -> bool: ...
    def __init__(
        self, amqp: bool = True, on_decode_error: Literal['raise', 'skip', 'raw'] = 'raise'
    ) -> None: ...
