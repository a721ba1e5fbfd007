"""Creates and deletes streams and super streams, and queries them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Literal

from ..checks import check_binding_keys, check_folder, check_stream
from ..error import ProtocolError, RbFlyError, StreamDoesNotExist
from ..net.cluster import Cluster
from ..net.sharing import existing, is_super_stream, missing, named, partitions_of
from ..protocol import commands
from ..protocol.commands import Command
from ..protocol.const import ResponseCode
from .arguments import exists_differently, stream_arguments
from .partitions import query_partitions
from .repeating import repeated
from .types import StreamStats

MANAGE_TIMEOUT = 60.0  # minimum timeout for creating or deleting a stream, in seconds
PARTITION_TIMEOUT = 1.0  # the same for each partition of a super stream
POLL = 0.1  # seconds between queries while another client creates the same super stream
POLLS = 50  # without a new partition


class ManagementMethods:
    """The methods of a client that concern streams and super streams."""

    _cluster: Cluster

    @repeated
    async def create_stream(
        self,
        stream: str,
        *,
        max_length_bytes: int | None = None,
        max_age: timedelta | None = None,
        segment_size: int | None = None,
        initial_cluster_size: int | None = None,
        leader_locator: Literal['client-local', 'balanced'] | None = None,
        filter_size: int | None = None,
        arguments: Mapping[str, str] | None = None,
    ) -> None:
        """Create a stream; do nothing if it exists with the same arguments.

        :param stream: name of the stream, at most 234 characters together with that of the virtual
            host.
        :param max_length_bytes: size in bytes above which the broker removes the oldest segments.
        :param max_age: age at which the broker removes segments; whole seconds.
        :param segment_size: size of a segment in bytes, at most 3,000,000,000.
        :param initial_cluster_size: number of replicas, at least 1.
        :param leader_locator: how the broker chooses the node of the leader.
        :param filter_size: size of a chunk's Bloom filter in bytes, 16 to 255.
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
                        ex.args = (exists_differently(stream, settings),)
            raise

    def _check_names(self, *streams: str) -> None:
        """Check the names of streams to create."""
        vhosts = [info.virtual_host for info in self._cluster.settings.infos]
        for stream in streams:
            check_stream(stream)
            check_folder(stream, vhosts)

    @repeated
    async def delete_stream(self, stream: str) -> None:
        """Delete a stream; do nothing if it does not exist.

        :raises StreamDoesNotExist: it is a super stream, see :meth:`delete_super_stream`.
        :raises ProtocolError: the broker refused.
        """
        check_stream(stream)
        try:
            await self._manage(commands.Delete(stream))
        except StreamDoesNotExist as ex:
            partitions = await partitions_of(await self._cluster.locator(), stream)
            if partitions:
                ex.args = (f'{is_super_stream(stream, partitions)}; see delete_super_stream',)
                raise

    @repeated
    async def create_super_stream(
        self,
        stream: str,
        *,
        partitions: int | None = None,
        binding_keys: Iterable[str] | None = None,
        max_length_bytes: int | None = None,
        max_age: timedelta | None = None,
        segment_size: int | None = None,
        initial_cluster_size: int | None = None,
        leader_locator: Literal['client-local', 'balanced'] | None = 'balanced',
        filter_size: int | None = None,
        arguments: Mapping[str, str] | None = None,
    ) -> None:
        """Create a super stream; do nothing if it exists with the same partitions.

        If another client is creating the same super stream, wait until it has all partitions.  The
        arguments of partitions that exist are not compared.

        :param stream: name of the super stream.
        :param partitions: number of partitions: `orders-0`, `orders-1`, ...  At most 10,000; since
            RabbitMQ 4.2.9 and 4.3.3, at most 1,000 unless the broker is configured otherwise.
        :param binding_keys: or a key for each partition: `orders-emea`, `orders-apac`, ...  See
            `by_key`.
        :param leader_locator: how the broker chooses the node of each leader; by default the
            leaders are distributed over all nodes.
        :raises ProtocolError: the broker refused, e.g. because the super stream exists with other
            partitions, or a stream has the name of a partition (code 0x05), or because there are
            too many partitions (code 0x11).
        :raises TypeError: an argument has the wrong type.
        :raises ValueError: an argument is out of range, or not exactly one of `partitions` and
            `binding_keys` is given.

        The other parameters are those of :meth:`create_stream`; each partition gets them.
        """
        check_stream(stream)
        keys = check_binding_keys(partitions, binding_keys)
        names = tuple(f'{stream}-{key}' for key in keys)
        self._check_names(*names)
        settings = stream_arguments(
            max_length_bytes,
            max_age,
            segment_size,
            initial_cluster_size,
            leader_locator,
            filter_size,
            arguments,
        )
        command = commands.CreateSuperStream(stream, names, tuple(keys), settings)
        try:
            await self._manage(command, len(names) * PARTITION_TIMEOUT)
        except ProtocolError as ex:
            if ex.code != ResponseCode.STREAM_ALREADY_EXISTS:
                raise
            text = await self._difference(stream, names)
            if text:
                ex.args = (f'{text} (code 0x{ex.code:02x})',)
                raise

    async def _difference(self, stream: str, wanted: tuple[str, ...]) -> str:
        """Describe how a super stream that exists differs from the one wanted; '' if it does not.

        While another client creates it, RabbitMQ adds its partitions one after another.
        """
        found: tuple[str, ...] = ()
        polls = 0
        while polls < POLLS:
            locator = await self._cluster.locator()
            before = found
            try:
                found = await locator.request(commands.Partitions(stream))
            except StreamDoesNotExist:
                streams = await locator.request(commands.Metadata(wanted))
                code = ResponseCode.STREAM_DOES_NOT_EXIST
                taken = [name for name, item in streams.items() if item.code != code]
                text = f'there are streams with the names of its partitions ({named(taken)})'
                if not taken:  # this protocol does not show other kinds of queues
                    text = 'there is a queue, but no stream, with the name of one of its partitions'
                return f'super stream {stream!r} cannot be created: {text}'
            if found == wanted:
                return ''
            if not {*found} < {*wanted}:
                break
            polls = polls + 1 if found == before else 0
            await asyncio.sleep(POLL)
        return (
            f'super stream {stream!r} exists with other partitions: it has {len(found)}'
            f' ({named(found) or "none"}), requested: {len(wanted)} ({named(wanted)}); pass the'
            ' partitions or binding keys that it was created with, or delete it first'
        )

    @repeated
    async def delete_super_stream(self, stream: str) -> None:
        """Delete a super stream and its partitions; do nothing if it does not exist.

        :raises StreamDoesNotExist: it is a stream, see :meth:`delete_stream`.
        :raises ProtocolError: the broker refused.
        """
        check_stream(stream)
        try:
            await self._manage(commands.DeleteSuperStream(stream))
        except StreamDoesNotExist as ex:
            if await self.stream_exists(stream):
                ex.args = (f'{stream!r} is a stream, not a super stream; see delete_stream',)
                raise

    @repeated
    async def partitions(self, stream: str) -> tuple[str, ...]:
        """Return the partitions of a super stream, in order; each is a stream.

        :raises StreamDoesNotExist: there is no such super stream, or it has no partitions, or it is
            a stream; the error says so.
        :raises ProtocolError: the broker refused the request.
        """
        check_stream(stream)
        return tuple(dict.fromkeys(await query_partitions(self._cluster, stream)))

    async def _manage(self, command: Command[None], least: float = 0.0) -> None:
        """Send a request that the broker may take long to answer.

        :param least: minimum timeout in seconds, if there is one.
        """
        limit = self._cluster.settings.request_timeout
        connection = await self._cluster.manager()
        await connection.request(command, max(limit, MANAGE_TIMEOUT, least) if limit else 0)

    @repeated
    async def stream_exists(self, stream: str) -> bool:
        """Return whether a stream exists; a super stream is none, but its partitions are.

        :raises ProtocolError: the broker refused the request.
        """
        check_stream(stream)
        locator = await self._cluster.locator()
        found = await locator.request(commands.Metadata((stream,)))
        try:
            existing(found.get(stream), stream)
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
        locator = await self._cluster.locator()
        try:
            found = await locator.request(commands.StreamStats(stream))
        except StreamDoesNotExist:
            raise await missing(locator, stream) from None
        keys = 'first_chunk_id', 'last_chunk_id', 'committed_chunk_id', 'committed_offset'
        positions = [found.get(key, -1) for key in keys]
        return StreamStats(*[None if value < 0 else value for value in positions])
