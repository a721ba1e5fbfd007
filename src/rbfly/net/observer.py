"""Where metrics and events hang."""

from enum import Enum

__all__ = ['Observer', 'State']


class State(Enum):
    """Of a registration, see :mod:`rbfly.net.registration`."""

    IDLE = 'idle'
    OPENING = 'opening'
    OPEN = 'open'
    LOST = 'lost'
    CLOSED = 'closed'


class Observer:
    """Told of what happens; does nothing.

    What comes is counted by each connection, per frame and per chunk: see
    :class:`rbfly.protocol._engine.Engine`.
    """

    def on_transition(
        self, registration: object, before: State, after: State, error: Exception | None
    ) -> None:
        """A registration has another state; the error is why it was lost, or is idle again."""
