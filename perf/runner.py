"""Run lanes in interleaved rounds.

Scenarios run one after the other.  Each round of a scenario runs every lane once, one at a time, in
an order that depends on the seed of the run and the number of the round.  Each lane keeps its own
process, or several, for all rounds.  After each turn of a lane, the runner counts the messages in
the broker; if the count differs from what the lane reports, the lane fails and drops out.
"""

import json
import random
import secrets
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from time import monotonic, sleep
from typing import Any

from . import cost, environment, idle, lanes, other_python, programs
from .progress import Progress
from .results import Settings, Writer
from .store import Store, StoreError
from .super_stream_wire import partitions_of

TIMEOUT = 60.0  # seconds for the answer to a command
SETTLE = 10.0  # seconds for the broker to store unconfirmed messages


class LaneError(Exception):
    """A lane failed."""


def order(seed: int, number: int, names: Sequence[str]) -> list[str]:
    """The order of lanes in a round, which depends only on seed, round and lanes."""
    shuffled = list(names)
    random.Random(f'{seed}/{number}').shuffle(shuffled)
    return shuffled


def command(lane: lanes.Lane) -> list[str]:
    """The command that starts the process of a lane."""
    if program := lane.library.program:
        prefix = 'super-' if lane.kind.partitions else ''
        return programs.command(program, prefix + lane.kind.work)
    python = other_python.command(lane.use.python) if lane.use.python else (sys.executable,)
    return [*python, '-m', 'perf.worker', lane.name]


class Worker:
    """A process of a lane."""

    def __init__(self, lane: lanes.Lane) -> None:
        self.lane = lane
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115, closed by end()
        self.process = subprocess.Popen(
            command(lane),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            cwd=environment.folder(),
            bufsize=0,
            start_new_session=True,  # Ctrl-C interrupts the runner only
        )

    def tell(self, command: dict[str, Any]) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # answer() then reports why the process ended
            self.process.stdin.write(json.dumps(command).encode() + b'\n')

    def answer(self, timeout: float) -> dict[str, Any]:
        """Wait for the answer to a command."""
        assert self.process.stdout is not None
        data = b''
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
        """The last line that the process wrote to standard error."""
        self.errors.seek(0)
        written = self.errors.read().decode(errors='replace').strip().splitlines()
        return written[-1] if written else 'no message'

    def end(self) -> None:
        """End the process, giving it a few seconds to disconnect."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()


class Turn:
    """A lane with its processes and, if it needs a broker, its stream."""

    def __init__(self, lane: lanes.Lane, store: Store | None, stream: str) -> None:
        self.lane = lane
        self.store = store
        self.stream = stream
        self.workers = [Worker(lane) for _ in range(lane.kind.processes)]
        self.expected = self.count() if lane.kind.stored else 0

    def ask(self, command: dict[str, Any], timeout: float = TIMEOUT) -> list[dict[str, Any]]:
        """Send a command to all processes; return their answers."""
        for worker in self.workers:
            worker.tell(command)
        return [worker.answer(timeout) for worker in self.workers]

    def count(self) -> int:
        """Count the messages in the lane's streams."""
        assert self.store is not None
        return sum(self.store.count(name) for name in names_of(self.stream, self.lane.kind))

    def kill(self) -> None:
        for worker in self.workers:
            worker.process.kill()

    def end(self) -> None:
        """End the processes."""
        for worker in self.workers:
            worker.end()

    def open(self) -> None:
        """Connect and warm up."""
        address, ca_file = (self.store.address, self.store.ca_file) if self.store else ('', '')
        self.ask({'do': 'open', 'address': address, 'stream': self.stream, 'ca_file': ca_file})
        self.run(self.lane.kind.warm_up, warm_up=True)

    def meter(self) -> AbstractContextManager[dict[str, float]]:
        """What measures the costs of this kind of work, if they are wanted."""
        if not self.lane.kind.metered or self.store is None:
            return nullcontext({})
        return cost.meter(self.store.address, [worker.process.pid for worker in self.workers])

    def run(self, count: int, warm_up: bool = False) -> dict[str, Any]:
        """Let the lane work, then compare its report with the messages in the broker."""
        kind = self.lane.kind
        consumes = kind.stored is not None
        if not warm_up and self.lane.use.part != 1:
            count = kind.whole(count * self.lane.use.part)
        if kind.stored:
            count = min(count, self.expected * kind.stored.readers)
        if self.store:
            self.store.far(0 if warm_up else kind.delay or 0)
        made = self.ask({'do': 'prepare', 'count': count // len(self.workers)})
        trips = [answer['round_trip'] for answer in made if 'round_trip' in answer]
        if not warm_up and trips and min(trips) * 1000 < (kind.delay or 0):
            raise LaneError(
                f'round trip of {min(trips) * 1000:.3f} ms despite {kind.delay} ms of injected'
                ' latency'
            )
        with self.meter() as costs:
            answer = combine(self.ask({'do': 'run'}, TIMEOUT + count / kind.slowest))
        answer |= costs
        if trips:
            answer['round_trip'] = max(trips)
        reported = answer['count']
        if reported != count and not (consumes and warm_up):
            raise LaneError(f'requested {count:,} messages, but the lane reports {reported:,}')
        if self.store is None:
            return answer
        if not consumes:
            self.expected += reported
        stored = self.count()
        deadline = monotonic() + SETTLE
        while stored < self.expected and kind.work == 'unconfirmed' and monotonic() < deadline:
            sleep(0.1)
            stored = self.count()
        if stored != self.expected:
            raise LaneError(f'the broker holds {stored:,} messages instead of {self.expected:,}')
        return answer


def names_of(stream: str, kind: lanes.Kind) -> list[str]:
    """The names of the streams for a kind of work."""
    if kind.partitions:
        return partitions_of(stream, kind.partitions)
    return [stream] if kind.streams == 1 else [f'{stream}-{i}' for i in range(kind.streams)]


def combine(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Add up the results of a lane's processes, timed from the first start to the last end."""
    added = {
        name: sum(answer[name] for answer in answers)
        for name in ('count', 'cpu_user', 'cpu_sys', 'max_rss')
    }
    begun = min(answer['begun'] for answer in answers)
    ended = max(answer['ended'] for answer in answers)
    return answers[0] | added | {'seconds': ended - begun}


def record(lane: lanes.Lane, number: int, answer: dict[str, Any]) -> dict[str, Any]:
    """Create the line of the result file."""
    also = {name: answer[name] for name in ('histograms', 'late', 'round_trip') if answer.get(name)}
    costs = {name: answer[name] for name in cost.COLUMNS if name in answer}
    also |= {name: digits(x) if isinstance(x, float) else x for name, x in costs.items()}
    return {
        'type': 'result',
        'lane': lane.name,
        'round': number,
        'count': answer['count'],
        **{name: digits(answer[name]) for name in ('seconds', 'cpu_user', 'cpu_sys')},
        'max_rss': answer['max_rss'],
        **also,
    }


def digits(seconds: float) -> float:
    """Round to six significant digits, which no clock of a benchmark exceeds."""
    return float(f'{seconds:.6g}')


@contextmanager
def streams(
    chosen: Sequence[lanes.Lane], settings: Settings, stores: dict[str, Store], writer: Writer
) -> Iterator[dict[str, str]]:
    """Create the streams of all lanes; lanes that consume the same messages share a filled one."""
    token = secrets.token_hex(4)
    created: dict[tuple[Store, str], lanes.Kind] = {}
    names: dict[str, str] = {}
    try:
        # RabbitMQ balances the leaders of all streams, so those on one node must come last
        for lane in sorted(chosen, key=lambda lane: -lane.kind.nodes):
            if not lane.broker:
                continue
            store = stores[lane.broker]
            kind = lane.kind
            # several stores may be of the same broker, which has their streams
            shared = f'{lane.broker}-{kind.name}'
            stream = f'perf-{token}-{shared if kind.stored else lane.name}'
            names[lane.name] = stream
            if (store, stream) in created:
                continue
            created[store, stream] = kind
            parts = names_of(stream, kind)
            if kind.partitions:
                store.create_super(stream, parts, kind.nodes)
            else:
                for name in parts:
                    store.create(name)
            if stored := kind.stored:
                for name in parts:
                    store.fill(
                        name, settings.counts[kind.name] // stored.readers // len(parts), stored
                    )
                count = sum(map(store.count, parts))
                chunks = sum(store.chunks[name] for name in parts)
                writer.write(
                    {'type': 'filled', 'kind': kind.name, 'count': count, 'chunks': chunks}
                )
        yield names
    finally:
        for (store, stream), kind in created.items():
            delete = store.delete_super if kind.partitions else store.delete
            for name in [stream] if kind.partitions else names_of(stream, kind):
                try:
                    delete(name)
                except StoreError as ex:
                    print(f'cannot delete stream {name}: {ex}', file=sys.stderr)


def run(settings: Settings, writer: Writer, stores: dict[str, Store]) -> None:
    """Run the rounds that are missing in the result file."""
    done = writer.results.done()
    chosen = [lanes.find(name) for name in settings.lanes]
    wanted = {
        (lane.name, number + 1)
        for lane in chosen
        for number in range(lane.kind.part_of(settings.rounds))
    }
    missing = wanted - done
    if not missing:
        return
    unfinished = {lanes.find(name).kind.scenario for name, _ in missing}
    with Progress(len(missing), 'perf', 'turns') as progress:
        for scenario in dict.fromkeys(lane.kind.scenario for lane in chosen):
            if scenario in unfinished:
                members = [lane for lane in chosen if lane.kind.scenario == scenario]
                run_scenario(members, settings, writer, stores, progress)


def run_scenario(
    chosen: Sequence[lanes.Lane],
    settings: Settings,
    writer: Writer,
    stores: dict[str, Store],
    progress: Progress,
) -> None:
    """Run the rounds of a scenario."""
    done = writer.results.done()
    turns: dict[str, Turn] = {}
    with ExitStack() as stack:
        names = stack.enter_context(streams(chosen, settings, stores, writer))

        def fail(lane: lanes.Lane, number: int, ex: Exception) -> None:
            error = str(ex) or type(ex).__name__
            writer.write({'type': 'failure', 'lane': lane.name, 'round': number, 'error': error})
            progress.say(f'FAILED {lane.name}: {error}; continuing without it')
            turn = turns.pop(lane.name, None)
            if turn is not None:
                turn.kill()

        for lane in chosen:
            progress.doing(f'starting {lane.name}')
            try:
                turn = Turn(lane, stores.get(lane.broker), names.get(lane.name, ''))
                stack.callback(turn.end)
                turns[lane.name] = turn
                turn.open()
            except (LaneError, *StoreError) as ex:
                fail(lane, 0, ex)

        by_name = {lane.name: lane for lane in chosen}
        for number in range(1, settings.rounds + 1):
            missing = [
                name
                for name in order(settings.seed, number, list(by_name))
                if (name, number) not in done
                and number <= by_name[name].kind.part_of(settings.rounds)
            ]
            if settings.when_idle and any(name in turns for name in missing):
                idle.wait(progress.say)
            for name in missing:
                lane = by_name[name]
                if name not in turns:
                    progress.step()
                    continue
                progress.doing(f'round {number}, {name}')
                try:
                    answer = turns[name].run(settings.counts[lane.kind.name])
                except (LaneError, *StoreError) as ex:
                    fail(lane, number, ex)
                else:
                    writer.write(record(lane, number, answer))
                    rate = answer['count'] / answer['seconds']
                    progress.doing(f'round {number}, {name} {rate:,.0f}/s')
                progress.step()
