"""Opens publishers, for `await client.publisher(...)` and `async with client.publisher(...)`."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, MutableMapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ..error import PublisherError, PublisherNameInUse, RbFlyError
from ..net.cluster import Cluster
from ..net.observer import Life
from .publisher import BasePublisher, Publisher
from .publishing import PublisherSession
from .types import PublisherInfo

if TYPE_CHECKING:
    import typing_extensions  # `typing` has no `default` before Python 3.13

    P = typing_extensions.TypeVar('P', bound=BasePublisher, default=Publisher)
else:
    P = TypeVar('P')


@dataclass(eq=False, repr=False)
class OpenPublisher(AbstractAsyncContextManager[P]):
    """The result of `client.publisher(...)`: await it, or use it in `async with`.

    :param client: kept alive by the publisher.
    :param names: sessions of the client's publishers, by stream and name; refers to them weakly.
    :param cls: class of the publisher.
    :param wait: wait until the publisher is declared; if false, declare it in the background.
    """

    client: object
    cluster: Cluster
    names: MutableMapping[tuple[str, str], PublisherSession]
    cls: type[P]
    info: PublisherInfo
    wait: bool
    _session: PublisherSession | None = field(default=None, init=False)  # in `async with`
    _publisher: P | None = field(default=None, init=False)

    def __await__(self) -> Generator[Any, None, P]:
        return self._open(hold=False).__await__()

    def __aenter__(self) -> Coroutine[Any, Any, P]:
        return self._open(hold=True)

    async def _open(self, *, hold: bool) -> P:
        """Open a publisher.

        :param hold: keep it for `__aexit__`.
        """
        stream, name = key = self.info.stream, self.info.name
        self.cluster.check_loop()
        if self._session is not None:
            raise PublisherError('this publisher is already open: call client.publisher() again')
        other = self.names.get(key)
        if not (other is None or other.abandoned or other.registration.life is Life.CLOSED):
            raise PublisherNameInUse(
                f'this client already has a publisher named {name!r} on stream {stream!r}:'
                ' close it, or choose another name'
            )
        session = PublisherSession(self.cluster, stream, name)
        if name:
            self.names[key] = session
        if hold:
            self._session = session
        try:
            publisher_id = 0
            if self.wait:
                publisher_id = await session.registration.open()
            else:
                session.registration.patient = True
                session.registration.ensure_open()
            next_id = session.last_id + 1
            publisher = self.cls(publisher_id, self.info, self.client, next_id)
            publisher._attach(session)
        except BaseException:
            session.registration.close()
            self._session = None
            raise
        if hold:
            self._publisher = publisher
        return publisher

    async def __aexit__(self, _: object, error: BaseException | None, *__: object) -> None:
        publisher, session = self._publisher, self._session
        self._publisher = self._session = None
        assert publisher is not None
        assert session is not None
        try:
            if error is None:
                await publisher.close()
            elif isinstance(error, Exception):
                try:
                    await publisher.close()
                except RbFlyError as ex:
                    error.add_note(f'closing the publisher also failed: {ex!r}')
            else:  # a cancelled task does not wait
                publisher._abort(PublisherError(f'{publisher!r} was closed because of {error!r}'))
        finally:
            session.registration.close()
