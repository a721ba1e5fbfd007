"""
The `brokers` command.

Results (addresses as shell variables, or JSON) go to standard output, progress messages to
standard error. Exit codes: 0 for success or running, 1 for failure or not running, 2 for wrong
arguments, 130 and 143 after Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from typing import Any

from . import BrokerError, Kafka, Progress, RabbitMQ, inside, kafka, rabbitmq
from .broker import Broker
from .output import Parser, guarded, raise_on_sigterm

KINDS: dict[str, type[Broker]] = {broker.kind: broker for broker in (RabbitMQ, Kafka)}

DESCRIPTION = """\
Run real brokers on loopback: RabbitMQ 4.0 or 4.3, and Kafka 3.8. They run in a container engine
if one is available; otherwise they are installed into a cache folder (RabbitMQ needs root on
Debian for that). If RBFLY_URI or RBFLY_KAFKA names a broker, that broker is used and never stopped.
Different versions can run at the same time.

RBFLY_RABBITMQ: RabbitMQ version to start when --version is not given (default: 4.0).
RBFLY_CACHE: folder for installations and running brokers (default: ~/.cache/rbfly).
RBFLY_ENGINE: docker, podman, or none.
RBFLY_INSTALL: 0 installs no Debian packages on this system, and names those that are missing.
"""


class UsageError(BrokerError):
    """Wrong arguments."""


def parser(**options: Any) -> Parser:
    """The argument parser for up, down, status and exec."""
    main = Parser(
        prog='python -m brokers',
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )
    commands = main.add_subparsers(metavar='COMMAND', required=True)

    up_parser = commands.add_parser(
        'up', help='start a broker if it is not running; print its addresses as shell variables'
    )
    up_parser.add_argument('kind', nargs='?', choices=KINDS, default='rabbitmq')
    up_parser.add_argument(
        '--nodes', type=positive, help='number of nodes in the RabbitMQ cluster (default: 1)'
    )
    up_parser.add_argument(
        '--plugin',
        action='append',
        default=[],
        dest='plugins',
        metavar='NAME',
        help='also enable this RabbitMQ plugin (rabbitmq_mqtt, rabbitmq_auth_mechanism_ssl, ...)',
    )
    up_parser.add_argument(
        '--config',
        action='append',
        default=[],
        metavar='LINE',
        help='an additional line for rabbitmq.conf',
    )
    add_version(up_parser)
    add_common(up_parser, run_up)

    down_parser = commands.add_parser('down', help='stop and remove everything that up started')
    down_parser.add_argument('kind', nargs='?', choices=KINDS, help='default: both')
    add_version(down_parser, 'all')
    add_common(down_parser, run_down)

    status_parser = commands.add_parser('status', help='list brokers; exit 0 if any is running')
    status_parser.add_argument('kind', nargs='?', choices=KINDS, help='default: both')
    status_parser.add_argument('--json', action='store_true', help='print JSON')
    add_version(status_parser, 'all')
    add_common(status_parser, run_status)

    exec_parser = commands.add_parser(
        'exec',
        parents=[exec_options()],
        usage='%(prog)s rabbitmq [OPTION ...] -- COMMAND ...',
        help="run a command in the broker's root filesystem, with the checkout at /checkout",
    )
    exec_parser.add_argument('kind', choices=('rabbitmq',))
    exec_parser.add_argument('command', nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    exec_parser.set_defaults(func=reporting(run_exec))
    return main


def exec_options() -> Parser:
    """The options of `exec`; a separate parser because they follow the kind."""
    parser = Parser(add_help=False, prog='brokers exec rabbitmq')
    parser.add_argument(
        '--install',
        nargs='+',
        action='extend',
        default=[],
        metavar='PACKAGE',
        help='Debian packages to install first',
    )
    parser.add_argument(
        '--bind',
        action='append',
        default=[],
        metavar='HOST:INSIDE',
        help='an additional host file or folder to mount',
    )
    add_version(parser)
    parser.add_argument('--quiet', action='store_true', help='print errors only')
    return parser


def split_exec(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split the arguments that follow the kind into options and a command, at `--`."""
    if '--' in words:
        at = words.index('--')
        options, command = words[:at], words[at + 1 :]
    else:
        at = next((i for i, word in enumerate(words) if not word.startswith('-')), len(words))
        options, command = words[:at], words[at:]
    if not command:
        raise UsageError('no command given; usage: exec rabbitmq [OPTION ...] -- COMMAND ...')
    return exec_options().parse_args(options), command


def add_version(parser: argparse.ArgumentParser, default: str = 'RBFLY_RABBITMQ or 4.0') -> None:
    """Add the option that selects a version."""
    parser.add_argument(
        '--version',
        choices=RabbitMQ.versions,
        help=f'RabbitMQ version (default: {default})',
    )


def add_common(parser: argparse.ArgumentParser, func: Any) -> None:
    """Add the options that every command has."""
    parser.add_argument('--quiet', action='store_true', help='print errors only')
    parser.set_defaults(func=reporting(func))


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError('must be at least 1')
    return number


def reporting(func: Any) -> Any:
    """Wrap a command so that errors are printed as one line."""

    def run(args: argparse.Namespace) -> int:
        def call() -> int:
            return int(func(args, Progress(quiet=args.quiet)))

        return guarded('brokers', call, (BrokerError, OSError), (UsageError,))

    return run


def print_variables(variables: dict[str, str]) -> None:
    """Print shell assignments."""
    for name, value in variables.items():
        print(f'{name}={shlex.quote(value)}', flush=True)


def run_up(args: argparse.Namespace, progress: Progress) -> int:
    """Run `brokers up`."""
    raise_on_sigterm()  # to clean up an unfinished start
    if args.kind == 'kafka':
        if args.nodes not in (None, 1) or args.plugins or args.config or args.version:
            raise UsageError('Kafka does not support --nodes, --plugin, --config or --version')
        print_variables(kafka.up(progress=progress).variables())
    else:
        broker = rabbitmq.up(
            args.nodes,
            version=args.version,
            plugins=args.plugins,
            config=args.config,
            progress=progress,
        )
        print_variables(broker.variables())
    return 0


def selected(args: argparse.Namespace) -> dict[str, Sequence[str]]:
    """The kinds, and their versions, that a command applies to."""
    if args.version:
        if args.kind == 'kafka':
            raise UsageError('Kafka does not support --version')
        return {'rabbitmq': [args.version]}
    return {kind: KINDS[kind].versions for kind in ([args.kind] if args.kind else KINDS)}


def run_down(args: argparse.Namespace, progress: Progress) -> int:
    """Run `brokers down`."""
    for kind, versions in selected(args).items():
        for version in versions:
            stopped = KINDS[kind].down(version, progress)
            how = 'stopped and removed' if stopped else 'was not running'
            progress.say(f'{kind} {version}: {how}')
    return 0


def run_status(args: argparse.Namespace, progress: Progress) -> int:
    """Run `brokers status`."""
    kinds = selected(args)
    entries = [entry for kind in kinds for entry in KINDS[kind].status(args.version)]
    if args.json:
        print(json.dumps(entries, indent=1))
    else:
        for entry in entries:
            state = 'running' if entry['running'] else 'not running'
            how = f' ({entry["how"]})' if entry.get('how') else ''
            release = f', release {entry["release"]}' if entry.get('release') else ''
            version = f' {entry["version"]}' if entry.get('version') else ''
            print(f'# {entry["kind"]}{version}: {state}{how}{release}')
            for node in entry.get('nodes', ()):
                print(
                    f'#   {node["name"]}: {"running" if node["running"] else "not running"}, '
                    f'port {node["stream_port"]}'
                )
            print_variables(entry.get('variables', {}))
    return 0 if any(entry['running'] for entry in entries) else 1


def run_exec(args: argparse.Namespace, progress: Progress) -> int:
    """Run `brokers exec`."""
    more, command = split_exec(args.command)
    return inside.run(
        command,
        version=more.version or args.version,
        install=[*args.install, *more.install],
        binds=[*args.bind, *more.bind],
        progress=Progress(quiet=args.quiet or more.quiet),
    )


def main(argv: list[str] | None = None) -> int:
    """Run `python -m brokers`."""
    args = parser().parse_args(argv)
    return int(args.func(args))
