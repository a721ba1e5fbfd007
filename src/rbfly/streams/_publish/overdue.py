"""Notices that the broker does not confirm messages, although the connection works.

A timer of the connection looks at its publishers while one of them has messages in flight.  Nothing
else happens when a message is sent, except the first one after the timer has stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Literal, Protocol, cast

from ...error import RbFlyError, counted
from ...net.connection import PING, Connection
from ...net.observer import Observer, facts
from ...net.outage_log import listed
from ...net.registration import Registration
from ...net.waiting import outcome
from ...protocol._publish import PublishWindow
from ...time_limits import time_limit
from ._core import PublisherCore

BrokerState = Literal['answers', 'blocked', 'silent']

logger: logging.Logger = logging.getLogger('rbfly.streams')

INTERVAL = 10.0  # seconds between two looks at the publishers of a connection
OVERDUE = 30.0  # seconds without the confirm of the first message in flight
ANSWER = 5.0  # seconds for the broker to answer a request, or to accept a connection
COLLECT = 0.05  # seconds from the end until its line, which includes the ends in that time
TEXTS: dict[BrokerState, str] = {
    'answers': 'the broker answers',
    'blocked': (
        'the broker accepts connections, but reads nothing from this one: does it have a disk'
        ' alarm?'
    ),
    'silent': 'the broker does not answer',
}


class ConfirmAge:
    """How long the first message in flight of one publisher has waited for its confirm.

    :ivar since: time of the event loop at which the message was first seen to be the first one.
    :ivar overdue: observers were told that it is late; then `since` stays until it is not.
    :ivar count: number of messages that are overdue.
    :ivar broker: what the broker did then.
    """

    def __init__(self) -> None:
        self.since: float = 0.0
        self.overdue: bool = False
        self.count: int = 0
        self.broker: BrokerState = 'answers'
        self._first: int | None = None  # its publishing id
        self._last = 0  # highest publishing id sent at that time

    @property
    def broker_text(self) -> str:
        """What the broker did then, for people."""
        return TEXTS[self.broker]

    def restart(self) -> None:
        """The publisher is declared, and sends its messages again."""
        if not self.overdue:
            self._first = None

    def clear(self) -> None:
        """The publisher has given up its messages."""
        self.overdue, self._first = False, None

    def is_late(self, window: PublishWindow, now: float) -> bool:
        """Look at the first message in flight; return whether it has become overdue."""
        if self.overdue:
            return False
        first = window.oldest
        if first is None or first != self._first:
            self._first, self._last, self.since = first, window.last_sent, now
        return first is not None and now - self.since >= OVERDUE

    def begin(self, window: PublishWindow, broker: BrokerState) -> None:
        """The messages are overdue."""
        self.overdue, self.broker = True, broker
        self.count = window.count_in_flight(self._last)

    def is_over(self, window: PublishWindow) -> bool:
        """Return whether all messages that were overdue are settled."""
        if window.oldest is None:  # after a reconnect, all messages are queued
            return window.unsettled == 0
        return window.oldest > self._last


class Session(Protocol):
    """The parts of a publisher that the check uses."""

    stream: str
    core: PublisherCore
    registration: Registration
    age: ConfirmAge


class ConfirmCheck:
    """Looks at the publishers of one connection from time to time, while messages are in flight.

    The publishers start it when they are declared, and when they send again after a pause; it ends
    with the last one.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None  # asks what the broker does
        self._ends: list[tuple[Session, float]] = []  # that no line has reported
        self._line: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None  # None while nothing is in flight

    @classmethod
    def start(cls, connection: Connection) -> None:
        """Look at the publishers of a connection until nothing is in flight."""
        check = connection.confirm_check
        if not isinstance(check, ConfirmCheck):
            check = cls(connection)
            connection.check_confirms(check)
        check._start()

    @staticmethod
    def stop(connection: Connection) -> None:
        """Stop if the connection has no publisher any more."""
        check = connection.confirm_check
        if isinstance(check, ConfirmCheck) and not connection.registrations:
            connection.check_confirms(None)
            check._stop()

    def _start(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(INTERVAL, self._look)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._line is not None:
            self._line.cancel()
            self._report_ends()
        if self._task is not None and not self._loop.is_closed():
            self._task.cancel()

    def _look(self) -> None:
        self._timer = None
        now, sessions = self._loop.time(), self._sessions()
        if any(item.core.window.unsettled or item.age.overdue for item in sessions):
            self._start()
        else:
            for session in sessions:
                session.core.sleep()
        late = [item for item in sessions if item.age.is_late(item.core.window, now)]
        for session in sessions:
            # without a confirm: the messages were withdrawn
            if session.age.overdue and session.age.is_over(session.core.window):
                self.end(session)
        if late and self._task is None:
            self._task = asyncio.Task(self._ask(), loop=self._loop)  # never an eager one
            self._task.add_done_callback(self._on_done)

    def _sessions(self) -> list[Session]:
        """The publishers that are declared on the connection."""
        found = [cast(Any, item) for item in self._connection.registrations]
        return [item.owner for item in found if item.is_open]

    async def _ask(self) -> None:
        broker = await self._broker_state()
        now = self._loop.time()
        late = [item for item in self._sessions() if item.age.is_late(item.core.window, now)]
        if not late or not self._connection.is_open:
            return
        for session in late:
            session.age.begin(session.core.window, broker)
            session.core.watch()  # the next confirm may end it
        self._report(late, broker, now)

    async def _broker_state(self) -> BrokerState:
        connection = self._connection
        try:
            async with time_limit(ANSWER):
                await outcome(connection.send_request(PING, 0))
            return 'answers'
        except TimeoutError:
            pass
        except RbFlyError:
            return 'silent'  # the connection has ended
        cluster = next((item.registration.cluster for item in self._sessions()), None)
        if cluster is None:
            return 'silent'
        try:
            async with time_limit(ANSWER):
                problem = await cluster.problem_of(connection.address)
        except TimeoutError:
            return 'silent'
        return 'blocked' if problem is None else 'silent'

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler(
                {'message': 'a look at publishers failed', 'exception': error}
            )

    @staticmethod
    def end(session: Session) -> None:
        """The messages of a publisher are no longer overdue."""
        registration = session.registration
        seconds = session.core.loop.time() - session.age.since
        session.age.clear()
        registration.cluster.observers.notify(Observer.on_confirms_resumed, registration, seconds)
        check = registration.connection and registration.connection.confirm_check
        if isinstance(check, ConfirmCheck):
            check._add_end(session, seconds)

    def _add_end(self, session: Session, seconds: float) -> None:
        self._ends.append((session, seconds))
        if self._line is None:
            self._line = self._loop.call_later(COLLECT, self._report_ends)

    # -- lines

    def _report(self, sessions: Sequence[Session], broker: BrokerState, now: float) -> None:
        cluster = sessions[0].registration.cluster
        seconds = max(now - item.age.since for item in sessions)
        for session in sessions:
            age, registration = session.age, session.registration
            cluster.observers.notify(
                Observer.on_confirms_overdue, registration, age.count, now - age.since, broker
            )
        count = sum(item.age.count for item in sessions)
        verb = 'has' if count == 1 else 'have'
        prefix = cluster.settings.log_prefix
        logger.warning(
            '%s%s: %s %s waited %.0f s for confirms; %s',
            prefix,
            listed([f'{session!r}' for session in sessions]),
            counted(count, 'message'),
            verb,
            seconds,
            TEXTS[broker],
            extra=facts(
                prefix,
                'confirms_overdue',
                sessions[0],
                count=len(sessions),
                messages=count,
                seconds=round(seconds, 3),
                broker=broker,
            ),
        )

    def _report_ends(self) -> None:
        self._line = None
        ends, self._ends = self._ends, []
        if not ends:
            return
        first, seconds = ends[0][0], max(seconds for _, seconds in ends)
        prefix = first.registration.cluster.settings.log_prefix
        logger.info(
            '%s%s: no confirm is late any more, after %.0f s',
            prefix,
            listed([f'{session!r}' for session, _ in ends]),
            seconds,
            extra=facts(
                prefix, 'confirms_resumed', first, count=len(ends), seconds=round(seconds, 3)
            ),
        )
