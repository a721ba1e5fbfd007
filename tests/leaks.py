"""Finds what a test left behind: tasks, sockets, pending futures."""

import asyncio
import gc
import os
import socket
import time
from dataclasses import dataclass, field

SETTLE_TIMEOUT = 5.0  # seconds until closed objects must be gone
SETTLE_LOOKS = 100  # at least: a busy machine may not run this process for seconds


def sockets() -> set[str]:
    """Open network sockets of this process, by inode, without those of event loops."""
    found = set()
    for name in os.listdir('/proc/self/fd'):
        try:
            target = os.readlink(f'/proc/self/fd/{name}')
            if target.startswith('socket:'):
                with socket.socket(fileno=os.dup(int(name))) as item:
                    if item.family in (socket.AF_INET, socket.AF_INET6):
                        found.add(target)
        except OSError:
            continue  # closed in the meantime
    return found


def tasks() -> set['asyncio.Task[object]']:
    return asyncio.all_tasks() - {asyncio.current_task()}


def pending_futures() -> dict[int, 'asyncio.Future[object]']:
    """Futures of this loop that are not done, and still referenced."""
    gc.collect()
    loop = asyncio.get_running_loop()
    return {
        id(item): item
        for item in gc.get_objects()
        if isinstance(item, asyncio.Future)
        and not isinstance(item, asyncio.Task)
        and not item.done()
        and item.get_loop() is loop
    }


@dataclass
class Snapshot:
    """The current tasks, sockets and futures, for a later comparison."""

    futures: bool = False
    sockets: set[str] = field(default_factory=sockets)
    tasks: set['asyncio.Task[object]'] = field(default_factory=tasks)
    known: 'dict[int, asyncio.Future[object]]' = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.futures:
            self.known = pending_futures()

    def new(self) -> list[str]:
        """Return what was created since, and still exists."""
        found = [f'task {item!r}' for item in tasks() - self.tasks]
        found += [f'socket {item}' for item in sockets() - self.sockets]
        if self.futures and not found:
            found += [
                f'future {item!r}'
                for key, item in pending_futures().items()
                if self.known.get(key) is not item
            ]
        return found

    async def check(self) -> None:
        """Wait until nothing new is left; fail after a timeout.

        A transport takes a few turns of the loop to close its socket.
        """
        limit, looks = time.monotonic() + SETTLE_TIMEOUT, 0
        while found := self.new():
            looks += 1
            if time.monotonic() > limit and looks > SETTLE_LOOKS:
                raise AssertionError('left behind: ' + '; '.join(found))
            await asyncio.sleep(0.01)
