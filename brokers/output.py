"""Run commands whose output may be piped into a program that stops reading, such as `head`."""

import os
import select
import signal
import sys
from collections.abc import Callable

__all__ = ['run']

UNREAD = 128 + signal.SIGPIPE  # how shells report that SIGPIPE ended a process


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
        return UNREAD
