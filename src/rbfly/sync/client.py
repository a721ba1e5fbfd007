"""The client for programs without asyncio."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NoReturn,
    Self,
    SupportsIndex,
    TypeVar,
    Unpack,
    overload,
)

from .. import streams
from ..error import ArgumentTypeError
from .publisher import Publisher
from .subscription import Subscription
from .super_stream import SuperStream
from .thread import ClientThread

if TYPE_CHECKING:
    from ..streams import Codec, Description, Health, Metrics, Offset, StreamStats
    from ..streams import StreamsClient as AsyncClient
    from .options import ClientOptions, PublisherOptions, StreamOptions, SubscribeOptions

T = TypeVar('T')


def streams_client(
    uri: str | Sequence[str],
    /,
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    **options: Unpack[ClientOptions],
) -> StreamsClient:
    """Create a client; it starts its thread and connects when it is first used.

    :param uri: as for :func:`rbfly.streams.streams_client`, and so are the other parameters.
    :param loop_factory: creates the event loop, for example `uvloop.new_event_loop`.
    """
    return StreamsClient(streams.streams_client(uri, **options), loop_factory)


class StreamsClient:
    """Creates and deletes streams, publishes to them and subscribes to them, without asyncio.

    The methods block until what :class:`rbfly.streams.StreamsClient` awaits has happened, and have
    its arguments and errors.  Any thread may call them.  `with client` closes its connections at
    the end; the client can be used again, and then reconnects.

    An interrupt, such as KeyboardInterrupt, cancels the call that it interrupts; the client remains
    usable.  In a forked child, a client that the parent has used raises
    :class:`~rbfly.error.EventLoopError`; so does a call from a function that was passed to RbFly,
    such as `filter_extract`, because RbFly calls these in the client's thread.
    """

    def __init__(
        self,
        client: AsyncClient,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        self._client = client
        self._thread = ClientThread(client.close, loop_factory)
        drop = weakref.finalize(self, self._thread.drop)
        drop.atexit = False  # `thread.close_all` waits until it is closed

    def __repr__(self) -> str:
        return f'<sync {self._client!r}>'

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise ArgumentTypeError(
            'a client cannot be copied or pickled: create another one with streams_client'
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, and end the client's thread.  The client can be used again."""
        self._thread.close()

    def run(self, function: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """Call an async function with the asynchronous client, in the client's thread.

        It reaches everything that this class does not have.

        :param function: for example `lambda client: process(client.subscribe(...), work)`, with
            :func:`rbfly.processing.process`.
        :raises RuntimeError: something that the function awaited was cancelled.
        """
        return self._thread.call(function, self._client)

    # -- observing

    @property
    def connected(self) -> bool:
        """True if a connection is open, even if its broker does not answer; see `ping`."""
        return self._client.connected

    @property
    def server_properties(self) -> dict[str, str]:
        """What the node that the client last connected to reports about itself."""
        return self._client.server_properties

    def ping(self, timeout: float | None = 5.0) -> float:
        """Check that a broker answers; return the seconds that it took."""
        return self._thread.call(self._client.ping, timeout)

    def health(self) -> Health:
        """Return whether the client works, without asking the broker."""
        return self._thread.ask(self._client.health)

    def describe(self) -> Description:
        """Return what the client has open where, without asking the broker."""
        return self._thread.ask(self._client.describe)

    def metrics(self) -> Metrics:
        """Return what the client has done, and what it has open: numbers for monitoring."""
        return self._client.metrics()

    # -- streams and offsets

    def create_stream(self, stream: str, **options: Unpack[StreamOptions]) -> None:
        """Create a stream; do nothing if it exists with the same arguments."""
        self._thread.call(functools.partial(self._client.create_stream, **options), stream)

    def delete_stream(self, stream: str) -> None:
        """Delete a stream; do nothing if it does not exist."""
        self._thread.call(self._client.delete_stream, stream)

    def stream_exists(self, stream: str) -> bool:
        """Return whether a stream exists."""
        return self._thread.call(self._client.stream_exists, stream)

    def stream_stats(self, stream: str) -> StreamStats:
        """Return the positions in a stream that its broker reports."""
        return self._thread.call(self._client.stream_stats, stream)

    def write_offset(self, stream: str, reference: str, value: int, *, wait: bool = False) -> None:
        """Store an offset under a reference."""
        self._thread.call(self._client.write_offset, stream, reference, value, wait=wait)

    def read_offset(self, stream: str, reference: str) -> int | None:
        """Return the offset stored under a reference; None if there is none."""
        return self._thread.call(self._client.read_offset, stream, reference)

    def resolve_offset(self, stream: str, offset: Offset) -> int:
        """Return the offset of the first message at or after a position."""
        return self._thread.call(self._client.resolve_offset, stream, offset)

    def lag(self, stream: str, reference: str) -> int | None:
        """Return how many offsets are left to read, up to the last message; None if unknown."""
        return self._thread.call(self._client.lag, stream, reference)

    # -- publishing and subscribing

    def super_stream(self, name: str) -> SuperStream:
        """Return the object that manages a super stream, publishes to it and subscribes to it."""
        return SuperStream(self, self._thread, self._client.super_stream(name))

    def publisher(self, stream: str, **options: Unpack[PublisherOptions]) -> Publisher:
        """Open a publisher; close it, or use it in `with`."""
        context = self._thread.ask(functools.partial(self._client.publisher, **options), stream)
        return Publisher(self, self._thread, context)

    @overload
    def subscribe(
        self,
        stream: str,
        *,
        amqp: Literal[False],
        copy: Literal[True] = True,
        **options: Unpack[SubscribeOptions],
    ) -> Subscription[bytes]: ...

    @overload
    def subscribe(
        self,
        stream: str,
        *,
        amqp: Literal[False],
        copy: Literal[False],
        **options: Unpack[SubscribeOptions],
    ) -> Subscription[memoryview]: ...

    @overload
    def subscribe(
        self,
        stream: str,
        *,
        amqp: bool = True,
        copy: bool = True,
        **options: Unpack[SubscribeOptions],
    ) -> Subscription: ...

    @overload
    def subscribe(
        self, stream: str, *, type: type[T], **options: Unpack[SubscribeOptions]
    ) -> Subscription[T]: ...

    @overload
    def subscribe(
        self, stream: str, *, codec: Codec[T], **options: Unpack[SubscribeOptions]
    ) -> Subscription[T]: ...

    def subscribe(
        self,
        stream: str,
        *,
        amqp: bool = True,
        type: Any = None,
        codec: Any = None,
        copy: bool = True,
        **options: Unpack[SubscribeOptions],
    ) -> Subscription[Any]:
        """Read the messages of a stream, with `for`."""
        subscribe = functools.partial(
            self._client.subscribe, stream, amqp=amqp, type=type, codec=codec, copy=copy, **options
        )
        return Subscription(self, self._thread, subscribe)
