"""Publishes orders to a queue, or works on them: with pika."""

import json
import signal
import sys

import pika

QUORUM = {'x-queue-type': 'quorum'}


def publish(uri: str, queue: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(uri)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, arguments=QUORUM)
        channel.confirm_delivery()
        for i in range(10):
            channel.basic_publish('', queue, json.dumps({'id': i}), mandatory=True)


def consume(uri: str, queue: str) -> None:
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    with pika.BlockingConnection(pika.URLParameters(uri)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=16)
        for method, _, body in channel.consume(queue, inactivity_timeout=0.1):
            if stopped:
                break
            if method is not None:
                print(json.loads(body)['id'], flush=True)
                channel.basic_ack(method.delivery_tag)


if __name__ == '__main__':
    _, what, uri, queue = sys.argv
    {'publish': publish, 'consume': consume}[what](uri, queue)
