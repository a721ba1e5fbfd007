"""Runs lanes in interleaved rounds.

A round runs every lane once, one after the other, in an order that is shuffled with the seed of
the run and the number of the round.  Each lane has a process of its own for the whole run.  After
each turn of a lane the messages in the broker are counted; a lane whose count is not what it
said has failed, and takes no further part.  Lanes that need no broker have nothing to count.
"""

import json
import random
import secrets
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from time import monotonic
from typing import Any

from . import environment, lanes
from .progress import Progress
from .results import Settings, Writer
from .store import RabbitStore, Store, StoreError

__all__ = ['LaneError', 'order', 'run']

PATIENCE = 60.0


class LaneError(Exception):
    """A lane failed, and why."""


def order(seed: int, number: int, names: Sequence[str]) -> list[str]:
    """Order of the lanes in a round; the same for the same seed, round and lanes."""
    shuffled = list(names)
    random.Random(f'{seed}/{number}').shuffle(shuffled)
    return shuffled


class Worker:
    """The process of a lane."""

    def __init__(self, lane: lanes.Lane) -> None:
        self.lane = lane
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115, closed by end()
        self.process = subprocess.Popen(
            [sys.executable, '-m', 'perf.worker', lane.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            cwd=environment.folder(),
            bufsize=0,
            start_new_session=True,  # an interrupt from the keyboard is for the runner only
        )

    def ask(self, command: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        data = b''
        with suppress(BrokenPipeError):  # if it has ended, it may have left its reason
            self.process.stdin.write(json.dumps(command).encode() + b'\n')
        deadline = monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not data.endswith(b'\n'):
                if not selector.select(max(0, deadline - monotonic())):
                    raise LaneError(f'no answer for {timeout:.0f} s')
                part = self.process.stdout.read(65536)
                if not part:
                    raise LaneError(f'its process ended: {self.last_words()}')
                data += part
        answer: dict[str, Any] = json.loads(data)
        if 'error' in answer:
            raise LaneError(answer['error'])
        return answer

    def last_words(self) -> str:
        """Last line that the process wrote to standard error."""
        self.errors.seek(0)
        written = self.errors.read().decode(errors='replace').strip().splitlines()
        return written[-1] if written else 'no message'

    def end(self, kill: bool = False) -> None:
        """End the process; it is given a little time to disconnect."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(0 if kill else 5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()


class Turn:
    """A lane with its process and, if it needs a broker, its stream."""

    def __init__(self, lane: lanes.Lane, store: Store | None, stream: str) -> None:
        self.lane = lane
        self.store = store
        self.stream = stream
        self.worker = Worker(lane)
        self.expected = store.count(stream) if store and lane.kind.stored else 0

    def open(self) -> None:
        """Connect and warm up."""
        address = self.store.address if self.store else ''
        command = {'do': 'open', 'address': address, 'stream': self.stream}
        self.worker.ask(command, PATIENCE)
        self.run(self.lane.kind.warm_up, warm_up=True)

    def run(self, count: int, warm_up: bool = False) -> dict[str, Any]:
        """Let the lane work, then count what the broker has."""
        kind = self.lane.kind
        consumes = kind.stored is not None
        if kind.stored:
            count = min(count, self.expected * kind.stored.readers)
        answer = self.worker.ask({'do': 'run', 'count': count}, PATIENCE + count / kind.slowest)
        reported = answer['count']
        if reported != count and not (consumes and warm_up):
            raise LaneError(f'asked for {count:,} messages, it reports {reported:,}')
        if self.store is None:
            return {**answer, 'stored': None}
        if not consumes:
            self.expected += reported
        stored = self.store.count(self.stream)
        if stored != self.expected:
            raise LaneError(f'the broker holds {stored:,} messages, not {self.expected:,}')
        return {**answer, 'stored': stored}


def record(lane: lanes.Lane, number: int, position: int, answer: dict[str, Any]) -> dict[str, Any]:
    """Make the line of the result file."""
    count, seconds = answer['count'], answer['seconds']
    return {
        'type': 'result',
        'scenario': lane.kind.scenario,
        'lane': lane.name,
        'round': number,
        'order': position,
        'count': count,
        'seconds': seconds,
        'rate': count / seconds,
        'cpu_user': answer['cpu_user'],
        'cpu_sys': answer['cpu_sys'],
        'cpu_per_message': (answer['cpu_user'] + answer['cpu_sys']) / count,
        'max_rss': answer['max_rss'],
        'stored': answer['stored'],
    }


@contextmanager
def streams(
    settings: Settings, stores: dict[str, Store], writer: Writer
) -> Iterator[dict[str, str]]:
    """Make the stream of every lane; the lanes that consume share one, which is filled."""
    token = secrets.token_hex(4)
    made: list[tuple[Store, str]] = []
    names: dict[str, str] = {}
    try:
        for lane in map(lanes.find, settings.lanes):
            if not lane.library.broker:
                continue
            store = stores[lane.library.broker]
            kind = lane.kind.name
            name = f'perf-{token}-{kind if lane.kind.stored else lane.name}'
            names[lane.name] = name
            if (store, name) in made:
                continue
            store.create(name)
            made.append((store, name))
            if stored := lane.kind.stored:
                assert isinstance(store, RabbitStore)
                store.fill(name, settings.counts[kind] // stored.readers, stored)
                count = store.count(name)
                filled = {'scenario': kind, 'count': count, 'chunks': store.chunks[name]}
                writer.write({'type': 'filled', **filled})
        yield names
    finally:
        for store, name in made:
            try:
                store.delete(name)
            except StoreError as ex:
                print(f'stream {name} is left behind: {ex}', file=sys.stderr)


def run(settings: Settings, writer: Writer, stores: dict[str, Store]) -> None:
    """Run what the result file does not have yet."""
    done = writer.results.done()
    turns: dict[str, Turn] = {}
    total = settings.rounds * len(settings.lanes) - len(done)
    if not total:
        return

    with ExitStack() as stack:
        names = stack.enter_context(streams(settings, stores, writer))
        progress = stack.enter_context(Progress(total, 'perf', 'turns'))

        def fail(lane: lanes.Lane, number: int, ex: Exception) -> None:
            error = str(ex) or type(ex).__name__
            writer.write({'type': 'failure', 'lane': lane.name, 'round': number, 'error': error})
            progress.say(f'FAILED {lane.name}: {error}; it takes no further part')
            turn = turns.pop(lane.name, None)
            if turn is not None:
                turn.worker.process.kill()

        for name in settings.lanes:
            lane = lanes.find(name)
            progress.doing(f'starting {name}')
            try:
                turn = Turn(lane, stores.get(lane.library.broker), names.get(name, ''))
                stack.callback(turn.worker.end)
                turns[name] = turn
                turn.open()
            except (LaneError, *StoreError) as ex:
                fail(lane, 0, ex)

        for number in range(1, settings.rounds + 1):
            for position, name in enumerate(order(settings.seed, number, settings.lanes), 1):
                if (name, number) in done:
                    continue
                if name not in turns:
                    progress.step()
                    continue
                turn = turns[name]
                lane = turn.lane
                progress.doing(f'round {number}, {name}')
                try:
                    answer = turn.run(settings.counts[lane.kind.name])
                except (LaneError, *StoreError) as ex:
                    fail(lane, number, ex)
                else:
                    row = record(lane, number, position, answer)
                    writer.write(row)
                    progress.doing(f'round {number}, {name} {row["rate"]:,.0f}/s')
                progress.step()
