"""The arguments of a stream in a Create frame."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from ..protocol.const import ResponseCode

K = TypeVar('K')
V = TypeVar('V')

SECONDS = {'Y': 31_536_000, 'M': 2_592_000, 'D': 86_400, 'h': 3600, 'm': 60, 's': 1}
LOCATORS: set[str | None] = {
    None,
    'client-local',
    'balanced',
    'random',
    'least-leaders',
    'min-masters',
}
ARGUMENTS = (
    'max-length-bytes',
    'max-age',
    'stream-max-segment-size-bytes',
    'initial-cluster-size',
    'queue-leader-locator',
    'stream-filter-size-bytes',
    'stream-initial-offset',
)
SEGMENT_MAX = 3_000_000_000
FILTER_SIZE = 16  # bytes


class Refused(Exception):
    """A request that is refused with a response code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Crash(Exception):
    """A frame that crashes RabbitMQ's connection, which closes at once."""


def require(items: Mapping[K, V], key: K, code: int) -> V:
    """Return an item.

    :raises Refused: there is no such item.
    """
    try:
        return items[key]
    except KeyError:
        raise Refused(code) from None


@dataclass(frozen=True)
class Arguments:
    """The arguments of a stream, which can be created again only with equal ones."""

    max_bytes: int | None  # size that removes the oldest chunks; no limit if not positive
    max_age: int | str | None  # milliseconds that remove a chunk; RabbitMQ ignores a str
    segment: int | None  # bytes of a segment; None for the default
    replicas: int | None  # number of nodes that have the stream; None for all
    locator: str | None  # how to choose the leader
    filter_size: int | None  # bytes of a chunk's Bloom filter
    initial_offset: int | None  # of the first message
    super_stream: str | None  # of a partition

    @classmethod
    def parse(
        cls, given: Mapping[str, str], super_stream: str | None, version: str = '4.4'
    ) -> 'Arguments':
        """Read the arguments.

        :param version: of RabbitMQ, which ignores arguments that it does not know.
        :raises Refused: RabbitMQ refuses a value.
        :raises Crash: RabbitMQ crashes on a value.
        """
        found = cls(
            integer(given, 'max-length-bytes'),
            age(given),
            integer(given, 'stream-max-segment-size-bytes'),
            integer(given, 'initial-cluster-size'),
            given.get('queue-leader-locator'),
            integer(given, 'stream-filter-size-bytes'),
            None if version < '4.4' else integer(given, 'stream-initial-offset'),
            super_stream,
        )
        if (
            (found.segment or 0) > SEGMENT_MAX
            or (found.replicas is not None and found.replicas <= 0)
            or (found.filter_size is not None and not 16 <= found.filter_size <= 255)
            or found.locator not in LOCATORS
            or (found.initial_offset or 0) < 0
        ):
            raise Refused(ResponseCode.PRECONDITION_FAILED)
        return found


def integer(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if not re.fullmatch(r'[+-]?[0-9]+', value):
        raise Crash(f'{name} is not a number: {value!r}')
    return int(value)


def age(given: Mapping[str, str]) -> int | str | None:
    """Return `max-age` in milliseconds, or unchanged if RabbitMQ ignores it."""
    value = given.get('max-age')
    if value is None:
        return None
    if not re.match('[0-9]', value):
        raise Crash(f'max-age does not begin with a number: {value!r}')
    found = re.fullmatch(r'([0-9]+)([YMDhms])', value)
    if not found or not int(found[1]):
        return value
    return int(found[1]) * SECONDS[found[2]] * 1000
