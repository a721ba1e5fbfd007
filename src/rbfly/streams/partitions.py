"""Requests about a super stream: its partitions, and the routes of keys."""

from __future__ import annotations

from ..net.cluster import Cluster
from ..protocol import commands


async def query_partitions(cluster: Cluster, stream: str) -> tuple[str, ...]:
    """Return the partitions of a super stream in order; one that is bound twice counts twice.

    :raises StreamDoesNotExist: there is no super stream of that name.
    """
    locator = await cluster.locator()
    return await locator.request(commands.Partitions(stream))


async def query_route(cluster: Cluster, stream: str, key: str) -> tuple[str, ...]:
    """Return the partitions that a key is bound to; empty for none.

    :raises StreamDoesNotExist: there is no super stream of that name.
    """
    locator = await cluster.locator()
    return await locator.request(commands.Route(key, stream))
