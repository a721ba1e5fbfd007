"""Floor: bare uvloop, which polls until the confirms arrive instead of sleeping."""

import asyncio

from . import Kind
from .bare_uvloop import Publish
from .base import Target, Work

__all__ = ['make']


class PollingPublish(Publish):
    async def run(self) -> int:
        call_soon = asyncio.get_running_loop().call_soon

        def poll() -> None:
            if polling:
                call_soon(poll)

        polling = True
        poll()
        try:
            return await super().run()
        finally:
            polling = False


def make(kind: Kind, target: Target) -> Work:
    return PollingPublish(target, kind)
