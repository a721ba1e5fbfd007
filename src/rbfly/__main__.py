"""`python -m rbfly broker`: an in-memory broker for development."""

import argparse
import asyncio
import os
import sys

from .testing.broker import StreamBroker
from .testing.handlers import HANDLERS


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog='python -m rbfly', description='Tools of RbFly.')
    commands = found.add_subparsers(dest='command', required=True)
    broker = commands.add_parser(
        'broker',
        help='run an in-memory RabbitMQ Streams broker until Ctrl-C; stores nothing on disk',
    )
    broker.add_argument(
        '--host', default='127.0.0.1', help='address to listen on (default: %(default)s)'
    )
    broker.add_argument(
        '--port', type=int, default=5552, help='port; 0 for any free one (default: %(default)s)'
    )
    broker.add_argument(
        '--nodes', type=int, default=1, help='number of nodes (default: %(default)s)'
    )
    broker.add_argument(
        '--version',
        choices=[*HANDLERS],
        default=[*HANDLERS][-1],
        help='version of RabbitMQ whose commands the broker knows (default: %(default)s)',
    )
    broker.add_argument('--quiet', action='store_true', help='print the addresses only')
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


def discard_output() -> None:
    """Redirect stdout after its reader has gone (`| head`): Python flushes buffers at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> int:
    if sys.stdout is None:  # closed before the start: argparse would print help as an error
        sys.stdout = open(os.devnull, 'w')  # noqa: SIM115 - until the process ends
    try:
        args = parser().parse_args()
        asyncio.run(serve(args))
    except (KeyboardInterrupt, BrokenPipeError):  # Ctrl-C, or the reader of the output has gone
        pass
    except (OSError, ValueError) as ex:
        print(ex, file=sys.stderr)
        return 1
    finally:
        try:
            print(end='', flush=True)
        except BrokenPipeError:
            discard_output()
    return 0


if __name__ == '__main__':
    sys.exit(main())
