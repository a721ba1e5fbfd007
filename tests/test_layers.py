"""Compare every import and cimport of the package with a table: imports point down only."""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / 'src' / 'rbfly'
WIRE = (PACKAGE / '_wire.pxd').read_text()

# Every module may import the leaves.
LEAVES = {'rbfly.error', 'rbfly.checks', 'rbfly.protocol.const'}
# Imports between leaves.
LEAF_IMPORTS = {
    ('rbfly.error', 'rbfly.protocol.const'),
    ('rbfly.checks', 'rbfly.error'),
}
# The layers with their rows, from the lowest to the highest; a module may import lower rows only.
LAYERS = {
    'rbfly': [
        ['_wire', '_crc', '_cpython', '_turn', '_record', 'later', 'closed_pipe'],
        ['record'],
    ],
    'rbfly.amqp': [
        ['_native', '_constructors', 'body_codec'],
        ['_types'],
        ['rbfly.types'],  # type aliases
        ['_scalars', '_records'],
        ['_encode', '_decode'],
        ['_sections', '_plan'],
        ['_layout'],
        ['_message'],
        ['_path', '_lookup', '_typed'],
        ['foreign_types'],
        ['schema'],
        ['_codec'],
        [''],
    ],
    'rbfly.protocol': [
        ['', 'compression', 'offset'],
        ['fields', '_entry', '_large', '_spare', '_block', '_decoder'],
        ['chunks', 'commands'],
        ['message_frames'],
        ['_pending', '_ring'],
        ['_frames'],
        ['_chunk', '_publish'],
        ['_atomic', '_identity', '_batch'],
        ['_cursor'],
        ['start', 'end'],
        ['_engine'],
    ],
    'rbfly.net': [
        ['', 'gathering', 'login', 'receiving', 'totals', 'rbfly.time_limits'],
        ['resolving', 'waiting'],
        ['uri'],
        ['observer', 'requests'],
        ['busy_poll', 'connection', 'retry'],
        ['credentials', 'handshake', 'moving', 'single_flight'],
        ['dialer'],
        ['pool'],
        ['locator'],
        ['cluster'],
        ['registration'],
        ['recovery'],
        ['history', 'outage_log'],
    ],
    'rbfly.streams': [
        ['error', 'offset', 'types', 'events', '_arguments', '_misuse', '_repeating', '_waiting'],
        ['_offsets', 'metrics'],
        ['health', 'description'],
        ['_admin', '_publish', '_group'],
        ['_consume'],
        ['_super_stream'],
        ['client', 'compat', '', '_client'],
    ],
    'rbfly.sync': [
        ['thread', 'options'],
        ['publisher', 'subscription'],
        ['super_stream'],
        ['client'],
        [''],
    ],
    'rbfly.processing': [
        ['_partition', '_ends'],
        ['_error_log', '_failures', '_workers', '_lane'],
        ['_processing'],
        ['_process', '_pipe'],
        [''],
    ],
    'rbfly.otel': [
        ['_carrier'],
        ['_spans', '_metrics'],
        ['_publishers'],
        ['_tracing'],
        [''],
        ['instrumentor'],
    ],
    'rbfly.testing': [
        ['faults', 'arguments'],
        ['connection'],
        ['stream'],
        ['node', 'frames', 'group'],
        ['cluster'],
        ['lifecycle', 'session'],
        ['fault_methods', 'handlers'],
        ['broker'],
        ['', 'command'],
        ['rbfly.fixtures'],
    ],
    'rbfly.cli': [
        [
            '',
            'lazy',
            'profiles',
            'running',
            'values',
            'output',
            'partitions',
            'lines',
            'progress',
            'sub_entries',
        ],
        ['connection', 'formats', 'places'],
        ['broker', 'stream', 'tail', 'publish', 'lag'],
        ['super_stream', 'offset', 'copy'],
        ['histogram', 'certificate'],
        ['load', 'reachability'],
        ['report', 'diagnosis'],
        ['perf', 'doctor'],
        ['main'],
        ['rbfly.__main__'],
    ],
    'rbfly._pyinstaller': [['', 'hook-rbfly']],
}
# The in-memory broker stands beside the client: it is higher in the table, but imports none of it.
BESIDE = {'rbfly.testing': ('rbfly.net', 'rbfly.otel', 'rbfly.streams', 'rbfly.sync')}
# Layers that import only public names of the lower ones.
ON_PUBLIC_API = 'rbfly.processing'
LOG_FIELDS = 'rbfly.net.observer'  # except for what all lines in the log carry
# Layers whose rows may import each other's modules within a row, but not in circles.
OPEN = ('rbfly.streams',)
# The height of each module; the modules of a package in a row have its height.
HEIGHTS = {'rbfly': 0}  # the version only
for layer, rows in LAYERS.items():
    for row in rows:
        names = [f'{layer}.{name}'.strip('.') if '.' not in name else name for name in row]
        HEIGHTS |= dict.fromkeys(names, max(HEIGHTS.values()) + 1)
SANS_IO = HEIGHTS['rbfly.net']  # below: no socket, event loop, task, clock or log
IO_MODULES = {
    'asyncio', 'concurrent', 'logging', 'multiprocessing', 'random', 'select', 'selectors',
    'signal', 'socket', 'ssl', 'subprocess', 'threading', 'time', 'uvloop', 'warnings',
}  # fmt: skip

LINE = re.compile(r'^\s*(?:(?:from)\s+(?P<base>[\w.]+)\s+)?c?import\s+(?P<names>.+)$')


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix('').parts
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def resolve(base: str, module: str, is_package: bool) -> str:
    """Return the absolute name of a base that may be relative."""
    level = len(base) - len(base.lstrip('.'))
    if not level:
        return base
    parents = module.split('.')
    parents = parents[: len(parents) - level + is_package]
    return '.'.join([*parents, *filter(None, [base[level:]])])


def statements(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield base ('' for a plain import) and names of every import and cimport of a file."""
    text = path.read_text()
    if path.suffix in ('.py', '.pyi'):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                yield '.' * node.level + (node.module or ''), [item.name for item in node.names]
            elif isinstance(node, ast.Import):
                yield '', [item.name for item in node.names]
        return
    text = re.sub(r'#[^\n]*', '', text)
    text = re.sub(r'("""|\'\'\')(?:.|\n)*?\1', '', text)
    text = re.sub(r'\(([^()]*)\)', lambda found: found[0].replace('\n', ' '), text)
    for line in text.replace('\\\n', ' ').splitlines():
        if found := LINE.match(line):
            names = [
                item.split(' as ')[0].strip() for item in found['names'].strip('() ').split(',')
            ]
            yield found['base'] or '', [item for item in names if item]


def imports(path: Path, root: Path, files: set[str]) -> set[str]:
    """Return every module that a file imports."""
    module = module_name(path, root)
    found = set()
    for base, names in statements(path):
        if not base:
            found.update(names)
            continue
        origin = resolve(base, module, path.stem == '__init__')
        for name in names:
            found.add(f'{origin}.{name}' if f'{origin}.{name}' in files else origin)
    return found


def sources(root: Path) -> list[Path]:
    return sorted(
        item for kind in ('py', 'pyi', 'pyx', 'pxd', 'pxi') for item in root.rglob(f'*.{kind}')
    )


def modules(root: Path) -> set[str]:
    return {module_name(path, root) for path in sources(root)}


def entry_of(module: str) -> str:
    """Return the name in the table of a module or of the package that contains it."""
    package = module.rpartition('.')[0]
    return package if package in HEIGHTS and package not in LAYERS else module


def find_circle(imported: dict[str, set[str]]) -> list[str]:
    """Return the modules that import each other in a circle, or [] if there are none."""
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as ex:
        return list(ex.args[1])
    return []


def violations(root: Path, *paths: Path) -> list[str]:
    """Describe every import of these files, or of all, that the table does not allow."""
    files = modules(root)
    found = []
    for path in paths or sources(root):
        module = module_name(path, root)
        entry = entry_of(module)
        if entry not in HEIGHTS and module not in LEAVES:
            found.append(f'{module} is not in the table')
            continue
        height = HEIGHTS.get(entry, 0)
        for name in sorted(imports(path, root, files)):
            top = name.split('.')[0]
            if top != 'rbfly':
                if height < SANS_IO and top in IO_MODULES:
                    found.append(f'{module} imports {name} below the sans-IO line')
            elif name in LEAVES:
                if module in LEAVES and (module, name) not in LEAF_IMPORTS:
                    found.append(f'leaf {module} imports {name}')
            elif module in LEAVES:
                found.append(f'leaf {module} imports {name}')
            elif entry_of(name) not in HEIGHTS:
                found.append(f'{module} imports {name}, which is not in the table')
            elif any(
                module.startswith(f'{layer}.') and name.startswith(others)
                for layer, others in BESIDE.items()
            ):
                found.append(f'{module} imports {name}, which is beside it')
            elif (
                module.startswith(ON_PUBLIC_API)
                and not name.startswith(ON_PUBLIC_API)
                and ('._' in name or name.startswith(('rbfly.net', 'rbfly.protocol')))
                and name != LOG_FIELDS
            ):
                found.append(f'{module} imports {name}, which is not public')
            elif HEIGHTS[entry_of(name)] >= height + module.startswith(OPEN):
                found.append(f'{module} imports {name}, which is not below it')
    return found


def test_imports_point_down() -> None:
    assert violations(PACKAGE) == []


def test_no_circles() -> None:
    files = modules(PACKAGE)
    imported: dict[str, set[str]] = {}
    for path in sources(PACKAGE):  # a module and its declarations count as one
        module = module_name(path, PACKAGE)
        imported.setdefault(module, set()).update(imports(path, PACKAGE, files) - {module})
    assert find_circle(imported) == []
    imported['rbfly.streams._waiting'].add('rbfly.streams._consume.session')
    assert find_circle(imported)


def test_table_lists_every_module() -> None:
    assert {entry_of(module) for module in modules(PACKAGE)} == set(HEIGHTS) | LEAVES


def test_contributing_has_a_line_for_each_package() -> None:
    lines = (PACKAGE.parents[1] / 'CONTRIBUTING.md').read_text().split('```')[1].splitlines()
    described = {line.split()[0] for line in lines if line}
    packages = {str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob('__init__.py')}
    assert packages - described == set()


def test_files_named_in_contributing_exist() -> None:
    tops = (PACKAGE.parents[1], PACKAGE)
    text = (tops[0] / 'CONTRIBUTING.md').read_text()
    named = set(re.findall(r'`([\w/]+\.(?:pyx?|md|json))`', text))
    assert len(named) > 15
    assert [name for name in named if not any((top / name).exists() for top in tops)] == []


def test_every_load_and_store_is_used() -> None:
    declared = re.findall(r'(?m)^ {4}(?:\w+ )?\w+ \*?(\w+)[(:]', WIRE.split('"""')[2])
    assert len(declared) > 15
    texts = [path.read_text() for path in sources(PACKAGE) if path.name != '_wire.pxd']
    assert [name for name in declared if not any(name in text for text in texts)] == []


def test_parser_finds_cimports() -> None:
    # Cimports on one line, in parentheses, and with `as`.
    files = modules(PACKAGE)
    publish = imports(PACKAGE / 'protocol' / '_publish.pyx', PACKAGE, files)
    assert {'rbfly._wire', 'rbfly.protocol._pending', 'libc.stdint'} <= publish
    engine = imports(PACKAGE / 'protocol' / '_engine.pyx', PACKAGE, files)
    assert {'rbfly.protocol._chunk', 'rbfly.protocol._publish', 'cpython.bytes'} <= engine
    assert 'rbfly.protocol.commands' in imports(PACKAGE / 'net' / 'connection.py', PACKAGE, files)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the package."""
    for path in sources(PACKAGE):
        target = tmp_path / 'rbfly' / path.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return tmp_path / 'rbfly'


FORBIDDEN = {
    'import asyncio': 'protocol/_engine.pyx',
    'import time as clock': 'protocol/_publish.pyx',
    'from ssl import SSLContext': 'protocol/commands.py',
    'import os, logging': 'amqp/_codec.pyx',
    'import asyncio.events': 'protocol/_chunk.pyx',
    'from rbfly.protocol._engine cimport Engine': 'protocol/_chunk.pyx',
    'from rbfly.protocol._chunk cimport (\n    Chunk,\n    parse_chunk\n)': 'protocol/_entry.pxd',
    'from rbfly.protocol cimport _publish': 'protocol/_chunk.pyx',
    'cimport rbfly.protocol._engine': 'amqp/_message.pxd',
    'from ..net import connection': 'protocol/commands.py',
    'from .streams import Publisher': 'types.py',
    'from .protocol.commands import Tune': 'error.py',
    'from .commands import frame': 'protocol/const.py',
    'from ..client import StreamsClient': 'streams/_publish/publisher.py',
    'if True:\n    from ..streams.client import StreamsClient': 'net/connection.py',
    'def later():\n    import socket': 'protocol/offset.py',
    'from ._engine import Engine': 'protocol/_chunk.pyi',
    'from ..streams._publish.publisher import Publisher': 'net/cluster.py',
    'from rbfly.nowhere import x': 'streams/client.py',
    'from .._consume.session import SubscriptionSession': 'streams/_publish/session.py',
    'from ..testing.broker import StreamBroker': 'streams/client.py',
    'from ..net.connection import Connection': 'testing/broker.py',
    'from ..streams import Offset': 'testing/handlers.py',
    'from ..streams._group.handover import Group': 'processing/__init__.py',
}


@pytest.mark.parametrize(('line', 'file'), FORBIDDEN.items(), ids=FORBIDDEN.values())
def test_forbidden_import_is_found(line: str, file: str, root: Path) -> None:
    path = root / file
    path.write_text(f'{path.read_text()}\n{line}\n')
    found = violations(root, path)
    assert len(found) == 1
    assert module_name(path, root) in found[0]


def test_module_missing_in_the_table_is_found(root: Path) -> None:
    (root / 'streams' / 'helpers.py').write_text('')
    assert 'rbfly.streams.helpers is not in the table' in violations(root)
