"""`python -m rbfly broker`: a broker in memory, for development."""

import argparse
import asyncio
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


def tell(text: str) -> None:
    print(text, flush=True)


async def serve(broker: StreamBroker) -> None:
    async with broker:
        print(*broker.uris, flush=True)
        await asyncio.Event().wait()


def main() -> int:
    args = parser().parse_args()
    try:
        told = None if args.quiet else tell
        broker = StreamBroker(host=args.host, port=args.port, nodes=args.nodes, on_event=told)
        asyncio.run(serve(broker))
    except KeyboardInterrupt:
        pass
    except (OSError, ValueError) as ex:
        print(ex, file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
