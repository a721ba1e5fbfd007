"""The session of a client: the state of its connection, and what the client has declared.

A handler takes a command and returns the value of the response. A command without a handler, or
whose handler does not belong to the state of the session, is an unknown frame.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ..error import FrameError
from ..protocol import commands, message_frames
from ..protocol.commands import Request, Response, Tune
from ..protocol.const import RESPONSE, Key, ResponseCode
from .arguments import Crash, Refused, require
from .cluster import Cluster
from .connection import Wire
from .frames import read_frame, read_publish
from .group import Member, Updates
from .node import Node
from .stream import Entries, Publisher, Stream, Subscription

FRAME_MAX_BEFORE_OPEN = 8192
CLOSE_ID = 1  # correlation id of the broker's Close

HANDSHAKE = {Key.PEER_PROPERTIES, Key.SASL_HANDSHAKE, Key.TUNE, Key.OPEN}  # before open only
ALWAYS = {Key.SASL_AUTHENTICATE, Key.HEARTBEAT}  # in every state
# Each state of the handshake, with the states in which a read may end; any other state closes the
# connection.
STATES: dict[str, tuple[str, ...]] = {
    'connected': ('connected', 'properties'),
    'properties': ('properties', 'authenticating'),
    'authenticating': ('authenticating', 'authenticated'),
    'tuning': ('tuning', 'tuned', 'open'),
    'tuned': ('tuned', 'open'),
}


class Session(Wire):
    handlers: Mapping[int, Callable[[Any, Any], Any]]  # methods by key

    def __init__(self, cluster: Cluster, node: Node) -> None:
        super().__init__(cluster.faults, cluster.cut)
        self.cluster = cluster
        self.node = node
        self.number: int = next(node.numbers)
        # A step of the handshake, then 'open', then perhaps 'closing'.
        self.state: str = 'connected'
        self.limit: int = FRAME_MAX_BEFORE_OPEN
        self.user: str = ''
        self.mechanism: str = ''
        self.name: str = ''  # that the client gave the connection
        self.vhost: str = ''
        self.streams: dict[str, Stream] = {}
        self.tune: Tune = Tune(cluster.frame_max, cluster.heartbeat)
        self.publishers: dict[int, Publisher] = {}
        self.subscriptions: dict[int, Subscription] = {}
        self.updates: Updates = Updates(self, cluster.consumer_update_timeout)
        self.after_response: Callable[[], object] | None = None  # set by a handler
        self._last_state = self.state  # after the last read

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.node.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._drop()
        if self.state != 'connected':
            self.cluster.emit(f'{self} closed')
        self.node.remove(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        for subscription in [*self.subscriptions.values()]:
            subscription.resume()

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
                self._on_response(found)
                return
            request = found if isinstance(found, Request) else None
            command: Any = request.command if request else found
            key, opened = command.key, self.state in ('open', 'closing')
            if key in self.handlers and (key in ALWAYS or (key in HANDSHAKE) != opened):
                self._handle(command, request)
            else:
                self._on_unknown()
        except FrameError:
            self._on_unknown()
        except Crash:
            self.abort()

    def _handle(self, command: Any, request: Request | None) -> None:
        self.after_response = None
        try:
            value, code = self.handlers[command.key](self, command), int(ResponseCode.OK)
        except Refused as ex:
            value, code = None, ex.code
        if request is not None:
            for subscription in self.subscriptions.values():
                subscription.finish_burst()  # RabbitMQ waits until the client has read it
            self.write(command.respond(request.correlation_id, value, code))
        if self.after_response is not None:
            self.after_response()

    def on_read(self) -> None:
        """Check the step of the handshake after each read, as RabbitMQ does."""
        if self.ended or self.state == 'closing':
            return
        if self.state not in STATES.get(self._last_state, ('open',)):
            self.close()
        elif self.state == 'authenticated':
            self.write(self.tune.encode())
            self.enter('tuning')
        self._last_state = self.state

    def _on_response(self, response: Response) -> None:
        if self.state == 'closing' and response.command is commands.Close:
            self.close()
        elif self.state == 'open' and response.command is commands.ConsumerUpdate:
            update = self.updates.take(response.correlation_id)
            member = self.subscriptions.get(update.subscription_id) if update else None
            if update and isinstance(member, Member):
                member.on_answer(update, response.value)
        else:
            self._on_unknown()

    def _on_unknown(self) -> None:
        if self.state == 'open':
            self.send_close(ResponseCode.UNKNOWN_FRAME, 'unknown frame')
        elif self.state != 'closing':
            self.abort()

    def on_too_large(self) -> None:
        if self.state == 'open':
            self.send_close(ResponseCode.FRAME_TOO_LARGE, 'frame too large')
            self.ended = True  # the rest cannot be split into frames
        else:
            self.abort()

    def enter(self, state: str) -> None:
        """Enter a state of the handshake, and expect the next step in time."""
        self.state = state
        self.expect_step()

    def send_close(self, code: int, reason: str) -> None:
        self.state = 'closing'
        self.write(commands.Close(code, reason).encode(CLOSE_ID))
        self._drop()
        self.expect_step()

    def close(self) -> None:
        self._drop()
        super().close()

    # -- streams, publishers, subscriptions

    def stream(self, name: str) -> Stream:
        """Return a stream of the virtual host.

        :raises Refused: there is no such stream.
        """
        return require(self.streams, name, ResponseCode.STREAM_DOES_NOT_EXIST)

    def publish(self, publisher_id: int, entries: Entries) -> None:
        publisher = self.publishers.get(publisher_id)
        if publisher is not None:
            publisher.publish(entries)
            return
        code = ResponseCode.PUBLISHER_DOES_NOT_EXIST
        errors = tuple((number, code) for number in entries.ids)
        self.write(message_frames.PublishError(publisher_id, errors).encode())

    def _drop(self) -> None:
        """Remove everything that the client has declared."""
        self.cluster.sessions.pop(self, None)
        self.updates.close()
        for client in (*self.publishers.values(), *self.subscriptions.values()):
            client.remove()

    def __str__(self) -> str:
        name = f' {self.name!r}' if self.name else ''
        return f'connection {self.node.number}.{self.number}{name}'
