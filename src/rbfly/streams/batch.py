"""USER room: publishers that send what was batched, when they are told to."""

from __future__ import annotations

import asyncio

from ._publish import BatchInput, Waiter
from .error import ConfirmTimeout
from .publisher import BasePublisher
from .types import PublisherInfo
from .waiting import Group, raise_first

__all__ = ['PublisherBatchFast']


class PublisherBatchFast(BatchInput, BasePublisher):
    """Encodes messages with `batch`, sends them with `flush`."""

    _batched = True

    def __init__(
        self, publisher_id: int, info: PublisherInfo, client: object, message_id: int
    ) -> None:
        super().__init__(publisher_id, info, client, message_id)
        # Batches whose outcome no flush has told yet; the last one is being filled.
        self._batches = [Group()]
        self._waiter = Waiter(self._batches[-1])

    async def flush(self, timeout: float | None = None) -> None:
        """Send what is queued; returns when the broker has confirmed all of it.

        :param timeout: seconds to wait for the confirms; None or 0 for no limit.
        :raises PublishError: the broker did not store messages; `errors` lists them.
        :raises ConfirmTimeout: not every confirm came in time.
        :raises StreamConnectionError: the connection was lost before the confirms.
        """
        self._check()
        if timeout:
            try:
                async with asyncio.timeout(timeout):
                    await self._flush()
            except TimeoutError:
                raise ConfirmTimeout(f'not all confirms within {timeout} s') from None
        else:
            await self._flush()

    async def _flush(self) -> None:
        self._release()
        # Those of a flush that was given up, or runs beside this one, are waited for as well.
        batches = self._batches[:-1]
        for batch in batches:
            await batch.wait()
        self._tell(batches)

    def _tell(self, batches: list[Group]) -> None:
        """Raise what went wrong with them, once."""
        self._batches = [batch for batch in self._batches if batch not in batches]
        raise_first([batch.error for batch in batches if batch.error is not None])

    async def close(self) -> None:
        """Send what is batched and wait until it is confirmed, at most 30 seconds.

        :raises PublishError: the broker did not store a message, and no flush has told.
        :raises ConfirmTimeout: not every confirm came in time.
        :raises StreamConnectionError: the connection was lost before every confirm.
        """
        if not self._closed:
            batches = list(self._batches)
            await super().close()
            self._tell(batches)

    def _release(self) -> None:
        if self._waiter.remaining:
            self._waiter.seal()
            self._batches.append(Group())
            self._waiter = Waiter(self._batches[-1])
            self._window.release()
        self._write()
