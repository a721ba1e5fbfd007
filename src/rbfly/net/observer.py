"""Where metrics and events hang."""

from enum import Enum

__all__ = ['Observer', 'State']


class State(Enum):
    """Of a link, see :mod:`rbfly.net.link`."""

    IDLE = 'idle'
    OPENING = 'opening'
    OPEN = 'open'
    LOST = 'lost'
    CLOSED = 'closed'


class Observer:
    """Told of what happens; does nothing.  What was counted, a connection knows."""

    def on_transition(
        self, link: object, before: State, after: State, error: Exception | None
    ) -> None:
        """A link has another state; the error is why it was lost, or is idle again."""
