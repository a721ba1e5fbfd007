"""If an allocation of the publish window fails, every waiting call still gets an outcome."""

import _testcapi  # type: ignore[import-not-found]
import functools
import os
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from rbfly.amqp import stream_message_ctx
from rbfly.protocol._entry import SubEntry
from rbfly.protocol._pending import ConfirmWaiter
from rbfly.protocol._publish import PublishWindow
from tests.protocol.test_publish_window import Feed, take_all
from tests.stream_wire import read_publish

COUNT = 13
UNLIMITED = 0
BODY = b'x' * 1000
CHILDREN = 4
HANG = 60.0  # seconds

pytestmark = pytest.mark.filterwarnings('ignore:.*fork:DeprecationWarning')

Waiters = list[ConfirmWaiter]
ways = pytest.mark.parametrize('way', ['given up', 'resent'])


def run_in_child(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a forked child, so that no other thread's allocation fails.

    Under AddressSanitizer, the child hangs if it was forked while another thread, such as that of
    pytest-xdist, allocated memory: then there is another one.
    """

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        for _ in range(CHILDREN):
            pid = os.fork()
            if pid == 0:
                try:
                    test(**arguments)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            status = exit_status(pid)
            if status is not None:
                break
        assert status == 0

    return run


def exit_status(pid: int) -> int | None:
    """Return the exit status of a child; kill it, and return None, if it hangs."""
    limit = time.monotonic() + HANG
    while time.monotonic() < limit:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def fails_at(number: int, call: Callable[[], Any]) -> bool:
    """Call a function, let its nth allocation fail, and return whether it raised MemoryError."""
    try:
        _testcapi.set_nomemory(number, number + 1)
        call()
    except MemoryError:
        return True
    finally:
        _testcapi.remove_mem_hooks()
    return False


def make(*, sub_entry_size: int = 0, unit: int = 1) -> PublishWindow:
    sub_entry = SubEntry(sub_entry_size, 0, None) if sub_entry_size else None
    return PublishWindow(3, 3000 * unit, 1000, 0, None, False, sub_entry)


def finish(window: PublishWindow, way: str) -> Waiters:
    """Give up the unconfirmed messages, or resend and confirm them; return the notified waiters."""
    if way == 'given up':
        return window.fail_pending()
    try:
        notified = window.replay(3, UNLIMITED)
    except MemoryError:  # the bytes of a frame were lost
        return window.fail_pending()
    frames = take_all(window)
    assert bool(frames) is bool(window.unsettled)
    return notified + Feed(window).confirm(*range(COUNT))


def check(window: PublishWindow, notified: Waiters, waiters: Waiters) -> None:
    assert len(notified) == len(waiters)
    assert set(notified) == set(waiters)
    assert not any(waiter.remaining for waiter in waiters)
    assert (window.unsettled, window.in_flight, window.queued) == (0, 0, 0)
    assert window.take() is None


@ways
@pytest.mark.parametrize(
    ('sub_entry_size', 'frame_max'), [(0, UNLIMITED), (2, UNLIMITED), (0, 1500), (0, 500)]
)
@pytest.mark.parametrize('unit', [1, 20])  # short and large bodies
@run_in_child
def test_no_memory_to_resend_messages(
    sub_entry_size: int, frame_max: int, unit: int, way: str
) -> None:
    """Some frames are confirmed, some are in flight; smaller new frames do not fit all."""
    number, failed = 0, True
    while failed:
        window = make(sub_entry_size=sub_entry_size, unit=unit)
        waiters = [ConfirmWaiter(i, True) for i in range(COUNT)]
        for i, waiter in enumerate(waiters):
            window.append(BODY * unit, waiter)
            if i < 3:
                take_all(window)
        take_all(window)
        notified = Feed(window).confirm(0, 2)

        refused: list[Waiters] = [[]]

        def replay(window: PublishWindow = window, refused: list[Waiters] = refused) -> None:
            refused[0] = window.replay(4, frame_max * unit)

        number += 1
        failed = fails_at(number, replay)
        notified += refused[0] + finish(window, way)
        check(window, notified, waiters)
    assert number > 3


@ways
@run_in_child
def test_no_memory_to_withdraw_messages(way: str) -> None:
    for number in range(1, 60):
        window = make()
        waiters = [ConfirmWaiter(None, True) for _ in range(COUNT)]
        for waiter in waiters:
            window.append(BODY, waiter)
        window.take()

        def give_up(window: PublishWindow = window, waiters: Waiters = waiters) -> None:
            for i in range(5, COUNT):
                window.give_up(i, waiters[i])

        fails_at(number, give_up)
        give_up()
        assert window.unsettled == 5
        check(window, finish(window, way), waiters[:5])


@ways
@run_in_child
def test_no_memory_to_join_a_message(way: str) -> None:
    number, failed = 0, True
    message = stream_message_ctx(BODY, publish_id=0)
    while failed:
        window = make()
        first, second = ConfirmWaiter(None, True), ConfirmWaiter(None, True)
        window.append(message, first)

        def join(window: PublishWindow = window, second: ConfirmWaiter = second) -> None:
            window.join(message, second)

        number += 1
        failed = fails_at(number, join)
        [notified] = finish(window, way)
        assert (notified.future == [first, second]) is not failed
    assert number > 1


@pytest.mark.parametrize('before', [0, 1])
@ways
@run_in_child
def test_no_memory_to_append_a_large_message(before: int, way: str) -> None:
    """The message is not in the window, or is whole; the next one follows it."""
    number, failed = 0, True
    while failed:
        window = make(unit=20)
        waiters = [ConfirmWaiter(i, True) for i in range(before)]
        for waiter in waiters:
            window.append(BODY * 20, waiter)
        last = ConfirmWaiter(None, True)

        def append(window: PublishWindow = window, last: ConfirmWaiter = last) -> None:
            window.append(BODY * 20, last)

        number += 1
        failed = fails_at(number, append)
        if not failed:
            waiters.append(last)
        waiters.append(ConfirmWaiter('next', True))
        window.append(b'next', waiters[-1])
        frames = take_all(window)
        entries = [entry for data in frames for entry in read_publish(data)[1]]
        sizes = [20_000] * before + [20_000] * (not failed) + [4]
        assert [len(body) for _, body in entries] == sizes
        check(window, finish(window, way), waiters)
    assert number > 1 or before  # a second body may need no memory
