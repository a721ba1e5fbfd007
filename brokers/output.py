"""Standard output whose reader may leave, as `head` does."""

import os
import select
import signal
import sys
from collections.abc import Callable

__all__ = ['run']

UNREAD = 128 + signal.SIGPIPE  # exit status that shells give to what SIGPIPE ended


def run(main: Callable[[], int]) -> int:
    """Run a command; its exit status. It ends silently once nobody reads its output."""
    try:
        try:
            return main()
        finally:
            print(end='', flush=True)
    except BrokenPipeError:
        poll = select.poll()
        poll.register(sys.stdout, 0)  # for errors only
        if not poll.poll(0):
            raise  # it was another pipe, or a socket
        # what is left in the buffer is written when the interpreter ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
