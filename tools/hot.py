"""Keep hot functions from making more Python calls.

Cython's annotated HTML scores each line by the Python calls in its generated C.  This script adds
up the scores of the functions listed in `hot.json` and compares the sums with the recorded ones.
If a function scores higher, the check fails and prints its worst lines.  If it scores lower, update
the table so that the gain is kept.

Inline functions of a `.pxd` file, which has no HTML page, are found in the C of the modules that
use them and scored in the same way.

    python tools/hot.py               compare
    python tools/hot.py --update      record the current scores
    python tools/hot.py --lines NAME  print the scored lines of a function
"""

import argparse
import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_suffix('.json')
SOURCES = ROOT / 'src'
BUILD = ROOT / 'build' / 'cython' / 'src'
WORST = 5

LINE = re.compile(
    r'<pre class="cython line score-(?P<score>\d+)"[^>]*>.?(?:&#xA0;)?<span class="">0*'
    r'(?P<number>\d+)</span>: ?(?P<code>.*?)</pre>'
)
TAG = re.compile(r'<[^>]*>')
CLASS = re.compile(r'(?:cdef |cpdef )?class (?P<name>\w+)')
# excludes `=` before the parenthesis: that is a variable initialized by a call
FUNCTION = re.compile(r'(?:async )?(?:def|cdef|cpdef) [^=(]*?(?P<name>\w+)\(')

# the comment that Cython writes into the C before the code of a source line
MARK = re.compile(r'^ */\* "(?P<path>[^"]+)":(?P<number>\d+)\n.*?\*/\n', re.MULTILINE | re.DOTALL)
# the weights of Cython's HTML pages, by the regex group that matches the call
WEIGHTS = {'py_c_api': 5, 'pyx_c_api': 2, 'py_macro_api': 1, 'pyx_macro_api': 1}

Table = dict[str, dict[str, int]]


class HotError(Exception):
    """The check cannot run."""


@dataclass(frozen=True)
class Line:
    """A source line and its score."""

    number: int
    score: int
    code: str


@dataclass
class Function:
    """A function; its name includes the enclosing classes."""

    name: str
    indent: int
    lines: list[Line] = field(default_factory=list)

    @property
    def score(self) -> int:
        return sum(line.score for line in self.lines)

    def worst(self) -> list[Line]:
        """Lines with a score, highest first."""
        scored = [line for line in self.lines if line.score]
        return sorted(scored, key=lambda line: (-line.score, line.number))


def read_lines(text: str) -> Iterator[Line]:
    """Yield the source lines of an annotated page."""
    for match in LINE.finditer(text):
        code = html.unescape(TAG.sub('', match['code'])).replace('\xa0', ' ')
        yield Line(int(match['number']), int(match['score']), code.rstrip())


def read_functions(lines: Sequence[Line]) -> dict[str, Function]:
    """Map names to functions; methods are named `Class.method`."""
    functions: dict[str, Function] = {}
    classes: list[tuple[int, str]] = []
    current: Function | None = None
    depth = 0  # of parentheses in a signature
    for line in lines:
        code = line.code.strip()
        indent = len(line.code) - len(line.code.lstrip())
        if current is not None:
            if depth > 0:
                depth += brackets(code)
                current.lines.append(line)
                continue
            if not code or code.startswith('#') or indent > current.indent:
                current.lines.append(line)
                continue
            current = None
        if not code:
            continue
        while classes and indent <= classes[-1][0]:
            classes.pop()
        if match := CLASS.match(code):
            classes.append((indent, match['name']))
        elif match := FUNCTION.match(code):
            name = '.'.join([*(name for _, name in classes), match['name']])
            current = Function(name, indent, [line])
            depth = brackets(code)
            functions[name] = current
    return functions


def brackets(code: str) -> int:
    """The number of parentheses that a line leaves open."""
    return code.count('(') - code.count(')')


def score_code(code: str) -> int:
    """Score C code like Cython's HTML pages do."""
    from Cython.Compiler.Annotate import _parse_code as replace_calls

    score = 0

    def count(match: re.Match[str]) -> str:
        nonlocal score
        score += WEIGHTS.get(match.lastgroup or '', 0)
        return ''

    replace_calls(count, code)
    return score


def read_c(text: str, path: str) -> dict[int, int]:
    """Score the lines of a `.pxd` file in the C of a module that uses it."""
    scores: dict[int, int] = {}
    marks = list(MARK.finditer(text))
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    for mark, end in zip(marks, ends, strict=False):
        if mark['path'].endswith(path):
            # code after the end of the function belongs to no line
            code = text[mark.end() : end].partition('\n}\n')[0]
            number = int(mark['number'])
            scores[number] = scores.get(number, 0) + score_code(code)
    return scores


def read_inline(module: str, build: Path) -> dict[str, Function]:
    """Inline functions of a `.pxd` file; if modules differ, with the highest score."""
    path = module.removesuffix('.pxd').replace('.', '/') + '.pxd'
    source = SOURCES.joinpath(path).read_text(encoding='utf-8').splitlines()
    functions: dict[str, Function] = {}
    for c_file in sorted(build.rglob('*.c')):
        if not SOURCES.joinpath(c_file.relative_to(build)).with_suffix('.pyx').exists():
            continue
        scores = read_c(c_file.read_text(encoding='utf-8'), path)
        lines = [Line(n, scores.get(n, 0), code) for n, code in enumerate(source, 1)]
        for name, function in read_functions(lines).items():
            used = any(line.number in scores for line in function.lines)
            if used and (name not in functions or function.score > functions[name].score):
                functions[name] = function
    return functions


def read_page(module: str, build: Path) -> dict[str, Function]:
    """Functions of a module."""
    path = build.joinpath(*module.split('.')).with_suffix('.html')
    if not path.exists():
        raise HotError(f'no annotated page for {module} in {build}')
    return read_functions(list(read_lines(path.read_text(encoding='utf-8'))))


def annotate() -> None:
    """Translate changed sources to C without compiling them."""
    result = subprocess.run(
        [sys.executable, 'setup.py', '-q', '--name'],
        cwd=ROOT,
        env={**os.environ, 'RBFLY_ANNOTATE': '1', 'RBFLY_DEBUG': '', 'RBFLY_SANITIZE': ''},
        capture_output=True,
        text=True,
    )
    if result.returncode:
        raise HotError(f'Cython failed:\n{result.stdout}{result.stderr}')


def load(path: Path) -> Table:
    table: Table = json.loads(path.read_text(encoding='utf-8'))
    return table


def find(table: Table, build: Path) -> dict[str, dict[str, Function]]:
    """The current state of the functions in the table."""
    current: dict[str, dict[str, Function]] = {}
    for module, names in table.items():
        read = read_inline if module.endswith('.pxd') else read_page
        functions = read(module, build)
        if absent := [name for name in names if name not in functions]:
            raise HotError(f'{module} has no function {", ".join(absent)}; correct {TABLE.name}')
        current[module] = {name: functions[name] for name in names}
    return current


def compare(table: Table, current: dict[str, dict[str, Function]]) -> tuple[list[str], list[str]]:
    """Return the regressions, each with its worst lines, and the improvements."""
    worse, better = [], []
    for module, functions in current.items():
        for name, function in functions.items():
            limit = table[module][name]
            change = f'{module}.{name}: {function.score}, recorded {limit}'
            if function.score < limit:
                better.append(change)
            elif function.score > limit:
                worse.append(change)
                worse += [
                    f'    {line.score:4}  line {line.number}: {line.code.strip()}'
                    for line in function.worst()[:WORST]
                ]
    return worse, better


def scores(current: dict[str, dict[str, Function]]) -> Table:
    """The table with the current scores."""
    return {
        module: {name: function.score for name, function in functions.items()}
        for module, functions in current.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument('--update', action='store_true', help='record the current scores')
    action.add_argument('--lines', metavar='NAME', help='print the scored lines of a function')
    args = parser.parse_args(argv)
    table = load(TABLE)
    try:
        annotate()
        current = find(table, BUILD)
    except HotError as ex:
        print(f'hot: {ex}', file=sys.stderr)
        return 2
    if args.lines:
        for module, functions in current.items():
            for name, function in functions.items():
                if args.lines in (name, f'{module}.{name}'):
                    print(f'{module}.{name}: {function.score}')
                    for line in function.worst():
                        print(f'    {line.score:4}  line {line.number}: {line.code.strip()}')
        return 0
    if args.update:
        TABLE.write_text(json.dumps(scores(current), indent=2) + '\n', encoding='utf-8')
        return 0
    worse, better = compare(table, current)
    if worse:
        print('hot functions make more Python calls than recorded:')
        print('\n'.join(worse))
    if better:
        print('hot functions make fewer Python calls; record that with tools/hot.py --update:')
        print('\n'.join(better))
    if not worse and not better:
        count = sum(map(len, current.values()))
        print(f'{count} hot functions match {TABLE.name}')
    return 1 if worse else 0


if __name__ == '__main__':
    sys.exit(main())
