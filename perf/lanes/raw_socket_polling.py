"""Floor: the raw socket, which polls until the confirms arrive instead of sleeping."""

from .. import wire
from . import Kind
from .base import Target, Work
from .raw_socket import Publish

__all__ = ['make']


class Connection(wire.Connection):
    def receive(self) -> bytes:
        receive = super().receive
        while True:
            try:
                return receive()
            except BlockingIOError:
                pass


class PollingPublish(Publish):
    connect = Connection

    async def open(self) -> None:
        await super().open()
        self.connection.socket.setblocking(False)


def make(kind: Kind, target: Target) -> Work:
    return PollingPublish(target, kind.frame, kind.window, kind.body)
