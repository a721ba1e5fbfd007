"""asyncio client for RabbitMQ Streams."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..error import *  # noqa: F403
    from ._api import *  # noqa: F403
    from ._api import __all__ as __all__
    from .events import *  # noqa: F403
else:
    # The client is imported when a program first uses a name.

    def __getattr__(name: str) -> object:
        if name == '__all__' or not name.startswith('_'):
            from . import _api

            globals().update({item: getattr(_api, item) for item in ('__all__', *_api.__all__)})
            if name in globals():
                return globals()[name]
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')

    def __dir__() -> list[str]:
        return __getattr__('__all__')
