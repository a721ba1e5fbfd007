"""What a program does when the reader of its output has gone, as in `| head`."""

import os
import sys


def discard_output() -> None:
    """Redirect stdout, whose reader has gone: Python flushes its buffer at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def flush_output() -> None:
    """Flush the buffer of stdout; discard it if it cannot be written: the command has reported the
    error."""
    try:
        print(end='', flush=True)
    except OSError:
        discard_output()
