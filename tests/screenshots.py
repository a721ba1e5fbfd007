"""`python -m tests.screenshots [perf] [tail]` draws the pictures of the page "Command line".

`perf` is a run on the broker that RBFLY_URI names: draw it on a quiet machine.
"""

import asyncio
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from rbfly.cli.load import Load, LoadSettings
from rbfly.cli.report import live_table
from rbfly.streams import streams_client
from rbfly.testing import StreamBroker
from tests.command_line import in_terminal, publish
from tests.examples import ROOT

FOLDER: Path = ROOT / 'doc' / '_static'
STREAM = 'orders'
SECONDS = 10
WIDTH = 80
ORDERS = [
    {'id': 1, 'customer': 'acme'},
    {'id': 2, 'customer': 'globex'},
    'text, as another program writes it',
    b'\x00\x01binary data\xff',
    {'id': 3, 'customer': 'initech'},
]
LATER = {'id': 4, 'note': 'arrives while it runs'}


def draw(name: str, title: str, content: RenderableType) -> None:
    """Draw what a terminal shows."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(content)
    console.save_svg(str(FOLDER / f'rbfly-{name}.svg'), title=title)


async def measured() -> RenderableType:
    """Run a load, and return what its table shows after the last whole second."""
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
    return table


def perf() -> None:
    """Draw `rbfly perf`."""
    title = 'rbfly perf -st orders --rate 1000 --size 100 --time 60'
    draw('perf', title, asyncio.run(measured()))


def tail() -> None:
    """Draw `rbfly tail --follow`."""
    with StreamBroker() as broker:
        broker.create_stream(STREAM)
        publish(broker.uri, STREAM, *ORDERS)
        publish(broker.uri, STREAM, b'\xff\xfe no AMQP', amqp=False)
        with in_terminal('tail', STREAM, '--follow', RBFLY_URI=broker.uri) as terminal:
            terminal.read_until('no AMQP')
            publish(broker.uri, STREAM, LATER)
            output = terminal.read_until('while it runs')
    shown = output.replace('\r\n', '\n').rstrip()
    draw('tail', 'rbfly tail orders --follow', Text.from_ansi(shown))


PICTURES: dict[str, Callable[[], None]] = {'perf': perf, 'tail': tail}

if __name__ == '__main__':
    for picture in sys.argv[1:] or PICTURES:
        PICTURES[picture]()
