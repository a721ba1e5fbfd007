"""`python -m perf` on a real broker stores, resumes and reports results."""

import asyncio
import lzma
import os
import sys
from pathlib import Path
from typing import Any

from brokers import RabbitMQ
from perf.results import read

FOLDER = Path(__file__).resolve().parents[2]
LANES = (
    'raw-socket-single,bare-uvloop-single,rbfly-single,rbfly-batch,bare-uvloop-batch,'
    'raw-socket-polling-single,bare-uvloop-polling-batch,rbfly-polling-single,rbfly-polling-batch,'
    'rbfly-traced-single,rbfly-traced-batch,rbfly-spans-single,rbfly-spans-batch'
)


async def perf(*words: str, uri: str = '') -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, '-m', 'perf', *words),
        cwd=FOLDER,
        env={**os.environ, 'RBFLY_URI': uri},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


def results_in(path: Path) -> list[dict[str, Any]]:
    return read(path).rows


async def test_consuming_lanes(broker: RabbitMQ, tmp_path: Path) -> None:
    results = tmp_path / 'run.jsonl.xz'
    names = [
        f'{library}-{kind}'
        for kind in ('consume-properties', 'consume-2', 'sub-consume')
        for library in ('raw-socket', 'rbfly', 'rbfly-batches', 'rbfly-messages')
    ]
    names.append('rbfly-views-sizes-read-1000')
    words = ('--lanes', ','.join(names), '--scale', '0.001', '--out', str(results))
    await perf(*words, '--rounds', '1', uri=broker.uri)
    rounds = results_in(results)
    assert sorted(item['lane'] for item in rounds) == sorted(names)
    assert {item['count'] for item in rounds} == {792, 2_000, 8_000, 10_000}


async def test_run_resume_and_report(broker: RabbitMQ, tmp_path: Path) -> None:
    results = tmp_path / 'run.jsonl.xz'
    scale = 'single=0.0005,batch=0.001'
    words = ('--lanes', LANES, '--scale', scale, '--out', str(results))
    await perf(*words, '--rounds', '2', uri=broker.uri)
    rounds = results_in(results)
    assert sorted(item['lane'] for item in rounds) == sorted(2 * LANES.split(','))
    assert {item['count'] for item in rounds} == {100, 1000}

    lines = lzma.decompress(results.read_bytes()).decode().splitlines(keepends=True)
    results.unlink()
    interrupted = results.with_suffix('')
    interrupted.write_text(''.join(lines[:-3]))
    await perf('--resume', '--out', str(interrupted), uri=broker.uri)
    assert len(results_in(results)) == len(rounds)

    output = await perf('report', str(results), '--out', str(tmp_path / 'doc'))
    page = (tmp_path / 'doc' / 'performance.rst').read_text()
    assert 'rbfly-single' in page or 'RbFly' in page
    assert 'performance.rst' in output
