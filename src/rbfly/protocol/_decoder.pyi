from typing import Final, Literal, final

@final
class Decoder:
    amqp: Final[bool]
    def __init__(
        self, amqp: bool = True, on_decode_error: Literal['raise', 'skip', 'raw'] = 'raise'
    ) -> None: ...
