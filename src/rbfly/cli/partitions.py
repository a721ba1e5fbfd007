"""Tells streams and super streams apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rbfly.streams import StreamsClient


async def partitions_of(client: StreamsClient, name: str) -> tuple[str, ...] | None:
    """Return the partitions of a super stream; None if the name is that of a stream, or of none."""
    from rbfly.streams import StreamDoesNotExist

    if await client.stream_exists(name):  # an exchange may have the same name
        return None
    try:
        return await client.super_stream(name).partitions()
    except StreamDoesNotExist:
        return None
