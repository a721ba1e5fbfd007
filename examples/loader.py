"""Loads a CSV file into a stream; run again after a crash, it stores each row once."""

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
            # The broker may still read what a run that was killed has sent.
            print('trying again:', ex)


async def main(uri: str, stream: str, path: str) -> None:
    async with rbs.streams_client(uri, load_balancer=True) as client:
        await load(client, stream, Path(path))


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
