"""The command line: `python -m perf`."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from brokers import BrokerError, RabbitMQ
from brokers import cli as brokers
from brokers.output import Parser, guarded, raise_on_sigterm

from . import CommandError, UsageError, broker_address, environment, lanes
from .results import PACKED, packed, read
from .runs import QUICK_ROUNDS, ROUNDS, do_run, results_folder, say

EPILOG = """\
examples:
  python -m perf --quick                     rough results in a few minutes
  python -m perf --lanes rbfly,bare-uvloop   RbFly and its floor
  python -m perf --scenario sizes,latency    two of the studies
  python -m perf --scenario publish --rounds 30 --scale single=0.05,batch=0.2
  python -m perf --resume                    resume the latest run
  python -m perf --repeat FILE               repeat the run of a result file
  python -m perf cost --rounds 30            what a million messages cost
  python -m perf compare old.jsonl.xz new.jsonl.xz
  python -m perf report run.jsonl.xz         write doc/internals/performance.rst
  python -m perf instructions                count the codec's instructions with valgrind

Pass --uri, or set RBFLY_URI and RBFLY_KAFKA, to use running brokers. Otherwise brokers are
started on loopback.
"""


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
    main = Parser(
        prog='python -m perf',
        description='Benchmark RbFly, other clients and floors (programs without any client).',
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = main.add_subparsers(title='commands', metavar='COMMAND', required=True)

    def command(
        name: str, func: Callable[[argparse.Namespace], int], about: str
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=about, description=func.__doc__)
        added.set_defaults(func=func)
        return added

    run = command('run', do_run, 'run the benchmarks (the default command)')
    run.add_argument(
        '--scenario',
        type=words,
        default=[],
        metavar='A,B',
        help=f'any of {", ".join(lanes.SCENARIOS)}; default: all',
    )
    run.add_argument(
        '--repeat',
        type=Path,
        metavar='FILE',
        help='repeat a run: the lanes, rounds, numbers of messages and seed of its result file',
    )
    add_run_options(run)

    cost = command('cost', do_cost, 'measure what a million messages cost')
    cost.set_defaults(repeat=None)
    add_run_options(cost)

    compare = command('compare', do_compare, 'compare two result files')
    compare.add_argument('a', type=Path, metavar='A')
    compare.add_argument('b', type=Path, metavar='B')

    count = command(
        'instructions', do_instructions, 'count the instructions of codec lanes with valgrind'
    )
    count.add_argument(
        '--lanes', type=words, default=[], metavar='A,B', help='default: all lanes of rbfly'
    )
    count.add_argument('--out', type=Path, metavar='FILE', help='result file (JSON)')
    count.add_argument(
        '--against', type=Path, metavar='FILE', help='earlier result file to compare with'
    )
    count.add_argument('--keep', type=Path, metavar='FOLDER', help='keep callgrind files here')

    report = command('report', do_report, 'write a page of the documentation from result files')
    report.add_argument('files', type=Path, nargs='+', metavar='FILE')
    report.add_argument('--out', type=Path, metavar='FOLDER', help='default: doc')

    command('list', do_list, 'list scenarios, lanes and missing requirements')

    demo = command('demo', do_demo, 'publish and consume messages with RbFly and print the rates')
    demo.add_argument(
        '--count', type=at_least_one, default=100_000, help='messages; default: 100000'
    )
    demo.add_argument(
        '--broker',
        choices=('memory', 'rabbitmq'),
        help='default: memory, or rabbitmq with --uri or RBFLY_URI',
    )

    add_uri(demo)

    commands.add_parser(
        'brokers', help='same as `python -m brokers`', parents=[brokers.parser(add_help=False)]
    )
    return main


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that run lanes."""
    parser.add_argument(
        '--lanes',
        type=words,
        default=[],
        metavar='A,B',
        help='lanes, libraries, kinds of work or patterns; see `python -m perf list`',
    )
    parser.add_argument(
        '--rounds',
        type=at_least_one,
        metavar='N',
        help=f'default: {ROUNDS}, quick: {QUICK_ROUNDS}; at most {lanes.ROUNDS} for studies',
    )
    parser.add_argument(
        '--scale',
        type=scales,
        default={},
        metavar='S',
        help='fraction of the full number of messages: 0.1, or single=0.05,batch=0.2',
    )
    parser.add_argument(
        '--seed', type=int, metavar='S', help='seed of the order of lanes; default: random'
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument('--quick', action='store_true', help='few messages, few rounds')
    size.add_argument('--full', action='store_true', help='the full number of messages (scale 1)')
    parser.add_argument(
        '--pin',
        action='store_true',
        help='brokers and lanes on separate processors of this machine (Linux)',
    )
    parser.add_argument(
        '--when-idle',
        action='store_true',
        help='before each round, wait until other programs leave the processors idle',
    )
    parser.add_argument('--resume', action='store_true', help='resume --out, or the latest run')
    parser.add_argument(
        '--out',
        type=Path,
        metavar='FILE',
        help='result file (JSON lines); it is compressed, and named .xz, when the run is complete',
    )

    add_uri(parser)


def add_uri(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a running broker."""
    parser.add_argument('--uri', help='a running RabbitMQ; default: RBFLY_URI')


# -- commands


def do_cost(args: argparse.Namespace) -> int:
    """Run the scenario `cost`, print the card, and draw it beside the results (SVG).

    The card has the processor time of client and broker and the bytes on the wire for a million
    messages.  The brokers run on this machine.
    """
    from . import report

    args.scenario = ['cost']
    if code := do_run(args):
        return code
    path = args.out or max(results_folder().glob(f'*{PACKED}'))
    print(report.draw(path if path.suffix == PACKED else packed(path), 'cost'))
    return 0


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

    instructions.check()
    chosen = lanes.select(args.lanes or ['rbfly'], ['codec'])
    for lane in chosen:
        if reason := lanes.missing(lane):
            raise CommandError(f'{lane.name}: {reason}')
    earlier = instructions.load(args.against) if args.against else None
    found = instructions.measure([lane.name for lane in chosen], keep=args.keep)
    name = f'instructions-{datetime.now(UTC):%Y%m%d-%H%M%S}.json'
    path = args.out or results_folder() / name
    instructions.store(path, found)
    for line in instructions.report(found, earlier):
        print(line)
    say(f'stored: {path}')
    return 0


def do_report(args: argparse.Namespace) -> int:
    """Write performance.rst, and the pages of studies, from result files only."""
    from . import report

    print(report.write(args.files, args.out or environment.folder() / 'doc' / 'internals'))
    return 0


def do_list(args: argparse.Namespace) -> int:
    """List scenarios, lanes, messages per round, and missing requirements."""
    for scenario, found in lanes.SCENARIOS.items():
        print(f'{scenario}: {found.about}')
        for kind in lanes.KINDS.values():
            if kind.scenario != scenario:
                continue
            numbers = f'{kind.count(kind.scale):,} messages per round, {kind.full:,} with --full'
            print(f'  {kind.name}: {kind.title}; {numbers}, {kind.quick:,} with --quick')
            for lane in lanes.LANES.values():
                if lane.kind == kind:
                    floor = ' (floor)' if lane.is_floor else ''
                    reason = lanes.missing(lane)
                    print(f'    {lane.name}{floor}{": " if reason else ""}{reason}')
        print()
    print('How the lanes use each library:')
    for use in lanes.USES:
        print(f'  {use.library.name}: {use.how}')
    return 0


def do_demo(args: argparse.Namespace) -> int:
    """Publish and consume messages with RbFly and print the rates.

    The broker is the one that RBFLY_URI names, or an in-memory broker in a thread of this process.
    """
    if lanes.version(lanes.DISTRIBUTION) is None:
        raise CommandError(f'{lanes.DISTRIBUTION} is not installed; {lanes.INSTALL}')
    from rbfly.error import RbFlyError
    from rbfly.testing import StreamBroker

    from . import demo

    try:
        broker = args.broker or ('rabbitmq' if RabbitMQ.named() else 'memory')
    except BrokerError as ex:
        raise CommandError(f'RBFLY_URI: {ex}') from None
    with contextlib.ExitStack() as stack:
        if broker == 'memory':
            where = 'an in-memory broker, in a thread of this process'
            uri = stack.enter_context(StreamBroker()).uri
        else:
            where, uri = '', broker_address.find('rabbitmq')
        try:
            demo.run(uri, args.count, where)
        except BrokenPipeError:  # of standard output
            raise
        except (RbFlyError, OSError) as ex:
            advice = '`python -m brokers up` starts a broker, and prints its address for --uri'
            raise CommandError(f'{ex}; {advice}') from None
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or (argv[0].startswith('-') and argv[0] not in ('-h', '--help')):
        argv.insert(0, 'run')
    args = parser().parse_args(argv)
    raise_on_sigterm()
    with naming(getattr(args, 'uri', None)):
        return guarded('perf', lambda: int(args.func(args)), (CommandError, OSError), (UsageError,))


@contextlib.contextmanager
def naming(uri: str | None) -> Iterator[None]:
    """Let RBFLY_URI name a broker, also for the processes of lanes."""
    before = os.environ.get(RabbitMQ.variable)
    if uri is not None:
        os.environ[RabbitMQ.variable] = uri
    try:
        yield
    finally:
        if uri is not None:
            del os.environ[RabbitMQ.variable]
            os.environ.update({} if before is None else {RabbitMQ.variable: before})
