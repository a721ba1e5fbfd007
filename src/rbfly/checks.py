"""Argument checks that raise before anything is sent.

Each raises ArgumentTypeError for an argument of a wrong type, ArgumentError for an invalid value.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from .error import ArgumentError, ArgumentTypeError

PARTITIONS_MAX = 10_000  # of a super stream
FOLDER_MAX = 255  # characters, all of one byte
TIME_DIGITS = 19  # nanoseconds since 1970


def check_type(name: str, value: object, *types: type | None) -> None:
    """Check the type of an argument; a bool does not count as an int.  None allows None."""
    if value is None and None in types:
        return
    allowed = tuple(item for item in types if item is not None)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        expected = ' or '.join('None' if item is None else item.__name__ for item in types)
        raise ArgumentTypeError(f'{name} must be {expected}, not {type(value).__name__}')


def number_text(value: object) -> str:
    """Return a number as text for an error: Python refuses that for an int of thousands of digits.

    :param value: a number, or a tuple of numbers.
    """
    try:
        return str(value)
    except ValueError:
        return 'a number with too many digits'


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """Check that an argument is an int from `low` to `high`, both included."""
    check_type(name, value, int)
    if not low <= value <= high:  # type: ignore[operator]
        raise ArgumentError(f'{name} must be from {low} to {high}, not {number_text(value)}')


def check_timeout(name: str, value: object, *, positive: bool = False) -> None:
    """Check a timeout in seconds; None means no limit."""
    if value is None:
        return
    check_type(name, value, int, float, None)
    if not 0 <= value <= sys.float_info.max:  # type: ignore[operator]
        raise ArgumentError(f'{name} must be 0 or more seconds, not {number_text(value)}')
    if positive and not value:
        raise ArgumentError(f'{name} must be above 0 seconds, or None for no limit')


def check_stream(stream: str) -> None:
    """Check that a stream name is Unicode, is not empty and contains no line breaks."""
    check_type('stream', stream, str)
    if not stream or '\r' in stream or '\n' in stream:
        raise ArgumentError(f'stream name must not be empty or contain line breaks: {stream!r}')
    try:
        stream.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f'stream name is not valid Unicode: {stream!r}') from None


def check_binding_keys(partitions: int | None, binding_keys: Iterable[str] | None) -> list[str]:
    """Return the binding keys of a super stream's partitions; by default their numbers.

    :raises ArgumentError: not exactly one of the arguments is given, or there is no key, or a key
        occurs twice.
    """
    if (partitions is None) == (binding_keys is None):
        raise ArgumentError('pass either partitions or binding_keys')
    if partitions is not None:
        check_integer('partitions', partitions, 1, PARTITIONS_MAX)
        return [str(number) for number in range(partitions)]
    if isinstance(binding_keys, str | set | frozenset):  # each process orders a set differently
        raise ArgumentTypeError(f'binding_keys must be a sequence of str, not {binding_keys!r}')
    check_type('binding_keys', binding_keys, Iterable)
    keys = list(binding_keys or ())
    for key in keys:
        check_type('binding_keys', key, str)
    check_integer('number of binding_keys', len(keys), 1, PARTITIONS_MAX)
    seen = set[str]()
    for key in keys:
        if key in seen:
            raise ArgumentError(f'binding_keys must be different: {key!r} occurs twice')
        seen.add(key)
    return keys


def check_folder(stream: str, vhosts: Sequence[str]) -> None:
    """Check that a broker's file system can hold a stream of this name.

    :param vhosts: virtual hosts that may contain the stream.
    """
    # A node stores a stream in the folder `VHOST_NAME_TIME`, with `_` for every character outside
    # [A-Za-z0-9-].  If the file system refuses that name, RabbitMQ (4.0.5, 4.3.6)
    # retries forever, even after the stream is deleted: one core stays busy, and no leader appears.
    vhost = min(vhosts, key=len)
    limit = FOLDER_MAX - len(vhost) - len('__') - TIME_DIGITS
    if limit < 1:
        raise ArgumentError(
            f'the name of the virtual host has {len(vhost)} characters: the file system of a broker'
            f' allows no stream in a virtual host with more than {len(vhost) + limit - 1}'
        )
    if len(stream) > limit:
        raise ArgumentError(
            f'stream name has {len(stream)} characters, but the file system of a broker allows only'
            f' {limit} in virtual host {vhost!r}'
        )
