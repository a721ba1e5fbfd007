"""What the client is given, checked before anything is sent."""

from __future__ import annotations

from datetime import timedelta

from ..checks import check_integer, check_type
from ..error import ArgumentError, ArgumentTypeError
from ..protocol import commands
from ..protocol.compression import Compression, compressor
from .types import BloomFilterExtract, MessageFilter

__all__ = ['check_filter', 'check_sub_entries', 'stream_arguments']

SEGMENT_SIZE_MAX = 3_000_000_000
SUB_ENTRY_MAX = 0xFFFF


def stream_arguments(
    max_length_bytes: int | None,
    max_age: timedelta | None,
    segment_size: int | None,
    initial_cluster_size: int | None,
    leader_locator: str | None,
    filter_size: int | None,
) -> dict[str, str]:
    """The arguments of a stream, as the broker has them."""
    arguments: dict[str, str] = {}

    def integer(key: str, name: str, value: int | None, low: int, high: int) -> None:
        if value is not None:
            check_integer(name, value, low, high)
            arguments[key] = str(value)

    integer('max-length-bytes', 'max_length_bytes', max_length_bytes, 1, 2**63 - 1)
    if max_age is not None:
        check_type('max_age', max_age, timedelta, None)
        seconds = max_age // timedelta(seconds=1)
        if seconds < 1 or max_age != timedelta(seconds=seconds):
            raise ArgumentError(f'max_age must be whole seconds, at least one, not {max_age}')
        arguments['max-age'] = f'{seconds}s'
    size = 'stream-max-segment-size-bytes'
    integer(size, 'segment_size', segment_size, 1, SEGMENT_SIZE_MAX)
    integer('initial-cluster-size', 'initial_cluster_size', initial_cluster_size, 1, 2**31 - 1)
    check_type('leader_locator', leader_locator, str, None)
    if leader_locator is not None:
        if leader_locator not in ('client-local', 'balanced'):
            raise ArgumentError(
                f"leader_locator must be 'client-local' or 'balanced', not {leader_locator!r}"
            )
        arguments['queue-leader-locator'] = leader_locator
    integer('stream-filter-size-bytes', 'filter_size', filter_size, 16, 255)
    return arguments


def check_filter(filter: MessageFilter) -> None:
    if not callable(filter.extract):
        raise ArgumentTypeError('extract of a filter must be callable')
    if not isinstance(filter.values, frozenset):
        raise ArgumentTypeError(
            f'values of a filter must be a set of str, not {type(filter.values).__name__}'
        )
    for value in filter.values:
        check_type('a filter value', value, str)
    commands.string_map(filter.properties())


def check_sub_entries(
    size: int,
    compression: Compression | str | None,
    max_unconfirmed: int,
    filter_extract: BloomFilterExtract | None,
) -> tuple[int, Compression]:
    check_integer('sub_entry_size', size, 0, SUB_ENTRY_MAX)
    check_type('compression', compression, str, None)
    compressor(compression or Compression.NONE)
    kind = Compression(compression or Compression.NONE)
    if size > max_unconfirmed:
        raise ArgumentError('max_unconfirmed must be at least sub_entry_size')
    if size and filter_extract is not None:
        raise ArgumentError('messages in sub-entries cannot have filter values')
    if kind is not Compression.NONE and not size:
        raise ArgumentError('compression is of sub-entries: it needs sub_entry_size')
    return size, kind
