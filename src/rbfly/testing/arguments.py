"""The arguments of a stream, as Create gives them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from ..protocol.const import ResponseCode

K = TypeVar('K')
V = TypeVar('V')

SECONDS = {'Y': 31_536_000, 'M': 2_592_000, 'D': 86_400, 'h': 3600, 'm': 60, 's': 1}
LOCATORS = {None, 'client-local', 'balanced', 'random', 'least-leaders', 'min-masters'}
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
    """The arguments of a stream; a stream can be created again only with equal ones.

    :ivar max_bytes: size above which its oldest chunks are removed; no limit if not positive.
    :ivar max_age: age in milliseconds at which they are removed; ignored if it is a str.
    :ivar segment: size of a segment in bytes, which is of no meaning here.
    :ivar replicas: number of nodes that have it; None for all of them.
    :ivar locator: who chooses the leader.
    :ivar filter_size: size of a chunk's Bloom filter in bytes.
    """

    max_bytes: int | None = None
    max_age: int | str | None = None
    segment: int | None = None
    replicas: int | None = None
    locator: str | None = None
    filter_size: int | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> 'Arguments':
        """
        :raises Refused: a value that RabbitMQ refuses.
        :raises Crash: one that it does not expect.
        """
        found = cls(
            integer(given, 'max-length-bytes'),
            age(given),
            integer(given, 'stream-max-segment-size-bytes'),
            integer(given, 'initial-cluster-size'),
            given.get('queue-leader-locator'),
            integer(given, 'stream-filter-size-bytes'),
        )
        if (
            (found.segment or 0) > SEGMENT_MAX
            or (found.replicas is not None and found.replicas <= 0)
            or (found.filter_size is not None and not 16 <= found.filter_size <= 255)
            or found.locator not in LOCATORS
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
    """Return `max-age` in milliseconds, or unchanged if RabbitMQ would ignore it."""
    value = given.get('max-age')
    if value is None:
        return None
    if not re.match('[0-9]', value):
        raise Crash(f'max-age does not begin with a number: {value!r}')
    found = re.fullmatch(r'([0-9]+)([YMDhms])', value)
    if not found or not int(found[1]):
        return value
    return int(found[1]) * SECONDS[found[2]] * 1000
