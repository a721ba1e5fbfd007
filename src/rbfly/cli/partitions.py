"""Tells streams and super streams apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rbfly.streams import StreamsClient


async def partitions_of(client: StreamsClient, name: str) -> tuple[str, ...] | None:
    """Return the partitions of a super stream; None if the name is not that of one."""
    found = client.super_stream(name)
    return await found.partitions() if await found.exists() else None
