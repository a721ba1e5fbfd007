"""`python -m tests.perf_screenshot` draws `doc/_static/rbfly-perf.svg`, from a run on RBFLY_URI."""

import asyncio
import io
import os

from rich.console import Console

from rbfly.cli.load import Load, LoadSettings
from rbfly.cli.report import live_table
from rbfly.streams import streams_client
from tests.examples import ROOT

FILE = ROOT / 'doc' / '_static' / 'rbfly-perf.svg'
STREAM = 'orders'
SECONDS = 10
WIDTH = 80


async def main() -> None:
    """Run a load, and draw what its table shows after the last whole second."""
    load = Load(LoadSettings([STREAM], rate=1_000, size=100, time=60))
    async with streams_client(os.environ['RBFLY_URI']) as client:
        await client.create_stream(STREAM)
        try:
            running = asyncio.create_task(load.run(client, lambda: None))
            for _ in range(SECONDS):
                await asyncio.sleep(1)
                interval = load.take()
            table = live_table(load, interval, f'rbfly perf on {STREAM}')
            load.stop()
            await running
        finally:
            await client.delete_stream(STREAM)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(table)
    console.save_svg(str(FILE), title='rbfly perf -st orders --rate 1000 --size 100 --time 60')


if __name__ == '__main__':
    asyncio.run(main())
