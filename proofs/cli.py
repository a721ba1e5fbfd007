"""The command line: `python -m proofs`."""

import argparse
import random
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from brokers import BrokerError
from perf import environment, lanes

from . import page, run
from .catalogue import PROOFS, SETTINGS, Value
from .run import ProofError

__all__ = ['main', 'parser']

# Allowed values of settings, by their default.
CHOICES: dict[Value, tuple[str, ...]] = {
    'rabbitmq': ('rabbitmq', 'memory'),
    'partition': ('pause', 'partition', 'roll'),
    'send': ('send', 'flush', 'send-many', 'giving-up'),
    'body': ('body', 'context', 'batch'),
}


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


at_least_one.__name__ = 'number'


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(
        prog='python -m proofs',
        description='Prove that faults neither lose nor duplicate messages.',
        epilog='RBFLY_RABBITMQ=4.3 runs a proof on that version of RabbitMQ.',
    )
    commands = main.add_subparsers(title='commands', metavar='COMMAND', required=True)
    listing = commands.add_parser('list', help='list the proofs and their default settings')
    listing.set_defaults(func=do_list)
    page = commands.add_parser('page', help='write doc/internals/proofs.rst from result files')
    page.set_defaults(func=do_page)
    page.add_argument('files', type=Path, nargs='+', metavar='FILE')
    page.add_argument('--out', type=Path, metavar='FOLDER', help='default: doc')
    for proof in PROOFS.values():
        prove = commands.add_parser(proof.name, help=proof.title, description=do_prove.__doc__)
        prove.set_defaults(func=do_prove, proof=proof)
        prove.add_argument('--seed', type=int, metavar='S', help='of all random choices')
        prove.add_argument('--out', type=Path, metavar='FILE', help='result file (JSON)')
        for name, default in proof.settings.items():
            kind: dict[str, Any] = {'choices': CHOICES.get(default)}
            if default is False:
                kind = {'action': 'store_true'}
            elif isinstance(default, int):
                kind = {'type': at_least_one, 'metavar': 'N'}
            prove.add_argument(
                f'--{name}', default=default, help=f'{SETTINGS[name]}; default: {default}', **kind
            )
    return main


def do_list(args: argparse.Namespace) -> int:
    """List the proofs with their default settings."""
    for proof in PROOFS.values():
        print(f'{proof.name:16} {proof.title}')
        used = [f'--{name} {value}' for name, value in proof.settings.items() if value is not False]
        print(f'{"":16} {" ".join(used)}')
    return 0


def do_page(args: argparse.Namespace) -> int:
    """Write doc/internals/proofs.rst from result files only."""
    print(page.write(args.files, args.out or environment.folder() / 'doc' / 'internals'))
    return 0


def do_prove(args: argparse.Namespace) -> int:
    """Run a proof on a broker of its own; the exit status is 0 if all its claims hold."""
    for name in ('rbfly', 'uvloop'):
        if find_spec(name) is None:
            raise ProofError(f'{name} is not installed; run: {lanes.INSTALL}')
    settings = {name: getattr(args, name) for name in args.proof.settings}
    seed = random.SystemRandom().randrange(10**9) if args.seed is None else args.seed
    this = run.Run(args.proof, seed, **settings)
    path = args.out or run.default_path(environment.folder() / 'proofs' / 'results', this)
    print(f'to repeat: {this.command}', flush=True)
    signal.signal(signal.SIGTERM, terminated)
    run.run(this, path)
    for line in this.summary():
        print(line)
    say(f'stored: {path}')
    return 0 if this.holds else 1


def terminated(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        return int(args.func(args))
    except (BrokerError, ProofError) as ex:
        say(f'proofs: {ex}')
        return 2
    except KeyboardInterrupt:
        say('interrupted')
        return 130
