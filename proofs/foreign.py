"""Proof of consuming: messages of other clients arrive as they were published."""

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import rbfly.streams as rbs
from rbfly.amqp import MessageCtx

from .run import ProofError, Run
from .test_bed import ClusterBed

TIMEOUT = 30.0  # seconds
MQTT_WINDOW = 100  # maximum number of unacknowledged messages
TOPIC = 'proof/messages'
LONGEST = 2_000  # maximum bytes of a body


@dataclass(frozen=True)
class Foreign:
    """A message that another client publishes."""

    body: bytes
    number: int
    text: str
    headers: dict[str, Any]

    @property
    def properties(self) -> dict[str, Any]:
        """All properties of AMQP 0.9.1 except the deprecated cluster id."""
        return {
            'content_type': 'application/json',
            'content_encoding': 'identity',
            'delivery_mode': 1 + self.number % 2,
            'priority': self.number % 10,
            'correlation_id': f'correlation {self.text}',
            'reply_to': 'answers',
            'expiration': str(60_000 + self.number),
            'message_id': f'message {self.number}',
            'timestamp': 1_700_000_000 + self.number,
            'type': 'order',
            'user_id': 'guest',
            'app_id': 'shop',
        }


def messages(run: Run, count: int) -> list[Foreign]:
    rnd = run.random
    found = []
    for number in range(count):
        text = ''.join(rnd.choices('abc zażółć 鯨🐋', k=rnd.randrange(30)))
        headers = {
            'text': text,
            'number': rnd.randrange(-(2 ** rnd.randrange(1, 64)), 2 ** rnd.randrange(1, 64)),
            'yes': rnd.random() < 0.5,
            'nothing': None,
            'bytes': rnd.randbytes(rnd.randrange(40)) + b'\xff',
            'time': datetime.fromtimestamp(rnd.randrange(2**32), UTC),
        }
        # not empty: rstream encodes an empty body as an invalid AMQP 1.0 message
        found.append(Foreign(rnd.randbytes(rnd.randrange(1, LONGEST)), number, text, headers))
    return found


# -- AMQP 0.9.1


async def write_amqp091(bed: ClusterBed, stream: str, found: Sequence[Foreign]) -> None:
    import pika

    def write() -> None:
        parameters = pika.URLParameters(str(bed.broker.amqp_uri))
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for item in found:
                properties = pika.BasicProperties(headers=item.headers, **item.properties)
                channel.basic_publish('', stream, item.body, properties, mandatory=True)

    await asyncio.to_thread(write)


def read_amqp091(ctx: MessageCtx) -> dict[str, Any]:
    header, properties = ctx.header, ctx.properties
    time = properties.creation_time
    assert isinstance(time, datetime)
    annotations = {str(name): value for name, value in ctx.annotations.items()}
    return {
        'content_type': str(properties.content_type),
        'content_encoding': str(properties.content_encoding),
        'delivery_mode': 1 + header.durable,
        'priority': header.priority,
        'correlation_id': properties.correlation_id,
        # RabbitMQ 4.3 turns the name of a queue into an address
        'reply_to': str(properties.reply_to).removeprefix('/queues/'),
        'expiration': str(header.ttl),
        'message_id': properties.message_id,
        'timestamp': int(time.timestamp()),
        'type': annotations['x-basic-type'],
        'user_id': (properties.user_id or b'').decode(),
        'app_id': properties.group_id,
        **ctx.app_properties,
    }


# -- rstream


async def write_rstream(bed: ClusterBed, stream: str, found: Sequence[Foreign]) -> None:
    import rstream

    address = urlsplit(bed.direct[0])
    half = len(found) // 2
    # separate producers keep the order: `send` buffers messages, `send_sub_entry` does not
    for part, by_send in ((found[:half], True), (found[half:], False)):
        batch = [
            rstream.AMQPMessage(body=item.body, application_properties={'text': item.text})
            for item in part
        ]
        async with rstream.Producer(
            str(address.hostname), int(address.port or 5552), username='guest', password='guest'
        ) as producer:
            if by_send:
                for message in batch:
                    await producer.send(stream, message)
                continue
            for start in range(0, len(batch), 100):
                await producer.send_sub_entry(
                    stream, batch[start : start + 100], rstream.CompressionType.Gzip
                )


# -- MQTT


def mqtt_string(text: str) -> bytes:
    data = text.encode()
    return struct.pack('>H', len(data)) + data


def mqtt_packet(kind: int, body: bytes) -> bytes:
    size, left = b'', len(body)
    while True:
        left, digit = divmod(left, 128)
        size += bytes([digit | (0x80 if left else 0)])
        if not left:
            return bytes([kind]) + size + body


def write_mqtt(port: int, topic: str, payloads: Sequence[bytes]) -> None:
    """Publish with MQTT 3.1.1; return when all messages are acknowledged."""
    with socket.create_connection(('127.0.0.1', port), timeout=TIMEOUT) as peer:
        answers = peer.makefile('rb')

        def expect(packet: bytes) -> None:
            if (found := answers.read(len(packet))) != packet:
                raise ProofError(f'MQTT: received {found.hex()} instead of {packet.hex()}')

        head = mqtt_string('MQTT') + bytes([4, 0xC2]) + struct.pack('>H', 60)
        login = mqtt_string('proof') + mqtt_string('guest') + mqtt_string('guest')
        peer.sendall(mqtt_packet(0x10, head + login))
        expect(b'\x20\x02\x00\x00')
        for start in range(0, len(payloads), MQTT_WINDOW):
            part = payloads[start : start + MQTT_WINDOW]
            for i, payload in enumerate(part, 1):
                body = mqtt_string(topic) + struct.pack('>H', i) + payload
                peer.sendall(mqtt_packet(0x32, body))
            for i in range(1, len(part) + 1):
                expect(b'\x40\x02' + struct.pack('>H', i))
        peer.sendall(mqtt_packet(0xE0, b''))


async def to_mqtt(bed: ClusterBed, stream: str, found: Sequence[Foreign]) -> None:
    import pika

    def write() -> None:
        with pika.BlockingConnection(pika.URLParameters(str(bed.broker.amqp_uri))) as connection:
            connection.channel().queue_bind(stream, 'amq.topic', TOPIC.replace('/', '.'))
        write_mqtt(bed.mqtt, TOPIC, [item.body for item in found])

    await asyncio.to_thread(write)


# -- the proof

Write = Callable[[ClusterBed, str, Sequence[Foreign]], Any]
Read = Callable[[MessageCtx], Any]

WAYS: dict[str, tuple[Write, Read, Callable[[Foreign], Any]]] = {
    'AMQP 0.9.1': (write_amqp091, read_amqp091, lambda item: item.properties | item.headers),
    'rstream': (write_rstream, lambda ctx: ctx.app_properties, lambda item: {'text': item.text}),
    'MQTT': (to_mqtt, lambda ctx: None, lambda item: None),
}


async def consume_foreign(run: Run, bed: ClusterBed) -> None:
    """Every message of each client arrives with its body and properties."""
    each = run['messages'] // len(WAYS)
    for how, (write, read, expected) in WAYS.items():
        written = messages(run, each)
        wrong = ''
        count = 0
        async with (
            bed.stream() as stream,
            bed.client() as client,
        ):
            await write(bed, stream, written)
            async with client.subscribe(
                stream, offset=rbs.Offset.FIRST, timeout=TIMEOUT
            ) as subscription:
                async for ctx in subscription.messages():
                    item = written[count]
                    if (ctx.body, read(ctx)) != (item.body, expected(item)):
                        wrong = f'message {count}: {ctx!r}, not {item!r}'[:500]
                        break
                    count += 1
                    run.done += 1
                    if count == each:
                        break
        run.check(f'{how}: every message as it was published', not wrong, wrong or f'{count:,}')
