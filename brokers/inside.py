"""
Run commands in the root filesystem of a RabbitMQ version: another Debian with another Python.

Commands share the host's network, so they reach brokers on loopback. They also see the host's
certificates, name servers and pip and apt settings, so they can install packages.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import install as installation
from . import sandbox
from .rabbitmq import RabbitMQ
from .state import BrokerError, Progress, locked, run_shown

CHECKOUT = '/checkout'
# host files that replace the ones in the root filesystem
HOST_FILES = ('/etc/resolv.conf', '/etc/ssl/certs/ca-certificates.crt', '/etc/pip.conf')
PASSED_PREFIXES = ('PIP_', 'SSL_', 'RBFLY_', 'PYTEST_', 'LC_', 'UV_')
PASSED = frozenset(
    {
        'LANG',
        'TERM',
        'CI',
        'CURL_CA_BUNDLE',
        'REQUESTS_CA_BUNDLE',
        'http_proxy',
        'https_proxy',
        'no_proxy',
        'HTTP_PROXY',
        'HTTPS_PROXY',
        'NO_PROXY',
        'SOURCE_DATE_EPOCH',
        'PYTHONHASHSEED',
        'PYTHONDEVMODE',
        'PYTHONWARNINGS',
        'PYTHONUNBUFFERED',
        'PYTHONDONTWRITEBYTECODE',
        'CFLAGS',
    }
)

# Arguments: root, working directory, number of binds, host and inside path of each, the command.
SCRIPT = f"""
set -e
root=$1; cwd=$2; count=$3; shift 3
mount --bind "$root" "$root"  # a mount point, so that commands inside can use unshare
{sandbox.ROOT_MOUNTS}
mount --bind /dev/shm "$root/dev/shm" 2>/dev/null || true
while [ "$count" -gt 0 ]; do
    if [ -d "$1" ]; then
        mkdir -p "$root$2"
    else
        mkdir -p "$(dirname "$root$2")"
        [ -e "$root$2" ] || : >"$root$2"
    fi
    mount --bind "$1" "$root$2"
    shift 2; count=$((count - 1))
done
exec chroot "$root" sh -c 'cd "$1" && shift && exec "$@"' sh "$cwd" "$@"
"""

# `unshare` blocks SIGTERM, and the command, process 1 of its namespace, may survive one.
KILLED_WITH_PARENT = ('setpriv', '--pdeathsig', 'KILL', '--')

# Arguments: packages. First try the package lists that the root filesystem was created with: they
# match what is installed, and a mirror's lists may be weeks old, which apt refuses for testing.
INSTALL = """
install() { apt-get install -y --no-install-recommends "$@"; }
install "$@" || { apt-get update && install "$@"; }
"""


def passed_environment(environ: Mapping[str, str], version: str) -> dict[str, str]:
    """The environment variables that are valid inside as well as outside."""
    variables = {
        name: value
        for name, value in environ.items()
        if name in PASSED or name.startswith(PASSED_PREFIXES)
    }
    # the host's installations and running brokers are not accessible inside
    variables.pop('RBFLY_CACHE', None)
    return {
        installation.INSIDE: version,
        'PATH': '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
        'HOME': '/root',
        'LANG': 'C.UTF-8',
        'DEBIAN_FRONTEND': 'noninteractive',
        **variables,
        'RBFLY_RABBITMQ': version,  # the only version available inside
    }


def parse_bind(text: str) -> tuple[str, str]:
    """Read HOST:INSIDE."""
    host, _, inside = text.partition(':')
    if not host or not inside.startswith('/') or '..' in Path(inside).parts:
        raise BrokerError(f'{text!r} is not HOST:INSIDE with an absolute path for INSIDE')
    if not Path(host).exists():
        raise BrokerError(f'cannot mount {host}: it does not exist')
    return str(Path(host).resolve()), inside


def default_binds(environ: Mapping[str, str], checkout: Path) -> list[tuple[str, str]]:
    """The checkout, the host's settings, and the local folders that its variables refer to."""
    binds = [(str(checkout), CHECKOUT)]
    binds += [(str(Path(f).resolve()), f) for f in HOST_FILES if Path(f).exists()]
    home = Path(environ.get('HOME') or '/root')
    for source in (home / '.config/pip/pip.conf', home / '.pip/pip.conf'):
        if source.exists():
            binds.append((str(source), f'/root/{source.relative_to(home)}'))
    if ca_file := environ.get('RBFLY_TLS_CA'):
        folder = Path(ca_file).absolute().parent
        binds.append((str(folder), str(folder)))
    for word in environ.get('PIP_FIND_LINKS', '').split():
        if word.startswith('/') and Path(word).exists():
            binds.append((word, word))
    binds += [(str(f), str(f)) for f in Path('/etc/apt/apt.conf.d').glob('*proxy*')]
    return binds


def command_line(
    root: Path,
    command: Sequence[str],
    env: Mapping[str, str],
    binds: Sequence[tuple[str, str]],
    cwd: str,
) -> list[str]:
    """The host command that runs a command inside."""
    flat = [path for bind in binds for path in bind]
    return [
        *sandbox.UNSHARE,
        'sh',
        '-c',
        SCRIPT,
        'sh',
        str(root),
        cwd,
        str(len(binds)),
        *flat,
        *sandbox.env_arguments(env),
        *command,
    ]


def run(
    command: Sequence[str],
    *,
    version: str | None = None,
    install: Sequence[str] = (),
    binds: Sequence[str] = (),
    progress: Progress | None = None,
) -> int:
    """Run a command inside and return its exit code."""
    progress = progress or Progress()
    if sandbox.engine():
        raise BrokerError(
            'exec needs an installed root filesystem, which is not used while a container engine '
            'is available; set RBFLY_ENGINE=none to use it anyway'
        )
    version = RabbitMQ.chosen(version)
    root = installation.rabbitmq_root(version, progress)
    environ = dict(os.environ)
    if 'RBFLY_URI' not in environ and (broker := RabbitMQ.running(version)):
        environ |= broker.variables()
    checkout = Path(__file__).resolve().parents[1]
    mounts = [*default_binds(environ, checkout), *map(parse_bind, binds)]
    env = passed_environment(environ, version)
    if missing := [name for name in install if not is_installed(root, name)]:
        with (
            locked('install-rabbitmq', progress),
            progress.step(f'installing {" ".join(missing)} in the root filesystem'),
        ):
            run_shown(
                command_line(root, ['sh', '-c', INSTALL, 'sh', *missing], env, mounts, '/'),
                progress,
            )
    try:
        below = Path.cwd().relative_to(checkout)
        cwd = f'{CHECKOUT}/{below}' if str(below) != '.' else CHECKOUT
    except ValueError:
        cwd = CHECKOUT
    line = [*KILLED_WITH_PARENT, *command_line(root, command, env, mounts, cwd)]
    return subprocess.run(line).returncode


def is_installed(root: Path, package: str) -> bool:
    """Whether dpkg lists the package as installed in the root filesystem."""
    records = (root / 'var/lib/dpkg/status').read_text(errors='replace').split('\n\n')
    header = f'Package: {package}\n'
    return any(r.startswith(header) and 'Status: install ok installed' in r for r in records)
