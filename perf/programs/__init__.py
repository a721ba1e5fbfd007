"""Workers in other languages: the official clients for Go and for Java, built from source here.

Such a program is started as `PROGRAM KIND`, KIND being `window` or `consume`.  Commands are JSON
lines on standard input; each gets one JSON line as an answer.  What the client logs goes to
standard error.

    {"do": "open", "address": "...", "stream": "..."}   -> {"loop": "none"}
    {"do": "prepare", "count": 1000}                    -> {}
    {"do": "run"}                                       -> {"count": 1000, "begun": ..., ...}

`begun` and `ended` are times of CLOCK_MONOTONIC, as those of `time.perf_counter` on Linux.  At an
error the answer is `{"error": "..."}`, and the program ends with status 1; at the end of its input
it disconnects and ends.

Programs are built into `build/programs`, each version of the sources into a folder of its own.
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

__all__ = ['PROGRAMS', 'Program', 'ProgramError', 'build', 'command', 'missing', 'version']

SOURCES = Path(__file__).resolve().parent
BUILD_TIMEOUT = 600.0  # with all that it fetches


class ProgramError(Exception):
    """A program cannot be built, and why."""


@dataclass(frozen=True)
class Program:
    """How a program is built and started; `{out}` in a command is the folder it is built into.

    :ivar source: its folder; commands that build are run there.
    :ivar needs: commands that have to be there, what each is part of, and how to get it.
    :ivar client: file in its folder, and a pattern of the client's version in it.
    :ivar language: command that tells the version of the language, and a pattern of it.
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
    """How to start a program; it is built first, if it has to be."""
    return [*filled(PROGRAMS[program].start, build(program)), kind]


def missing(program: str) -> str:
    """Say why a program cannot run and how to get it there; empty if it can."""
    if absent := not_installed(program):
        return absent
    try:
        build(program)
    except ProgramError as ex:
        return str(ex)
    return ''


def version(program: str) -> str:
    """Version of the client, and of the language where that is installed."""
    name, pattern = PROGRAMS[program].client
    found = re.search(pattern, (PROGRAMS[program].source / name).read_text())
    assert found is not None
    if not_installed(program):
        return found[1]
    return f'{found[1]}, {program} {language(program).removeprefix(program)}'


def build(program: str) -> Path:
    """Build a program, unless these sources have been; return the folder that it is in.

    :raises ProgramError: it cannot be built.
    """
    if absent := not_installed(program):
        raise ProgramError(absent)
    folder = environment.folder() / 'build' / 'programs'
    made = folder / f'{program}-{key(program)}'
    if made.exists():
        return made
    print(f'building perf/programs/{program}', file=sys.stderr, flush=True)  # takes half a minute
    folder.mkdir(parents=True, exist_ok=True)
    # whoever else builds it now does so beside this, and who is first has it in place
    out = Path(tempfile.mkdtemp(prefix=f'.{program}-', dir=folder))
    try:
        run(program, filled(PROGRAMS[program].build, out))
        with suppress(OSError):
            out.rename(made)
        if not made.exists():
            raise ProgramError(f'building {program} failed: no folder {made}')
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
        raise ProgramError(f'{" ".join(words)} says no version: {output[:100]!r}')
    return found[1]


def key(program: str) -> str:
    """Name of what these sources are built into, by this version of the language."""
    source = PROGRAMS[program].source
    digest = hashlib.sha256(repr((PROGRAMS[program].build, language(program))).encode())
    for path in sorted(path for path in source.rglob('*') if path.is_file()):
        data = path.read_bytes()
        digest.update(f'{path.relative_to(source)} {len(data)}\n'.encode() + data)
    return digest.hexdigest()[:16]


def filled(words: Sequence[str], out: Path) -> list[str]:
    return [word.replace('{out}', str(out)) for word in words]


def run(program: str, words: Sequence[str]) -> str:
    """Run a command in the folder of a program; return what it prints."""
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
    """The line that says most of why a command failed: the last; Maven's first error, though."""
    plain = re.sub(r'\x1b\[[0-9;]*m', '', output)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith('[ERROR] ')]
    return (errors[:1] or lines[-1:] or ['no message'])[0].removeprefix('[ERROR] ')
