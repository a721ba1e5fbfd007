"""Super streams for programs without asyncio."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from .publisher import Publisher
from .subscription import Subscription
from .thread import ClientThread

if TYPE_CHECKING:
    from ..streams import Codec
    from ..streams import SuperStream as AsyncSuperStream
    from .options import StreamOptions, SuperPublisherOptions, SuperSubscribeOptions

T = TypeVar('T')


class SuperStream:
    """A super stream; created by `client.super_stream(...)`.

    The methods block until what :class:`rbfly.streams.SuperStream` awaits has happened, and have
    its arguments and errors.

    :ivar name: name of the super stream.
    """

    def __init__(self, client: object, thread: ClientThread, stream: AsyncSuperStream) -> None:
        self.name: str = stream.name
        self._client = client  # keeps the client open
        self._thread = thread
        self._stream = stream

    def __repr__(self) -> str:
        return f'<sync {self._stream!r}>'

    def create(
        self,
        *,
        partitions: int | None = None,
        binding_keys: Iterable[str] | None = None,
        **options: Unpack[StreamOptions],
    ) -> None:
        """Create the super stream; do nothing if it exists with the same partitions."""
        self._thread.call(
            functools.partial(self._stream.create, **options),
            partitions=partitions,
            binding_keys=binding_keys,
        )

    def delete(self) -> None:
        """Delete the super stream and its partitions; do nothing if it does not exist."""
        self._thread.call(self._stream.delete)

    def exists(self) -> bool:
        """Return whether the super stream exists, even if it has no partitions."""
        return self._thread.call(self._stream.exists)

    def partitions(self) -> tuple[str, ...]:
        """Return the partitions, in order; each is a stream."""
        return self._thread.call(self._stream.partitions)

    def lag(self, reference: str) -> dict[str, int | None]:
        """Return how many offsets are left to read, by partition."""
        return self._thread.call(self._stream.lag, reference)

    def read_offset(self, reference: str) -> dict[str, int | None]:
        """Return the offset stored under a reference, by partition; None if there is none."""
        return self._thread.call(self._stream.read_offset, reference)

    def write_offset(
        self, reference: str, offsets: Mapping[str, int], *, wait: bool = False
    ) -> None:
        """Store offsets of partitions under a reference."""
        self._thread.call(self._stream.write_offset, reference, offsets, wait=wait)

    def publisher(self, **options: Unpack[SuperPublisherOptions]) -> Publisher:
        """Open a publisher of the super stream."""
        context = self._thread.ask(self._stream.publisher, **options)
        return Publisher(self._client, self._thread, context)

    @overload
    def subscribe(
        self,
        *,
        amqp: Literal[False],
        copy: Literal[True] = True,
        **options: Unpack[SuperSubscribeOptions],
    ) -> Subscription[bytes]: ...

    @overload
    def subscribe(
        self,
        *,
        amqp: Literal[False],
        copy: Literal[False],
        **options: Unpack[SuperSubscribeOptions],
    ) -> Subscription[memoryview]: ...

    @overload
    def subscribe(
        self,
        *,
        amqp: bool = True,
        copy: bool = True,
        **options: Unpack[SuperSubscribeOptions],
    ) -> Subscription: ...

    @overload
    def subscribe(
        self, *, type: type[T], **options: Unpack[SuperSubscribeOptions]
    ) -> Subscription[T]: ...

    @overload
    def subscribe(
        self, *, codec: Codec[T], **options: Unpack[SuperSubscribeOptions]
    ) -> Subscription[T]: ...

    def subscribe(
        self,
        *,
        amqp: bool = True,
        type: Any = None,
        codec: Any = None,
        copy: bool = True,
        **options: Unpack[SuperSubscribeOptions],
    ) -> Subscription[Any]:
        """Read the messages of all partitions, with `for`."""
        subscribe = functools.partial(
            self._stream.subscribe, amqp=amqp, type=type, codec=codec, copy=copy, **options
        )
        return Subscription(self._client, self._thread, subscribe)
