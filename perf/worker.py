"""The process of one lane: `python -m perf.worker LANE`, started by the runner.

The worker reads commands from standard input and answers on standard output, one JSON line each.
Output of the library goes to standard error.

    {"do": "open", "address": "...", "stream": "...", "ca_file": ""}   -> {"loop": "..."}
    {"do": "prepare", "count": 1000}                                   -> {}
    {"do": "run"}                                     -> {"count": 1000, "begun": ..., ...}

`begun` and `ended` are seconds of the machine's monotonic clock, which all processes share.  If the
kind of work has a delay, `prepare` measures a round trip and returns it as `round_trip`.  At the
end of its input the worker disconnects and exits.  A separate process per lane makes the CPU time
and peak memory of the process those of the lane.
"""

import asyncio
import gc
import importlib
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from time import perf_counter
from typing import Any

from . import clients, lanes
from .clients.base import Target, Work


def reset_peak() -> None:
    """Reset the peak memory of this process, if the kernel can (Linux)."""
    try:
        with open('/proc/self/clear_refs', 'w') as f:
            f.write('5')
    except OSError:
        pass


def peak_memory() -> int:
    """Peak resident memory in bytes.

    `ru_maxrss` is the fallback, because it includes the parent's memory from before `exec`.
    """
    try:
        with open('/proc/self/status') as f:
            for line in f:
                if line.startswith('VmHWM:'):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == 'darwin' else peak * 1024


async def measure(work: Work) -> dict[str, Any]:
    """Run the work once and time it."""
    gc.collect()
    reset_peak()
    before = resource.getrusage(resource.RUSAGE_SELF)
    begun = perf_counter()
    done = await work.run()
    ended = perf_counter()
    after = resource.getrusage(resource.RUSAGE_SELF)
    peak = peak_memory()
    await work.finish()
    return {
        'late': work.late,
        'histograms': {name: found.dump() for name, found in work.histograms.items()},
        'count': done,
        'begun': begun,
        'ended': ended,
        'cpu_user': after.ru_utime - before.ru_utime,
        'cpu_sys': after.ru_stime - before.ru_stime,
        'max_rss': peak,
    }


async def serve(lane: lanes.Lane, reply: Callable[[dict[str, Any]], None]) -> None:
    work: Work | None = None
    commands = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin
    )
    try:
        async for line in commands:
            command = json.loads(line)
            if command['do'] == 'open':
                ca_file = command.get('ca_file', '')
                target = Target(command['address'], command['stream'], ca_file)
                made = clients.make(lane, target)
                await made.open()
                work = made
                loop = type(asyncio.get_running_loop())
                reply({'loop': f'{loop.__module__}.{loop.__qualname__}'})
            elif command['do'] == 'prepare':
                assert work is not None
                far = lane.kind.delay is not None
                answer = {'round_trip': await work.round_trip()} if far else {}
                await work.prepare(command['count'])
                reply(answer)
            else:
                assert work is not None
                reply(await measure(work))
    finally:
        transport.close()
        if work is not None:
            await work.close()


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What creates the event loop of a lane; None for that of asyncio."""
    if name == 'none':
        return None
    create: Callable[[], asyncio.AbstractEventLoop]
    create = importlib.import_module('uvloop').new_event_loop
    if name == 'aiofastnet':
        create = importlib.import_module('aiofastnet').loop_factory(create)
    return create


def main(argv: list[str]) -> int:
    out = os.dup(1)
    os.dup2(2, 1)

    def reply(message: dict[str, Any]) -> None:
        os.write(out, json.dumps(message).encode() + b'\n')

    try:
        lane = lanes.find(argv[0])
        with asyncio.Runner(loop_factory=loop_factory(lane.use.loop)) as runner:
            runner.run(serve(lane, reply))
    except Exception as ex:
        reply({'error': f'{type(ex).__name__}: {ex}'})
        traceback.print_exc()
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
