"""Workers in other languages, built here from source: the official clients for Go and Java.

A worker is started as `PROGRAM KIND`, where KIND is `window`, `consume` or `group`, or one of these
with `super-` for a super stream.  It reads commands from standard input and answers on standard
output, one JSON line each.  The client logs to standard error.

    {"do": "open", "address": "...", "stream": "..."}   -> {"loop": "none"}
    {"do": "prepare", "count": 1000}                    -> {}
    {"do": "run"}                                       -> {"count": 1000, "begun": ..., ...}

A member of a group, which only tests use, has other commands after `open`; `report` answers with
the messages since the last report:

    {"do": "join", "group": "..."}  -> {}
    {"do": "report"}                -> {"messages": [[TIME, "STREAM", OFFSET, "BODY"]]}
    {"do": "leave"}                 -> {}, after the offsets are stored

Times are those of CLOCK_MONOTONIC, like those of `time.perf_counter` on Linux.  After
an error the program answers `{"error": "..."}` and exits with status 1.  At the end of its input it
disconnects and exits.

Programs are built into `build/programs`, with a separate folder for each version of the sources.
"""

import functools
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .. import environment

SOURCES = Path(__file__).resolve().parent
BUILD_TIMEOUT = 600.0  # seconds, including downloads


class ProgramError(Exception):
    """A program cannot be built."""


@dataclass(frozen=True)
class Program:
    """How to build and start a program; `{out}` in a command stands for the build folder.

    :ivar source: source folder, in which the build command runs.
    :ivar needs: required commands, each with the product it belongs to and how to install it.
    :ivar client: file in the source folder, and a pattern for the client's version in it.
    :ivar language: command that prints the version of the language, and a pattern for it.
    """

    source: Path
    needs: Mapping[str, tuple[str, str]]
    client: tuple[str, str]
    language: tuple[Sequence[str], str]
    build: Sequence[str]
    start: Sequence[str]


PROGRAMS = {
    'go': Program(
        source=SOURCES / 'go',
        needs={'go': ('Go', 'package golang, https://go.dev')},
        client=('go.mod', r'rabbitmq-stream-go-client v(\S+)'),
        language=(('go', 'env', 'GOVERSION'), r'(go\S+)'),
        build=('go', 'build', '-buildvcs=false', '-o', '{out}/worker', '.'),
        start=('{out}/worker',),
    ),
    'java': Program(
        source=SOURCES / 'java',
        needs={
            'javac': ('a JDK', 'package default-jdk-headless'),
            'java': ('Java', 'package default-jdk-headless'),
            'mvn': ('Maven', 'package maven'),
        },
        client=('pom.xml', r'<artifactId>stream-client</artifactId>\s*<version>(.+)</version>'),
        language=(('java', '--version'), r'\S+ (\S+)'),
        build=(
            *('mvn', '-B', '-q', '-Dstyle.color=never', '-Dout={out}'),
            *('compiler:compile', 'dependency:copy-dependencies'),
        ),
        start=(
            *('java', '-Dorg.slf4j.simpleLogger.defaultLogLevel=warn'),
            *('-cp', '{out}/classes:{out}/lib/*', 'perf.Worker'),
        ),
    ),
}


def command(program: str, kind: str) -> list[str]:
    """The command that starts a program, which is built first if necessary."""
    return [*filled(PROGRAMS[program].start, build(program)), kind]


def missing(program: str) -> str:
    """Return why a program cannot run and what to do; empty if it can."""
    if absent := not_installed(program):
        return absent
    try:
        build(program)
    except ProgramError as ex:
        return str(ex)
    return ''


def version(program: str) -> str:
    """The version of the client, and of the language if it is installed."""
    name, pattern = PROGRAMS[program].client
    found = re.search(pattern, (PROGRAMS[program].source / name).read_text())
    assert found is not None
    if not_installed(program):
        return found[1]
    return f'{found[1]}, {program} {language(program).removeprefix(program)}'


def build(program: str) -> Path:
    """Build a program, unless these sources are already built; return the build folder.

    :raises ProgramError: the program cannot be built.
    """
    if absent := not_installed(program):
        raise ProgramError(absent)
    folder = environment.folder() / 'build' / 'programs'
    made = folder / f'{program}-{key(program)}'
    if made.exists():
        return made
    print(f'building perf/programs/{program}', file=sys.stderr, flush=True)  # takes half a minute
    folder.mkdir(parents=True, exist_ok=True)
    # several processes may build at the same time: the first to finish installs its build
    out = Path(tempfile.mkdtemp(prefix=f'.{program}-', dir=folder))
    try:
        run(program, filled(PROGRAMS[program].build, out))
        with suppress(OSError):
            out.rename(made)
        if not made.exists():
            raise ProgramError(f'building {program} failed: cannot create {made}')
    finally:
        shutil.rmtree(out, ignore_errors=True)
    return made


def not_installed(program: str) -> str:
    for name, (what, how) in PROGRAMS[program].needs.items():
        if shutil.which(name) is None:
            return f'{what} is not installed; {how}'
    return ''


@functools.cache
def language(program: str) -> str:
    words, pattern = PROGRAMS[program].language
    output = run(program, words)
    found = re.search(pattern, output)
    if found is None:
        raise ProgramError(f'`{" ".join(words)}` prints no version: {output[:100]!r}')
    return found[1]


def key(program: str) -> str:
    """A hash of the sources, the build command and the version of the language."""
    source = PROGRAMS[program].source
    digest = hashlib.sha256(repr((PROGRAMS[program].build, language(program))).encode())
    for path in sorted(path for path in source.rglob('*') if path.is_file()):
        data = path.read_bytes()
        digest.update(f'{path.relative_to(source)} {len(data)}\n'.encode() + data)
    return digest.hexdigest()[:16]


def filled(words: Sequence[str], out: Path) -> list[str]:
    return [word.replace('{out}', str(out)) for word in words]


def run(program: str, words: Sequence[str]) -> str:
    """Run a command in the source folder of a program; return its output."""
    try:
        done = subprocess.run(
            words,
            cwd=PROGRAMS[program].source,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors='replace',
            timeout=BUILD_TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as ex:
        raise ProgramError(f'building {program} failed: {ex}') from ex
    if done.returncode:
        raise ProgramError(f'building {program} failed: {reason(done.stdout)}')
    return done.stdout


def reason(output: str) -> str:
    """The line that explains why a command failed: the last one, or Maven's first error."""
    plain = re.sub(r'\x1b\[[0-9;]*m', '', output)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith('[ERROR] ')]
    return (errors[:1] or lines[-1:] or ['no message'])[0].removeprefix('[ERROR] ')
