"""Types of the streams API; a leaf."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..amqp import MessageCtx

__all__ = ['BloomFilterExtract', 'MessageCtx', 'MessageFilter', 'PublisherInfo']

BloomFilterExtract = Callable[[MessageCtx], str | None]
"""Gives the filter value of a message; None for a message without one."""


@dataclass(frozen=True)
class MessageFilter:
    """Which messages a subscription wants.

    The broker gives whole chunks that hold such a message, or seem to; the other messages in them
    are dropped here.

    :param extract: gives the filter value of a message; None for a message without one.
    :param values: filter values wanted.
    """

    extract: BloomFilterExtract
    values: set[str]

    def matches(self, message: MessageCtx) -> bool:
        """True if a message is wanted."""
        return self.extract(message) in self.values

    def properties(self) -> dict[str, str]:
        """Properties of a subscription that ask the broker for these messages."""
        return {f'filter.{i}': value for i, value in enumerate(sorted(self.values))}


@dataclass(frozen=True)
class PublisherInfo:
    """What a publisher is constructed with.

    :param stream: name of the stream.
    :param name: name for deduplication, empty for none.
    :param filter_extract: gives the filter value of a message; None for no filtering.
    :param amqp: messages are AMQP 1.0; if false, raw bytes.
    :param max_unconfirmed: how many messages may be in flight.
    """

    stream: str
    name: str = ''
    filter_extract: BloomFilterExtract | None = None
    amqp: bool = True
    max_unconfirmed: int = 10_000
