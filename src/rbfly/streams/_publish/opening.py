"""Opens publishers, for `await client.publisher(...)` and `async with client.publisher(...)`."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ...checks import check_type
from ...error import (
    ArgumentError,
    ArgumentTypeError,
    PublisherError,
    PublisherNameInUse,
    RbFlyError,
    about,
)
from ...net.cluster import Cluster
from ...net.observer import Life, call_each
from ...protocol.compression import Compression
from .._arguments import check_publisher
from .._misuse import AsyncWith
from ..types import BloomFilterExtract, ClientTracing, PublisherInfo
from .base import BasePublisher
from .publisher import Publisher
from .session import PublisherSession

if TYPE_CHECKING:
    import typing_extensions  # `typing` has no `default` before Python 3.13

    from ...amqp.body_codec import Codec

    P = typing_extensions.TypeVar('P', bound=BasePublisher, default=Publisher)
else:
    P = TypeVar('P')

FIRST = 'await client.publisher(...) first, or use `async with`'


def publisher_info(
    stream: str,
    name: str | None,
    filter_extract: BloomFilterExtract | None,
    cls: type[Any] | None,
    amqp: bool,
    max_unconfirmed: int,
    sub_entry_size: int | None,
    compression: Compression | str | None,
    wait: bool,
    codec: Codec[Any] | None,
) -> PublisherInfo:
    """Check the arguments of `publisher`, and return the settings of the publisher."""
    if cls is not None and not (isinstance(cls, type) and issubclass(cls, Publisher)):
        raise ArgumentTypeError(f'cls must be Publisher or a subclass of it, not {cls!r}')
    check_type('wait', wait, bool)
    info = PublisherInfo(
        stream,
        '' if name is None else name,
        filter_extract,
        amqp,
        max_unconfirmed,
        sub_entry_size,
        Compression.NONE if compression is None else Compression(compression),
        codec,
    )
    if codec is not None and cls is not None and not cls._amqp:
        raise ArgumentError(f'{cls.__name__} sends bytes without AMQP 1.0: it takes no codec')
    return check_publisher(info)


def traced(cls: type[Any] | None, tracing: ClientTracing | None) -> type[Any]:
    """Return the class of a publisher; its calls are spans if the client has `tracing`."""
    found: type[Any] = Publisher if cls is None else cls
    return found if tracing is None else tracing.publisher_class(found)


class PublisherContext(AsyncWith, AbstractAsyncContextManager[P], Coroutine[Any, Any, P]):
    """The result of `client.publisher(...)`: await it, use it in `async with`, or start a task.

    :param client: kept alive by the publisher.
    :param names: sessions of the client's publishers, by stream and name; refers to them weakly.
    :param wait: wait until the publisher is declared; if false, declare it in the background.
    :param cls: class of the publisher; None for Publisher.
    """

    def __init__(
        self,
        client: object,
        cluster: Cluster,
        names: MutableMapping[tuple[str, str], PublisherSession],
        info: PublisherInfo,
        wait: bool,
        cls: type[Any] | None = None,
    ) -> None:
        self.client = client
        self.cluster = cluster
        self.names = names
        self.info = info
        self.wait = wait
        self.cls: type[Any] = Publisher if cls is None else cls
        self._sessions: list[PublisherSession] = []
        self._publisher: P | None = None  # in `async with`
        self._held = False
        self._running: Coroutine[Any, Any, P] | None = None  # in a task

    def __await__(self) -> Generator[Any, None, P]:
        return self._enter(hold=False).__await__()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f'{type(self).__name__} has no attribute {name!r}: {FIRST}')

    # A coroutine, for asyncio.create_task and asyncio.run_coroutine_threadsafe.

    def send(self, value: Any, /) -> Any:
        if value is not None:
            raise ArgumentTypeError(f'no publisher is open: {FIRST}')
        return self._coroutine().send(value)

    def throw(self, *raised: Any) -> Any:
        return self._coroutine().throw(*raised)

    def close(self) -> None:
        self._coroutine().close()

    def _coroutine(self) -> Coroutine[Any, Any, P]:
        if self._running is None:
            self._running = self._enter(hold=False)
        return self._running

    def __aenter__(self) -> Coroutine[Any, Any, P]:
        return self._enter(hold=True)

    async def _open(self, sessions: list[PublisherSession]) -> P:
        """Open a publisher; add its sessions to the list."""
        session = self._new_session(self.info.stream, sessions)
        if self.wait:
            await session.registration.open()
        else:
            session.registration.ensure_open()
        publisher: P = self.cls(session, self.client)
        return publisher

    async def _enter(self, *, hold: bool) -> P:
        """Open a publisher.

        :param hold: keep it for `__aexit__`.
        """
        self.cluster.check_loop()
        if self._held:
            raise PublisherError('this publisher is already open: call client.publisher() again')
        self._held = hold
        sessions: list[PublisherSession] = []
        try:
            publisher = await self._open(sessions)
        except BaseException as ex:
            call_each([session.end for session in sessions])
            self._held = False
            if isinstance(ex, RbFlyError):
                about(ex, self.info.stream)
            raise
        if hold:
            self._publisher, self._sessions = publisher, sessions
        return publisher

    def _new_session(self, stream: str, sessions: list[PublisherSession]) -> PublisherSession:
        """Add the session of a new publisher of a stream to the list, and return it."""
        name = self.info.name
        other = self.names.get((stream, name))
        if other is not None and other.is_in_use:
            error = PublisherNameInUse(
                f'this client already has a publisher named {name!r} on stream {stream!r}:'
                ' close it, or choose another name'
            )
            raise about(error, stream)
        core, patient = self.cls._new_core(self.info), not self.wait
        session = PublisherSession(self.cluster, stream, name, core, patient)
        sessions.append(session)
        if name:
            self.names[stream, name] = session
        return session

    async def __aexit__(self, _: object, error: BaseException | None, *__: object) -> None:
        publisher, sessions = self._publisher, self._sessions
        self._publisher, self._sessions, self._held = None, [], False
        assert publisher is not None
        if error is not None and not isinstance(error, Exception):  # a cancelled task does not wait
            who = f'publisher of {self.info.stream!r}'
            publisher._abort(PublisherError(f'{who} was closed because of {error!r}'))
            return
        try:
            if error is None:
                await publisher.close()
            else:
                try:
                    await publisher.close()
                except RbFlyError as ex:
                    error.add_note(f'closing the publisher also failed: {ex!r}')
        finally:
            # The call that closes another one still waits for confirms.
            ours = [item.registration for item in sessions]
            call_each([item.close for item in ours if item.life is Life.ACTIVE])
