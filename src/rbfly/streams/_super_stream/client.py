"""A super stream: creates, deletes and queries it, publishes to it and subscribes to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar, overload

from ...amqp._message import last_offset, last_partition
from ...amqp.body_codec import Codec
from ...checks import check_binding_keys, check_integer, check_stream, check_type
from ...error import (
    ArgumentError,
    MessageContextError,
    ProtocolError,
    StreamDoesNotExist,
    explained,
)
from ...net.locator import named, partitions_of
from ...protocol import commands
from ...protocol.compression import Compression
from ...protocol.const import ResponseCode
from ...protocol.offset import OFFSET_MAX, Offset
from .._admin.partitions import AT_ONCE, query_partitions
from .._admin.streams import ClientBase
from .._arguments import stream_arguments
from .._consume.options import Offsets, ReadSettings
from .._consume.waiter import MessageWaiter
from .._group.handover import Group
from .._offsets.queries import check_either, check_names
from .._offsets.tracking import OffsetTracking
from .._publish.opening import publisher_info
from .._repeating import repeated
from ..types import BloomFilterExtract, Commit, MessageFilter, OnDecodeError, OnGap
from .opening import SuperStreamPublisherContext
from .routing import Route, check_route
from .session import MergedSession
from .subscription import SuperStreamSubscription

T = TypeVar('T')

PARTITION_TIMEOUT = 1.0  # minimum timeout to create each partition, in seconds
POLL = 0.1  # seconds between queries while another client creates the same super stream
POLLS = 50  # without progress
REFRESH_LEAST = 0.01  # seconds; a shorter interval would load the broker with requests


class SuperStream:
    """A super stream; created by :meth:`StreamsClient.super_stream`.

    A super stream consists of streams, its partitions.  Creating this object sends nothing: the
    super stream need not exist.

    :ivar name: name of the super stream.
    :ivar client: the client that created this object.
    """

    def __init__(self, client: ClientBase, name: str) -> None:
        check_stream(name)
        self.name = name
        self.client = client
        self._cluster = client._cluster

    def __repr__(self) -> str:
        return f'<SuperStream {self.name!r}>'

    # -- management

    async def create(
        self,
        *,
        partitions: int | None = None,
        binding_keys: Iterable[str] | None = None,
        max_length_bytes: int | None = None,
        max_age: timedelta | None = None,
        segment_size: int | None = None,
        initial_cluster_size: int | None = None,
        leader_locator: Literal['client-local', 'balanced'] | None = 'balanced',
        filter_size: int | None = None,
        initial_offset: int | None = None,
        arguments: Mapping[str, str] | None = None,
    ) -> None:
        """Create the super stream; do nothing if it exists with the same partitions.

        If another client is creating the same super stream, wait until it has all partitions.  The
        arguments of partitions that exist are not compared.

        :param partitions: number of partitions: `orders-0`, `orders-1`, ...  At most 10,000; since
            RabbitMQ 4.2.9 and 4.3.3, at most 1,000 unless the broker is configured otherwise.
        :param binding_keys: or a key for each partition, in their order: `orders-emea`,
            `orders-apac`, ...  See `by_key`.
        :param leader_locator: how the broker chooses the node of each leader; by default the
            leaders are distributed over all nodes.
        :raises ProtocolError: the broker refused, e.g. because the super stream exists with other
            partitions, or a stream has the name of a partition (code 0x05), or because there are
            too many partitions (code 0x11).
        :raises TypeError: an argument has the wrong type.
        :raises ValueError: an argument is out of range, or not exactly one of `partitions` and
            `binding_keys` is given.

        The other parameters are those of :meth:`StreamsClient.create_stream`; each partition gets
        them.
        """
        keys = check_binding_keys(partitions, binding_keys)
        names = tuple(f'{self.name}-{key}' for key in keys)
        self.client._check_names(*names)
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
        await self._create(commands.CreateSuperStream(self.name, names, tuple(keys), settings))

    @repeated
    async def _create(self, command: commands.CreateSuperStream) -> None:
        names = command.partitions
        try:
            await self.client._manage(command, len(names) * PARTITION_TIMEOUT)
        except ProtocolError as ex:
            if ex.code != ResponseCode.STREAM_ALREADY_EXISTS:
                raise
            text = await self._difference(names)
            if text:
                explained(ex, f'{text} (code 0x{ex.code:02x})')
                raise

    async def _difference(self, requested: tuple[str, ...]) -> str:
        """Describe how the super stream differs from the requested one; '' if it is the same.

        While another client creates it, RabbitMQ creates one stream after another, and then makes
        them its partitions.
        """
        polls = progress = 0
        while polls < POLLS:
            connection = await self._cluster.locator()
            try:
                existing = await connection.request(commands.Partitions(self.name))
            except StreamDoesNotExist:
                taken = await self._streams(requested)
                text = f'there are streams with the names of its partitions ({named(taken)})'
                if not taken:  # this protocol does not show other kinds of queues
                    text = 'there is a queue, but no stream, with the name of one of its partitions'
                return f'super stream {self.name!r} cannot be created: {text}'
            if existing == requested:
                return ''
            if not {*existing} < {*requested}:
                break
            before, progress = progress, len(existing) + len(await self._streams(requested))
            polls = polls + 1 if progress == before else 0
            await asyncio.sleep(POLL)
        return (
            f'super stream {self.name!r} exists with other partitions: it has {len(existing)}'
            f' ({named(existing) or "none"}), requested: {len(requested)} ({named(requested)});'
            ' pass the partitions or binding keys that it was created with, or delete it first'
        )

    async def _streams(self, names: tuple[str, ...]) -> list[str]:
        """Return which of the streams exist, partitions or not."""
        connection = await self._cluster.locator()
        streams = await connection.request(commands.Metadata(names))
        missing = ResponseCode.STREAM_DOES_NOT_EXIST
        return [name for name, stream in streams.items() if stream.code != missing]

    async def delete(self) -> None:
        """Delete the super stream and its partitions; do nothing if it does not exist.

        :raises StreamDoesNotExist: it is a stream, see :meth:`StreamsClient.delete_stream`.
        :raises ProtocolError: the broker refused.
        """
        await self._delete(await self._existing())

    @repeated
    async def _existing(self) -> tuple[str, ...]:
        return await partitions_of(await self._cluster.locator(), self.name)

    @repeated
    async def _delete(self, partitions: tuple[str, ...]) -> None:
        try:
            await self.client._manage(commands.DeleteSuperStream(self.name))
        except StreamDoesNotExist as ex:
            if await self.client.stream_exists(self.name):
                text = f'{self.name!r} is a stream, not a super stream; see delete_stream'
                explained(ex, text)
                raise
            for name in partitions:  # a try that lost its connection may have left them
                await self.client.delete_stream(name)

    @repeated
    async def exists(self) -> bool:
        """Return whether the super stream exists, even if it has no partitions.

        A super stream is an exchange: RabbitMQ reports any other exchange of that name, also one
        of AMQP 0.9.1, as a super stream without partitions.

        :raises ProtocolError: the broker refused the request.
        """
        connection = await self._cluster.locator()
        try:
            await connection.request(commands.Partitions(self.name))
        except StreamDoesNotExist:
            return False
        return True

    @repeated
    async def partitions(self) -> tuple[str, ...]:
        """Return the partitions, in order; each is a stream.

        :raises StreamDoesNotExist: there is no such super stream, or it has no partitions, or it is
            a stream; the error says so.
        :raises ProtocolError: the broker refused the request.
        """
        return tuple(dict.fromkeys(await query_partitions(self._cluster, self.name)))

    # -- offsets

    @overload
    async def lag(self, reference: str) -> dict[str, int | None]: ...

    @overload
    async def lag(self, *, position: Mapping[str, int | None]) -> dict[str, int | None]: ...

    @repeated
    async def lag(
        self, reference: str | None = None, *, position: Any = ...
    ) -> dict[str, int | None]:
        """Return how many offsets are left to read, by partition: see :meth:`StreamsClient.lag`.

        It asks for 32 partitions at once.

        :param position: offset of the next message to read, by partition; the result is None for a
            partition that is missing.  Names that are no partitions are ignored.
        :type position: Mapping[str, int | None]
        """
        check_either(reference, position)
        if reference is not None:
            check_names(self.name, reference)
            return await self._by_partition(lambda name: self.client.lag(name, reference))
        check_type('position', position, Mapping)
        for name, value in position.items():
            if value is not None:
                check_integer(f'position of {name!r}', value, 0, OFFSET_MAX)
        return await self._by_partition(
            lambda name: self.client.lag(name, position=position.get(name))
        )

    @repeated
    async def read_offset(self, reference: str) -> dict[str, int | None]:
        """Return the offset stored under a reference, by partition; None if there is none.

        :raises StreamDoesNotExist: there is no such super stream, or it is a stream.
        :raises ProtocolError: the broker refused a request.
        """
        check_names(self.name, reference)
        return await self._by_partition(lambda name: self.client.read_offset(name, reference))

    async def _by_partition(self, query: Callable[[str], Awaitable[T]]) -> dict[str, T]:
        names = await self.partitions()
        results: dict[str, T] = {}
        for start in range(0, len(names), AT_ONCE):
            part = names[start : start + AT_ONCE]
            tasks = [asyncio.ensure_future(query(name)) for name in part]
            try:
                values = await asyncio.gather(*tasks)
            finally:
                for task in tasks:  # if one has failed, the others may wait without a limit
                    task.cancel()
            results.update(zip(part, values, strict=True))
        return results

    @repeated
    async def write_offset(
        self, reference: str, offsets: Mapping[str, int] | None = None, *, wait: bool = False
    ) -> None:
        """Store offsets of partitions under a reference: see :meth:`StreamsClient.write_offset`.

        :param offsets: offset of the last processed message, by partition; None for the message
            that this task received last, which must be from a partition of this super stream.
        :raises MessageContextError: `offsets` is None, and this task has not received a message, or
            received its last one from another stream.

        The other parameters and errors are those of :meth:`StreamsClient.write_offset`.
        """
        check_type('offsets', offsets, Mapping, None)
        if offsets is None:
            partition = last_partition(self.name)
            if partition is None:
                raise MessageContextError(
                    f'this task has not received its last message from super stream {self.name!r}:'
                    ' pass the offsets to store, by partition'
                )
            offsets = {partition: last_offset(partition)}
        for name, value in offsets.items():
            check_names(name, reference)
            check_integer(f'offset of {name!r}', value, 0, OFFSET_MAX)
        for name, value in offsets.items():
            await self.client.write_offset(name, reference, value, wait=wait)

    # -- publishing and subscribing

    def publisher(
        self,
        *,
        route: Route,
        name: str | None = None,
        filter_extract: BloomFilterExtract | None = None,
        amqp: bool = True,
        max_unconfirmed: int = 10_000,
        sub_entry_size: int | None = None,
        compression: Compression | str | None = None,
        wait: bool = True,
        codec: Codec[Any] | None = None,
    ) -> SuperStreamPublisherContext:
        """Open a publisher of the super stream: `await` the result, or use it in `async with`.

        :param route: chooses the partitions of each message: :func:`by_hash`, :func:`by_key`, or a
            function `route(message, partitions)` that returns the name of a partition, or several
            names.  See :ref:`super-stream-publishing`.
        :param max_unconfirmed: maximum number of messages in flight for each partition; fewer if
            there are many partitions.
        :param wait: wait until the broker has declared the publishers.  If false, wait only until
            the broker has reported the partitions, and connect in the background.
        :raises StreamDoesNotExist: there is no such super stream, or it has no partitions, or it is
            a stream; the error says so.

        The other parameters and errors are those of :meth:`StreamsClient.publisher`.
        """
        client = self.client
        info = publisher_info(
            self.name,
            name,
            filter_extract,
            None,
            amqp,
            max_unconfirmed,
            sub_entry_size,
            compression,
            wait,
            codec,
        )
        check_route(route)
        context = SuperStreamPublisherContext(
            client, self._cluster, client._names, info, wait, route, client._windows
        )
        if client._tracing is not None:
            context.kind = client._tracing.super_stream_publisher_class()
        return context

    @overload
    def subscribe(
        self,
        *,
        offset: Offsets | None = None,
        filter: MessageFilter | None = None,
        timeout: float | None = None,
        amqp: Literal[False],
        on_decode_error: OnDecodeError = 'raise',
        initial_credit: int = 10,
        commit: Commit | OffsetTracking | None = None,
        on_gap: OnGap = 'warn',
        until: Literal['now'] | Offset | datetime | None = None,
        refresh_interval: float = 60.0,
        group: str | Group | None = None,
        type: None = None,
        codec: None = None,
        copy: Literal[True] = True,
    ) -> SuperStreamSubscription[bytes]: ...

    @overload
    def subscribe(
        self,
        *,
        offset: Offsets | None = None,
        filter: MessageFilter | None = None,
        timeout: float | None = None,
        amqp: Literal[False],
        on_decode_error: OnDecodeError = 'raise',
        initial_credit: int = 10,
        commit: Commit | OffsetTracking | None = None,
        on_gap: OnGap = 'warn',
        until: Literal['now'] | Offset | datetime | None = None,
        refresh_interval: float = 60.0,
        group: str | Group | None = None,
        type: None = None,
        codec: None = None,
        copy: Literal[False],
    ) -> SuperStreamSubscription[memoryview]: ...

    @overload
    def subscribe(
        self,
        *,
        offset: Offsets | None = None,
        filter: MessageFilter | None = None,
        timeout: float | None = None,
        amqp: bool = True,
        on_decode_error: OnDecodeError = 'raise',
        initial_credit: int = 10,
        commit: Commit | OffsetTracking | None = None,
        on_gap: OnGap = 'warn',
        until: Literal['now'] | Offset | datetime | None = None,
        refresh_interval: float = 60.0,
        group: str | Group | None = None,
        type: None = None,
        codec: None = None,
        copy: bool = True,
    ) -> SuperStreamSubscription: ...

    @overload
    def subscribe(
        self,
        *,
        offset: Offsets | None = None,
        filter: MessageFilter | None = None,
        timeout: float | None = None,
        amqp: Literal[True] = True,
        on_decode_error: OnDecodeError = 'raise',
        initial_credit: int = 10,
        commit: Commit | OffsetTracking | None = None,
        on_gap: OnGap = 'warn',
        until: Literal['now'] | Offset | datetime | None = None,
        refresh_interval: float = 60.0,
        group: str | Group | None = None,
        type: type[T],
        codec: None = None,
        copy: Literal[True] = True,
    ) -> SuperStreamSubscription[T]: ...

    @overload
    def subscribe(
        self,
        *,
        offset: Offsets | None = None,
        filter: MessageFilter | None = None,
        timeout: float | None = None,
        amqp: Literal[True] = True,
        on_decode_error: OnDecodeError = 'raise',
        initial_credit: int = 10,
        commit: Commit | OffsetTracking | None = None,
        on_gap: OnGap = 'warn',
        until: Literal['now'] | Offset | datetime | None = None,
        refresh_interval: float = 60.0,
        group: str | Group | None = None,
        type: None = None,
        codec: Codec[T],
        copy: Literal[True] = True,
    ) -> SuperStreamSubscription[T]: ...

    @overload
    def subscribe(
        self,
        *,
        offset: Offsets | None = None,
        filter: MessageFilter | None = None,
        timeout: float | None = None,
        amqp: Literal[True] = True,
        on_decode_error: OnDecodeError = 'raise',
        initial_credit: int = 10,
        commit: Commit | OffsetTracking | None = None,
        on_gap: OnGap = 'warn',
        until: Literal['now'] | Offset | datetime | None = None,
        refresh_interval: float = 60.0,
        group: str | Group | None = None,
        type: Any,
        codec: None = None,
        copy: Literal[True] = True,
    ) -> SuperStreamSubscription[Any]: ...

    def subscribe(
        self,
        *,
        offset: Offsets | None = None,
        filter: MessageFilter | None = None,
        timeout: float | None = None,
        amqp: bool = True,
        on_decode_error: OnDecodeError = 'raise',
        initial_credit: int = 10,
        commit: Commit | OffsetTracking | None = None,
        on_gap: OnGap = 'warn',
        until: Literal['now'] | Offset | datetime | None = None,
        refresh_interval: float = 60.0,
        group: str | Group | None = None,
        type: Any = None,
        codec: Codec[Any] | None = None,
        copy: bool = True,
    ) -> SuperStreamSubscription[Any]:
        """Read the messages of all partitions, with `async for`.

        :param offset: where each partition starts, as in :meth:`StreamsClient.subscribe`; it may
            also be a mapping from partitions to their offsets, where partitions that are missing
            start at their first message.
        :param until: where each partition ends; partitions that are added later are not read.
        :param refresh_interval: seconds, at least 0.01, after which the subscription asks for the
            partitions again.
        :raises ValueError: an argument is out of range.
        :raises EventLoopError: the client belongs to another event loop, thread or process.

        The other parameters are those of :meth:`StreamsClient.subscribe`.
        """
        check_type('refresh_interval', refresh_interval, int, float)
        if not REFRESH_LEAST <= refresh_interval < float('inf'):
            raise ArgumentError(
                f'refresh_interval must be finite and at least {REFRESH_LEAST} seconds,'
                f' not {refresh_interval}'
            )
        self._cluster.check_loop()
        settings = ReadSettings(
            self.name,
            True,
            offset,
            filter,
            timeout,
            amqp,
            on_decode_error,
            initial_credit,
            commit,
            on_gap,
            until,
            group,
            type,
            codec,
            copy,
        )
        waiter = MessageWaiter(self._cluster.check_loop, settings.timeout)
        session = MergedSession(
            self._cluster, self.client._members, waiter, self.name, settings, refresh_interval
        )
        name = self._cluster.settings.connection_name
        return SuperStreamSubscription(session, waiter, settings, name)
