"""The ends of a pipe: streams and super streams, each of some client."""

from __future__ import annotations

from typing import Any, cast

from ..checks import check_stream, check_type
from ..error import ArgumentError
from ..record import CheckedRecord
from ..streams import BasePublisher, BaseSubscription, StreamsClient, SuperStream


class Stream(CheckedRecord):
    """A stream of a client, as the source or target of :func:`pipe`.

    A super stream is `client.super_stream(name)`.

    :param client: reads the stream, or publishes to it.
    :param name: name of the stream.
    :raises ValueError: the name is empty, or contains a line break.
    :raises TypeError: an argument has another type.
    """

    client: StreamsClient
    name: str

    def __post_init__(self) -> None:
        check_type('client', self.client, StreamsClient)
        check_stream(self.name)


End = Stream | SuperStream


def check_end(name: str, end: object) -> None:
    """Check that an argument is an end of a pipe."""
    if isinstance(end, str):
        hint = f"Stream(client, '{end}') or client.super_stream('{end}')"
        raise ArgumentError(f'{name} must name the client, too: pass {hint}')
    check_type(name, end, Stream, SuperStream)


async def partitions_of(end: End) -> tuple[str, ...]:
    """Return the names of the streams that an end consists of."""
    return await end.partitions() if isinstance(end, SuperStream) else (end.name,)


def partition_stream(end: End, partition: str) -> Stream:
    """Return a partition of a super stream as a stream of its own."""
    return Stream(cast(StreamsClient, end.client), partition)


def subscribe(end: End, **options: Any) -> BaseSubscription[Any]:
    """Create a subscription of a source."""
    if isinstance(end, SuperStream):
        return end.subscribe(**options)
    return end.client.subscribe(end.name, **options)


def open_publisher(end: End, **options: Any) -> Any:
    """Return the context of a publisher to a target."""
    if isinstance(end, SuperStream):
        return end.publisher(**options)
    return end.client.publisher(end.name, **options)


def last_publish_id(publisher: BasePublisher) -> int:
    """Return the highest publishing id that the broker has stored for a publisher; 0 for none.

    :raises PublisherError: the broker has not declared the publisher for some partition.
    """
    found = getattr(publisher, 'next_publish_ids', None)
    ids = [publisher.next_publish_id] if found is None else [*found.values()]
    return max(ids) - 1
