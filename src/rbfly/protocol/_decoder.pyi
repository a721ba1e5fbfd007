from typing import Final, Literal, final

from ..amqp._plan import Plan

@final
class Decoder:
    amqp: Final[bool]
    plan: Final[Plan | None]
    def __init__(
        self,
        amqp: bool = True,
        on_decode_error: Literal['raise', 'skip', 'raw'] = 'raise',
        plan: Plan | None = None,
        copy: bool = True,
    ) -> None: ...
