"""Build an sdist and a wheel, and use the package without its checkout.

The extension modules are built without optimization, which is faster.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import rbfly
from tests.examples import DISTRIBUTION, PROJECT, ROOT, examples
from tools import sbom

SOURCES = ROOT / 'src'
NOT_IMPORTED = ('_engine', '_iteration', '_lookup', '_record', '_routing', '_core')  # by extensions
EXTENSIONS = [str(path.relative_to(SOURCES).with_suffix('')) for path in SOURCES.rglob('*.pyx')]
STUBS = [str(path.relative_to(SOURCES)) for path in SOURCES.rglob('*.pyi')]
PROGRAM = """
import rbfly, rbfly.streams, rbfly.types, rbfly.error
from rbfly.amqp import decode_amqp, encode_amqp, stream_message_ctx
body = {'text': 'zażółć', 'list': [1, 2.5, None, True], 'bytes': b'abc'}
buffer = bytearray(1024)
size = encode_amqp(buffer, stream_message_ctx(body))
assert decode_amqp(bytes(buffer[:size])).body == body
client = rbfly.streams.streams_client('rabbitmq-stream://localhost/')
assert not client.connected
print(rbfly.__file__)
"""
# Modules that rbfly.streams imports and asyncio does not: all small.
IMPORTED = {'cython_runtime', 'rbfly'}
# What each use of a client imports, besides what `import rbfly.streams` does.
CLIENT = 'client = rbs.streams_client("rabbitmq-stream://localhost/")\n'
PUBLISH = CLIENT + 'client.publisher("orders").close()'
SUBSCRIBE = f'async def main():\n    {CLIENT}    client.subscribe("orders")\nasyncio.run(main())'
CONSUMING = {'_consume', '_group', '_offsets.store', '_offsets.tracking'}
PARTS = {'_publish', '_super_stream', 'compat', 'events', *CONSUMING}
USES = {
    'import': ('', set()),
    'client': (CLIENT, set()),
    'publish': (PUBLISH, {'_publish'}),
    'subscribe': (SUBSCRIBE, CONSUMING),
    'event': ('rbs.events.Recovered is rbs.Recovered', {'events'}),
    'annotation': ('typing.get_type_hints(rbs.StreamsClient.events)', {'events'}),
}


def run(*command: str | Path, cwd: Path) -> str:
    env = {key: value for key, value in os.environ.items() if not key.startswith('PYTHON')}
    env['RBFLY_DEBUG'] = '1'
    result = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout


@pytest.fixture(scope='module')
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sdist, built from a clean copy of the checkout."""
    folder = tmp_path_factory.mktemp('sdist')
    ignore = shutil.ignore_patterns(
        '.git', 'build', 'dist', '*.egg-info', '__pycache__', '.*_cache', '.hypothesis', '*.so'
    )
    shutil.copytree(ROOT, folder / 'copy', ignore=ignore)
    make = 'from setuptools.build_meta import build_sdist; build_sdist("..")'
    run(sys.executable, '-c', make, cwd=folder / 'copy')
    (path,) = folder.glob('*.tar.gz')
    shutil.rmtree(folder / 'copy')
    return path


@pytest.fixture(scope='module')
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from the sdist."""
    folder = tmp_path_factory.mktemp('wheel')
    options = ['--no-index', '--no-deps', '--no-build-isolation', '--quiet']
    run(sys.executable, '-m', 'pip', 'wheel', *options, str(sdist), cwd=folder)
    (path,) = folder.glob('*.whl')
    return path


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_sdist_contains_the_sources(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition('/')[2] for name in archive.getnames()}
    for name in EXTENSIONS:
        assert f'src/{name}.pyx' in names
        assert f'src/{name}.pxd' in names or name.endswith(NOT_IMPORTED)
    for name in ('setup.py', 'pyproject.toml', 'README.md', 'LICENSE', 'src/rbfly/_wire.pxd'):
        assert name in names
    assert 'tools/sbom.py' in names
    assert not [name for name in names if name.endswith(('.c', '.so', '.o'))]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_wheel_contains_modules_and_stubs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = next(name for name in names if name.endswith('.dist-info/METADATA'))
        text = archive.read(metadata).decode()
    for name in EXTENSIONS:
        assert f'{name}.pxd' in names or name.endswith(NOT_IMPORTED)
        assert [item for item in names if item.startswith(f'{name}.') and item.endswith('.so')]
    for name in ('rbfly/py.typed', 'rbfly/_wire.pxd', 'rbfly/streams/client.py', *STUBS):
        assert name in names
    assert not [name for name in names if name.endswith(('.c', '.h', '.html', '.pyc'))]
    tops = {name.partition('/')[0] for name in names}
    assert tops == {'rbfly', metadata.partition('/')[0]}
    tests = [name for name in names if 'test' in name.lower()]
    assert all(name.startswith('rbfly/testing/') for name in tests)
    assert 'License-Expression: Apache-2.0' in text
    assert 'Author: RbFly contributors' in text
    needed = [line for line in text.splitlines() if line.startswith('Requires-Dist:')]
    assert all('extra ==' in line for line in needed)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_wheel_contains_a_valid_sbom(wheel: Path) -> None:
    found = sbom.documents(wheel)
    ((name, text),) = found.items()
    assert name.endswith(f'.dist-info/sboms/{DISTRIBUTION}.cdx.json')
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    component = json.loads(text)['metadata']['component']
    assert (component['name'], component['version']) == (DISTRIBUTION, rbfly.__version__)
    assert component['licenses'] == [{'license': {'id': PROJECT['license']}}]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / 'venv'
    run(sys.executable, '-m', 'venv', '--without-pip', environment, cwd=tmp_path)
    python = environment / 'bin' / 'python'
    options = ['--no-index', '--no-deps', '--quiet']
    run(sys.executable, '-m', 'pip', '--python', python, 'install', *options, wheel, cwd=tmp_path)
    printed = run(python, '-I', '-X', 'dev', '-W', 'error', '-c', PROGRAM, cwd=tmp_path)
    assert Path(printed.strip()).is_relative_to(environment)
    readme = dict(examples())['README.md:0']
    printed = run(python, '-I', '-X', 'dev', '-W', 'error', '-c', readme, cwd=tmp_path)
    assert printed.splitlines()[-1] == "99 {'id': 100}"


def test_import_loads_few_modules_beyond_asyncio() -> None:
    """Importing rbfly.streams takes about as long as importing asyncio, which it needs."""
    program = """
import asyncio, sys
before = set(sys.modules)
import rbfly.streams
print(*(set(sys.modules) - before))
"""
    modules = run(sys.executable, '-I', '-c', program, cwd=Path.cwd()).split()
    found = {name.partition('.')[0] for name in modules if not name.startswith('_')}
    assert found <= IMPORTED


@pytest.mark.parametrize(('program', 'used'), USES.values(), ids=USES)
def test_program_imports_only_what_it_uses(program: str, used: set[str]) -> None:
    start = 'import asyncio, sys, typing, rbfly.streams as rbs\n'
    shown = run(
        sys.executable, '-I', '-c', f'{start}{program}\nprint(*sys.modules)', cwd=Path.cwd()
    )
    modules = {name.removeprefix('rbfly.streams.') for name in shown.split()}
    assert modules & PARTS == used
    assert 'uuid' not in modules


THREADS = """
import sys, threading
import rbfly.streams as rbs
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(8)
found = []
def get():
    barrier.wait()
    found.append([getattr(rbs, name) for name in rbs.__all__])
threads = [threading.Thread(target=get) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(all(item is value for names in found for item, value in zip(names, found[0], strict=True)))
print(len(found))
"""


def test_threads_use_names_for_the_first_time_at_once() -> None:
    assert run(sys.executable, '-I', '-c', THREADS, cwd=Path.cwd()).split() == ['True', '8']


@pytest.mark.parametrize('module', ['rbfly.amqp', 'rbfly.streams'])
def test_subinterpreter_refuses_the_import(module: str, tmp_path: Path) -> None:
    answer = tmp_path / 'answer'
    inner = f"""
try:
    import {module}
except ImportError as ex:
    found = 'refused'
else:
    found = 'imported'
open({str(answer)!r}, 'w').write(found)
"""
    program = f"""
import {module}
try:
    import _interpreters as interpreters
except ImportError:  # before Python 3.13
    import _xxsubinterpreters as interpreters
interpreters.run_string(interpreters.create(), {inner!r})
"""
    run(sys.executable, '-I', '-c', program, cwd=tmp_path)
    assert answer.read_text() == 'refused'


def test_connects_without_distribution_metadata(tmp_path: Path) -> None:
    """Vendored copies, zipapps and frozen programs have none."""
    package = Path(rbfly.__file__).parent
    shutil.copytree(package, tmp_path / 'rbfly', ignore=shutil.ignore_patterns('__pycache__'))
    program = f"""
import asyncio, sys
sys.path.insert(0, {str(tmp_path)!r})
sys.path[:] = [path for path in sys.path if not path.endswith('site-packages')]
import rbfly.streams as rbs
from rbfly.testing import StreamBroker
async def main():
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        await client.create_stream('test')
asyncio.run(main())
print(rbs.__file__, 'importlib.metadata' in sys.modules)
"""
    path, looked_up = run(sys.executable, '-I', '-c', program, cwd=tmp_path).split()
    assert Path(path).is_relative_to(tmp_path)
    assert looked_up == 'False'
