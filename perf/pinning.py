"""Brokers and lanes on separate processors.

Otherwise the kernel moves a broker and a lane, which wait for each other, between processors, and
rates vary severalfold from round to round.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path

from . import CommandError, cost
from .lanes import Lane
from .store import Store

PROCESSORS = Path('/sys/devices/system/cpu')


@contextmanager
def pinned(stores: Mapping[str, Store]) -> Iterator[None]:
    """Restrict brokers, and this process with the processes that it starts, to separate processors.

    Each side has half of the processor cores that this process may use, until the context ends;
    lanes have one more if the number is odd.

    :param stores: the brokers, by name.
    :raises CommandError: a broker is not on this machine, consists of several processes, or cannot
        be restricted; there is only one processor; or the system is not Linux.
    """
    if not hasattr(os, 'sched_setaffinity'):
        raise CommandError('--pin requires Linux')
    broker_side, own_side = halves(os.sched_getaffinity(0))
    if not broker_side:
        raise CommandError('--pin requires at least two processors')
    for name in stores:
        if name.partition('-')[2] not in ('', 'tls'):
            raise CommandError(f'--pin is not possible with the broker {name}')
    with ExitStack() as stack:
        try:
            ports = {cost.port_of(store.address) for store in stores.values()}
            pids = {pid for port in ports for pid in cost.processes(port)}
            for pid in pids:
                restrict(stack, pid, broker_side)
            restrict(stack, os.getpid(), own_side)
        except OSError as ex:
            raise CommandError(f'--pin: {ex}') from None
        yield


def can_poll(lane: Lane) -> bool:
    """Whether `--pin` leaves RbFly a second processor, without which it does not poll.

    True for lanes that do not poll, and for floors.  Quotas of cgroups are not considered.
    """
    if not lane.polls or lane.library.is_floor or not hasattr(os, 'sched_getaffinity'):
        return True
    return len(halves(os.sched_getaffinity(0))[1]) > 1


def halves(processors: Iterable[int]) -> tuple[list[int], list[int]]:
    """Divide processors by cores; those of a single core, by threads."""
    cores: dict[str, list[int]] = {}
    for number in sorted(processors):
        cores.setdefault(siblings(number), []).append(number)
    parts = list(cores.values())
    if len(parts) == 1:
        parts = [[number] for number in parts[0]]
    half = len(parts) // 2
    return [*chain(*parts[:half])], [*chain(*parts[half:])]


def siblings(number: int) -> str:
    """The processors of the same core, in the notation of Linux."""
    try:
        return (PROCESSORS / f'cpu{number}/topology/thread_siblings_list').read_text().strip()
    except OSError:  # the kernel does not say
        return str(number)


def restrict(stack: ExitStack, pid: int, processors: Iterable[int]) -> None:
    """Restrict a process until the stack closes."""
    with suppress(ProcessLookupError):  # it has ended
        stack.callback(move, pid, os.sched_getaffinity(pid))
        move(pid, processors)


def move(pid: int, processors: Iterable[int]) -> None:
    """Restrict all threads of a process; threads that they start later inherit it."""
    import psutil  # type: ignore[import-untyped,unused-ignore]

    with suppress(psutil.NoSuchProcess):
        for thread in psutil.Process(pid).threads():
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(thread.id, processors)
