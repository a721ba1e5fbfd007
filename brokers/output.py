"""What the commands of `python -m` share: one line for an error, exit codes, a closed pipe.

Exit codes are those of the command `rbfly`: 0 also if the reader of the output has gone, 1 for a
failure, 2 for wrong arguments, 130 and 143 after Ctrl-C and SIGTERM.
"""

import argparse
import asyncio
import os
import select
import signal
import sys
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, NoReturn, TypeVar

__all__ = ['Parser', 'Terminated', 'guarded', 'raise_on_sigterm', 'run', 'run_coroutine']

T = TypeVar('T')

FAILED = 1
WRONG_ARGUMENTS = 2


class Parser(argparse.ArgumentParser):
    """Describes wrong arguments in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_ARGUMENTS, f'{self.prog}: {message} (see `{self.prog} --help`)\n')


class Terminated(KeyboardInterrupt):
    """SIGTERM has arrived."""


def raise_on_sigterm() -> None:
    """Let SIGTERM end this process as Ctrl-C does, so that it can clean up."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)


def run_coroutine(
    main: Coroutine[Any, Any, T],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Run a coroutine; SIGTERM cancels it as Ctrl-C does.

    A callback of the event loop would lose the error that `raise_on_sigterm` raises.
    """
    terminated = False

    async def cancellable() -> T:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()

        def terminate(number: int, frame: FrameType | None) -> None:
            nonlocal terminated
            terminated = True
            task.cancel()
            loop.call_soon_threadsafe(lambda: None)  # wakes the event loop up

        before = signal.signal(signal.SIGTERM, terminate)
        try:
            return await main
        finally:
            signal.signal(signal.SIGTERM, before)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        try:
            return runner.run(cancellable())
        except asyncio.CancelledError:
            if not terminated:
                raise
    raise Terminated


def guarded(
    name: str,
    call: Callable[[], int],
    failures: tuple[type[Exception], ...],
    mistakes: tuple[type[Exception], ...],
) -> int:
    """Run a command, and return its exit code; describe its error in one line.

    :param name: what the line begins with.
    :param failures: classes of errors that the user can understand.
    :param mistakes: classes of errors that wrong arguments cause.
    """
    try:
        return call()
    except BrokenPipeError:  # see `run`
        raise
    except (*mistakes, *failures) as ex:
        print(f'{name}: {" ".join(str(ex).split())}', file=sys.stderr, flush=True)
        return WRONG_ARGUMENTS if isinstance(ex, mistakes) else FAILED
    except KeyboardInterrupt as ex:
        print(f'{name}: interrupted', file=sys.stderr, flush=True)
        return 128 + (signal.SIGTERM if isinstance(ex, Terminated) else signal.SIGINT)


def run(main: Callable[[], int]) -> int:
    """Run a command and return its exit status; end silently if standard output is closed."""
    if sys.stdout is None:  # closed before the start: argparse would print help as an error
        sys.stdout = open(os.devnull, 'w')  # noqa: SIM115 - until the process ends
    try:
        try:
            return main()
        finally:
            print(end='', flush=True)
    except BrokenPipeError:
        poll = select.poll()
        poll.register(sys.stdout, 0)  # for errors only
        if not poll.poll(0):
            raise  # another pipe or socket broke
        # the interpreter flushes the buffer at exit, which would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
