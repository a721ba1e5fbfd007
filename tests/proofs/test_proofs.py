"""The checks and tools of proofs work, without a broker."""

import asyncio
import gzip
import json
import random
import selectors
import struct
import zlib
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brokers import wire
from brokers.proxy import Proxy
from proofs import cli
from proofs.catalogue import PROOFS, SETTINGS
from proofs.checker import (
    LOST,
    NEVER_SENT,
    ORDER,
    REFUSED_STORED,
    TWICE,
    check_stored,
    copies,
    described,
    undelivered,
    unordered,
    unordered_by,
    violations,
)
from proofs.fault_injection import Gate, plan_cuts
from proofs.history import CONFIRMED, REFUSED, Delivery, History
from proofs.processes import portions
from proofs.run import ProofError, Run, default_path, loop_factory
from proofs.test_bed import body
from proofs.wiretap import Tap
from tests.brokers import until

# -- comparing stored with sent messages


def history(confirmed: int = 4, total: int = 10, named: bool = True) -> History:
    """A history whose first messages are confirmed, the next two unknown and refused."""
    found = History('', 'test', named, total)
    found.note(found.take(confirmed), CONFIRMED)
    found.take(1)
    found.note(found.take(1), REFUSED)
    return found


@pytest.mark.parametrize(
    ('stored', 'wrong'),
    [
        ([0, 1, 2, 3], {}),
        ([0, 1, 2, 3, 4], {}),
        ([0, 1, 3], {LOST: [2]}),
        ([], {LOST: [0, 1, 2, 3]}),
        ([0, 1, 2, 3, 5], {REFUSED_STORED: [5]}),
        ([0, 1, 2, 3, 6, 99], {NEVER_SENT: [6, 99]}),
        ([-1, 0, 1, 2, 3], {NEVER_SENT: [-1]}),
        ([0, 1, 1, 2, 3, 3, 3], {TWICE: [1, 3]}),
        ([0, 1, 1, 2, 3, 1], {TWICE: [1]}),
        ([1, 0, 2, 3], {ORDER: [0]}),
        ([0, 0, 1], {LOST: [2, 3], TWICE: [0]}),
    ],
)
def test_violations_of_a_history(stored: list[int], wrong: dict[str, list[int]]) -> None:
    assert violations(history(), stored) == wrong


def test_violations_in_words() -> None:
    assert described({}) == described({LOST: []}) == ''
    found = {LOST: [1_002, 1_001], TWICE: [7]}
    assert described(found) == '2 confirmed and lost, first 1,001; 1 duplicated, first 7'


def test_publisher_without_a_name_may_duplicate() -> None:
    unnamed = history(named=False)
    assert not violations(unnamed, [0, 2, 1, 1, 2, 3])
    assert violations(unnamed, [0, 1, 1]) == {LOST: [2, 3]}
    once_more = violations(unnamed, [0, 1, 1, 2, 2, 2, 3], lambda number: 1 + (number == 1))
    assert once_more == {TWICE: [2]}


def test_epochs_of_calls_bound_the_duplicates() -> None:
    epoch = 0
    sent = History('', 'test', False, 10, lambda: epoch)
    for count, later in ((2, 2), (2, 1), (2, 0)):
        numbers = sent.take(count)
        epoch += later
        sent.note(numbers, CONFIRMED)
    assert [*sent.called] == [0, 0, 2, 2, 3, 3, 0, 0, 0, 0]
    assert [*sent.returned] == [2, 2, 3, 3, 3, 3, 0, 0, 0, 0]
    run = example()
    check_stored(run, sent, [[0, 0, 1, 2, 3, 4, 5]], copies(sent, cuts=True))
    assert run.holds
    for stored in ([0, 0, 0, 1, 2, 3, 4, 5], [0, 1, 2, 2, 3, 4, 5]):
        run = example()
        check_stored(run, sent, [stored], copies(sent, cuts=True))
        assert not run.holds


@pytest.mark.parametrize(
    ('numbers', 'wrong'),
    [
        ([], []),
        ([0, 1, 2], []),
        ([0, 1, 2, 1, 2, 3], []),  # resent
        ([0, 2, 1], [1]),
        ([0, 1, 3, 1, 2], [2]),
    ],
)
def test_order_of_first_copies(numbers: list[int], wrong: list[int]) -> None:
    assert unordered(numbers) == wrong


def test_order_of_each_task() -> None:
    assert unordered_by([10, 0, 11, 1, 2, 12], lambda number: number // 10) == ''
    assert unordered_by([10, 0, 12, 1, 2, 11], lambda n: n // 10) == '1: 11 comes too late'


@pytest.mark.parametrize(
    ('received', 'wrong'),
    [
        ([(0, 5), (2, 6), (3, 7)], ''),
        ([(0, 5), (2, 6)], 'a, message 2: number and offset are None, not (7, 3)'),
        (
            [(0, 5), (2, 6), (2, 6), (3, 7)],
            'a, message 2: number and offset are (6, 2), not (7, 3)',
        ),
        ([(0, 5), (3, 7), (2, 6)], 'a, message 1: number and offset are (7, 3), not (6, 2)'),
        ([(0, 5), (1, 6), (3, 7)], 'a, message 1: number and offset are (6, 1), not (6, 2)'),
    ],
)
def test_delivery_is_compared_with_what_is_stored(
    received: list[tuple[int, int]], wrong: str
) -> None:
    delivery = Delivery()
    for offset, number in received:
        delivery.receive('a', offset, number)
    stored = array('q', [5, 6, 7]), array('q', [0, 2, 3])
    assert undelivered(delivery, {'a': stored, 'b': (array('q'), array('q'))}) == wrong
    assert delivery.next('a') == received[-1][0] + 1
    assert delivery.next('b') == 0


# -- chunks and metadata, read without the client


def chunk(
    messages: list[bytes], chunk_id: int = 7, records: int | None = None, data: bytes | None = None
) -> bytes:
    if data is None:
        data = b''.join(struct.pack('>I', len(m)) + m for m in messages)
    head = struct.pack(
        '>BBHIqQQIIII',
        0x50,
        0,
        len(messages),
        len(messages) if records is None else records,
        0,
        1,
        chunk_id,
        zlib.crc32(data),
        len(data),
        14,
        16 << 24,
    )
    return head + data


def test_chunk_is_read() -> None:
    assert wire.read_chunk(chunk([b'a', b'', b'xyz'])) == (7, [b'a', b'', b'xyz'])
    with pytest.raises(wire.WireError, match='1 messages instead of 2'):
        wire.read_chunk(chunk([b'a'], records=2))
    with pytest.raises(wire.WireError, match='wrong size or CRC'):
        wire.read_chunk(chunk([b'a'])[:-1] + b'b')
    with pytest.raises(wire.WireError, match='wrong size or CRC'):
        wire.read_chunk(chunk([b'a'])[:-1])


def test_sub_entries_are_read() -> None:
    plain, packed = [b'a', b'', b'xyz'], [b'b' * 100, b'c']
    gzipped = wire.sub_entry(packed, 1, gzip.compress)
    data = b''.join([wire.sub_entry(plain), struct.pack('>I', 1) + b'd', gzipped])
    entries = [b''] * 3
    found = wire.read_chunk(chunk(entries, records=6, data=data))
    assert found == (7, [*plain, b'd', *packed])
    for damaged, error in (
        (wire.sub_entry(packed, 2, gzip.compress), 'code 2'),
        (gzipped[:5] + b'xx' + gzipped[7:], 'size'),
        (b'\x80\0\1' + wire.sub_entry(plain)[3:], 'size'),
    ):
        with pytest.raises(wire.WireError, match=error):
            wire.read_chunk(chunk([b''], records=2, data=damaged))


def metadata(leader: int) -> bytes:
    brokers = b''.join(
        struct.pack('>HH', i, len(host)) + host + struct.pack('>I', 5000 + i)
        for i, host in enumerate((b'one', b'another'))
    )
    stream = struct.pack('>H', 4) + b'test' + struct.pack('>HHIH', 1, leader, 1, 0)
    answer = struct.pack('>II', 1, 2) + brokers + struct.pack('>I', 1) + stream
    return struct.pack('>IHH', 4 + len(answer), 0x800F, 1) + answer


def connected(data: bytes) -> wire.Connection:
    connection = wire.Connection.__new__(wire.Connection)
    connection.rest = data
    connection.socket = SimpleNamespace(sendall=lambda data: None)  # type: ignore[assignment]
    return connection


def test_leader_is_read() -> None:
    assert connected(metadata(1)).leader('test') == (('another', 5001), 1)
    assert connected(metadata(0xFFFF)).leader('test') == (None, 1)


# -- the tap


def publish(ids: list[int], numbers: list[int]) -> bytes:
    pairs = zip(ids, numbers, strict=True)
    frames = [wire.publish_frame(0, i, [wire.data_section(body(n))]) for i, n in pairs]
    entries = b''.join(frame[wire.PUBLISH_HEAD.size :] for frame in frames)
    head = wire.PUBLISH_HEAD.pack(len(entries) + 9, wire.PUBLISH, 1, 0, len(ids))
    return head + entries


def confirm(ids: list[int]) -> bytes:
    data = b''.join(i.to_bytes(8, 'big') for i in ids)
    return wire.CONFIRM.pack(len(data) + 9, wire.PUBLISH_CONFIRM, 1, 0, len(ids)) + data


@pytest.mark.parametrize('step', [1, 7, 10**6])
def test_tap_maps_confirms_to_messages(step: int) -> None:
    tap = Tap(Proxy(('', 0)), 10)
    up = publish([1, 2], [5, 6]) + wire.frame(wire.STREAM_STATS, b'xyz') + publish([9], [7])
    down = confirm([2]) + wire.frame(wire.METADATA_UPDATE, bytes(40)) + confirm([9])
    for i in range(0, len(up), step):
        tap(3, 'up', up[i : i + step])
    assert not any(tap.confirmed)
    for i in range(0, len(down), step):
        tap(3, 'down', down[i : i + step])
    assert [i for i, known in enumerate(tap.confirmed) if known] == [6, 7]
    assert tap.published == 3
    assert not tap.reused


def test_tap_detects_reused_publishing_ids() -> None:
    tap = Tap(Proxy(('', 0)), 10)
    tap(1, 'up', publish([1, 2, 2], [0, 1, 2]))
    tap(2, 'up', publish([1], [3]))  # another connection
    tap(1, 'up', publish([1], [4]))
    assert tap.reused == [(2, 2), (1, 4)]


# -- faults


class Plan:
    """Records planned cuts instead of making them."""

    def __init__(self) -> None:
        self.cuts = 0
        self.planned: list[tuple[str, int, bool]] = []
        self.on_cut: Callable[[], None] = lambda: None

    def cut_after(self, size: int, direction: str = 'up', *, reset: bool = True) -> None:
        self.planned.append((direction, size, reset))


def planned(seed: int, cuts: int) -> list[tuple[str, int, bool]]:
    plan: Any = Plan()
    plan_cuts(Run(PROOFS['publish-cuts'], seed, cuts=cuts), plan, {'up': 10**6, 'down': 10**4})
    while plan.cuts < len(plan.planned):
        plan.cuts += 1
        plan.on_cut()
    return list(plan.planned)


@pytest.mark.parametrize('cuts', [1, 4, 5, 50])
def test_cuts_are_planned_by_the_seed(cuts: int) -> None:
    found = planned(1, cuts)
    assert len(found) == cuts
    assert found == planned(1, cuts)
    assert found != planned(2, cuts)
    first = found[: cuts - cuts // 5]
    assert all(size < (950_000 if way == 'up' else 9_500) for way, size, _ in first)
    assert all(way == 'up' and size < 400 for way, size, _ in found[len(first) :])
    if cuts == 50:
        assert {way for way, _, _ in first} == {'up', 'down'}
        assert {reset for _, _, reset in first} == {True, False}
        assert max(size for way, size, _ in first if way == 'up') > 500_000


async def test_gate_releases_messages_in_order_up_to_its_limit() -> None:
    gate = Gate(10)
    gate._raise(3)
    taken: list[int] = []

    async def work() -> None:
        while (number := await gate.take()) is not None:
            taken.append(number)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(work()) for _ in range(4)]

    async def settle() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    await settle()
    assert taken == [0, 1, 2]
    gate._raise(4)
    await settle()
    assert taken == [0, 1, 2, 3]
    tasks.pop().cancel()
    gate._raise(6)
    await settle()
    assert taken == [0, 1, 2, 3, 4, 5]
    assert gate.more(10) == 0
    gate._raise(10)
    await asyncio.gather(*tasks)
    assert taken == list(range(10))


async def test_messages_flow_during_each_fault() -> None:
    run = Run(PROOFS['publish-restart'], 1, messages=1000, cuts=3)
    gate = Gate(run['messages'])
    at: list[tuple[int, int]] = []

    async def fault(number: int) -> None:
        begin = run.done
        assert gate.epoch % 2 == 1
        # the fault lasts until messages pass that the gate had not released before it
        await until(lambda: run.done >= begin + 40, 'messages pass the gate')
        at.append((begin, run.done))

    async def work() -> None:
        while await gate.take() is not None:
            await asyncio.sleep(0)
            run.done += 1

    async with asyncio.TaskGroup() as group:
        group.create_task(gate.drive(run, fault))
        group.create_task(work())
    assert run.done == 1000
    assert gate.faults == 3
    assert gate.epoch == 6
    assert len(at) == 3
    assert all(0 < begin < end < 1000 for begin, end in at)


async def test_error_in_a_fault_ends_the_run() -> None:
    run = Run(PROOFS['publish-restart'], 1, messages=1000, cuts=1)
    gate = Gate(1000)

    async def fault(number: int) -> None:
        raise ProofError('no broker')

    async def work() -> None:
        while await gate.take() is not None:
            await asyncio.sleep(0)
            run.done += 1

    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with asyncio.TaskGroup() as group:
            group.create_task(gate.drive(run, fault))
            group.create_task(work())
    assert isinstance(caught.value.exceptions[0], ProofError)


def test_portions_are_complete_frames_if_possible() -> None:
    limit = SimpleNamespace(value=1000)
    assert list(portions(0, 1000, limit, 100, 300)) == [300, 300, 300, 100]
    limit.value = 10**6
    assert list(portions(950, 1234, limit, 100, 300)) == [200, 84]
    limit.value = 30
    source = portions(0, 100, limit, 100, 300)
    assert next(source) == 30
    limit.value = 100
    assert next(source) == 70


# -- runs and their results


def example(**settings: Any) -> Run:
    return Run(PROOFS['tasks'], 7, **settings)


async def execute(run: Run, prove: Callable[[Run, object], Awaitable[None]]) -> None:
    """Run this code as a proof."""
    bed: Any = SimpleNamespace(proxies=[Proxy(('', 0), port=9)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, 'code', lambda: prove)
        await run.execute(bed)


async def test_result_file(tmp_path: Path) -> None:
    run = example(messages=10)

    async def prove(run: Run, bed: object) -> None:
        run.done = 10
        run.check('a claim', True, 5)
        run.found['rate'] = 3

    await execute(run, prove)
    path = default_path(tmp_path / 'new', run)
    run.write(path, {'version': '4.0.5'})
    found = json.loads(path.read_text())
    assert found['verdict'] == 'holds'
    assert found['proof'] == 'tasks'
    assert found['seed'] == 7
    assert found['settings'] == {'messages': 10, 'tasks': 1000}
    assert found['checks'] == [{'what': 'a claim', 'holds': True, 'detail': '5'}]
    assert found['found']['proxies'][0]['bytes_up'] == 0
    assert found['environment']['brokers'] == {'rabbitmq': {'version': '4.0.5'}}
    assert run.summary()[0] == 'tasks, seed 7: holds'
    assert path.name.startswith('proof-tasks-')


@pytest.mark.parametrize('how', ['check', 'error', 'group', 'nothing'])
async def test_proof_fails_by_a_check_an_error_or_without_checks(how: str) -> None:
    run = example()

    async def prove(run: Run, bed: object) -> None:
        if how == 'nothing':
            return
        run.check('one', True)
        if how == 'check':
            run.check('two', False, 'far off')
        elif how == 'error':
            raise KeyError('x')
        else:
            raise ExceptionGroup('several', [KeyError('x')])

    await execute(run, prove)
    assert not run.holds
    assert run.report({})['verdict'] == 'fails'
    assert 'FAILS' in run.summary()[0]
    if how == 'check':
        assert '  NO  two (far off)' in run.summary()
    elif how != 'nothing':
        assert run.error == "KeyError: 'x'"


async def test_stuck_proof_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('proofs.run.STUCK', 0.05)
    run = example()

    async def prove(run: Run, bed: object) -> None:
        run.done = 1234
        await asyncio.get_running_loop().create_future()

    await execute(run, prove)
    assert run.error == 'ProofError: stuck: no progress for 0 s after 1,234 messages'


async def test_progress_of_a_proof_without_messages_counts_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr('perf.progress.INTERVAL', 0)
    seen = ''

    def shown() -> bool:
        nonlocal seen
        seen += capsys.readouterr().err
        return 'rtt: 2 steps\n' in seen

    async def prove(run: Run, bed: object) -> None:
        run.done = 2
        await until(shown, 'the steps are shown')

    run = Run(PROOFS['rtt'], 1)
    await execute(run, prove)
    assert not run.error


async def test_timeout_in_a_proof_does_not_count_as_stuck() -> None:
    run = example()

    async def prove(run: Run, bed: object) -> None:
        raise TimeoutError('mine')

    await execute(run, prove)
    assert run.error == 'TimeoutError: mine'


def test_unknown_setting() -> None:
    with pytest.raises(ValueError, match='tasks has no setting cuts'):
        example(cuts=5)


# -- the table and the command


def test_command_has_an_option_for_every_setting() -> None:
    for proof in PROOFS.values():
        assert set(proof.settings) <= set(SETTINGS)


def test_proofs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(['list']) == 0
    out = capsys.readouterr().out
    assert all(f'{name} ' in out for name in PROOFS)
    assert '--messages 1000000 --cuts 50' in out


@pytest.mark.parametrize(
    ('words', 'text'),
    [
        (['all'], "invalid choice: 'all' (choose from"),
        (['tasks', '--cuts', '5'], 'unrecognized arguments: --cuts 5'),
        (['tasks', '--by', 'flush'], 'unrecognized arguments: --by flush'),
        (['publish-cuts', '--by', 'body'], "invalid choice: 'body' (choose from"),
        (['consume-cuts', '--by', 'send'], "invalid choice: 'send' (choose from"),
        (['latency', '--unnamed'], 'unrecognized arguments: --unnamed'),
    ],
)
def test_wrong_commands(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match='2'):
        cli.main(words)
    assert text in capsys.readouterr().err


@pytest.mark.parametrize('holds', [True, False])
def test_exit_status(
    holds: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[Run, Path]] = []

    def run(run: Run, path: Path) -> None:
        run.check('it', holds)
        seen.append((run, path))

    monkeypatch.setattr('proofs.run.run', run)
    words = ['publish-cuts', '--seed', '3', '--messages', '10', '--unnamed', '--out', 'x']
    assert cli.main(words) == (0 if holds else 1)
    ((made, path),) = seen
    assert made.seed == 3
    assert made.settings == {**PROOFS['publish-cuts'].settings, 'messages': 10, 'unnamed': True}
    assert path == Path('x')
    assert ('holds' if holds else 'FAILS') in capsys.readouterr().out


def test_seed_is_random_and_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = []
    monkeypatch.setattr('proofs.run.run', lambda run, path: seeds.append(run.seed))
    for _ in range(2):
        cli.main(['tasks'])
    assert len(set(seeds)) == 2
    assert f'tasks, seed {seeds[1]}: FAILS' in capsys.readouterr().out


def test_seed_determines_random_choices() -> None:
    run = Run(PROOFS['cancels'], 5)
    assert run.random.random() == random.Random(5).random()


def test_round_trips_are_measured_with_fine_timers() -> None:
    with asyncio.Runner(loop_factory=loop_factory(PROOFS['rtt'])) as runner:
        loop: Any = runner.get_loop()
        assert isinstance(loop._selector, selectors.SelectSelector)
