"""`rbfly broker`: an in-memory broker for development; needs no extra."""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from ..closed_pipe import discard_output, flush_output
from .broker import StreamBroker
from .handlers import HANDLERS


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog='rbfly broker',
        description='Run an in-memory RabbitMQ Streams broker until Ctrl-C; it stores nothing on'
        ' disk.',
    )
    found.add_argument(
        '--host', default='127.0.0.1', help='address to listen on (default: %(default)s)'
    )
    found.add_argument(
        '--port', type=int, default=5552, help='port; 0 for any free one (default: %(default)s)'
    )
    found.add_argument(
        '--nodes', type=int, default=1, help='number of nodes (default: %(default)s)'
    )
    found.add_argument(
        '--version',
        choices=[*HANDLERS],
        default='4.3',  # that of StreamBroker
        help='version of RabbitMQ whose commands the broker knows (default: %(default)s)',
    )
    found.add_argument('--quiet', action='store_true', help='print the addresses only')
    return found


async def serve(args: argparse.Namespace) -> None:
    stop = asyncio.Event()

    def show(text: str) -> None:
        try:
            print(text, flush=True)
        except BrokenPipeError:
            discard_output()
            stop.set()

    on_event = None if args.quiet else show
    broker = StreamBroker(
        host=args.host,
        port=args.port,
        nodes=args.nodes,
        version=args.version,
        on_event=on_event,
    )
    async with broker:
        show(' '.join(broker.uris))
        await stop.wait()


def main(args: Sequence[str]) -> int:
    """Run the command until Ctrl-C; return the exit code."""
    try:
        asyncio.run(serve(parser().parse_args(args)))
    except (KeyboardInterrupt, BrokenPipeError):  # Ctrl-C, or the reader of the output has gone
        pass
    except (OSError, ValueError) as ex:
        print(f'rbfly broker: {ex}', file=sys.stderr)
        return 1
    finally:
        flush_output()
    return 0
