"""Prints orders: the last 100, those of the last hour or since a time, or all."""

import asyncio
import sys
from datetime import UTC, datetime, timedelta

import rbfly.streams as rbs


def start(what: str) -> rbs.Offset:
    match what:
        case 'last':
            return rbs.Offset.last_messages(100)
        case 'hour':
            return rbs.Offset.timestamp(datetime.now(UTC) - timedelta(hours=1))
        case 'all':
            return rbs.Offset.FIRST
        case time:
            return rbs.Offset.timestamp(datetime.fromisoformat(time))


async def main(uri: str, stream: str, what: str) -> None:
    async with (
        rbs.streams_client(uri) as client,
        client.subscribe(stream, offset=start(what), until='now') as orders,
    ):
        async for message in orders.messages():
            print(message.stream_offset, message.body['id'])


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
