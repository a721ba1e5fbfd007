"""An executable that PyInstaller builds contains what the compiled modules import."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / 'src' / 'rbfly'
IMPORT = re.compile(r'^(?:import|from) (?!rbfly)([\w.]+)(?: import|$)', re.MULTILINE)
PROGRAM = """
import asyncio

import rbfly.streams as rbs
from rbfly.testing import StreamBroker

async def main():
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        await client.create_stream('orders')
        async with client.publisher('orders') as publisher:
            await publisher.send({'id': 1})
        async for order in client.subscribe('orders', offset=rbs.Offset.FIRST, until='now'):
            print(order)

asyncio.run(main())
"""


def test_hook_names_what_compiled_modules_import() -> None:
    hook = (SOURCES / '_pyinstaller' / 'hook-rbfly.py').read_text()
    for path in SOURCES.rglob('*.pyx'):
        for name in IMPORT.findall(path.read_text()):
            assert re.search(rf"'{re.escape(name)}(\.\w+)?'", hook), f'{path.name} imports {name}'


def test_commands_are_hidden_imports_of_the_command_line() -> None:
    """They are no imports of programs that only use the client."""
    hooks = SOURCES / '_pyinstaller'
    assert "collect_submodules('rbfly.cli')" in (hooks / 'hook-rbfly.cli.py').read_text()
    assert 'rbfly.cli' not in (hooks / 'hook-rbfly.py').read_text()


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_executable(tmp_path: Path) -> None:
    (tmp_path / 'program.py').write_text(PROGRAM)
    command = [sys.executable, '-m', 'PyInstaller', '--log-level', 'WARN', 'program.py']
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-4000:]
    program = tmp_path / 'dist' / 'program' / 'program'
    done = subprocess.run([program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("{'id': 1}\n", '')
