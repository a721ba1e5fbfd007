"""How each library does the work of the studies.

Like :mod:`perf.lanes`, a table of plain data.
"""

from typing import Any

from .model import BUSY_POLL, Library
from .studies import names

__all__ = ['LIBRARIES', 'library']

NEEDS = {
    'bare-uvloop': ('uvloop',),
    'bare-uvloop-polling': ('uvloop',),
    'rbfly': ('rbfly', 'uvloop'),
    'rbfly-amqp': ('rbfly', 'uvloop'),
    'rbfly-batches': ('rbfly', 'uvloop'),
    'rbfly-messages': ('rbfly', 'uvloop'),
    'rbfly-polling': ('rbfly', 'uvloop'),
    'rbfly-raw': ('rbfly', 'uvloop'),
    'rstream': ('rstream', 'uvloop'),
    'aiokafka': ('aiokafka', 'msgpack', 'uvloop'),
    'pika': ('pika', 'uvloop'),
    'aio-pika': ('aio-pika', 'uvloop'),
}


def library(
    name: str, module: str, kinds: tuple[str, ...], how: str, broker: str = 'rabbitmq', **about: Any
) -> Library:
    """A library with its requirements and event loop."""
    loop = 'uvloop' if name in NEEDS else 'none'
    return Library(name, module, kinds, NEEDS.get(name, ()), loop, broker, how, **about)


SUPER = (
    'super-publish',
    'super-tasks',
    'super-one',
    'super-consume',
    *names('super-nodes'),
)

LIBRARIES = (
    library(
        'raw-socket',
        'raw_socket',
        (
            *names('latency', 'each', 'batch', 'flight'),
            *names('sizes', 'many', 'read'),
            *names('clients'),
            'super-plain',
        ),
        'blocking socket; frames encoded before the clock starts, with a batch or up to 1,000'
        ' messages and 500 KB; confirms counted; consuming: record counts read from chunk headers',
    ),
    library(
        'raw-socket',
        'raw_socket_super',
        SUPER,
        'blocking socket with a publisher or subscription for each partition; frames of up to 1,000'
        ' messages for the partition of their keys, encoded before the clock starts; confirms'
        ' counted; tasks: 1,000 slots, each of which sends its next message, encoded before the'
        ' clock starts, once its last one is confirmed, and what one read of confirms releases'
        ' leaves in one frame for each partition;'
        ' consuming: record counts read from chunk headers; in a cluster: a connection to each'
        ' leader, each read by its own thread',
    ),
    library(
        'rbfly',
        'rbfly_super',
        SUPER,
        '`client.super_stream(stream).publisher(route=by_hash(bytes.decode))`; `send_many` with a'
        ' list; tasks: `send` in a loop; consuming: `client.super_stream(stream).subscribe()`,'
        ' `async for` over decoded bodies',
    ),
    library(
        'rbfly-batches',
        'rbfly_super_batches',
        ('super-consume', *names('super-nodes', 'consume')),
        '`async for` over `subscription.batches()` of all partitions, `for` over the bodies of'
        ' each batch',
    ),
    library('rbfly', 'rbfly', ('super-plain',), '`Publisher.send_many` with a list'),
    library(
        'bare-uvloop',
        'bare_uvloop',
        (*names('batch-size'), *names('concurrent'), *names('sizes', 'send')),
        'the same frames, sent by an asyncio protocol; one future per round trip; concurrent: one'
        ' frame with the messages that all tasks send at the same time',
    ),
    library(
        'bare-uvloop',
        'open_loop_floor',
        names('percentiles'),
        'an asyncio protocol sends all due messages in one frame; another reads the bodies',
    ),
    library(
        'rbfly',
        'rbfly',
        (
            *names('batch-size'),
            *names('concurrent'),
            *names('far'),
            *names('gaps'),
            *names('latency', 'each', 'batch', 'flight'),
            *names('processes'),
            *names('sizes'),
            *names('values'),
            *names('clients'),
            *names('growth'),
        ),
        'one after the other and from tasks: `Publisher.send`; batches:'
        ' `Publisher.batch`, then `flush`; otherwise `Publisher.send_many` with a list;'
        ' growth of messages: 100,000 at a time; several publishers: one task each; consuming:'
        ' `async for` over decoded bodies, `Offset.FIRST`',
    ),
    library(
        'rbfly',
        'open_loop_rbfly',
        names('percentiles'),
        '`Publisher.send` in one task per message; another client consumes with `async for`',
    ),
    library(
        'rbfly-polling',
        'rbfly_polling',
        (*names('far'), *names('gaps')),
        f'like `rbfly`, with `streams_client(..., busy_poll={BUSY_POLL})`',
    ),
    library(
        'rbfly-batches',
        'rbfly_batches',
        (*names('sizes', 'read'), 'clients-consume'),
        '`async for` over `subscription.batches()`, `for` over the bodies of each batch',
    ),
    library(
        'rstream',
        'rstream',
        (*names('batch-size'), *names('sizes', 'send', 'many')),
        '`Producer` with its defaults; `AMQPMessage(body=body)` created before the clock starts;'
        ' one after the other: `send_wait`; batches: `send_batch` with `on_publish_confirm`, the'
        ' next one when all are confirmed; many unconfirmed: `send_batch` of up to 1,000 messages'
        ' and 500 KB, the next one while less than 10,000 are unconfirmed',
    ),
    library(
        'rstream',
        'rstream',
        names('concurrent'),
        '`send_wait` in each task; a tenth of the messages',
        part=0.1,
    ),
    library(
        'rstream',
        'rstream_consume',
        names('sizes', 'read'),
        '`Consumer.subscribe` from the first offset, `amqp_decoder`, `initial_credit` 10;'
        ' a quarter of the messages',
        part=0.25,
    ),
    library(
        'rstream',
        'open_loop_rstream',
        names('percentiles'),
        '`send_batch` of all due messages, with `on_publish_confirm`; a `Consumer` with its'
        ' defaults',
    ),
    library(
        'aiokafka',
        'aiokafka',
        (*names('batch-size'), *names('concurrent'), *names('sizes', 'send', 'many')),
        "`AIOKafkaProducer(acks='all', linger_ms=0)`, values encoded by `msgpack.packb`, one"
        ' partition, one replica; one after the other and from tasks: `send_and_wait`; batches:'
        ' `create_batch`, `append`, `send_batch`, awaiting its future; many unconfirmed: `send`,'
        ' awaiting all futures at the end',
        broker='kafka',
    ),
    library(
        'aiokafka',
        'aiokafka_consume',
        names('sizes', 'read'),
        '`AIOKafkaConsumer` with its defaults, assigned to the partition; `getmany`, values decoded'
        ' by `msgpack.unpackb`',
        broker='kafka',
    ),
    library(
        'aiokafka',
        'open_loop_aiokafka',
        names('percentiles'),
        "`AIOKafkaProducer(acks='all', linger_ms=0)`, `send` of all due messages; an"
        ' `AIOKafkaConsumer` with its defaults',
        broker='kafka',
    ),
    library(
        'pika',
        'pika',
        names('latency', 'each', 'unconfirmed', 'connection'),
        '`BlockingConnection` to a stream queue, using AMQP 0.9.1: `basic_publish` with and without'
        ' `confirm_delivery`, and on a new connection for each message',
        broker='amqp',
    ),
    library(
        'pika',
        'pika',
        names('latency', 'flight'),
        '`AsyncioConnection`, `basic_publish` with up to 10,000 unconfirmed; half the messages',
        broker='amqp',
        part=0.5,
    ),
    library(
        'pika',
        'pika',
        names('processes'),
        '`AsyncioConnection` for each publisher, `basic_publish` with up to 10,000 unconfirmed; a'
        ' fortieth of the messages',
        broker='amqp',
        part=1 / 40,
    ),
    library(
        'aio-pika',
        'aio_pika',
        names('latency', 'each', 'unconfirmed'),
        '`Exchange.publish` to a stream queue, using AMQP 0.9.1, with and without'
        ' `publisher_confirms`',
        broker='amqp',
    ),
    library(
        'go',
        '',
        names('clients'),
        'the official Go client: `BatchSend` of 500 messages with up to 10,000 unconfirmed; a'
        ' consumer from the first offset that decodes bodies; socket buffer sizes left to the OS',
        program='go',
    ),
    library(
        'java',
        '',
        names('clients'),
        'the official Java client: a producer with its defaults and up to 10,000 unconfirmed; a'
        ' consumer from the first offset that decodes bodies',
        program='java',
    ),
    library(
        'go',
        '',
        ('super-publish', 'super-consume'),
        'the official Go client: `SuperStreamProducer.Send` with up to 40,000 unconfirmed; a'
        ' `SuperStreamConsumer` from the first offset that decodes bodies',
        program='go',
    ),
    library(
        'java',
        '',
        ('super-publish', 'super-consume'),
        'the official Java client: a producer with `superStream` and up to 5,000 unconfirmed for'
        ' each partition; a consumer from the first offset that decodes bodies',
        program='java',
    ),
)
