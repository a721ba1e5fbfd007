"""Start and resume runs of the benchmark."""

import argparse
import random
import sys
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import CommandError, UsageError, broker_address, environment, lanes
from .results import Results, Settings, Writer, read

ROUNDS = 100
QUICK_ROUNDS = 10
CHOOSING = (
    'scenario', 'lanes', 'rounds', 'scale', 'seed', 'quick', 'full', 'pin', 'when_idle', 'resume',
)  # fmt: skip


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


def chosen(args: argparse.Namespace) -> Settings:
    """The settings that the options choose."""
    selected = lanes.select(args.lanes, args.scenario)
    return Settings(
        rounds=args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS),
        seed=random.SystemRandom().randrange(10**9) if args.seed is None else args.seed,
        counts=counts(args, {lane.kind.name for lane in selected}),
        lanes=[lane.name for lane in selected],
        pinned=args.pin,
        when_idle=args.when_idle,
    )


def repeated(args: argparse.Namespace) -> Settings:
    """The settings of the run to repeat, without lanes that no longer exist."""
    for name in CHOOSING:
        value = getattr(args, name)
        if value is not False and value not in (None, [], {}):
            option = name.replace('_', '-')
            raise UsageError(f'--repeat uses the settings of the file; leave out --{option}')
    settings = read(args.repeat).settings
    names = [name for name in settings.lanes if name in lanes.LANES]
    if not names:
        raise CommandError(f'cannot repeat {args.repeat}: its lanes no longer exist')
    kinds = {lanes.find(name).kind.name for name in names}
    numbers = {kind: count for kind, count in settings.counts.items() if kind in kinds}
    return replace(settings, lanes=names, counts=numbers)


def begin(args: argparse.Namespace) -> tuple[Path, Settings, list[dict[str, str]]]:
    """Result file and settings of a new run, and the lanes that cannot run."""
    settings = repeated(args) if args.repeat else chosen(args)
    reasons = {name: lanes.missing(lanes.find(name)) for name in settings.lanes}
    left_out = [{'lane': name, 'reason': reason} for name, reason in reasons.items() if reason]
    names = [name for name, reason in reasons.items() if not reason]
    path = args.out or results_folder() / f'{datetime.now(UTC):%Y%m%d-%H%M%S}.jsonl'
    return path, replace(settings, lanes=names), left_out


def resumed(args: argparse.Namespace) -> Results:
    """Results of the run to resume; options, if given, must be those it was started with."""
    path = args.out
    if path is None:
        files = sorted(results_folder().glob('*.jsonl*'))
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
    if args.pin and not settings.pinned:
        other.append('no --pin')
    if args.when_idle and not settings.when_idle:
        other.append('no --when-idle')
    if args.scale or args.quick or args.full:
        asked = counts(args, set(settings.counts))
        other += [f'{k} {n:,}' for k, n in settings.counts.items() if asked[k] != n]
    if args.lanes or args.scenario:
        left_out = {item['lane'] for item in results.header['left_out']}
        chosen = {lane.name for lane in lanes.select(args.lanes, args.scenario)}
        if chosen - left_out != set(settings.lanes):
            other.append(f'lanes {",".join(settings.lanes)}')
    if other:
        raise UsageError(
            f'{path} was started with {"; ".join(other)}; use the same options to resume it'
        )
    return results


def do_run(args: argparse.Namespace) -> int:
    """Run every lane once per round, in an order shuffled with the seed."""
    from . import store

    earlier = None
    if args.resume and not args.repeat:
        earlier = resumed(args)
        path, settings = earlier.path, earlier.settings
        left_out: list[dict[str, str]] = []
        for name in settings.lanes:
            if reason := lanes.missing(lanes.find(name)):
                raise CommandError(f'{name}: {reason}')
    else:
        path, settings, left_out = begin(args)

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
    from . import pinning, runner, table

    for name in settings.lanes:
        lane = lanes.find(name)
        if error := errors.get(lane.broker):
            left_out.append({'lane': name, 'reason': error})
        elif settings.pinned and not pinning.can_poll(lane):
            reason = 'RbFly does not poll on a single processor, which is all that --pin leaves'
            if earlier:
                raise CommandError(f'{name}: {reason}')
            left_out.append({'lane': name, 'reason': reason})
    absent = {item['lane'] for item in left_out}
    kept = [name for name in settings.lanes if name not in absent]
    if errors and (earlier or not kept):
        raise CommandError('; '.join(errors.values()))
    for item in left_out:
        say(f'leaving out {item["lane"]}: {item["reason"]}')
    if not kept:
        raise CommandError('none of the chosen lanes can run; see the reasons above')
    settings = replace(settings, lanes=kept)

    about = environment.describe(
        lanes.versions(map(lanes.find, kept)),
        {name: {**broker_address.about(name), **store.about()} for name, store in stores.items()},
    )
    with pinning.pinned(stores) if settings.pinned else nullcontext():
        if earlier:
            for line in environment.differences(earlier.header['environment'], about):
                say(f'changed since this run was started: {line}')
            writer = Writer.resume(earlier)
            writer.write({'type': 'resumed', 'environment': about})
        else:
            header = {'environment': about, 'settings': asdict(settings), 'left_out': left_out}
            writer = Writer.create(path, header)
        path = writer.results.path
        say(f'results: {path}; rounds: {settings.rounds}; seed: {settings.seed}')
        try:
            runner.run(settings, writer, stores)
        except KeyboardInterrupt:
            say(f'to resume: python -m perf --resume --out {path}')
            raise
        finally:
            writer.close()
    for line in table.summary(writer.results):
        print(line)
    if writer.results.failed():
        return 1
    writer.pack()
    say(f'stored: {writer.results.path}')
    return 0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
