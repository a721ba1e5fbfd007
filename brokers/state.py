"""
What all brokers use: folders, locks, ports, progress messages, and finding processes again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

STATE_VERSION = 2
RESERVED = 120.0  # seconds before a chosen port may be chosen again

# every broker process carries this environment variable; its value names the instance
MARKER = 'RBFLY_BROKER'


class BrokerError(Exception):
    """A broker cannot be started, reached or stopped; the message says why and what to do."""


# --- folders -----------------------------------------------------------------------------------


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """`$RBFLY_CACHE`, else `$XDG_CACHE_HOME/rbfly`, else `~/.cache/rbfly`."""
    env = os.environ if environ is None else environ
    if path := env.get('RBFLY_CACHE'):
        return Path(path).expanduser().absolute()
    if path := env.get('XDG_CACHE_HOME'):
        return Path(path).expanduser().absolute() / 'rbfly'
    return Path(env.get('HOME') or Path.home()) / '.cache' / 'rbfly'


def run_folder(name: str) -> Path:
    """The folder of an instance: its state, logs and data."""
    return cache_folder() / 'run' / name


@contextlib.contextmanager
def locked(name: str, progress: Progress | None = None) -> Iterator[None]:
    """Hold the lock of this name; wait if another process holds it."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f'{name}.lock', 'w') as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress:
                progress.say(f'waiting for another command to finish with {name}')
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def making(
    folder: Path, progress: Progress | None = None, lock: str | None = None
) -> Iterator[Path | None]:
    """Give a new folder that is renamed to `folder` when it is complete; None if that exists.

    :param lock: what other commands wait for; by default the name of the folder.
    """
    with locked(lock or f'make-{folder.name}', progress):
        if folder.is_dir():  # another process has finished first
            yield None
            return
        temporary = folder.with_name(f'{folder.name}.new')
        remove(temporary)
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(folder)


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Write the state file of an instance atomically."""
    temporary = folder / 'state.new'
    temporary.write_text(json.dumps({'version': STATE_VERSION, **state}, indent=1))
    temporary.replace(folder / 'state.json')


def read_state(folder: Path) -> dict[str, Any] | None:
    """Read the state file; None if it is missing, broken or of another version."""
    try:
        state = json.loads((folder / 'state.json').read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(state, dict) or state.get('version') != STATE_VERSION:
        return None
    return state


def remove(folder: Path) -> None:
    """Remove a folder; retry while its last processes may still be writing to it."""
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
    raise BrokerError(f'cannot remove {folder}: files remain after 5 s')


# --- processes ---------------------------------------------------------------------------------


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if it is not running."""
    try:
        stat = Path(f'/proc/{pid}/stat').read_text()
    except OSError:
        return None
    fields = stat[stat.rindex(')') + 2 :].split()  # the name can contain spaces and parentheses
    return None if fields[0] in 'ZX' else int(fields[19])


def is_running(pid: int, started: int) -> bool:
    """Whether the process still runs, and its PID was not reused."""
    return start_time(pid) == started


def processes_of(instance: str) -> list[int]:
    """PIDs of the processes whose environment carries the instance's marker."""
    pids = []
    marker = f'{MARKER}={instance}'.encode()
    for entry in Path('/proc').iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / 'environ').read_bytes()
            except OSError:
                continue
            if marker in environ.split(b'\0'):
                pids.append(int(entry.name))
    return pids


def wait_until(condition: Callable[[], bool], timeout: float, interval: float = 0.05) -> bool:
    """Poll the condition; return False on timeout."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(interval)
    return True


def sweep() -> None:
    """Remove the folders of dead private instances whose watcher could not do it."""
    for folder in (cache_folder() / 'run').glob('private-*-*'):
        owner = folder.name.split('-')[1]
        state = read_state(folder)
        if state is not None and state.get('main'):
            dead = not is_running(*state['main'])
        else:
            dead = not Path(f'/proc/{owner}').exists()
        if dead and time.time() - folder.stat().st_mtime > 10:
            remove(folder)


# --- ports -------------------------------------------------------------------------------------


def ephemeral_ports() -> range:
    """The port range the system uses for outgoing connections."""
    try:
        low, high = Path('/proc/sys/net/ipv4/ip_local_port_range').read_text().split()
    except (OSError, ValueError):
        low, high = '32768', '60999'
    return range(int(low), int(high) + 1)


def free_ports(count: int, *, avoid: range | None = None) -> list[int]:
    """
    Choose free ports on loopback.

    They lie outside the range for outgoing connections: otherwise a client connection could take
    the port of a broker that is restarting.
    """
    avoid = ephemeral_ports() if avoid is None else avoid
    candidates = [p for p in range(15_000, 65_000) if p not in avoid]
    if len(candidates) < 2_000:
        candidates = list(range(15_000, 65_000))
    random.SystemRandom().shuffle(candidates)
    ports: list[int] = []
    # A broker takes a few seconds to bind its ports: reserve them until then.
    with locked('ports'):
        file = cache_folder() / 'ports.json'
        now = time.time()
        reserved = json.loads(file.read_text()) if file.exists() else {}
        reserved = {port: when for port, when in reserved.items() if 0 <= now - when < RESERVED}
        for port in candidates:
            if len(ports) == count:
                break
            if str(port) in reserved:
                continue
            with socket.socket() as sock:
                try:
                    sock.bind(('127.0.0.1', port))
                except OSError:
                    continue
            ports.append(port)
        if len(ports) < count:
            raise BrokerError('not enough free ports on 127.0.0.1')
        file.write_text(json.dumps(reserved | dict.fromkeys(map(str, ports), now)))
    return ports


def accepts(host: str, port: int, timeout: float = 1) -> bool:
    """Whether the address accepts a TCP connection."""
    try:
        with socket.create_connection((host, port), timeout):
            return True
    except OSError:
        return False


# --- progress ----------------------------------------------------------------------------------


class Progress:
    """
    Reports progress on standard error.

    A terminal shows one line that is updated in place. Elsewhere, each step prints a line, and a
    long step another one every few seconds.
    """

    interval = 10.0

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._tty = not quiet and self._stream.isatty()
        self._step = ''
        self._started = 0.0
        self._printed = 0.0

    def say(self, text: str) -> None:
        """Print a line."""
        if not self._quiet:
            clear = '\r\x1b[K' if self._tty else ''
            print(f'{clear}brokers: {text}', file=self._stream, flush=True)

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """A named step; its duration is printed at the end."""
        before = self._step, self._started
        self._step, self._started = text, time.monotonic()
        self._printed = self._started
        if self._tty:
            self.update('')
        else:
            self.say(f'{text} ...')
        try:
            yield
        except BaseException:
            self.say(f'{text}: failed after {time.monotonic() - self._started:.1f} s')
            raise
        else:
            self.say(f'{text}: done in {time.monotonic() - self._started:.1f} s')
        finally:
            self._step, self._started = before

    def update(self, detail: str) -> None:
        """Show how far the current step has got; cheap enough to call often."""
        if self._quiet or not self._step:
            return
        now = time.monotonic()
        line = f'{self._step} {now - self._started:3.0f} s  {detail}'
        if self._tty and now - self._printed > 0.1:
            width = shutil.get_terminal_size().columns - 1
            print(f'\r\x1b[K{f"brokers: {line}"[:width]}', end='', file=self._stream, flush=True)
            self._printed = now
        elif not self._tty and now - self._printed > self.interval:
            self.say(line[:120])
            self._printed = now


def run_shown(
    argv: Sequence[str],
    progress: Progress,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run a long command and show its output as progress; on failure, raise its last lines."""
    last: list[str] = []
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors='replace',
        env=env,
        cwd=cwd,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line := line.strip():
                    last = [*last[-14:], line]
                    progress.update(line)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        text = '\n  '.join(last)
        raise BrokerError(f'{argv[0]} failed with exit code {process.returncode}:\n  {text}')
