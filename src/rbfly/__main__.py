"""`python -m rbfly broker`: a broker in memory, for development."""

import argparse
import asyncio
import os
import sys

from .testing.broker import StreamBroker


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog='python -m rbfly', description='RbFly')
    commands = found.add_subparsers(dest='command', required=True)
    broker = commands.add_parser(
        'broker', help='a RabbitMQ Streams broker in memory, until Ctrl-C; nothing is kept'
    )
    broker.add_argument('--host', default='127.0.0.1', help='address (default: %(default)s)')
    broker.add_argument(
        '--port', type=int, default=5552, help='0 for any that is free (default: %(default)s)'
    )
    broker.add_argument('--nodes', type=int, default=1, help='how many (default: %(default)s)')
    broker.add_argument('--quiet', action='store_true', help='print the addresses, and no more')
    return found


async def serve(args: argparse.Namespace) -> None:
    unread = asyncio.Event()

    def tell(text: str) -> None:
        try:
            print(text, flush=True)
        except BrokenPipeError:
            discard_output()
            unread.set()

    told = None if args.quiet else tell
    broker = StreamBroker(host=args.host, port=args.port, nodes=args.nodes, on_event=told)
    async with broker:
        tell(' '.join(broker.uris))
        await unread.wait()


def discard_output() -> None:
    """Redirect stdout after its reader has gone (`| head`): Python flushes buffers at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> int:
    try:
        args = parser().parse_args()
        asyncio.run(serve(args))
    except KeyboardInterrupt:
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
