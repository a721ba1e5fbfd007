from typing import Any, Final

from ..types import AMQPBody
from ._message import MessageCtx

__pyx_capi__: Final[dict[str, Any]]
__test__: Final[dict[str, Any]]

def encode_amqp(buffer: bytearray, message: MessageCtx) -> int: ...
def encode_amqp_bytes(message: AMQPBody | MessageCtx) -> bytes: ...
def decode_amqp(buffer: bytes | bytearray | memoryview) -> MessageCtx: ...
