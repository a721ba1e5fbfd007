"""Brokers and lanes on separate processors.

Otherwise the kernel moves a broker and a lane, which wait for each other, between processors, and
rates vary severalfold from round to round.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

from . import CommandError, cost
from .store import Store


@contextmanager
def pinned(stores: Mapping[str, Store]) -> Iterator[None]:
    """Restrict brokers, and this process with the processes that it starts, to separate processors.

    Each side has half of the processors that this process may use, until the context ends.

    :param stores: the brokers, by name.
    :raises CommandError: a broker is not on this machine, consists of several processes, or cannot
        be restricted; there is only one processor; or the system is not Linux.
    """
    if not hasattr(os, 'sched_setaffinity'):
        raise CommandError('--pin requires Linux')
    everything = sorted(os.sched_getaffinity(0))
    half = len(everything) // 2
    if not half:
        raise CommandError('--pin requires at least two processors')
    for name in stores:
        if name.partition('-')[2] not in ('', 'tls'):
            raise CommandError(f'--pin is not possible with the broker {name}')
    with ExitStack() as stack:
        try:
            ports = {cost.port_of(store.address) for store in stores.values()}
            pids = {pid for port in ports for pid in cost.processes(port)}
            for pid in pids:
                restrict(stack, pid, everything[:half])
            restrict(stack, os.getpid(), everything[half:])
        except OSError as ex:
            raise CommandError(f'--pin: {ex}') from None
        yield


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
