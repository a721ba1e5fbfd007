"""What a million messages cost: the same work by all libraries, with the meter of `perf.cost`.

Messages, windows and credit are those of RabbitMQ's stream-perf-test: bodies of 10 bytes, up to
10,000 unconfirmed, and credit for 10 chunks.  All but pika read the whole stream, so that what they
receive ahead is part of what they consume.
"""

from dataclasses import replace

from .kinds import KINDS
from .libraries import use

# the titles of the kinds of work, and their default scales
TITLES = {
    'window': ('cost-publish', 'published, up to 10,000 messages unconfirmed', 0.5),
    'consume': ('cost-consume', 'consumed, from first to last message', 0.2),
}

KINDS.update(
    {
        name: replace(
            KINDS[like],
            name=name,
            scenario='cost',
            title=title,
            scale=scale,
            like=like,
            slowest=1_000,
            metered=True,
        )
        for like, (name, title, scale) in TITLES.items()
    }
)

PUBLISH, CONSUME = 'cost-publish', 'cost-consume'

USES = (
    use(
        'raw-socket',
        'raw_socket',
        f'{PUBLISH} {CONSUME}',
        'blocking socket; frames of 1,000 messages, encoded before the clock starts; confirms'
        ' counted; consuming: record counts read from chunk headers',
    ),
    use(
        'rbfly',
        'rbfly',
        f'{PUBLISH} {CONSUME}',
        '`Publisher.send_many` with a list; `async for` over decoded bodies, `Offset.FIRST`',
    ),
    use(
        'rbfly-batches',
        'rbfly',
        CONSUME,
        '`async for` over `subscription.batches()`, `for` over the bodies of each batch',
        read='batches',
    ),
    use(
        'rstream',
        'rstream',
        PUBLISH,
        '`send_batch` of 1,000 messages, the next one while less than 10,000 are unconfirmed; a'
        ' fifth of the messages',
        part=0.2,
    ),
    use(
        'rstream',
        'rstream',
        CONSUME,
        '`Consumer` from the first offset, `amqp_decoder`, `initial_credit` 10',
    ),
    use(
        'aiokafka',
        'aiokafka',
        PUBLISH,
        "`AIOKafkaProducer(acks='all', linger_ms=0)`, `send`, awaiting all futures at the end; a"
        ' fifth of the messages',
        part=0.2,
    ),
    use(
        'aiokafka',
        'aiokafka',
        CONSUME,
        '`AIOKafkaConsumer` with its defaults, assigned to the partition; `getmany`, values decoded'
        ' by `msgpack.unpackb`',
    ),
    use(
        'confluent',
        'confluent',
        f'{PUBLISH} {CONSUME}',
        "`Producer` with `acks` 'all', `produce`, and `poll` while 10,000 are unconfirmed;"
        ' `Consumer` with its defaults, `consume` of up to 1,000 messages',
    ),
    use(
        'pika',
        'pika',
        PUBLISH,
        '`AsyncioConnection` to a stream queue, `basic_publish` with up to 10,000 unconfirmed; a'
        ' twenty-fifth of the messages',
        part=0.04,
    ),
    use(
        'pika',
        'pika_consume',
        CONSUME,
        '`BlockingConnection` to a stream queue, `consume` from the first offset with a prefetch of'
        ' 1,000, acknowledged by the hundred; a tenth of the messages',
        part=0.1,
    ),
    use(
        'go',
        '',
        f'{PUBLISH} {CONSUME}',
        'the official Go client: `BatchSend` of 500 messages with up to 10,000 unconfirmed; a'
        ' `Consumer` from the first offset that decodes bodies',
    ),
    use(
        'java',
        '',
        f'{PUBLISH} {CONSUME}',
        'the official Java client: a producer with its defaults and up to 10,000 unconfirmed; a'
        ' consumer from the first offset that decodes bodies',
    ),
)
