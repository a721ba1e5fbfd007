"""Prints how far a group is behind, counts messages, and prints the client's events.

Of several monitors, one counts; the others stand by.
"""

import asyncio
import signal
import sys

import rbfly.streams as rbs


class Monitor:
    def __init__(self, client: rbs.StreamsClient, stream: str, group: str) -> None:
        self.client = client
        self.stream = stream
        self.group = group
        self.count = 0

    async def count_messages(self) -> None:
        async with self.client.subscribe(self.stream, group='monitor') as messages:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, messages.stop)
            async for batch in messages.batches():
                self.count += len(batch)

    async def print_lag(self) -> None:
        while True:
            lag = await self.client.lag(self.stream, self.group)
            print(
                f'{self.stream}: {self.count} messages, {self.group} is behind by {lag}'
            )
            await asyncio.sleep(0.1)

    async def print_events(self, events: rbs.Events) -> None:
        async for event in events:
            match event:
                case rbs.ConnectionLost(node=node, error=error):
                    print(f'lost the connection to {node}: {error}')
                case rbs.RecoveryScheduled(stream=stream, delay=delay):
                    print(f'{stream}: trying again in {delay:.1f} s')
                case rbs.Recovered(stream=stream):
                    print(f'{stream}: open again')
                case rbs.RecoveryFailed(stream=stream, error=error):
                    print(f'{stream}: look at this: {error}')
                case rbs.GroupEvent(stream=stream, group=group):
                    print(f'{stream}: {type(event).__name__} in {group}')
                case _:
                    print(event)


async def main(uri: str, stream: str, group: str) -> None:
    async with (
        asyncio.TaskGroup() as tasks,
        rbs.streams_client(uri, load_balancer=True) as client,
    ):
        monitor = Monitor(client, stream, group)
        tasks.create_task(monitor.print_events(client.events()))
        printing = tasks.create_task(monitor.print_lag())
        await monitor.count_messages()
        printing.cancel()


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
