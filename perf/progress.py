"""Progress on standard error: a tqdm bar on a terminal, otherwise a line every few seconds."""

import importlib
import os
import sys
from time import monotonic
from typing import Any

INTERVAL = 10.0  # seconds between two lines
FORMAT = '{l_bar}{bar}| {n_fmt} of {total_fmt} [{elapsed}<{remaining}{postfix}]'


def clock(seconds: float) -> str:
    """Format a time as 1:02 or 1:02:03."""
    minutes, secs = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f'{hours}:{minutes:02}:{secs:02}' if hours else f'{minutes}:{secs:02}'


class Progress:
    """The number of steps done, and the time left if the total is not None."""

    def __init__(self, total: int | None, title: str, unit: str) -> None:
        self.total = total
        self.title = title
        self.unit = unit
        self.done = 0
        self.note = ''
        self.start = self.printed = monotonic()
        self.bar: Any = None
        if sys.stderr.isatty():
            try:
                tqdm = importlib.import_module('tqdm').tqdm
            except ImportError:
                pass
            else:
                # a pseudo-terminal may report no rows, in which case tqdm would print nothing
                known = all(os.get_terminal_size(sys.stderr.fileno()))
                many = total is not None and total >= 100_000
                self.bar = tqdm(
                    total=total,
                    desc=title,
                    unit=f' {unit}',
                    unit_scale=many,
                    bar_format=None if many else FORMAT,
                    dynamic_ncols=known,
                    ncols=None if known else 80,
                    nrows=None if known else 24,
                )

    def __enter__(self) -> 'Progress':
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def doing(self, note: str) -> None:
        """Show a note after the bar, e.g. the lane that runs."""
        self.note = note
        if self.bar is not None:
            self.bar.set_postfix_str(note)

    def step(self, n: int = 1) -> None:
        """Count completed steps."""
        self.done += n
        if self.bar is not None:
            self.bar.update(n)
            return
        now = monotonic()
        total = self.total
        if now - self.printed > INTERVAL or self.done == total:
            self.printed = now
            of, left = '', ''
            if total is not None:
                of = f' of {total:,}'
                left = f', {clock((now - self.start) * (total / self.done - 1))} left'
            text = f'{self.title}: {self.done:,}{of} {self.unit}{left}'
            print(text, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print a permanent line above the bar."""
        if self.bar is not None:
            self.bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)
