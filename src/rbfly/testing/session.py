"""One client's connection: which command may come when, and what the client has declared.

What a command does is in a table of handlers, by the class of the command: a handler is given the
session and the command, and returns what the response holds.  The handshake has a table, and so has
the open connection; a command that is not in it is an unknown frame.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ..error import FrameError
from ..protocol import commands
from ..protocol.commands import Request, Response, Tune
from ..protocol.const import RESPONSE, Key, ResponseCode
from .arguments import Crash, Refused, require
from .cluster import Cluster
from .consuming import Subscription
from .frames import read_frame, read_publish
from .node import Node
from .publishing import Publisher, refuse_all
from .stream import Entries, Stream
from .wire import Wire

FRAME_MAX_BEFORE_OPEN = 8192
CLOSE_ID = 1  # correlation id of the broker's Close

Handler = Callable[['Session', Any], Any]
Handlers = Mapping[type, Handler]
# States of the handshake, each with the states that a read may lead to; all others close the
# connection.
STATES = {
    'connected': ('connected', 'properties'),
    'properties': ('properties', 'authenticating'),
    'authenticating': ('authenticating', 'authenticated'),
    'tuning': ('tuning', 'tuned', 'open'),
    'tuned': ('tuned', 'open'),
}


class Session(Wire):
    """A client.

    :ivar state: step of the handshake, then 'open', then perhaps 'closing'.
    :ivar user: who authenticated.
    :ivar streams: those of the virtual host, by name.
    """

    def __init__(
        self, cluster: Cluster, node: Node, handshake: Handlers, handlers: Handlers
    ) -> None:
        super().__init__(cluster.faults, cluster.cut)
        self.cluster = cluster
        self.node = node
        self.state = 'connected'
        self.limit = FRAME_MAX_BEFORE_OPEN
        self.user = ''
        self.mechanism = ''
        self.name = ''  # as the client calls the connection
        self.vhost = ''
        self.streams: dict[str, Stream] = {}
        self.tune = Tune(cluster.frame_max, cluster.heartbeat)
        self.publishers: dict[int, Publisher] = {}
        self.subscriptions: dict[int, Subscription] = {}
        self.deliver_version = 1
        self._handshake = handshake
        self._handlers = handlers
        self._then: Callable[[], object] | None = None
        self._before = self.state  # the last read

    # -- frames

    def on_frame(self, key: int, version: int, body: bytes) -> None:
        if self.state == 'closing' and key & ~RESPONSE != Key.CLOSE:
            return
        try:
            if (key, version) == (Key.PUBLISH, 1) and self.state == 'open':
                self.publish(*read_publish(body))
                return
            found = read_frame(key, version, body)
            if isinstance(found, Response):
                self._answered(found)
                return
            command = found.command if isinstance(found, Request) else found
            handlers = self._handlers if self.state in ('open', 'closing') else self._handshake
            if type(command) not in handlers:
                self._unknown()
                return
            correlation_id = found.correlation_id if isinstance(found, Request) else None
            self._handle(handlers[type(command)], command, correlation_id)
        except FrameError:
            self._unknown()
        except Crash:
            self.abort()

    def _handle(self, handler: Handler, command: Any, correlation_id: int | None) -> None:
        self._then = None
        try:
            value, code = handler(self, command), int(ResponseCode.OK)
        except Refused as ex:
            value, code = None, ex.code
        if correlation_id is not None:
            self.write(command.respond(correlation_id, value, code))
        if self._then is not None:
            self._then()

    def on_read(self) -> None:
        """Check the step of the handshake after each read, as RabbitMQ does."""
        if self.ended or self.state == 'closing':
            return
        if self.state not in STATES.get(self._before, ('open',)):
            self.close()
        elif self.state == 'authenticated':
            self.write(self.tune.encode())
            self.enter('tuning')
        self._before = self.state

    def _answered(self, response: Response) -> None:
        if self.state == 'closing' and response.command is commands.Close:
            self.close()
        elif self.state != 'open' or response.command is not commands.ConsumerUpdate:
            self._unknown()

    def _unknown(self) -> None:
        if self.state == 'open':
            self.send_close(ResponseCode.UNKNOWN_FRAME, 'unknown frame')
        elif self.state != 'closing':
            self.abort()

    def on_too_large(self) -> None:
        if self.state == 'open':
            self.send_close(ResponseCode.FRAME_TOO_LARGE, 'frame too large')
            self.ended = True  # what follows is no frame
        else:
            self.abort()

    def then(self, callback: Callable[[], object] | None) -> None:
        """Call behind the response."""
        self._then = callback

    def enter(self, state: str) -> None:
        """The next step of the handshake is expected."""
        self.state = state
        self.expect_step()

    def send_close(self, code: int, reason: str) -> None:
        """Ask the client to close the connection."""
        self.state = 'closing'
        self.write(commands.Close(code, reason).encode(CLOSE_ID))
        self._drop()
        self.expect_step()

    # -- what is declared

    def stream(self, name: str) -> Stream:
        """
        :raises Refused: there is none.
        """
        return require(self.streams, name, ResponseCode.STREAM_DOES_NOT_EXIST)

    def available(self, stream: Stream) -> None:
        """
        :raises Refused: nobody leads the stream.
        """
        if not self.cluster.nodes[stream.leader].running:
            raise Refused(ResponseCode.STREAM_NOT_AVAILABLE)

    def release(self, stream: Stream, publishers: bool, subscriptions: bool) -> bool:
        gone: list[Publisher | Subscription] = []
        if publishers:
            gone += [item for item in self.publishers.values() if item.stream is stream]
        if subscriptions:
            gone += [item for item in self.subscriptions.values() if item.stream is stream]
        for item in gone:
            if isinstance(item, Publisher):
                self.forget_publisher(item)
            else:
                self.forget_subscription(item)
        return bool(gone)

    def forget_publisher(self, publisher: Publisher) -> None:
        del self.publishers[publisher.id]
        publisher.live = False

    def forget_subscription(self, subscription: Subscription) -> None:
        del self.subscriptions[subscription.id]
        subscription.stream.readers.pop(subscription, None)

    def tell_gone(self, stream: Stream, code: int) -> None:
        self.write(commands.MetadataUpdate(code, stream.name).encode())

    def heal(self) -> None:
        for publisher in self.publishers.values():
            publisher.confirm([])
        self.on_resume()

    def on_resume(self) -> None:
        for subscription in [*self.subscriptions.values()]:
            subscription.send()

    def close(self) -> None:
        self._drop()
        super().close()

    def on_lost(self) -> None:
        self._drop()
        if self.state != 'connected':
            self.cluster.tell(f'{self} closed')

    def _drop(self) -> None:
        self.cluster.sessions.pop(self, None)
        for publisher in [*self.publishers.values()]:
            self.forget_publisher(publisher)
        for subscription in [*self.subscriptions.values()]:
            self.forget_subscription(subscription)

    def __str__(self) -> str:
        name = f' {self.name!r}' if self.name else ''
        return f'connection {self.node.number}.{self.number}{name}'

    # -- publishing

    def publish(self, publisher_id: int, entries: Entries) -> None:
        publisher = self.publishers.get(publisher_id)
        if publisher is not None:
            publisher.publish(entries)
        else:
            self.write(refuse_all(publisher_id, entries))
