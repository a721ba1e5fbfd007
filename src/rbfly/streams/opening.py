"""Opens a publisher for `async with`, and closes it at the end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from ..error import PublisherError, RbFlyError
from ..net.cluster import Cluster
from .publisher import BasePublisher
from .publishing import PublisherSession
from .types import PublisherInfo

__all__ = ['OpenPublisher']

P = TypeVar('P')

ID_MAX = 2**64 - 1


@dataclass(eq=False, repr=False)
class OpenPublisher(AbstractAsyncContextManager[P]):
    """One publisher, open within `async with`.

    :param client: the publisher keeps it alive.
    :param names: stream and name of each named publisher that the client has open.
    :param make: class of the publisher.
    """

    client: object
    cluster: Cluster
    names: set[tuple[str, str]]
    make: Callable[[int, PublisherInfo, object, int], P]
    info: PublisherInfo

    async def __aenter__(self) -> P:
        stream, name = key = self.info.stream, self.info.name
        self.cluster.check_loop()
        if key in self.names:
            raise RbFlyError(
                f'stream {stream!r} has an open publisher named {name!r} already:'
                ' close it, or choose another name'
            )
        self._session = session = PublisherSession(self.cluster, stream, name)
        if name:
            self.names.add(key)
        try:
            publisher_id = await session.registration.open()
            if session.last_id == ID_MAX:
                raise PublisherError(
                    f'publisher {name!r} on stream {stream!r} has used publish id {ID_MAX}, the'
                    ' highest there is: choose another name'
                )
            next_id = session.last_id + 1
            publisher = self.make(publisher_id, self.info, self.client, next_id)
            if isinstance(publisher, BasePublisher):
                publisher._attach(session)
        except BaseException:
            self._release()
            raise
        self._publisher: Any = publisher
        return publisher

    async def __aexit__(self, _: object, error: BaseException | None, *__: object) -> None:
        publisher, self._publisher = self._publisher, None
        try:
            if error is None:
                await publisher.close()
            elif isinstance(error, Exception) or not isinstance(publisher, BasePublisher):
                try:
                    await publisher.close()
                except RbFlyError as ex:
                    error.add_note(f'closing the publisher failed, too: {ex!r}')
            else:  # a cancelled task does not wait
                publisher._abort(PublisherError(f'{publisher!r} was closed by {error!r}'))
        finally:
            self._release()

    def _release(self) -> None:
        try:
            self._session.registration.close()
        finally:
            self.names.discard((self.info.stream, self.info.name))
