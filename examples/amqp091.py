"""Binds a stream to an exchange of AMQP 0.9.1 with pika, and reads it with RbFly."""

import asyncio
import json
import signal
import sys

import pika
import rbfly.streams as rbs
from rbfly.types import Symbol


def bind(amqp_uri: str, exchange: str, stream: str) -> None:
    """Let a stream receive each message of an exchange, beside its queues."""
    with pika.BlockingConnection(pika.URLParameters(amqp_uri)) as connection:
        channel = connection.channel()
        channel.exchange_declare(exchange, 'topic', durable=True)
        arguments = {'x-queue-type': 'stream', 'x-max-age': '7D'}
        channel.queue_declare(stream, durable=True, arguments=arguments)
        channel.queue_bind(stream, exchange, routing_key='#')


async def read(uri: str, stream: str) -> None:
    async with (
        rbs.streams_client(uri) as client,
        client.subscribe(stream, group='audit') as messages,
    ):
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, messages.stop)
        async for message in messages.messages():
            key = message.annotations[Symbol('x-routing-key')]
            region = message.app_properties.get('region')  # a header
            print(key, region, json.loads(message.body), flush=True)


def main(amqp_uri: str, uri: str, exchange: str, stream: str) -> None:
    bind(amqp_uri, exchange, stream)
    asyncio.run(read(uri, stream))


if __name__ == '__main__':
    main(*sys.argv[1:])
