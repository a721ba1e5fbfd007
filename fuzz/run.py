"""Build the fuzz targets and run one of them.

    python fuzz/run.py codec --seconds 60           decode arbitrary bytes as a message
    python fuzz/run.py typed --seconds 60           decode arbitrary bytes as bodies of types
    python fuzz/run.py values --runs 1000000        encode Python values generated from the input
    python fuzz/run.py stream --workers 2           read arbitrary bytes as chunks or socket data
    python fuzz/run.py commands                     decode arbitrary bytes as any frame
    python fuzz/run.py codec FILE...                run these inputs only, such as a finding
    python fuzz/run.py codec --minimise             add the new inputs to fuzz/corpus/codec.zip

Needs clang with its sanitizer runtimes (Debian: clang, libclang-rt-dev), CPython's headers and
library, and Cython.  Everything that is built goes to build/fuzz.  An input that fails is saved in
build/fuzz/findings, and the exit status is then 1.

Each run starts from the inputs in fuzz/corpus/TARGET.zip and collects new ones in
build/fuzz/corpus.  `--minimise` replaces the archive with the smallest set of inputs that covers
what both cover; commit it if that is more than before.
"""

import argparse
import ast
import gzip
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha1
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / 'build' / 'fuzz'
LIB = BUILD / f'lib-{sys.implementation.cache_tag}'
KEPT = ROOT / 'fuzz' / 'corpus'
FINDINGS = BUILD / 'findings'
TARGETS = ('codec', 'typed', 'values', 'stream', 'commands')
# Longest input: enough for 32-bit sizes and for exceeding the depth limit, and still fast.
MAX_LEN = {'codec': 640, 'typed': 512, 'values': 512, 'stream': 1024, 'commands': 256}
KEPT_FILES = 300

CC = os.environ.get('FUZZ_CC', 'clang')
SANITIZERS = 'address,undefined'
CFLAGS = [
    '-std=c11', '-O2', '-gline-tables-only', '-fPIC', '-fno-strict-aliasing',
    '-fno-omit-frame-pointer', '-fno-sanitize-recover=all', '-Wno-everything',
]  # fmt: skip
# Code that Cython generates adds 0 to null pointers, which clang reports as overflow.
UNCHECKED = ['-fno-sanitize=pointer-overflow']
SETTINGS = {
    # pymalloc would hide accesses beyond the end of a block
    'PYTHONMALLOC': 'malloc',
    'PYTHONHASHSEED': '0',
    'PYTHONNOUSERSITE': '1',
    'PYTHONDONTWRITEBYTECODE': '1',
    'ASAN_OPTIONS': 'detect_leaks=0:malloc_context_size=1:quarantine_size_mb=8:'
    'allocator_release_to_os_interval_ms=-1:detect_stack_use_after_return=0',
    'UBSAN_OPTIONS': 'print_stacktrace=1:halt_on_error=1',
}


class Problem(Exception):
    """A problem that the user can fix."""


# -- build


def run(*command: object) -> None:
    words = [str(word) for word in command]
    result = subprocess.run(words, capture_output=True, text=True)
    if result.returncode:
        raise Problem(f'{" ".join(words)}\n{result.stdout}{result.stderr}')


def check_tools() -> None:
    if shutil.which(CC) is None:
        raise Problem(f'{CC} is missing; on Debian: apt-get install clang libclang-rt-dev')
    runtimes = subprocess.run([CC, '--print-runtime-dir'], capture_output=True, text=True)
    folder = runtimes.stdout.strip()
    folders = [Path(folder), Path(folder).parent / 'linux']
    if not any(list(folder.glob('libclang_rt.fuzzer*')) for folder in folders):
        raise Problem(
            f"clang's libclang_rt.fuzzer is not in {folder}; "
            'on Debian: apt-get install libclang-rt-dev'
        )
    headers = Path(sysconfig.get_path('include'))
    if not (headers / 'Python.h').exists():
        raise Problem(f'Python.h is not in {headers}; on Debian: apt-get install python3-dev')


def directives() -> dict[str, Any]:
    """The compiler directives of a release build, read from setup.py."""
    tree = ast.parse((ROOT / 'setup.py').read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == 'DIRECTIVES':
            directives: dict[str, Any] = ast.literal_eval(node.value)
            return directives
    raise Problem('setup.py does not define DIRECTIVES')


def library_flags() -> list[str]:
    """Linker flags for embedding this Python."""
    get = sysconfig.get_config_var
    folder = get('LIBDIR')
    words = [f'-L{folder}', f'-L{get("LIBPL")}', f'-Wl,-rpath,{folder}']
    words += [f'-lpython{get("LDVERSION")}', *str(get('LIBS')).split(), '-lm']
    return words


def is_newer(target: Path, *sources: Path) -> bool:
    return target.exists() and all(target.stat().st_mtime > s.stat().st_mtime for s in sources)


def compile_module(name: str, source: Path) -> None:
    module = LIB.joinpath(*name.split('.')).with_suffix('.so')
    if is_newer(module, source, ROOT / 'fuzz' / 'run.py'):
        return
    module.parent.mkdir(parents=True, exist_ok=True)
    sanitizers = SANITIZERS
    if not name.startswith('fuzz.'):
        # coverage of the package guides the fuzzer, coverage of the checks does not
        sanitizers += ',fuzzer-no-link'
    run(
        CC, *CFLAGS, f'-fsanitize={sanitizers}', *UNCHECKED, '-shared', '-DRBFLY_DEBUG=0',
        f'-I{sysconfig.get_path("include")}', source, '-o', module,
    )  # fmt: skip


def copy_sources() -> None:
    for source in (ROOT / 'src').rglob('*.py'):
        copy = LIB / source.relative_to(ROOT / 'src')
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    (LIB / 'fuzz').mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / 'fuzz' / '__init__.py', LIB / 'fuzz' / '__init__.py')


def build() -> Path:
    """Build everything that is out of date; return the fuzzer."""
    check_tools()
    try:
        from Cython.Build import cythonize
        from setuptools import Extension
    except ImportError as ex:
        raise Problem(f'{ex.name} is missing; run: pip install Cython setuptools') from None
    os.chdir(ROOT)
    sources = [*Path('src').rglob('*.pyx'), *Path('fuzz').glob('*.pyx')]
    names = {s: '.'.join(s.relative_to('src' if s.parts[0] == 'src' else '.').with_suffix('').parts)
             for s in sources}  # fmt: skip
    modules = cythonize(  # type: ignore[no-untyped-call,unused-ignore]
        [Extension(name, [str(source)]) for source, name in names.items()],
        build_dir=str(BUILD / 'cython'),  # setup.py shares helpers between modules
        include_path=['src', '.'],
        compiler_directives=directives(),
        annotate=True,
        quiet=True,
    )
    copy_sources()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda m: compile_module(m.name, Path(m.sources[0])), modules))
    driver = ROOT / 'fuzz' / 'driver.c'
    fuzzer = LIB / 'fuzzer'
    if not is_newer(fuzzer, driver, ROOT / 'fuzz' / 'run.py'):
        # the modules use the sanitizer functions of the executable
        run(
            CC, *CFLAGS, f'-fsanitize=fuzzer,{SANITIZERS}', '-rdynamic',
            f'-I{sysconfig.get_path("include")}', driver, *library_flags(), '-o', fuzzer,
        )  # fmt: skip
    return fuzzer


# -- inputs


def vectors() -> Iterator[bytes]:
    for vector in json.loads((ROOT / 'tests' / 'data' / 'amqp10-vectors.json').read_text()):
        data = bytes.fromhex(vector['hex'])
        name = vector['name']
        if name.startswith(('section ', 'message ', 'stored ', 'bad ')):
            yield data
            yield data + bytes.fromhex('005375a000')
        if not name.startswith(('section ', 'message ', 'stored ')):
            yield bytes.fromhex('005377') + data
            # also as the value of an annotation and of a descriptor
            pair = bytes.fromhex('00000002a303782d61') + data
            size = len(pair).to_bytes(4)
            yield bytes.fromhex('005372d1') + size + pair + bytes.fromhex('005375a000')
            yield bytes.fromhex('00537700a30164') + data
    packed = (ROOT / 'tests' / 'data' / 'amqp10-clients.json.xz').read_bytes()
    for message in json.loads(lzma.decompress(packed)):
        yield bytes.fromhex(message['hex'])


def chunks() -> Iterator[bytes]:
    """Chunks that contain the vectors' messages, after the byte that selects the chunk reader."""
    messages = [data for data in vectors() if len(data) < 200]
    entries = [len(m).to_bytes(4) + m for m in messages]
    for i in range(0, len(entries) - 3, 3):
        three = b''.join(entries[i : i + 3])
        batch = b'\x80\x00\x03' + len(three).to_bytes(4) * 2 + three
        kinds = [(3, three), (3, batch), (6, batch + three)]
        for code, packed in compressed(three):
            sizes = len(three).to_bytes(4) + len(packed).to_bytes(4)
            entry = bytes([0x80 | code << 4]) + b'\x00\x03' + sizes + packed
            kinds += [(3, entry), (9, batch + entry + three)]
        for count, data in kinds:
            head = b'\x50\x00\x00\x03' + count.to_bytes(4) + bytes(7) + b'\x01' + bytes(16)
            chunk = head + bytes(4) + len(data).to_bytes(4) + bytes(8) + data
            yield b'\x00' + chunk
            yield bytes([i % 64 << 1]) + chunk
            deliver = b'\x00\x08\x00\x01\x01' + chunk
            yield b'\x01\x0b' + len(deliver).to_bytes(4) + deliver


def compressed(data: bytes) -> Iterator[tuple[int, bytes]]:
    yield 1, gzip.compress(data, mtime=0)
    try:
        import cramjam
    except ImportError:
        return  # without the `compression` extra, these formats are refused
    for code, name in ((2, 'snappy'), (3, 'lz4'), (4, 'zstd')):
        yield code, bytes(getattr(cramjam, name).compress(data))


def frames() -> Iterator[bytes]:
    confirm = bytes.fromhex('00000019 00030001 02 00000002 0000000000000001 0000000000000002')
    refusal = bytes.fromhex('0000001300040001020000000100000000000000030012')
    heartbeat = bytes.fromhex('0000000400170001')
    for data in (confirm, refusal, heartbeat, confirm + refusal + heartbeat):
        for cuts in (b'\x01\x00', b'\x01\x07', b'\x03\x31'):
            yield cuts + data


def bodies() -> Iterator[bytes]:
    """Frame bodies, each after the byte that selects the kind of frame."""
    name, number = b'\x00\x04test', b'\x00\x00\x00\x01'
    options = number + name + b'\x00\x01x'
    for body in (
        number,
        number + name,
        number + b'\x00\x01' + number + name,
        number + b'\x01' + name + name,
        number + b'\x01' + name + b'\x00\x01\x00\x0a' + options,
        number + name + options,
        number + b'\x00\x01' + options,
        b'\x01' + number + bytes(8) + b'\x00\x00\x00\x02hi',
        b'\x01' + number + bytes(8) + name + b'\x00\x00\x00\x02hi',
        b'\x01' + number + bytes(8) + b'\x00\x12',
        b'\x00\x04' + name,
    ):
        for kind in range(64):
            yield bytes([kind]) + body


def typed() -> Iterator[bytes]:
    """Messages after the byte that selects the type of the body."""
    pair = bytes.fromhex('a10161 a10178 a10162 823ff8000000000000 a10163 5405')
    item = b'\xc1' + bytes([len(pair) + 1, 6]) + pair
    lists = b'\xc0' + bytes([2 * len(item) + 1, 2]) + item + item
    fields = bytes.fromhex('a10169 5407 a1016b a10167 a10174 45 a1016e 40 a1016c') + lists
    order = b'\xd1' + (len(fields) + 4).to_bytes(4) + (10).to_bytes(4) + fields
    values = [item, lists, order, bytes.fromhex('c10602 a10161 5401'), b'\x45', b'\x40']
    for kind in range(64):
        for value in values:
            yield bytes([kind]) + bytes.fromhex('005377') + value
    for number, message in enumerate(vectors()):
        yield bytes([number % 64]) + message


def seeds(target: str) -> Iterator[bytes]:
    if target == 'codec':
        yield from vectors()
    elif target == 'typed':
        yield from typed()
    elif target == 'stream':
        yield from chunks()
        yield from frames()
    elif target == 'commands':
        yield from bodies()
    else:
        for i in range(256):
            yield bytes((i * j + (j >> 3)) & 0xFF for j in range(1, 48))


def write_seeds(target: str) -> Path:
    folder = BUILD / 'seeds' / target
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for data in seeds(target):
        if len(data) <= MAX_LEN[target]:
            (folder / sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
    return folder


# -- the kept inputs


def unpack(target: str) -> Path:
    """Extract the archive of a target; return the folder of its inputs."""
    folder = BUILD / 'kept' / target
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ZipFile(KEPT / f'{target}.zip') as archive:
        archive.extractall(folder)
    return folder


def pack(target: str, inputs: Iterable[bytes]) -> Path:
    """Write the archive of a target; the same inputs give the same archive."""
    path = KEPT / f'{target}.zip'
    with ZipFile(path, 'w') as archive:  # stored, as most inputs are shorter than a deflate block
        for number, data in enumerate(sorted(inputs, key=lambda data: (len(data), data))):
            archive.writestr(ZipInfo(f'{number:03}'), data)  # dated 1980
    return path


# -- run


def environment(target: str) -> dict[str, str]:
    return {
        **os.environ,
        **SETTINGS,
        # the library that decompresses sub-entries is installed next to Cython
        'PYTHONPATH': f'{LIB}:{sysconfig.get_path("platlib")}',
        'PYTHONHOME': f'{sys.base_prefix}:{sys.base_exec_prefix}',
        'RBFLY_FUZZ_TARGET': f'fuzz.{target}',
    }


def last(pattern: str, text: str) -> str:
    matches = re.findall(pattern, text)
    return matches[-1] if matches else '0'


def start(fuzzer: Path, target: str, number: int, words: list[str]) -> tuple[int, str]:
    """Run one libFuzzer process; return its exit status and output."""
    log = BUILD / f'{target}-{number}.log'
    command = [str(fuzzer), f'-artifact_prefix={FINDINGS}/{target}-', *words]
    with log.open('w') as file:
        result = subprocess.run(command, stdout=file, stderr=file, env=environment(target))
    return result.returncode, log.read_text(errors='replace')


def report(target: str, status: int, text: str) -> int:
    """Print the result of one process; return its number of executions."""
    runs = int(last(r'stat::number_of_executed_units: (\d+)', text))
    if status:
        begin = max(text.find('ERROR:'), text.find('fuzz: finding'), 0)
        print(text[max(begin - 1500, 0) : begin + 4000])
        for path in re.findall(r'Test unit written to (\S+)', text):
            data = Path(path).read_bytes()
            print(f'FINDING {path}\n  {data.hex()}\n  rerun: python fuzz/run.py {target} {path}')
    covered = last(r'cov: (\d+)', text)
    places = last(r'Loaded \d+ modules +\((\d+) inline', text)
    speed = last(r'stat::average_exec_per_sec: +(\d+)', text)
    inputs = last(r'corp: (\d+)', text)
    print(
        f'{target}: {runs} executions, {speed} per second; {covered} of {places} edges covered '
        f'by {inputs} inputs'
    )
    return runs


def fuzz(fuzzer: Path, args: argparse.Namespace) -> int:
    work = BUILD / 'corpus' / args.target
    work.mkdir(parents=True, exist_ok=True)
    folders = [work, write_seeds(args.target), args.corpus or unpack(args.target)]
    words = [
        f'-max_len={MAX_LEN[args.target]}',
        f'-max_total_time={args.seconds}',
        f'-runs={args.runs // args.workers if args.runs else -1}',
        '-timeout=20', '-rss_limit_mb=1536', '-malloc_limit_mb=16', '-detect_leaks=0',
        '-entropic_scale_per_exec_time=1', '-print_final_stats=1', '-reload=20',
    ]  # fmt: skip
    dictionary = ROOT / 'fuzz' / f'{args.target}.dict'
    if dictionary.exists():
        words.append(f'-dict={dictionary}')
    if args.seed:
        words.append(f'-seed={args.seed}')
    begin = time.monotonic()
    with ThreadPoolExecutor(args.workers) as pool:
        results = list(
            pool.map(
                lambda i: start(fuzzer, args.target, i, [*words, *map(str, folders)]),
                range(args.workers),
            )
        )
    total = sum(report(args.target, *result) for result in results)
    failed = any(status for status, _ in results)
    seconds = time.monotonic() - begin
    print(f'{total} executions in {seconds:.0f} s, {"with" if failed else "no"} findings')
    return 1 if failed else 0


def replay(fuzzer: Path, args: argparse.Namespace) -> int:
    status, text = start(fuzzer, args.target, 0, [str(path.resolve()) for path in args.files])
    print(text)
    return 1 if status else 0


def minimise(fuzzer: Path, args: argparse.Namespace) -> int:
    """Replace the archive with the smallest set of inputs that has the same coverage."""
    merged = BUILD / 'minimised' / args.target
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir(parents=True)
    folders = [merged, unpack(args.target), BUILD / 'corpus' / args.target]
    status, text = start(
        fuzzer, args.target, 0,
        ['-merge=1', '-use_counters=0', '-max_len=1000', *(str(f) for f in folders if f.is_dir())],
    )  # fmt: skip
    if status:
        print(text[-4000:])
        return 1
    inputs = sorted(merged.iterdir(), key=lambda path: (path.stat().st_size, path.name))
    path = pack(args.target, [path.read_bytes() for path in inputs[:KEPT_FILES]])
    print(f'{path}: kept {min(len(inputs), KEPT_FILES)} of {len(inputs)} inputs')
    return 0


def main() -> int:
    summary, usage = str(__doc__).split('\n\n', 1)
    parser = argparse.ArgumentParser(
        prog='python fuzz/run.py',
        description=summary,
        epilog=usage,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('target', choices=TARGETS)
    parser.add_argument('files', nargs='*', type=Path, help='run these inputs only')
    parser.add_argument('--runs', type=int, default=0, help='total executions (default: no limit)')
    parser.add_argument('--seconds', type=int, default=60, help='time limit, 0: none (default: 60)')
    parser.add_argument('--workers', type=int, default=1, help='number of processes (default: 1)')
    parser.add_argument('--corpus', type=Path, help='initial inputs (default: of the archive)')
    parser.add_argument('--seed', type=int, default=0, help="libFuzzer's random seed")
    parser.add_argument('--minimise', action='store_true', help='replace fuzz/corpus/TARGET.zip')
    args = parser.parse_args()
    args.files = [path.resolve() for path in args.files]
    if args.corpus:
        args.corpus = args.corpus.resolve()
    try:
        fuzzer = build()
        FINDINGS.mkdir(parents=True, exist_ok=True)
        if args.files:
            return replay(fuzzer, args)
        return minimise(fuzzer, args) if args.minimise else fuzz(fuzzer, args)
    except Problem as ex:
        print(ex, file=sys.stderr)
        return 2


if __name__ == '__main__':
    sys.exit(main())
