"""Publishes orders to three partitions, or reads them in a group: with aiokafka."""

import asyncio
import json
import signal
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError

GROUP = 'billing'


async def publish(servers: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        await admin.create_topics(
            [NewTopic(topic, num_partitions=3, replication_factor=1)]
        )
    except TopicAlreadyExistsError:
        pass
    await admin.close()

    async with AIOKafkaProducer(bootstrap_servers=servers, acks='all') as producer:
        for i in range(100):
            customer = f'customer {i % 10}'
            value = json.dumps({'id': i, 'customer': customer}).encode()
            await producer.send(topic, value, key=customer.encode())
        await producer.flush()


async def consume(servers: str, topic: str) -> None:
    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=GROUP,
        auto_offset_reset='earliest',
        enable_auto_commit=False,
    ) as consumer:
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stopped.set)
        while not stopped.is_set():
            found = await consumer.getmany(timeout_ms=100)
            for records in found.values():
                for record in records:
                    print(record.partition, json.loads(record.value), flush=True)
            await consumer.commit()


if __name__ == '__main__':
    _, what, servers, topic = sys.argv
    asyncio.run({'publish': publish, 'consume': consume}[what](servers, topic))
