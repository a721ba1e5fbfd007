"""The command line: `python -m perf`."""

import argparse
import contextlib
import random
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from brokers import BrokerError, RabbitMQ
from brokers import cli as brokers

from . import environment, lanes, proofs, target
from .lanes import studies
from .results import Results, ResultsError, Settings, Writer, read

__all__ = ['main']

ROUNDS = 100
QUICK_ROUNDS = 10

EPILOG = """\
examples:
  python -m perf --quick                     rough results in a few minutes
  python -m perf --lanes rbfly,bare-uvloop   RbFly and its floor
  python -m perf --scenario sizes,latency    two of the studies
  python -m perf --scenario publish --rounds 30 --scale single=0.05,batch=0.2
  python -m perf --resume                    resume the latest run
  python -m perf compare old.jsonl new.jsonl
  python -m perf report run.jsonl            write doc/performance.rst and its figures
  python -m perf instructions                count the codec's instructions with valgrind
  python -m perf prove publish-cuts          cut connections and check that nothing is lost

Set RBFLY_URI and RBFLY_KAFKA to use running brokers; otherwise brokers are started on loopback.
"""


# Allowed values for settings of proofs.
CHOICES = {'on': ('rabbitmq', 'memory'), 'how': ('pause', 'partition', 'roll')}


class CommandError(Exception):
    """A command cannot run; the message is printed without a traceback."""


def words(text: str) -> list[str]:
    return [word for word in text.split(',') if word]


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


at_least_one.__name__ = 'number'


def scales(text: str) -> dict[str, float]:
    """Parse `0.1` or `single=0.05,batch=0.2`; a number without a kind has an empty key."""
    found = {}
    for word in words(text):
        name, _, value = word.rpartition('=')
        if name and name not in lanes.KINDS:
            known = ', '.join(lanes.KINDS)
            raise argparse.ArgumentTypeError(f'unknown kind of work {name}; known are {known}')
        try:
            scale = float(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f'not a number: {word}') from None
        if not 0 < scale < float('inf'):
            raise argparse.ArgumentTypeError(f'not a positive number: {word}')
        found[name] = scale
    if not found:
        raise argparse.ArgumentTypeError('empty')
    return found


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(
        prog='python -m perf',
        description='Benchmark RbFly, its peers and the floor.',
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = main.add_subparsers(title='commands', metavar='COMMAND', required=True)

    run = commands.add_parser(
        'run',
        help='run the benchmarks (the default command)',
        description=do_run.__doc__,
    )
    run.set_defaults(func=do_run)
    run.add_argument(
        '--lanes',
        type=words,
        default=[],
        metavar='A,B',
        help='lanes, libraries, kinds of work or patterns; see `python -m perf list`',
    )
    run.add_argument(
        '--scenario',
        type=words,
        default=[],
        metavar='A,B',
        help=f'any of {", ".join(lanes.SCENARIOS)}; default: all',
    )
    run.add_argument(
        '--rounds',
        type=at_least_one,
        metavar='N',
        help=f'default: {ROUNDS}, or {QUICK_ROUNDS} if quick; at most {studies.ROUNDS} for studies',
    )
    run.add_argument(
        '--scale',
        type=scales,
        default={},
        metavar='S',
        help='fraction of the full number of messages: 0.1, or single=0.05,batch=0.2',
    )
    run.add_argument(
        '--seed', type=int, metavar='S', help='seed of the order of lanes; default: random'
    )
    size = run.add_mutually_exclusive_group()
    size.add_argument('--quick', action='store_true', help='few messages, few rounds')
    size.add_argument('--full', action='store_true', help='all messages (scale 1)')
    run.add_argument('--resume', action='store_true', help='resume --out, or the latest run')
    run.add_argument('--out', type=Path, metavar='FILE', help='result file (JSON lines)')

    compare = commands.add_parser(
        'compare', help='compare two result files', description=do_compare.__doc__
    )
    compare.set_defaults(func=do_compare)
    compare.add_argument('a', type=Path, metavar='A')
    compare.add_argument('b', type=Path, metavar='B')

    count = commands.add_parser(
        'instructions',
        help='count the instructions of codec lanes with valgrind',
        description=do_instructions.__doc__,
    )
    count.set_defaults(func=do_instructions)
    count.add_argument(
        '--lanes', type=words, default=[], metavar='A,B', help='default: all lanes of rbfly'
    )
    count.add_argument('--out', type=Path, metavar='FILE', help='result file (JSON)')
    count.add_argument(
        '--against', type=Path, metavar='FILE', help='earlier result file to compare with'
    )
    count.add_argument('--keep', type=Path, metavar='FOLDER', help='keep callgrind files here')

    report = commands.add_parser(
        'report',
        help='write the pages of the documentation from result files',
        description=do_report.__doc__,
    )
    report.set_defaults(func=do_report)
    report.add_argument('files', type=Path, nargs='+', metavar='FILE')
    report.add_argument('--out', type=Path, metavar='FOLDER', help='default: doc')

    prove = commands.add_parser(
        'prove',
        help='prove that faults neither lose nor duplicate messages',
        description=do_prove.__doc__,
        epilog=proofs_listed(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    prove.set_defaults(func=do_prove)
    prove.add_argument('proof', nargs='?', metavar='NAME', help='default: list all proofs')
    prove.add_argument(
        '--seed', type=int, metavar='S', help='seed of all random choices; default: random'
    )
    for name, about in proofs.SETTINGS.items():
        if name == 'unnamed':
            prove.add_argument('--unnamed', action='store_true', default=None, help=about)
        elif name in ('by', 'doing'):
            prove.add_argument(f'--{name}', metavar='HOW', help=about)
        elif name in CHOICES:
            prove.add_argument(f'--{name}', choices=CHOICES[name], help=about)
        else:
            prove.add_argument(f'--{name}', type=at_least_one, metavar='N', help=about)
    prove.add_argument('--out', type=Path, metavar='FILE', help='result file (JSON)')

    listing = commands.add_parser(
        'list',
        help='list scenarios, lanes and missing requirements',
        description=do_list.__doc__,
    )
    listing.set_defaults(func=do_list)

    demo = commands.add_parser(
        'demo',
        help='publish and consume messages with RbFly and print the rates',
        description=do_demo.__doc__,
    )
    demo.set_defaults(func=do_demo)
    demo.add_argument(
        '--count', type=at_least_one, default=100_000, help='messages; default: 100000'
    )
    demo.add_argument(
        '--broker',
        choices=('memory', 'rabbitmq'),
        help='default: memory, or rabbitmq if RBFLY_URI is set',
    )

    commands.add_parser(
        'brokers', help='same as `python -m brokers`', parents=[brokers.parser(add_help=False)]
    )
    return main


# -- run


def counts(args: argparse.Namespace, kinds: set[str]) -> dict[str, int]:
    """Messages per round for the chosen kinds of work."""
    found = {}
    for kind in lanes.KINDS.values():
        if kind.name in kinds:
            scale = args.scale.get(kind.name, args.scale.get(kind.like, args.scale.get('')))
            if scale is not None:
                found[kind.name] = kind.count(scale)
            elif args.quick:
                found[kind.name] = kind.quick
            else:
                found[kind.name] = kind.count(1 if args.full else kind.scale)
    return found


def results_folder() -> Path:
    return environment.folder() / 'perf' / 'results'


def begin(args: argparse.Namespace) -> tuple[Path, Settings, list[dict[str, str]]]:
    """Result file and settings of a new run, and the lanes that cannot run."""
    try:
        chosen = lanes.select(args.lanes, args.scenario)
    except ValueError as ex:
        raise CommandError(str(ex)) from None
    left_out = [
        {'lane': lane.name, 'reason': reason}
        for lane in chosen
        if (reason := lanes.missing(lane.library))
    ]
    absent = {item['lane'] for item in left_out}
    names = [lane.name for lane in chosen if lane.name not in absent]
    seed = random.SystemRandom().randrange(10**9) if args.seed is None else args.seed
    settings = Settings(
        rounds=args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS),
        seed=seed,
        counts=counts(args, {lane.kind.name for lane in chosen}),
        lanes=names,
    )
    path = args.out or results_folder() / f'{datetime.now(UTC):%Y%m%d-%H%M%S}.jsonl'
    return path, settings, left_out


def resumed(args: argparse.Namespace) -> Results:
    """Results of the run to resume; options, if given, must be those it was started with."""
    path = args.out
    if path is None:
        files = sorted(results_folder().glob('*.jsonl'))
        if not files:
            raise CommandError(f'no run to resume in {results_folder()}')
        path = files[-1]
    results = read(path)
    settings = results.settings
    if unknown := [name for name in settings.lanes if name not in lanes.LANES]:
        raise CommandError(
            f'cannot resume {path}: its lanes {", ".join(unknown)} no longer exist; start a new run'
        )
    other = []
    if args.rounds not in (None, settings.rounds):
        other.append(f'rounds {settings.rounds}')
    if args.seed not in (None, settings.seed):
        other.append(f'seed {settings.seed}')
    if args.scale or args.quick or args.full:
        asked = counts(args, set(settings.counts))
        other += [f'{k} {n:,}' for k, n in settings.counts.items() if asked[k] != n]
    if args.lanes or args.scenario:
        left_out = {item['lane'] for item in results.header['left_out']}
        try:
            chosen = {lane.name for lane in lanes.select(args.lanes, args.scenario)}
        except ValueError as ex:
            raise CommandError(str(ex)) from None
        if chosen - left_out != set(settings.lanes):
            other.append(f'lanes {",".join(settings.lanes)}')
    if other:
        raise CommandError(
            f'{path} was started with {"; ".join(other)}; use the same options to resume it'
        )
    return results


def describe_lane(name: str) -> dict[str, str]:
    lane = lanes.find(name)
    return {
        'lane': name,
        'scenario': lane.kind.scenario,
        'kind': lane.kind.name,
        'library': lane.library.name,
        'broker': lane.broker,
        'loop': lane.library.loop,
        'how': lane.library.how,
    }


def describe_kind(name: str) -> dict[str, Any]:
    kind = lanes.KINDS[name]
    return {
        'scenario': kind.scenario,
        'title': kind.title,
        'size': kind.size,
        'full': kind.full,
        'warm_up': kind.warm_up,
        'floor': kind.floor,
        'rounds': kind.rounds,
        'series': kind.series,
        'at': kind.at,
        'body': kind.stored.size if kind.stored else kind.body,
    }


def do_run(args: argparse.Namespace) -> int:
    """Run every lane once per round, in an order shuffled with the seed."""
    from . import store

    earlier = None
    if args.resume:
        earlier = resumed(args)
        path, settings = earlier.path, earlier.settings
        left_out: list[dict[str, str]] = []
        for name in settings.lanes:
            if reason := lanes.missing(lanes.find(name).library):
                raise CommandError(f'{name}: {reason}')
    else:
        path, settings, left_out = begin(args)

    signal.signal(signal.SIGTERM, terminated)
    brokers_needed = dict.fromkeys(lanes.find(name).broker for name in settings.lanes)
    brokers_needed.pop('', None)
    with store.opened(list(brokers_needed)) as (stores, errors):
        return measure(path, settings, left_out, earlier, stores, errors)


def measure(
    path: Path,
    settings: Settings,
    left_out: list[dict[str, str]],
    earlier: Results | None,
    stores: dict[str, Any],
    errors: dict[str, str],
) -> int:
    """Start a run, or resume an earlier one."""
    from . import runner, table

    if errors and earlier:
        raise CommandError('; '.join(errors.values()))
    kept = []
    for name in settings.lanes:
        broker = lanes.find(name).broker
        if broker in errors:
            left_out.append({'lane': name, 'reason': errors[broker]})
        else:
            kept.append(name)
    if not kept and errors:
        raise CommandError('; '.join(errors.values()))
    for item in left_out:
        say(f'leaving out {item["lane"]}: {item["reason"]}')
    if not kept:
        raise CommandError('none of the chosen lanes can run; see the reasons above')
    settings = Settings(settings.rounds, settings.seed, settings.counts, kept)

    libraries = {lanes.find(name).library for name in kept}
    about = environment.describe(
        lanes.versions(libraries),
        {name: {**target.about(name), **store.about()} for name, store in stores.items()},
    )
    if earlier:
        for line in environment.differences(earlier.header['environment'], about):
            say(f'changed since this run was started: {line}')
        writer = Writer.resume(earlier)
        writer.write({'type': 'resumed', 'environment': about})
    else:
        writer = Writer.create(
            path,
            {
                'environment': about,
                'settings': settings.dump(),
                'scenarios': lanes.SCENARIOS,
                'kinds': {name: describe_kind(name) for name in settings.counts},
                'lanes': [describe_lane(name) for name in kept],
                'left_out': left_out,
            },
        )
    say(f'results: {path}; rounds: {settings.rounds}; seed: {settings.seed}')
    try:
        runner.run(settings, writer, stores)
    except KeyboardInterrupt:
        say(f'interrupted; to resume: python -m perf --resume --out {path}')
        return 130
    finally:
        writer.close()
    for line in table.summary(writer.results):
        print(line)
    return 1 if writer.results.failed() else 0


# -- the other commands


def do_compare(args: argparse.Namespace) -> int:
    """Print the ratio of B's median to A's for each lane, with a 95 % bootstrap interval."""
    from . import table

    for line in table.compare(read(args.a), read(args.b)):
        print(line)
    return 0


def do_instructions(args: argparse.Namespace) -> int:
    """Count instructions per operation of codec lanes with valgrind.

    The counts are exact, even on a busy machine.
    """
    from . import instructions

    try:
        instructions.check()
        chosen = instructions.chosen(args.lanes)
        for lane in chosen:
            if reason := lanes.missing(lane.library):
                raise CommandError(f'{lane.name}: {reason}')
        earlier = instructions.load(args.against) if args.against else None
        found = instructions.measure([lane.name for lane in chosen], keep=args.keep)
    except (instructions.InstructionsError, ValueError) as ex:
        raise CommandError(str(ex)) from None
    path = args.out or instructions.default_path(results_folder())
    instructions.store(path, found)
    for line in instructions.report(found, earlier):
        print(line)
    say(f'stored: {path}')
    return 0


def proofs_listed() -> str:
    lines = ['proofs and their default settings:']
    for proof in proofs.PROOFS.values():
        lines.append(f'  {proof.name:16} {proof.title}')
        used = [f'--{name} {value}' for name, value in proof.settings.items() if value is not False]
        lines.append(f'  {"":16} {" ".join(used)}')
    return '\n'.join(lines)


def do_prove(args: argparse.Namespace) -> int:
    """Run a proof on a broker of its own; the exit status is 0 if all its claims hold."""
    if args.proof is None:
        print(proofs_listed())
        return 0
    proof = proofs.PROOFS.get(args.proof)
    if proof is None:
        raise CommandError(f'unknown proof {args.proof}; known are {", ".join(proofs.PROOFS)}')
    settings = {
        name: value for name in proofs.SETTINGS if (value := getattr(args, name)) is not None
    }
    if unknown := [name for name in settings if name not in proof.settings]:
        raise CommandError(f'proof {proof.name} has no setting --{unknown[0]}')
    for name in ('rbfly', 'uvloop'):
        if lanes.version(name) is None:
            raise CommandError(f'{name} is not installed; {lanes.INSTALL}')
    from .proofs import main
    from .proofs.run import Run, default_path

    seed = random.SystemRandom().randrange(10**9) if args.seed is None else args.seed
    run = Run(proof, seed, **settings)
    path = args.out or default_path(results_folder(), proof.name)
    print(f'to repeat: {run.command}', flush=True)
    signal.signal(signal.SIGTERM, terminated)
    try:
        main.run(run, path)
    except BrokerError as ex:
        raise CommandError(str(ex)) from None
    for line in run.summary():
        print(line)
    say(f'stored: {path}')
    return 0 if run.holds else 1


def do_report(args: argparse.Namespace) -> int:
    """Write performance.rst with its figures, and proofs.rst, from result files only."""
    from . import report

    try:
        written = report.write(args.files, args.out or environment.folder() / 'doc')
    except report.ReportError as ex:
        raise CommandError(str(ex)) from None
    for path in written:
        print(path)
    return 0


def do_list(args: argparse.Namespace) -> int:
    """List scenarios, lanes, messages per round, and missing requirements."""
    for scenario, about in lanes.SCENARIOS.items():
        print(f'{scenario}: {about}')
        for kind in lanes.KINDS.values():
            if kind.scenario != scenario:
                continue
            default = kind.count(kind.scale)
            numbers = (
                f'{default:,} messages per round, {kind.full:,} with --full,'
                f' {kind.quick:,} with --quick'
            )
            print(f'  {kind.name}: {kind.title}; {numbers}')
            for lane in lanes.LANES.values():
                if lane.kind == kind:
                    floor = ' (floor)' if lane.is_floor else ''
                    reason = lanes.missing(lane.library)
                    print(f'    {lane.name}{floor}{": " if reason else ""}{reason}')
        print()
    print('How the lanes use each library:')
    for library in lanes.LIBRARIES.values():
        print(f'  {library.name}: {library.how}')
    return 0


def do_demo(args: argparse.Namespace) -> int:
    """Publish and consume messages with RbFly and print the rates.

    The broker is the one that RBFLY_URI names, or an in-memory broker in a thread of this process.
    """
    if lanes.version('rbfly') is None:
        raise CommandError(f'rbfly is not installed; {lanes.INSTALL}')
    from rbfly.error import RbFlyError
    from rbfly.testing import StreamBroker

    from . import demo

    broker = args.broker or ('rabbitmq' if RabbitMQ.named() else 'memory')
    with contextlib.ExitStack() as stack:
        if broker == 'memory':
            where = 'an in-memory broker, in a thread of this process'
            uri = stack.enter_context(StreamBroker()).uri
        else:
            where, uri = '', target.address('rabbitmq')
        try:
            demo.run(uri, args.count, where)
        except (RbFlyError, OSError) as ex:
            host = uri.rpartition('@')[2]
            raise CommandError(f'{host}: {type(ex).__name__}: {ex}') from None
    return 0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def terminated(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or (argv[0].startswith('-') and argv[0] not in ('-h', '--help')):
        argv.insert(0, 'run')
    args = parser().parse_args(argv)
    try:
        return int(args.func(args))
    except (CommandError, ResultsError, target.TargetError) as ex:
        say(f'perf: {ex}')
        return 2
    except KeyboardInterrupt:
        say('interrupted')
        return 130
