"""Reports errors of the work that are not raised."""

from __future__ import annotations

import asyncio
import logging

from ..net.observer import facts
from ._partition import Item

logger: logging.Logger = logging.getLogger('rbfly.processing')

INTERVAL = 10.0  # seconds between two lines about errors of one type


class ErrorLog:
    """Logs errors, but those of one type only now and then.

    :param prefix: of the client.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        # When the next line is due, and how many were omitted, by type and level.
        self._lines: dict[tuple[type[BaseException], int], tuple[float, int]] = {}

    def note(self, item: Item, error: BaseException, level: int) -> None:
        """Log an error of the work on a message, unless the last line is recent."""
        now, kind = asyncio.get_running_loop().time(), (type(error), level)
        due, omitted = self._lines.get(kind, (0.0, 0))
        if now < due:
            self._lines[kind] = due, omitted + 1
            return
        self._lines[kind] = now + INTERVAL, 0
        stream, prefix = item.block.partition.stream, self._prefix
        text = '%sthe work on the message at offset %d of stream %r has failed, try %d: %s%s'
        more = f'; {omitted} more errors of this type since the last line' if omitted else ''
        reason = f'{type(error).__name__}: {error}'
        extra = facts(prefix, 'work_failed', stream=stream, offset=item.offset, error=reason)
        tries = max(1, item.tries)
        logger.log(level, text, prefix, item.offset, stream, tries, reason, more, extra=extra)
