"""
Sandboxes: isolated places in which a broker's processes live and die together.

A sandbox has one main process; killing it kills everything inside. `run` and `spawn` start more
commands, including the nodes of a broker. The instance's `srv` folder is mounted as `/srv`
in a root filesystem or container, so a broker's configuration uses the same paths in both.

`Root`: a Debian root filesystem in its own mount and process namespaces.
`Container`: the same, run by a container engine.
`Host`: the host system, for brokers that only need Java.
"""

from __future__ import annotations

import abc
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .state import MARKER, BrokerError, is_running, processes_of, start_time, wait_until

NOFILE = 65536

# Outside: waits for the sandbox to end, records that, and removes a private instance's folder.
# Arguments: the folder, 1 to remove it, the command.
OUTER = """
folder=$1; private=$2; shift 2
"$@"
: >"$folder/ended"
[ "$private" = 1 ] && rm -rf "$folder"
"""

# Inside: runs the main process. A private instance ends when the last process closes the pipe that
# is standard input here. Arguments: 1 if private, the command.
WATCH = """
private=$1; shift
exec 3<&0 </dev/null
"$@" 3<&- &
main=$!
if [ "$private" = 1 ]; then
    { cat <&3 >/dev/null; kill -KILL "$main"; } &
    exec 3<&-
fi
wait "$main"
"""

# The PID of this process in the host's namespace, read before /proc is replaced.
ANNOUNCE = 'read -r pid rest </proc/self/stat'
ANNOUNCED = 'echo "$pid" >"$folder/main.new" && mv "$folder/main.new" "$folder/main"'

ROOT_MOUNTS = """
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
"""

# Arguments: root, folder, then the arguments of WATCH.
ROOT_MAIN = f"""
set -e
root=$1; folder=$2; shift 2
{ANNOUNCE}
{ROOT_MOUNTS}
mount --bind "$folder/srv" "$root/srv"
chroot "$root" chown -R rabbitmq:rabbitmq /srv
{ANNOUNCED}
set +e
{WATCH}
"""

# Arguments: folder, then the arguments of WATCH.
HOST_MAIN = f"""
folder=$1; shift
{ANNOUNCE}
{ANNOUNCED}
{WATCH}
"""

# Arguments: the owner of /srv, then the arguments of WATCH.
CONTAINER_MAIN = f"""
owner=$1; shift
[ -z "$owner" ] || chown -R "$owner" /srv
: >/srv/.prepared
{WATCH}
"""

# Raise the limit of open files to what a broker wants, or to the hard limit.
LIMITS = f'ulimit -n {NOFILE} 2>/dev/null || ulimit -n "$(ulimit -H -n)"; exec "$@"'

UNSHARE = ('unshare', '--mount', '--pid', '--fork', '--kill-child', '--')


def env_arguments(env: Mapping[str, str]) -> list[str]:
    """Arguments of `env` that replace the whole environment with these variables."""
    return ['env', '-i', *(f'{k}={v}' for k, v in env.items())]


class Sandbox(abc.ABC):
    """A sandbox; see the module docstring."""

    kind: str
    starting = 'making namespaces'

    def __init__(self, folder: Path, instance: str) -> None:
        self.folder = folder
        self.instance = instance
        self._lifeline: int | None = None

    # what subclasses implement

    @abc.abstractmethod
    def main_command(self, argv: Sequence[str], env: Mapping[str, str], private: bool) -> list[str]:
        """The host command whose lifetime is the sandbox's."""

    @abc.abstractmethod
    def command(
        self, argv: Sequence[str], env: Mapping[str, str], *, user: str | None = None
    ) -> list[str]:
        """The host command that runs `argv` in the sandbox."""

    @abc.abstractmethod
    def alive(self) -> bool:
        """Whether the main process is running."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Kill everything in the sandbox and wait until it has ended."""

    def save(self) -> dict[str, Any]:
        """The state that `load` needs."""
        # 'room' in the state files of brokers that may be running
        return {'room': self.kind, 'instance': self.instance}

    # what they inherit

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment of a process in the sandbox."""
        path = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
        return {'PATH': path, 'LANG': 'C.UTF-8', **env, MARKER: self.instance}

    def start(self, argv: Sequence[str], env: Mapping[str, str], *, private: bool) -> None:
        """Start the sandbox with this main process, in a new session."""
        command = [
            'setsid',
            '--fork',
            'sh',
            '-c',
            OUTER,
            'sh',
            str(self.folder),
            str(int(private)),
            *self.main_command(argv, self.environment(env), private),
        ]
        read_end = -1
        if private:
            lifeline = self.folder / 'lifeline'
            os.mkfifo(lifeline)
            read_end = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)
            os.set_blocking(read_end, True)
            self.hold()
        with open(self.folder / 'sandbox.log', 'w+b') as log:
            try:
                subprocess.run(
                    command,
                    stdin=read_end if private else subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    check=True,
                    env={**os.environ, MARKER: self.instance},
                )
            finally:
                if private:
                    os.close(read_end)
            wait_until(lambda: self._ended() or self.alive(), self.start_timeout)
            if not self.alive():
                log.seek(0)  # a private instance's file may already be deleted
                text = log.read().decode(errors='replace').strip()
                raise BrokerError(f'the main process did not start:\n{text}')

    def _ended(self) -> bool:
        return (self.folder / 'ended').exists() or not self.folder.exists()

    start_timeout = 10.0

    def log(self) -> str:
        """The end of the main process's output."""
        try:
            return (self.folder / 'sandbox.log').read_text(errors='replace')[-2000:].strip()
        except OSError:
            return ''

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        user: str | None = None,
        timeout: float | None = 60,
    ) -> str:
        """Run a command in the sandbox and return its output; `BrokerError` if it fails."""
        command = self.command(argv, self.environment(env or {}), user=user)
        try:
            result = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors='replace',
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            raise BrokerError(f'{" ".join(argv)}: timed out after {timeout} s') from None
        if result.returncode:
            text = (result.stderr + result.stdout).strip()
            raise BrokerError(f'{" ".join(argv)}: exit code {result.returncode}: {text}')
        return result.stdout

    def spawn(self, argv: Sequence[str], env: Mapping[str, str], *, user: str, out: str) -> None:
        """Start a command in the background; it writes `out.log` and, on exit, `out.exit`."""
        script = 'out=$1; shift; rm -f "$out.exit"; "$@" >>"$out.log" 2>&1; echo $? >"$out.exit"'
        command = self.command(
            ['sh', '-c', script, 'sh', out, *argv], self.environment(env), user=user
        )
        subprocess.run(
            ['setsid', '--fork', *command],
            check=True,
            env={**os.environ, MARKER: self.instance},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def hold(self) -> bool:
        """Open the pipe that keeps a private sandbox alive; return False if it has ended."""
        try:
            self._lifeline = os.open(self.folder / 'lifeline', os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return False
        fcntl.flock(self._lifeline, fcntl.LOCK_SH)
        return True

    def held_by_others(self) -> bool:
        """Whether someone else also holds the pipe; then release it, or else end the sandbox."""
        assert self._lifeline is not None
        try:
            fcntl.flock(self._lifeline, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False

    def release(self) -> None:
        """Close the pipe; the sandbox ends when the last holder does."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def _main(self) -> tuple[int, int] | None:
        """PID and start time of the main process, once it has announced itself."""
        try:
            pid = int((self.folder / 'main').read_text())
        except (OSError, ValueError):
            return None
        started = start_time(pid)
        return None if started is None else (pid, started)

    def _gone(self) -> None:
        """Wait until no process carries the marker; after 5 s, kill those that remain."""

        def empty() -> bool:
            return not processes_of(self.instance)

        if not wait_until(empty, 5):
            for pid in processes_of(self.instance):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not wait_until(empty, 5):
                raise BrokerError(f'cannot kill processes {processes_of(self.instance)}')


class Local(Sandbox):
    """A sandbox whose main process runs on the host system."""

    def __init__(self, folder: Path, instance: str, main: tuple[int, int] | None = None) -> None:
        super().__init__(folder, instance)
        self.main = main

    def alive(self) -> bool:
        self.main = self.main or self._main()
        return self.main is not None and is_running(*self.main)

    def kill(self) -> None:
        self.release()
        main = self.main or self._main()
        if main is not None and is_running(*main):
            with contextlib.suppress(ProcessLookupError):
                os.kill(main[0], signal.SIGKILL)
        self._gone()

    def save(self) -> dict[str, Any]:
        return {**super().save(), 'main': self.main}


class Root(Local):
    """A Debian root filesystem in its own mount and process namespaces."""

    kind = 'root'

    def __init__(
        self, folder: Path, instance: str, root: Path, main: tuple[int, int] | None = None
    ) -> None:
        super().__init__(folder, instance, main)
        self.root = root

    def main_command(self, argv: Sequence[str], env: Mapping[str, str], private: bool) -> list[str]:
        return [
            *UNSHARE,
            'sh',
            '-c',
            ROOT_MAIN,
            'sh',
            str(self.root),
            str(self.folder),
            str(int(private)),
            *self.inside(argv, env, 'rabbitmq'),
        ]

    def command(
        self, argv: Sequence[str], env: Mapping[str, str], *, user: str | None = None
    ) -> list[str]:
        if not self.alive() or self.main is None:
            raise BrokerError('the broker is not running; start it first')
        return [
            # --root as well: this may itself run in a root filesystem (`exec`)
            'nsenter',
            f'--target={self.main[0]}',
            '--mount',
            '--pid',
            '--root',
            '--',
            *self.inside(argv, env, user),
        ]

    def inside(self, argv: Sequence[str], env: Mapping[str, str], user: str | None) -> list[str]:
        drop = (
            []
            if user is None
            else [
                'sh',
                '-c',
                LIMITS,
                'sh',
                'setpriv',
                f'--reuid={user}',
                f'--regid={user}',
                '--clear-groups',
                '--',
            ]
        )
        return ['chroot', str(self.root), *drop, *env_arguments(env), *argv]

    def save(self) -> dict[str, Any]:
        return {**super().save(), 'root': str(self.root)}


class Host(Local):
    """The host system; for root, the processes get their own process namespace."""

    kind = 'host'
    starting = 'starting Java'

    def main_command(self, argv: Sequence[str], env: Mapping[str, str], private: bool) -> list[str]:
        unshare = list(UNSHARE) if os.geteuid() == 0 else []
        return [
            *unshare,
            'sh',
            '-c',
            HOST_MAIN,
            'sh',
            str(self.folder),
            str(int(private)),
            *env_arguments(env),
            *argv,
        ]

    def command(
        self, argv: Sequence[str], env: Mapping[str, str], *, user: str | None = None
    ) -> list[str]:
        return [*env_arguments(env), *argv]

    def kill(self) -> None:
        # without a namespace, killing the main process does not kill the others
        for pid in processes_of(self.instance):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        super().kill()


class Container(Sandbox):
    """A container on the host's network."""

    kind = 'container'
    starting = 'starting the container (the first time, the engine downloads its image)'
    start_timeout = 600.0  # includes downloading the image

    def __init__(
        self, folder: Path, instance: str, engine: str, image: str, owner: str = ''
    ) -> None:
        super().__init__(folder, instance)
        self.engine = engine
        self.image = image
        self.owner = owner

    @property
    def name(self) -> str:
        return f'rbfly-{self.instance}'

    def main_command(self, argv: Sequence[str], env: Mapping[str, str], private: bool) -> list[str]:
        return [
            self.engine,
            'run',
            '--rm',
            '--interactive',
            '--name',
            self.name,
            '--network',
            'host',
            '--user',
            '0',
            '--ulimit',
            f'nofile={NOFILE}:{NOFILE}',
            '--volume',
            f'{self.folder / "srv"}:/srv',
            *self.env_options(env),
            '--entrypoint',
            'sh',
            self.image,
            '-c',
            CONTAINER_MAIN,
            'sh',
            self.owner,
            str(int(private)),
            *argv,
        ]

    def command(
        self, argv: Sequence[str], env: Mapping[str, str], *, user: str | None = None
    ) -> list[str]:
        return [
            self.engine,
            'exec',
            '--user',
            user or '0',
            *self.env_options(env),
            self.name,
            *argv,
        ]

    @staticmethod
    def env_options(env: Mapping[str, str]) -> list[str]:
        # keep the PATH that the image sets
        return [a for k, v in env.items() if k != 'PATH' for a in ('--env', f'{k}={v}')]

    def alive(self) -> bool:
        result = subprocess.run(
            [self.engine, 'inspect', '--format', '{{.State.Running}}', self.name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        return result.returncode == 0 and result.stdout.strip() == 'true'

    def start(self, argv: Sequence[str], env: Mapping[str, str], *, private: bool) -> None:
        super().start(argv, env, private=private)
        if not wait_until((self.folder / 'srv/.prepared').exists, 30):
            raise BrokerError('the container did not start:\n' + self.log())

    def kill(self) -> None:
        if self.alive():
            # the files belong to the container's users: change their owner so they can be removed
            owner = f'{os.geteuid()}:{os.getegid()}'
            subprocess.run(
                self.command(['chown', '-R', owner, '/srv'], {}), capture_output=True, timeout=30
            )
        self.release()
        subprocess.run(
            [self.engine, 'rm', '--force', self.name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
        self._gone()

    def save(self) -> dict[str, Any]:
        return {**super().save(), 'engine': self.engine, 'image': self.image}


def load(folder: Path, state: Mapping[str, Any]) -> Sandbox:
    """Restore a sandbox from a state file."""
    instance = str(state['instance'])
    if state['room'] == 'container':
        return Container(folder, instance, state['engine'], state['image'])
    main = (int(state['main'][0]), int(state['main'][1])) if state.get('main') else None
    if state['room'] == 'root':
        return Root(folder, instance, Path(state['root']), main)
    return Host(folder, instance, main)


def engine(environ: Mapping[str, str] | None = None) -> str | None:
    """
    The container engine to use, or None; a client counts only if its engine answers.

    `RBFLY_ENGINE` selects one, or `none`.
    """
    env = os.environ if environ is None else environ
    selected = env.get('RBFLY_ENGINE', '')
    if selected == 'none':
        return None
    formats = {'docker': '{{.ServerVersion}}', 'podman': '{{.Version.Version}}'}
    for name, template in formats.items():
        if selected in ('', name) and shutil.which(name):
            try:
                result = subprocess.run(
                    [name, 'info', '--format', template],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=20,
                )
            except (OSError, subprocess.TimeoutExpired):
                continue
            if result.returncode == 0 and result.stdout.strip():
                return name
    if selected:
        raise BrokerError(f'RBFLY_ENGINE={selected}: this container engine does not answer')
    return None
