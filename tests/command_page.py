"""The sessions of doc/operating/command-line.rst.

`python -m tests.command_page` writes their output.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

from rbfly.testing import StreamBroker
from tests.command_line import Terminal, environment, terminal_process
from tests.examples import ROOT

PAGE = ROOT / 'doc' / 'operating' / 'command-line.rst'
BLOCK = re.compile(r'^\.\. code-block:: console\n\n((?: {3}.*\n|\n)+)', re.MULTILINE)
COLUMNS = 85
# What differs from run to run.
MEASURED = re.compile(r'(?m)^\$ rbfly (?:perf|doctor)\b(?!.*--help)')
ROWS = re.compile(r'( Ns(?: N){9})+')  # of `perf`: fewer on a busy machine
TIME = re.compile(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z')


def sessions(text: str) -> list[str]:
    """Return the blocks of a page that show commands and their output."""
    return [re.sub(r'(?m)^ {3}', '', block).strip('\n') for block in BLOCK.findall(text)]


def commands(session: str) -> list[str]:
    return [line[2:] for line in session.splitlines() if line.startswith('$ ')]


def run(command: str, folder: Path, uri: str, status: int) -> tuple[str, int]:
    """Run a command of a page in a terminal; return what that shows, and the exit code.

    :param status: exit code of the command before it.
    """
    script = f'(exit {status}); {command}'
    path = f'{Path(sys.executable).parent}:{os.environ["PATH"]}'
    variables = environment(RBFLY_URI=uri, NO_COLOR='1', TERM='xterm', PATH=path)
    del variables['COLUMNS']
    with terminal_process(['sh', '-c', script], variables, COLUMNS, folder) as terminal:
        code = terminal.wait()
    return shown(terminal), code


def shown(terminal: Terminal) -> str:
    """Return what a terminal shows: a line that is drawn again replaces the one before."""
    lines = terminal.output.replace('\r\n', '\n').replace('\x1b[K', '').split('\n')
    return '\n'.join(line.rpartition('\r')[2].rstrip() for line in lines).rstrip('\n')


def outputs(page: str) -> list[str]:
    """Run all commands of a page, and return its sessions with their output."""
    found: list[str] = []
    status = 0
    with StreamBroker() as broker, tempfile.TemporaryDirectory() as folder:
        for session in sessions(page):
            lines: list[str] = []
            for command in commands(session):
                output, status = run(command, Path(folder), broker.uri, status)
                lines.append(f'$ {command}')
                lines += [output] if output else []
            found.append('\n'.join(lines))
    return found


def same_every_time(session: str) -> str:
    if MEASURED.search(session):
        session = re.sub(r'\s+', ' ', re.sub(r'\d[\d,.]*', 'N', session))
        session = ROWS.sub(r'\1', session)
    return TIME.sub('TIME', session)


def write() -> None:
    """Write the output of each command to the page."""
    text = PAGE.read_text()
    found = iter(outputs(text))

    def block(_: re.Match[str]) -> str:
        lines = next(found).splitlines()
        indented = '\n'.join(f'   {line}'.rstrip() for line in lines)
        return f'.. code-block:: console\n\n{indented}\n\n'

    PAGE.write_text(BLOCK.sub(block, text))


if __name__ == '__main__':
    write()
