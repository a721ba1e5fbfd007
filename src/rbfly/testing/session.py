"""One client's connection: which command may come when, and what the client has declared.

What a command does is in a table of handlers, by the class of the command: a handler is given the
session and the command, and returns what the response holds.  Before the virtual host is opened,
only the next step of the handshake is taken, as by RabbitMQ.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ..error import FrameError
from ..protocol import commands
from ..protocol.commands import READERS, Request, Response, Tune, decode
from ..protocol.const import RESPONSE, Key, ResponseCode
from .arguments import Crash, Refused, require
from .cluster import Cluster
from .consuming import Subscription
from .node import Node
from .publishing import Publisher, read_publish, refuse_all
from .stream import Stream
from .wire import Wire

FRAME_MAX_BEFORE_OPEN = 8192
CLOSE_ID = 1  # correlation id of the broker's Close
# Where a frame that cannot be read ends the connection without a word.
CRASHING = {Key.PUBLISH, Key.SUBSCRIBE, Key.EXCHANGE_COMMAND_VERSIONS}

Handler = Callable[['Session', Any], Any]
# What is taken in each state of the handshake.
STEPS: dict[str, type] = {
    'connected': commands.PeerProperties,
    'properties': commands.SaslHandshake,
    'authenticating': commands.SaslAuthenticate,
    'tuning': Tune,
    'tuned': commands.Open,
}


class Session(Wire):
    """A client.

    :ivar state: step of the handshake, then 'open'.
    :ivar user: who authenticated.
    :ivar streams: those of the virtual host, by name.
    """

    def __init__(self, cluster: Cluster, node: Node, handlers: Mapping[type, Handler]) -> None:
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
        self._handlers = handlers
        self._then: Callable[[], object] | None = None
        self._step_read = 0  # when the last step of the handshake has come

    # -- frames

    def on_frame(self, key: int, version: int, body: bytes) -> None:
        if self.state == 'closing' and key & ~RESPONSE != Key.CLOSE:
            return
        if (key, version) not in READERS:
            self._unknown()
            return
        if key == Key.PUBLISH and self.state == 'open':
            self._publish(version, body)
            return
        try:
            found = decode(key, version, body)
        except FrameError:
            if key in CRASHING:
                self.abort()
            else:
                self._unknown()
            return
        command = found.command if isinstance(found, Request) else found
        if isinstance(command, Response):
            self._answered(command)
        elif type(command) is not STEPS.get(self.state, type(command)):
            self.abort()
        elif type(command) not in self._handlers:
            self._unknown()
        else:
            self._handle(command, found.correlation_id if isinstance(found, Request) else None)

    def _handle(self, command: Any, correlation_id: int | None) -> None:
        self._then, before = None, self.state
        try:
            value, code = self._handlers[type(command)](self, command), ResponseCode.OK
        except Refused as ex:
            value, code = None, ResponseCode(ex.code)
        except Crash:
            self.abort()
            return
        if correlation_id is not None:
            self.write(command.respond(correlation_id, value, code))
        if self._then is not None:
            self._then()
        if before != 'open':
            self._end_of_step(command)

    def _end_of_step(self, command: Any) -> None:
        """RabbitMQ reads for the next step anew, so a frame that came along is too early."""
        early = self.reads == self._step_read and not isinstance(command, commands.Open)
        self._step_read = self.reads
        if early:
            self.close()

    def _answered(self, response: Response) -> None:
        if self.state == 'closing' and response.command is commands.Close:
            self.close()

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
            self.cluster.told(f'{self} closed')

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

    def _publish(self, version: int, body: bytes) -> None:
        try:
            number, entries = read_publish(version, body)
        except FrameError:
            self.abort()
            return
        publisher = self.publishers.get(number)
        if publisher is not None:
            publisher.publish(entries)
        elif entries.ids:
            self.write(refuse_all(number, entries))
