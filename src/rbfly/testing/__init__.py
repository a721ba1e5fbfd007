"""An in-memory RabbitMQ Streams broker for tests."""

from ..protocol.const import ResponseCode
from .broker import StreamBroker

__all__ = ['ResponseCode', 'StreamBroker']


def __dir__() -> list[str]:
    return __all__
