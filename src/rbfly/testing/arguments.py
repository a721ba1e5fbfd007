"""The arguments of a stream, as Create gives them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from ..protocol.const import ResponseCode

T = TypeVar('T')
K = TypeVar('K')
V = TypeVar('V')

SECONDS = {'Y': 31_536_000, 'M': 2_592_000, 'D': 86_400, 'h': 3600, 'm': 60, 's': 1}
LOCATORS = {'client-local', 'balanced', 'random', 'least-leaders'}
SEGMENT_MAX = 3_000_000_000
FILTER_SIZE = 16  # bytes


class Refused(Exception):
    """A request is answered with a code.

    :ivar code: of the response.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def require(items: Mapping[K, V], key: K, code: int) -> V:
    """An item of what there is.

    :raises Refused: there is none, with this code.
    """
    try:
        return items[key]
    except KeyError:
        raise Refused(code) from None


class Crash(Exception):
    """What RabbitMQ's connection does not survive: it is closed without a word."""


@dataclass(frozen=True)
class Arguments:
    """What is known of the arguments of a stream.

    :ivar max_bytes: size above which its oldest chunks go; 0 for no limit.
    :ivar max_age: age in milliseconds at which they go; 0 for no limit.
    :ivar segment: size of a segment in bytes, which is of no meaning here.
    :ivar replicas: on how many nodes it is; 0 for all of them.
    :ivar locator: who chooses the leader.
    :ivar filter_size: size of a chunk's Bloom filter in bytes.
    """

    max_bytes: int = 0
    max_age: int = 0
    segment: int = 0
    replicas: int = 0
    locator: str = 'client-local'
    filter_size: int = FILTER_SIZE

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> 'Arguments':
        """
        :raises Refused: a value that RabbitMQ refuses.
        :raises Crash: one that it does not expect.
        """
        segment = integer(given, 'stream-max-segment-size-bytes', 0)
        replicas = integer(given, 'initial-cluster-size', None)
        filter_size = integer(given, 'stream-filter-size-bytes', FILTER_SIZE)
        locator = given.get('queue-leader-locator', cls.locator)
        if (
            segment > SEGMENT_MAX
            or (replicas is not None and replicas <= 0)
            or not 16 <= filter_size <= 255
            or locator not in LOCATORS
        ):
            raise Refused(ResponseCode.PRECONDITION_FAILED)
        max_bytes = max(0, integer(given, 'max-length-bytes', 0))
        return cls(max_bytes, age(given), segment, replicas or 0, locator, filter_size)


def integer(given: Mapping[str, str], name: str, default: T) -> int | T:
    value = given.get(name)
    if value is None:
        return default
    if not re.fullmatch(r'[+-]?[0-9]+', value):
        raise Crash(f'{name} is no number: {value!r}')
    return int(value)


def age(given: Mapping[str, str]) -> int:
    """`max-age` in milliseconds."""
    value = given.get('max-age')
    if value is None:
        return 0
    found = re.fullmatch(r'([0-9]+)([YMDhms])', value)
    if not found or not int(found[1]):
        raise Crash(f'max-age is no age: {value!r}')
    return int(found[1]) * SECONDS[found[2]] * 1000
