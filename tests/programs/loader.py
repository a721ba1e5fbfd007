"""Loads a CSV file into a stream: run it again after a crash, and each row is stored once."""

import asyncio
import csv
import itertools
import sys
from pathlib import Path

import rbfly.streams as rbs


async def load(client: rbs.StreamsClient, stream: str, path: Path) -> None:
    name = f'loader of {path.name}'
    while True:
        try:
            async with client.publisher(stream, name=name) as publisher:
                with path.open(newline='') as file:
                    stored = publisher.next_publish_id - 1  # the first row has the id 1
                    rest = itertools.islice(csv.DictReader(file), stored, None)
                    await publisher.send_many(rest)
                return
        except (rbs.PublisherNameInUse, rbs.StreamConnectionError) as ex:
            print('trying again:', ex)  # a run that was killed may still be read by the broker


async def main(uri: str, stream: str, path: str) -> None:
    async with rbs.streams_client(uri, load_balancer=True) as client:
        await load(client, stream, Path(path))


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
