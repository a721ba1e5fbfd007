"""The methods of the broker that inject faults."""

from collections.abc import Callable
from typing import Any

from ..checks import check_integer, check_timeout, check_type
from ..error import ArgumentError
from ..protocol.const import ResponseCode
from .lifecycle import Running
from .stream import Stream


class FaultMethods(Running):
    """Injects faults into the connections of a broker, from any thread."""

    _stream: Callable[[str, str | None], Stream]  # implemented by the broker

    def _set(self, **faults: Any) -> None:
        self._call(vars(self._cluster.faults).update, faults)

    def cut(self, after: int | None = None) -> None:
        """Cut all connections.

        :param after: number of bytes to receive and send before the cut, which may be within a
            frame; None to cut at once.
        """
        if after is not None:
            check_integer('after', after, 1, 2**63)
        self._call(self._cluster.cut, after)

    def refuse(self) -> None:
        """Close new connections at once, until :meth:`heal`."""
        self._set(refusing=True)

    def stall(self) -> None:
        """Neither read nor write, heartbeats included, until :meth:`heal`."""
        self._call(self._cluster.stall, True)

    def delay(self, seconds: float) -> None:
        """Delay everything that the broker sends, until :meth:`heal`.

        Opening and closing a connection are delayed by at most 10 seconds.

        :param seconds: the delay.
        """
        check_type('seconds', seconds, int, float)
        check_timeout('seconds', seconds)
        self._set(delay=seconds)

    def split(self, most: int = 100) -> None:
        """Send everything in pieces, one per turn of the event loop, until :meth:`heal`.

        :param most: maximum size of a piece in bytes; the sizes are random.
        """
        check_integer('most', most, 1, 2**31)
        self._set(piece_max=most)

    def silence(self) -> None:
        """Deliver nothing to subscriptions, but answer everything else, until :meth:`heal`."""
        self._set(silent=True)

    def fail_authentication(self, code: int = ResponseCode.AUTHENTICATION_FAILURE) -> None:
        """Refuse every user with a response code, until :meth:`heal`."""
        check_integer('code', code, 2, 0xFFFF)
        self._set(authentication=code)

    def publish_error(self, code: int = ResponseCode.PRECONDITION_FAILED, count: int = 1) -> None:
        """Refuse the next messages: they are not stored, and sending them raises `PublishError`.

        RabbitMQ refuses messages with two codes. With `PRECONDITION_FAILED` (0x11), it refuses
        sub-entries that it cannot read (since 4.3.5). With `PUBLISHER_DOES_NOT_EXIST` (0x12), it
        refuses everything from a publisher until the client declares that publisher again; RbFly's
        publishers do so by themselves, and resend the messages.

        :param code: a code of the protocol, from `rbfly.testing.ResponseCode`.
        :param count: how many messages to refuse; with `PUBLISHER_DOES_NOT_EXIST`, how many times
            to remove the publisher that sends next.
        """
        check_integer('code', code, 2, 0xFFFF)
        check_integer('count', count, 1, 2**31)
        self._call(lambda: self._cluster.faults.errors.extend([code] * count))

    def withhold_confirms(self) -> None:
        """Store messages, but do not confirm them until :meth:`heal`."""
        self._set(withholding=True)

    def lose_confirms(self, count: int = 1) -> None:
        """Store the next messages, but never confirm them on their connection.

        :param count: number of messages.
        """
        check_integer('count', count, 1, 2**31)
        self._set(lost=count)

    def shuffle_confirms(self) -> None:
        """Confirm messages that arrive together in random order, until :meth:`heal`."""
        self._set(shuffling=True)

    def damage_chunk(self, count: int = 1) -> None:
        """Deliver the next chunks with a wrong CRC.

        :param count: number of chunks, over all subscriptions.
        """
        check_integer('count', count, 1, 2**31)
        self._set(damaged=count)

    def corrupt_chunk(self, count: int = 1) -> None:
        """Deliver the next chunks with a message that extends past their end, and a correct CRC.

        :param count: number of chunks, over all subscriptions.
        """
        check_integer('count', count, 1, 2**31)
        self._set(corrupted=count)

    def strand(
        self, stream: str, group: str, *, stubborn: bool = False, vhost: str | None = None
    ) -> None:
        """Leave a group without an active member, as RabbitMQ before 4.3.4 sometimes does.

        The broker deactivates the active member, and activates no other one until a client
        subscribes to the stream as a member of the group, or until :meth:`heal`.  With `version`
        4.0, the group of a partition must then have no other members.

        :param stubborn: the broker still takes that member for active: only closing its connection
            ends the fault.
        :raises StreamDoesNotExist: there is no such stream.
        :raises ArgumentError: the group has no members.
        """

        def strand() -> None:
            found = self._cluster.groups.get((self._stream(stream, vhost), group))
            if found is None:
                raise ArgumentError(f'stream {stream!r} has no group {group!r}')
            found.strand(stubborn)

        self._call(strand)

    def close_connections(
        self, code: int = ResponseCode.OK, reason: str = 'closed by the broker'
    ) -> None:
        """Ask all clients to close their connections."""
        check_integer('code', code, 0, 0xFFFF)
        check_type('reason', reason, str)
        self._call(self._cluster.close_sessions, code, reason)

    def heal(self) -> None:
        """End all faults, and send everything that they held back."""
        self._call(self._cluster.heal)
