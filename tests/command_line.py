"""Runs `rbfly` in a process of its own: in pipes, or in a terminal."""

import asyncio
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import rbfly.streams as rbs

COMMAND = [sys.executable, '-W', 'error', '-m', 'rbfly']
LIMIT = 60.0  # seconds for a command


def environment(**variables: str) -> dict[str, str]:
    """Return the environment without settings of the command line, and without a user's file."""
    names = {name for name in os.environ if name.startswith(('RBFLY_', '_RBFLY', 'XDG_'))}
    found = {name: value for name, value in os.environ.items() if name not in names}
    return found | {'RBFLY_CONFIG': os.devnull, 'COLUMNS': '100'} | variables


def patient(args: Iterable[str | Path], variables: dict[str, str]) -> list[str]:
    """Return the arguments, with more time to connect unless they say how much.

    RabbitMQ 4.0 sometimes accepts no connection for 5 s, see `until`: as long as the command waits.
    """
    words = [*map(str, args)]
    connects = 'RBFLY_URI' in variables or '--uri' in words
    own = {'--connect-timeout', '--profile', 'RBFLY_PROFILE', 'RBFLY_CONFIG', 'broker', 'doctor'}
    if not connects or own & {*words, *variables}:
        return words
    return ['--connect-timeout', '30', *words]


def rbfly(
    *args: str | Path, stdin: str | bytes = '', command: Any = COMMAND, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command until it ends.

    :param variables: of the environment.
    """
    done = subprocess.run(
        [*command, *patient(args, variables)],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        env=environment(**variables),
        timeout=LIMIT,
        check=False,
    )
    out, err = (data.decode(errors='surrogateescape') for data in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def interruptible() -> None:
    """Make Ctrl-C and SIGHUP effective.

    Processes in the background ignore Ctrl-C, those after `nohup` SIGHUP, with their children.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def started(
    *args: str, stderr: int = subprocess.PIPE, command: Any = COMMAND, **variables: str
) -> Iterator[Any]:
    """Start the command in pipes; kill it at the end if it still runs."""
    process = subprocess.Popen(
        [*command, *patient(args, variables)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=environment(**variables),
        preexec_fn=interruptible,
        bufsize=0,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


class Terminal:
    """The command in a pseudo-terminal.

    :ivar output: what it has written so far.
    """

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process = process
        self.output = ''
        self._fd = fd

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def read_until(self, text: str) -> str:
        """Read until the output contains a text, and return all output."""
        end = time.monotonic() + LIMIT
        while text not in self.output:
            assert self._read(end - time.monotonic()), self.output
        return self.output

    def wait(self) -> int:
        """Read until the command ends, and return its exit code."""
        end = time.monotonic() + LIMIT
        while self._read(end - time.monotonic()):
            pass
        return self.process.wait(LIMIT)

    def _read(self, seconds: float) -> bool:
        assert select.select([self._fd], [], [], max(0, seconds))[0], self.output
        data = b''
        with suppress(OSError):  # the command has ended
            data = os.read(self._fd, 65536)
        self.output += data.decode(errors='replace')
        return bool(data)


@contextmanager
def terminal_process(
    command: list[str], variables: dict[str, str], columns: int, folder: Path | None = None
) -> Iterator[Terminal]:
    """Start a command in a pseudo-terminal; kill it at the end if it still runs."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('HHHH', 30, columns, 0, 0))

    def prepare() -> None:
        interruptible()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=variables,
        cwd=folder,
        preexec_fn=prepare,
        start_new_session=True,
    )
    os.close(theirs)
    with process:
        try:
            yield Terminal(process, ours)
        finally:
            process.kill()
            os.close(ours)


@contextmanager
def in_terminal(*args: str, **variables: str) -> Iterator[Terminal]:
    """Start `rbfly` in a pseudo-terminal of 100 columns."""
    found = environment(TERM='xterm-256color', **variables)
    command = [*COMMAND, *patient(args, variables)]
    with terminal_process(command, found, 100) as terminal:
        yield terminal


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for what another process does."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def publish(uri: str, stream: str, *messages: Any, amqp: bool = True) -> None:
    """Publish messages, each in a chunk of its own."""

    async def main() -> None:
        async with (
            rbs.streams_client(uri) as client,
            client.publisher(stream, amqp=amqp) as publisher,
        ):
            for message in messages:
                await publisher.send(message)

    asyncio.run(main())


def bodies(uri: str, stream: str) -> list[Any]:
    """Return the bodies of all messages of a stream."""

    async def main() -> list[Any]:
        async with rbs.streams_client(uri) as client:
            found = client.subscribe(stream, offset=rbs.Offset.FIRST, until='now', timeout=20)
            return [body async for body in found]

    return asyncio.run(main())


@contextmanager
def super_stream(uri: str, name: str, partitions: int) -> Iterator[list[str]]:
    """Create a super stream, and delete it at the end."""

    async def change(create: bool) -> None:
        async with rbs.streams_client(uri) as client:
            if create:
                await client.super_stream(name).create(partitions=partitions)
            else:
                await client.super_stream(name).delete()

    asyncio.run(change(True))
    yield [f'{name}-{number}' for number in range(partitions)]
    asyncio.run(change(False))
