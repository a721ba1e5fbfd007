"""Wait until other programs leave the processors idle."""

from collections.abc import Callable
from time import sleep

BUSY = 10.0  # per cent of the time of all processors
SAMPLE = 0.2  # seconds
PAUSE = 2.0  # seconds until the next sample


def wait(say: Callable[[str], None]) -> None:
    """Return once the processors have been idle for a moment.

    Brokers and lanes count too, but they rest between rounds.  Time that a hypervisor gives to
    other machines ("steal") counts as busy.

    :param say: called with a line of text if the processors are busy, and again afterwards.
    """
    used = processor_use()
    if used < BUSY:
        return
    say(f'waiting: other programs use {used:.0f} % of the processors')
    while processor_use() >= BUSY:
        sleep(PAUSE)
    say('continuing')


def processor_use() -> float:
    """Use of all processors in the next moment, in per cent."""
    import psutil  # type: ignore[import-untyped,unused-ignore]

    return float(psutil.cpu_percent(SAMPLE))
