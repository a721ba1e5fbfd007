"""Creates and deletes streams, and queries them."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, MutableSet
from contextlib import suppress
from typing import Any, Literal

from ...checks import check_folder, check_stream
from ...error import ProtocolError, RbFlyError, StreamDoesNotExist, explained
from ...later import datetime
from ...net.cluster import Cluster
from ...net.locator import existing, is_super_stream, missing, partitions_of
from ...protocol import commands
from ...protocol.commands import Command
from ...protocol.const import ResponseCode
from .._arguments import exists_differently, stream_arguments
from .._offsets.queries import OffsetMethods
from .._repeating import repeated
from ..types import ClientTracing, StreamStats

MANAGE_TIMEOUT = 60.0  # minimum timeout for creating or deleting a stream, in seconds


class ManagementMethods:
    """The methods of a client that concern streams."""

    _cluster: Cluster

    @repeated
    async def create_stream(
        self,
        stream: str,
        *,
        max_length_bytes: int | None = None,
        max_age: datetime.timedelta | None = None,
        segment_size: int | None = None,
        initial_cluster_size: int | None = None,
        leader_locator: Literal['client-local', 'balanced'] | None = None,
        filter_size: int | None = None,
        initial_offset: int | None = None,
        arguments: Mapping[str, str] | None = None,
    ) -> None:
        """Create a stream; do nothing if it exists with the same arguments.

        :param stream: name of the stream, at most 234 characters together with that of the virtual
            host.
        :param max_length_bytes: size in bytes above which the broker removes the oldest segments;
            None for no limit.
        :param max_age: age at which the broker removes segments, in whole seconds; None for no
            limit.  See :doc:`/guides/streams`.
        :param segment_size: size of a segment in bytes, at most 3,000,000,000; None for the
            broker's, 500,000,000.
        :param initial_cluster_size: number of replicas, at least 1; None for one on each node.
        :param leader_locator: how the broker chooses the node of the leader: `'client-local'`,
            the one that the client is connected to; `'balanced'`, one with few leaders; None for
            the broker's choice.
        :param filter_size: size of a chunk's Bloom filter in bytes, 16 to 255; None for 16.
        :param initial_offset: offset of the first message; None for 0.  RabbitMQ before 4.4 ignores
            it: the first message has the offset 0.
        :param arguments: other arguments of the protocol, sent unchecked.  RabbitMQ ignores those
            that it does not know, and may close the connection if it cannot read a value.
        :raises ProtocolError: the broker refused, e.g. because the stream exists with other
            arguments (code 0x11).
        :raises TypeError: an argument has the wrong type.
        :raises ValueError: an argument is out of range, or passed both by its parameter and in
            `arguments`.
        """
        self._check_names(stream)
        settings = stream_arguments(
            max_length_bytes,
            max_age,
            segment_size,
            initial_cluster_size,
            leader_locator,
            filter_size,
            initial_offset,
            arguments,
        )
        try:
            await self._manage(commands.Create(stream, settings))
        except ProtocolError as ex:
            if ex.code == ResponseCode.STREAM_ALREADY_EXISTS:
                return
            if ex.code == ResponseCode.PRECONDITION_FAILED:
                with suppress(RbFlyError):  # only the text depends on it
                    if await self.stream_exists(stream):
                        explained(ex, exists_differently(stream, settings))
            raise

    def _check_names(self, *streams: str) -> None:
        """Check the names of streams to create."""
        vhosts = [info.virtual_host for info in self._cluster.settings.endpoints]
        for stream in streams:
            check_stream(stream)
            check_folder(stream, vhosts)

    @repeated
    async def delete_stream(self, stream: str) -> None:
        """Delete a stream with its messages and stored offsets; do nothing if it does not exist.

        :param stream: name of the stream.
        :raises StreamDoesNotExist: it is a super stream, see :meth:`SuperStream.delete`.
        :raises ProtocolError: the broker refused.
        """
        check_stream(stream)
        try:
            await self._manage(commands.Delete(stream))
        except StreamDoesNotExist as ex:
            partitions = await partitions_of(await self._cluster.locator(), stream)
            if partitions:
                explained(ex, is_super_stream(stream, partitions))
                raise

    async def _manage(self, command: Command[None], min_timeout: float = 0.0) -> None:
        """Send a request that the broker may take long to answer.

        :param min_timeout: minimum timeout in seconds, if there is one.
        """
        limit = self._cluster.settings.request_timeout
        connection = await self._cluster.manager()
        await connection.request(command, max(limit, MANAGE_TIMEOUT, min_timeout) if limit else 0)

    @repeated
    async def stream_exists(self, stream: str) -> bool:
        """Return whether a stream exists; a super stream is none, but its partitions are.

        :raises ProtocolError: the broker refused the request.
        """
        check_stream(stream)
        connection = await self._cluster.locator()
        metadata = await connection.request(commands.Metadata((stream,)))
        try:
            existing(metadata.get(stream), stream)
        except StreamDoesNotExist:
            return False
        return True

    @repeated
    async def stream_stats(self, stream: str) -> StreamStats:
        """Return the first and last positions of a stream.

        :raises StreamDoesNotExist: there is no such stream, or it is a super stream; the error says
            so.
        :raises ProtocolError: the broker refused the request.
        """
        check_stream(stream)
        connection = await self._cluster.locator()
        try:
            stats = await connection.request(commands.StreamStats(stream))
        except StreamDoesNotExist:
            raise await missing(connection, stream) from None
        keys = 'first_chunk_id', 'last_chunk_id', 'committed_chunk_id', 'committed_offset'
        positions = [stats.get(key, -1) for key in keys]
        return StreamStats(*[None if value < 0 else value for value in positions])


class ClientBase(ManagementMethods, OffsetMethods):
    """What a super stream uses of its client."""

    _names: MutableMapping[tuple[str, str], Any]  # sessions of publishers
    _windows: MutableSet[Any]  # those of the partitions of super streams
    _tracing: ClientTracing | None
