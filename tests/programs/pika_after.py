"""Publishes orders to a stream, or works on them: with RbFly, without asyncio."""

import signal
import sys
from datetime import timedelta

import rbfly.sync


def publish(uri: str, stream: str) -> None:
    with rbfly.sync.streams_client(uri) as client:
        client.create_stream(stream, max_age=timedelta(days=7))
        with client.publisher(stream) as publisher:
            for i in range(10):
                publisher.send({'id': i})


def consume(uri: str, stream: str) -> None:
    with (
        rbfly.sync.streams_client(uri) as client,
        client.subscribe(stream, group='billing') as orders,
    ):

        def stop(number: int, frame: object) -> None:
            orders.stop()

        signal.signal(signal.SIGTERM, stop)
        for order in orders:
            print(order['id'], flush=True)


if __name__ == '__main__':
    _, what, uri, stream = sys.argv
    {'publish': publish, 'consume': consume}[what](uri, stream)
