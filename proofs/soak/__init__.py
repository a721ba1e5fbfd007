"""Soak: all ways of publishing and consuming at the same time, with random faults.

A soak runs in rounds with new streams.  In each round, activities use the client while faults
happen; then they finish, and the results are compared with what the broker has stored.
"""

import asyncio
import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import psutil  # type: ignore[import-untyped,unused-ignore]

import rbfly.streams as rbs

from ..checker import LOST, ORDER, REFUSED_STORED, TWICE
from ..history import Fault
from ..memory import check_growth, resident
from ..run import ProofError, Run
from ..test_bed import Bed, MemoryBed
from .activity import Activity, Scene, client_of
from .closing import Cancelling, Closing
from .everyday import SLOW, Everyday
from .groups import Groups
from .starting import Recreating, Starting
from .super_stream import SuperStream
from .threads import Threads

ROUNDS = {'memory': 10.0, 'rabbitmq': 60.0}  # seconds per round
END = 180.0  # seconds to finish a round after the faults
WARM_UP = 10  # the first tenth of the time is the warm-up, in which memory may grow
WARM_ROUNDS = 5  # minimum number of warm-up rounds, so a short soak does not check memory
SHIFT = 100.0  # maximum seconds by which a clock is moved
ACTIVITIES: dict[str, type[Activity]] = {
    'everyday': Everyday,
    'closing': Closing,
    'cancelling': Cancelling,
    'starting': Starting,
    'recreating': Recreating,
    'threads': Threads,
    'super': SuperStream,
    'groups': Groups,
}
NAMES = [*ACTIVITIES, 'clocks']


def chosen(run: Run, bed: Bed) -> set[str]:
    """The names of the activities of a round.

    :raises ProofError: one is unknown.
    """
    names = set(NAMES if run['doing'] == 'all' else run['doing'].split(','))
    if unknown := names - {*NAMES}:
        raise ProofError(f'unknown activity {min(unknown)}; known are {", ".join(NAMES)}')
    if not isinstance(bed, MemoryBed):
        names.discard('starting')  # it needs to see the broker's subscriptions
    return names


async def one_round(run: Run, bed: Bed, seconds: float) -> Counter[str]:
    """Run one round; return the violations."""
    names = chosen(run, bed)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(client_of(bed))
        if corrupting := 'everyday' in names and run.random.random() < 0.25:
            # A corrupt chunk with a valid CRC looks like a chunk of another stream.
            names -= {'starting', 'recreating', 'super', 'groups'}
        scene = Scene(run, bed, client, seconds, corrupting)
        activities = [make(scene) for name, make in ACTIVITIES.items() if name in names]
        for activity in activities:
            await stack.enter_async_context(activity.running())
        working = {
            asyncio.create_task(activity.run()): type(activity).__name__ for activity in activities
        }
        movable = [stream for activity in activities for stream in activity.movable]
        disturbing = asyncio.create_task(disturb(scene, movable, 'clocks' in names))
        try:
            async with asyncio.timeout(seconds + END):
                await asyncio.gather(disturbing, *working)
                for activity in activities:
                    task = asyncio.create_task(activity.calm())
                    working[task] = f'{type(activity).__name__} after the faults'
                await asyncio.gather(*working)
                for activity in activities:
                    await activity.check()
        except TimeoutError:
            late = [name for task, name in working.items() if task.cancelled() or not task.done()]
            raise ProofError(
                f'still running {END:.0f} s after the last fault: {", ".join(late)}'
            ) from None
        finally:
            for task in (disturbing, *working):
                task.cancel()
            await asyncio.wait([disturbing, *working])
    errors = Counter(run.found.get('errors raised', {})) + scene.failures
    run.found['errors raised'] = dict(errors)
    return +scene.wrong


async def disturb(scene: Scene, movable: Sequence[str], clocks: bool) -> None:
    """Cause random faults until the round is over, then end those that still last."""
    run, bed, rnd = scene.run, scene.bed, scene.random
    faults = bed.faults(rnd, movable)
    useless = {
        'stream unavailable': not movable,
        'leader moved': not movable,
        'messages refused': not scene.refusing,
        'chunk corrupted': not scene.corrupting,
        "broker's clock": not clocks,
    }
    for name in filter(useless.get, useless):
        faults.pop(name, None)
    clock = time.time
    if clocks:
        faults["client's clock"] = lambda: shift(clock, rnd.uniform(-SHIFT, SHIFT))
    try:
        while not scene.over():
            await asyncio.sleep(min(scene.seconds, rnd.uniform(0.05, 1.0)))
            name = rnd.choice(sorted(faults))
            begin = time.monotonic()
            await faults[name]()
            scene.faults.append(Fault(begin, time.monotonic(), name))
    finally:
        time.time = clock
        await bed.call('heal')
        made = Counter(fault.kind for fault in scene.faults)
        made += Counter(run.found.get('faults injected', {}))
        run.found['faults injected'] = dict(sorted(made.items()))


async def shift(clock: Callable[[], float], seconds: float) -> None:
    """Move the wall clock of this process, but not the clock of its event loop."""
    time.time = lambda: clock() + seconds


def left() -> Counter[str]:
    """Count the objects in this process that a client may leave behind."""
    gc.collect()
    kinds = {
        'subscriptions': rbs.Subscription,
        'publishers': rbs.Publisher,
        'clients': rbs.StreamsClient,
    }
    found: Counter[str] = Counter()
    for item in gc.get_objects():
        for name, cls in kinds.items():
            found[name] += isinstance(item, cls)
        found['futures'] += isinstance(item, asyncio.Future) and not item.done()
    found['tasks'] = len(asyncio.all_tasks())
    found['sockets'] = len(psutil.Process(os.getpid()).net_connections('tcp'))
    return found


async def soak(run: Run, bed: Bed) -> None:
    """Run rounds, at least two, until the time is over."""
    wrong: Counter[str] = Counter()
    grown: list[int] = []
    more: Counter[str] = Counter()
    seconds = run['seconds']
    begin = time.monotonic()
    await asyncio.to_thread(bed.about)  # opens what the soak itself keeps open
    rounds, before = 0, left()
    while ((past := time.monotonic() - begin) < seconds or rounds < 2) and not wrong:
        length = min(ROUNDS[run['on']], seconds / 2, max(1.0, seconds - past))
        wrong += await one_round(run, bed, length)
        rounds += 1
        more |= left() - before
        if past < seconds / WARM_UP or rounds <= WARM_ROUNDS:
            grown.clear()
        grown.append(resident())
    run.found['rounds'] = rounds
    run.check(
        'every call ended in time', not wrong.pop(SLOW, 0), f'{run.found.get("calls", 0):,} calls'
    )
    for what in (LOST, TWICE, ORDER, REFUSED_STORED):
        found = {label: wrong.pop(label) for label in list(wrong) if label.endswith(what)}
        run.check_none(f'no message {what}', found)
    run.check_none('no other violation', dict(wrong))
    check_growth(run, grown)
    run.check_none('no task, socket, subscription or future is left', dict(more))
