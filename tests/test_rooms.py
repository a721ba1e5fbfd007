"""The rooms: every import and cimport of the package, held to a table; arrows point down only."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / 'src' / 'rbfly'
WIRE = (PACKAGE / '_wire.pxd').read_text()

# Leaves may be imported by all.
LEAVES = {'rbfly.error', 'rbfly.streams.const', 'rbfly.streams.error'}
# A leaf may know the errors' base and the numbers.
LEAF_IMPORTS = {
    ('rbfly.streams.error', 'rbfly.error'),
    ('rbfly.streams.error', 'rbfly.streams.const'),
}
# The height each module stands at; a module may import what stands lower.
HEIGHTS = {
    # BYTES
    'rbfly._wire': 0,
    'rbfly._crc': 0,
    # VALUES
    'rbfly.amqp._native': 10,
    'rbfly.amqp._types': 11,
    'rbfly.types': 12,  # names for the types; every room from here on may import them
    'rbfly.amqp._scalars': 13,
    'rbfly.amqp._encode': 14,  # encode and decode: side by side
    'rbfly.amqp._decode': 14,
    'rbfly.amqp._sections': 15,
    'rbfly.amqp._layout': 16,
    'rbfly.amqp._message': 17,
    'rbfly.amqp._codec': 18,
    'rbfly.amqp': 19,
    # types of the streams API
    'rbfly.streams.checks': 19,
    'rbfly.streams.compression': 19,
    'rbfly.streams.offset': 19,
    'rbfly.streams.types': 20,
    'rbfly.streams._entry': 23,
    'rbfly.streams._frames': 24,
    # CHUNK and PUBLISH: side by side
    'rbfly.streams._chunk': 25,
    'rbfly.streams._batch': 26,
    'rbfly.streams._cursor': 27,
    'rbfly.streams._publish': 25,
    # ENGINE
    'rbfly.streams._engine': 30,
    # COMMANDS
    'rbfly.streams.commands': 40,
    # IO
    'rbfly.streams.uri': 50,
    'rbfly.streams.connection': 51,
    'rbfly.streams.retry': 51,
    'rbfly.streams.closing': 52,
    'rbfly.streams.topology': 53,
    # USER
    'rbfly.streams._sending': 59,
    'rbfly.streams.waiting': 60,
    'rbfly.streams.declaration': 60,
    'rbfly.streams.tracking': 60,
    'rbfly.streams.feed': 61,
    'rbfly.streams.publisher': 61,
    'rbfly.streams.batch': 62,
    'rbfly.streams.subscriber': 62,
    'rbfly.streams.client': 63,
    'rbfly.streams._client': 64,
    'rbfly.streams': 65,
    'rbfly': 0,  # the version only
}
SANS_IO = 50  # below this line there is no socket, loop, task, clock or log
IO_MODULES = {
    'asyncio', 'concurrent', 'logging', 'multiprocessing', 'random', 'select', 'selectors',
    'signal', 'socket', 'ssl', 'subprocess', 'threading', 'time', 'uvloop', 'warnings',
}  # fmt: skip

LINE = re.compile(r'^\s*(?:(?:from)\s+(?P<base>[\w.]+)\s+)?c?import\s+(?P<names>.+)$')


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix('').parts
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def resolve(base: str, module: str, is_package: bool) -> str:
    """The absolute name of a base that may be relative."""
    level = len(base) - len(base.lstrip('.'))
    if not level:
        return base
    parents = module.split('.')
    parents = parents[: len(parents) - level + is_package]
    return '.'.join([*parents, *filter(None, [base[level:]])])


def statements(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Base ('' for a plain import) and names of every import and cimport of a file."""
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
    """Every module that a file names."""
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


def violations(root: Path) -> list[str]:
    """Every import that the table does not allow, in words."""
    files = modules(root)
    found = []
    for path in sources(root):
        module = module_name(path, root)
        if module not in HEIGHTS and module not in LEAVES:
            found.append(f'{module} has no room')
            continue
        height = HEIGHTS.get(module, 0)
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
            elif name not in HEIGHTS:
                found.append(f'{module} imports {name}, which has no room')
            elif HEIGHTS[name] >= height:
                found.append(f'{module} imports {name}, which stands above it')
    return found


def test_arrows_point_down() -> None:
    assert violations(PACKAGE) == []


def test_table_names_what_exists() -> None:
    assert modules(PACKAGE) == set(HEIGHTS) | LEAVES


def test_map_names_every_module() -> None:
    named = set()
    for line in (PACKAGE.parents[1] / 'CONTRIBUTING.md').read_text().split('```')[1].splitlines():
        folder = ''
        for item in re.finditer(r'(?:(\w+)/)?(\w+)\.(?:pyx?|pxd)\b', line):
            folder = item[1] or folder  # the names behind it stand in the same one
            named.add('.'.join(filter(None, ['rbfly', folder, item[2]])))
    packages = {'rbfly', 'rbfly.amqp', 'rbfly.streams'}
    assert named == modules(PACKAGE) - packages


def test_loads_and_stores_have_users() -> None:
    declared = re.findall(r'(?m)^ {4}(?:\w+ )?\w+ \*?(\w+)[(:]', WIRE.split('"""')[2])
    assert len(declared) > 15
    texts = [path.read_text() for path in sources(PACKAGE) if path.name != '_wire.pxd']
    assert [name for name in declared if not any(name in text for text in texts)] == []


def test_every_cython_file_is_read() -> None:
    # What the parser of cimports must find: lines in one piece, in parentheses, and renamed.
    files = modules(PACKAGE)
    publish = imports(PACKAGE / 'streams' / '_publish.pyx', PACKAGE, files)
    assert {'rbfly._wire', 'rbfly.streams._frames', 'rbfly.streams.error', 'libc.stdint'} <= publish
    engine = imports(PACKAGE / 'streams' / '_engine.pyx', PACKAGE, files)
    assert {'rbfly.streams._chunk', 'rbfly.streams._publish', 'cpython.bytes'} <= engine
    assert 'rbfly.streams.commands' in imports(
        PACKAGE / 'streams' / 'connection.py', PACKAGE, files
    )


def copy_package(to: Path) -> Path:
    for path in sources(PACKAGE):
        target = to / 'rbfly' / path.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return to / 'rbfly'


PLANTED = {
    'import asyncio': 'streams/_engine.pyx',
    'import time as clock': 'streams/_publish.pyx',
    'from ssl import SSLContext': 'streams/commands.py',
    'import os, logging': 'amqp/_codec.pyx',
    'import asyncio.events': 'streams/_chunk.pyx',
    'from rbfly.streams._engine cimport Engine': 'streams/_chunk.pyx',
    'from rbfly.streams._chunk cimport (\n    Chunk,\n    parse_chunk,\n)': 'streams/_publish.pxd',
    'from rbfly.streams cimport _publish': 'streams/_chunk.pyx',
    'cimport rbfly.streams._engine': 'amqp/_message.pxd',
    'from . import connection': 'streams/commands.py',
    'from .streams import Publisher': 'types.py',
    'from .streams.const import Key': 'error.py',
    'from .commands import frame': 'streams/const.py',
    'from .client import StreamsClient': 'streams/publisher.py',
    'if True:\n    from .client import StreamsClient': 'streams/connection.py',
    'def later():\n    import socket': 'streams/offset.py',
    'from .commands import Reader': 'streams/_chunk.pyi',
    'from .publisher import Publisher': 'streams/topology.py',
    'from rbfly.nowhere import x': 'streams/client.py',
}


@pytest.mark.parametrize(('line', 'file'), PLANTED.items(), ids=PLANTED.values())
def test_a_planted_arrow_is_found(line: str, file: str, tmp_path: Path) -> None:
    root = copy_package(tmp_path)
    before = violations(root)
    path = root / file
    path.write_text(f'{path.read_text()}\n{line}\n')
    found = [item for item in violations(root) if item not in before]
    assert len(found) == 1
    assert module_name(path, root) in found[0]


def test_a_module_without_a_room_is_found(tmp_path: Path) -> None:
    root = copy_package(tmp_path)
    (root / 'streams' / 'helpers.py').write_text('')
    assert 'rbfly.streams.helpers has no room' in violations(root)
