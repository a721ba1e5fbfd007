"""A broker for tests: RabbitMQ Streams in memory, in the process of the test.

Nothing is imported until a name is used, since pytest loads the plugin beside it for every run.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..protocol.const import ResponseCode as ResponseCode
    from .broker import StreamBroker as StreamBroker

__all__ = ['ResponseCode', 'StreamBroker']


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from . import broker

    return getattr(broker, name)
