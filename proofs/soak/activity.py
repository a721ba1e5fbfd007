"""An activity of a soak: one way of using the client, and checks of the results.

An activity works while faults happen.  After the last fault, `calm` makes calls that must succeed,
and `check` compares the results of all calls with what the broker has stored.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import rbfly.streams as rbs
from rbfly.error import RbFlyError

from ..checker import violations
from ..history import CONFIRMED, REFUSED, UNKNOWN, Fault, History
from ..run import Run
from ..test_bed import Bed, body

AGAIN = 0.05  # seconds between two attempts
CONFIRM = 20.0  # timeout of calls in seconds
MESSAGES = 30_000  # maximum number per publisher and round
SHARE = MESSAGES // 2  # messages of a history to send during faults, leaving the rest for `calm`
GUARD = 60.0  # seconds after which a reader that lacks messages has failed


@dataclass
class Scene:
    """What the activities of a round share.

    :ivar refusing: whether the broker may refuse messages, including some that no call reports.
    :ivar corrupting: whether chunks are corrupted: they look like those of another stream.
    :ivar wrong: violations and their counts.
    :ivar failures: errors that calls may raise during faults, and their counts.
    :ivar faults: the faults so far.
    :ivar longest: seconds of the longest call.
    """

    run: Run
    bed: Bed
    client: rbs.StreamsClient
    seconds: float
    corrupting: bool
    wrong: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    longest: float = 0.0

    def __post_init__(self) -> None:
        self.random = self.run.random
        self.refusing = self.random.random() < 0.5
        self.begin = asyncio.get_running_loop().time()

    def past(self) -> float:
        """The part of the round that is over."""
        return (asyncio.get_running_loop().time() - self.begin) / self.seconds

    def over(self) -> bool:
        return self.past() > 1

    def progress(self, count: int = 1) -> None:
        self.run.done += count


def client_of(bed: Bed, **limits: float | None) -> rbs.StreamsClient:
    """A client whose calls end in time."""
    names = ('connect_timeout', 'reconnect_timeout', 'close_timeout')
    return bed.client('soak', **dict.fromkeys(names, CONFIRM) | limits)


class Activity:
    """One way of using the client.

    :ivar histories: those of its publishers.
    :ivar streams: streams to delete at the end.
    :ivar movable: streams whose leaders may be moved.
    :ivar background: what else runs until the checks have ended.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.bed = scene.bed
        self.random = scene.random
        self.histories: list[History] = []
        self.streams: list[str] = []
        self.movable: list[str] = []
        self.background: list[Callable[[], Coroutine[Any, Any, None]]] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Create streams before the first fault, and delete them after the checks."""
        async with AsyncExitStack() as stack:
            await self.begin(stack)
            try:
                async with asyncio.TaskGroup() as group:  # an error of one ends the round
                    tasks = [group.create_task(work()) for work in self.background]
                    try:
                        yield
                    finally:
                        for task in tasks:
                            task.cancel()
            finally:
                for stream in self.streams:
                    await self.bed.delete(stream)

    async def begin(self, stack: AsyncExitStack) -> None:
        """Create the streams that the activity uses."""

    async def stream(self) -> str:
        """Create a stream."""
        name = f'soak-{secrets.token_hex(4)}'
        await self.bed.create(name)
        self.streams.append(name)
        return name

    async def history(self, label: str, named: bool) -> History:
        """Create a stream for one publisher, and the history of its messages."""
        history = History(label, await self.stream(), named, MESSAGES)
        self.histories.append(history)
        return history

    async def run(self) -> None:
        """Work until the round is over."""
        await self.repeat(self.once, self.scene.over)

    async def once(self) -> None:
        """Use the client once."""

    async def repeat(
        self, work: Callable[[], Awaitable[None]], over: Callable[[], bool] = lambda: False
    ) -> None:
        """Call this again and again; it may raise errors of the client."""
        while not over():
            try:
                await work()
                self.scene.progress()
            except RbFlyError as ex:
                self.scene.failures[type(ex).__name__] += 1
            await asyncio.sleep(AGAIN)

    async def calm(self) -> None:
        """Make calls that must succeed, since faults have ended."""

    async def check(self) -> None:
        """Compare the stored messages with the outcomes of the calls."""
        for history in self.histories:
            self.compare(history, (await self.bed.stored(history.stream))[0])

    def compare(self, history: History, stored: Sequence[int]) -> None:
        """Note where the history and the stored messages contradict each other."""
        for what, numbers in violations(history, stored).items():
            self.wrong(f'{history.label}: {what}', len(numbers))

    @staticmethod
    def batch(publisher: Any, history: History, count: int, limit: int | None = None) -> range:
        """Add the next messages to a batch; return their numbers."""
        numbers = history.take(count, limit)
        for number in numbers:
            publisher.batch(body(number))
        return numbers

    @classmethod
    async def send_each(
        cls,
        publisher: Any,
        history: History,
        numbers: Sequence[int],
        timeout: Callable[[int], float] = lambda number: CONFIRM,
    ) -> list[BaseException | None]:
        """Send messages from many tasks; return the errors of the calls."""
        sends = (publisher.send(body(i), timeout=timeout(i)) for i in numbers)
        errors = await asyncio.gather(*sends, return_exceptions=True)
        for number, error in zip(numbers, errors, strict=True):
            history.note([number], cls.outcome(error))
        return errors

    @staticmethod
    def outcome(error: BaseException | None) -> int:
        """The outcome of a message whose `send` has returned or raised an error of the client."""
        if error is None:
            return CONFIRMED
        if isinstance(error, rbs.PublishError):
            return REFUSED
        if not isinstance(error, RbFlyError):
            raise error
        return REFUSED if error.outcome == 'not_sent' else UNKNOWN

    @staticmethod
    async def until(reached: Callable[[], bool]) -> None:
        """Wait for something that must happen once faults have ended.

        :raises TimeoutError: it does not.
        """
        async with asyncio.timeout(GUARD):
            while not reached():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def wrong(self, what: str, count: int = 1) -> None:
        self.scene.wrong[what] += count
