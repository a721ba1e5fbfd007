"""Runs the programs of `examples` and `tests/programs`, each in a process of its own."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tests.brokers import until

HANG = 60.0  # seconds; only a bug makes a test wait that long
FOLDER = Path(__file__).parent / 'programs'
EXAMPLES = Path(__file__).parents[1] / 'examples'
PYTHON = (sys.executable, '-X', 'dev', '-W', 'error')


@contextlib.asynccontextmanager
async def started(
    name: str, *arguments: object, output: Path | None = None, **environ: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program; kill it at the end.

    :param name: of the program; `examples/worker` is one of `examples`.
    :param output: file for what it prints; None for a pipe.
    :param environ: variables of its environment.
    """
    with contextlib.ExitStack() as stack:
        target = (
            asyncio.subprocess.PIPE if output is None else stack.enter_context(output.open('ab'))
        )
        process = await asyncio.create_subprocess_exec(
            *PYTHON,
            str(path_of(name)),
            *map(str, arguments),
            stdout=target,
            env=os.environ | {'PYTHONUNBUFFERED': '1'} | environ,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def run(name: str, *arguments: object) -> list[str]:
    """Run a program to its end; return the lines that it prints."""
    async with started(name, *arguments) as process, asyncio.timeout(HANG):
        printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode().splitlines()


def handles(process: asyncio.subprocess.Process, number: signal.Signals) -> bool:
    """Return whether a program has a handler for a signal."""
    status = Path(f'/proc/{process.pid}/status').read_text()
    [caught] = re.findall(r'^SigCgt:\s*(\w+)$', status, re.MULTILINE)
    return bool(int(caught, 16) & 1 << (number - 1))


async def end(process: asyncio.subprocess.Process) -> None:
    """Stop a program by SIGTERM, once it handles that."""
    await until(lambda: handles(process, signal.SIGTERM), 'the program handles SIGTERM', HANG)
    process.terminate()
    async with asyncio.timeout(HANG):
        assert await process.wait() == 0


def path_of(name: str) -> Path:
    folder, _, program = name.rpartition('/')
    return (EXAMPLES if folder == 'examples' else FOLDER / folder) / f'{program}.py'
