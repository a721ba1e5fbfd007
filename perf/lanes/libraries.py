"""Libraries, and how each does its kinds of work, as a table of plain data."""

from typing import Any

from .kinds import TYPED_WORK, names
from .model import BUSY_POLL, Library, Use

DISTRIBUTION = 'rbfly-streams'  # of this project

# In the order of the report; floors and lanes that poll come last.
LIBRARIES = {
    library.name: library
    for library in (
        Library('rbfly', 'RbFly', (DISTRIBUTION,)),
        Library('rbfly-amqp', 'RbFly (AMQP)', (DISTRIBUTION,)),
        Library('rbfly-raw', 'RbFly (raw bytes)', (DISTRIBUTION,)),
        Library('rbfly-body', 'RbFly (body)', (DISTRIBUTION,)),
        Library('rbfly-submit', 'RbFly (submit)', (DISTRIBUTION,)),
        Library('rbfly-atomic', 'RbFly (send_atomic)', (DISTRIBUTION,)),
        Library('rbfly-batches', 'RbFly (batches)', (DISTRIBUTION,)),
        Library('rbfly-views', 'RbFly (views)', (DISTRIBUTION,)),
        Library('rbfly-messages', 'RbFly (messages)', (DISTRIBUTION,)),
        Library('rbfly-py3.14', 'RbFly (Python 3.14)', (DISTRIBUTION,)),
        Library('rbfly-body-py3.14', 'RbFly (body, Python 3.14)', (DISTRIBUTION,)),
        Library('rbfly-batches-py3.14', 'RbFly (batches, Python 3.14)', (DISTRIBUTION,)),
        Library('rbfly-1-worker', 'RbFly (1 worker)', (DISTRIBUTION,)),
        Library('rbfly-16-workers', 'RbFly (16 workers)', (DISTRIBUTION,)),
        Library('rbfly-pipe', 'RbFly (pipe)', (DISTRIBUTION,)),
        Library('rbfly-aiofastnet', 'RbFly (aiofastnet)', (DISTRIBUTION, 'uvloop')),
        Library('rbfly-traced', 'RbFly (traced)', (DISTRIBUTION, 'opentelemetry-sdk')),
        Library('rbfly-spans', 'RbFly (bare spans)', (DISTRIBUTION, 'opentelemetry-sdk')),
        Library('rbfly-metrics', 'RbFly (metrics)', (DISTRIBUTION, 'opentelemetry-sdk')),
        Library('rstream', 'rstream', ('rstream',)),
        Library('proton', 'Qpid Proton', ('python-qpid-proton',)),
        Library('aiokafka', 'aiokafka (Kafka)', ('aiokafka', 'msgpack')),
        Library('confluent', 'confluent-kafka (Kafka)', ('confluent-kafka', 'msgpack')),
        Library('pika', 'pika (AMQP 0.9.1)', ('pika',)),
        Library('aio-pika', 'aio-pika (AMQP 0.9.1)', ('aio-pika',)),
        Library('go', 'Go client', program='go'),
        Library('java', 'Java client', program='java'),
        Library('msgspec', 'msgspec (MessagePack)', ('msgspec',)),
        Library('msgspec-py3.14', 'msgspec (Python 3.14)', ('msgspec',)),
        Library('bare-uvloop', 'asyncio protocol (floor)', is_floor=True),
        Library('bare-uvloop-py3.14', 'asyncio protocol (3.14, floor)', is_floor=True),
        Library('raw-socket', 'blocking socket (floor)', is_floor=True),
        Library('rbfly-polling', 'RbFly (busy polling)', (DISTRIBUTION,)),
        Library('bare-uvloop-polling', 'polling asyncio protocol (floor)', is_floor=True),
        Library('raw-socket-polling', 'polling socket (floor)', is_floor=True),
    )
}
REFERENCES = ('msgspec', 'msgspec-py3.14')  # writes another format

WITHOUT_LOOP = ('raw-socket', 'raw-socket-polling', 'confluent', 'go', 'java')
LOOPS = {'rbfly-aiofastnet': 'aiofastnet'}
BROKERS = {'aiokafka': 'kafka', 'confluent': 'kafka', 'pika': 'amqp', 'aio-pika': 'amqp'}


def use(name: str, module: str, kinds: str, how: str, part: float = 1, **options: Any) -> Use:
    """How a library uses its broker.

    :param kinds: names of kinds of work; `SCENARIO/` stands for all kinds of a scenario, and
        `SCENARIO/A,B` for those of some of its series.
    """
    found: list[str] = []
    for word in kinds.split():
        scenario, slash, series = word.partition('/')
        found += names(scenario, *filter(None, series.split(','))) if slash else [word]
    loop = 'none' if name in WITHOUT_LOOP else LOOPS.get(name, 'uvloop')
    broker = BROKERS.get(name, 'rabbitmq')
    return Use(LIBRARIES[name], module, tuple(found), how, loop, broker, part, options)


def codec(name: str, how: str, into: bool = False, only: tuple[str, ...] = ()) -> Use:
    """How a library is used without a broker.

    :param into: it encodes into a buffer, and decodes to types.
    :param only: all kinds of work that it does.
    """
    left_out = () if into else ('encode-into', *TYPED_WORK)
    kinds = only or tuple(kind for kind in names('codec') if not kind.startswith(left_out))
    return Use(LIBRARIES[name], f'codec_{name.replace("-", "_")}', kinds, how, 'none', '')


ROUND_TRIPS = 'single batch'
BATCHES = f'{ROUND_TRIPS} sub-batch'
CONSUMING = 'consume/ sub-consume'
PLAIN = ('seed', 'data10', 'data1k', 'nested')  # messages that are a body only
ALL = f'{BATCHES} window tasks-100 tasks-1000 sub-publish {CONSUMING}'
SUPER = 'super-publish super-tasks super-one super-consume super-nodes/'

USES = (
    use(
        'raw-socket',
        'raw_socket',
        f'{ALL} latency/each,batch,flight sizes/many,read clients/ growth/subscriptions'
        ' super-plain',
        'blocking socket; frames encoded before the clock starts, with a message, a batch, or up to'
        ' 1,000 messages and 500 KB; tasks: what all tasks send at the same time in one frame;'
        ' sub-publish: 100 sub-entries; sub-batch: one; confirms counted; consuming: credit for 10'
        ' chunks, renewed after each; record counts read from chunk headers; a connection and a'
        ' thread for 256 subscriptions',
    ),
    use(
        'bare-uvloop',
        'bare_uvloop',
        f'{BATCHES} tasks-100 batch-size/ concurrent/ sizes/send',
        'the frames of the blocking socket, sent by an asyncio protocol; one future per round trip',
    ),
    use(
        'raw-socket-polling',
        'raw_socket',
        ROUND_TRIPS,
        'the same frames from a non-blocking socket: `recv` in a loop until confirms arrive',
        polls=True,
    ),
    use(
        'bare-uvloop-polling',
        'bare_uvloop',
        ROUND_TRIPS,
        'the same asyncio protocol, and a callback that schedules itself by `call_soon` until'
        ' the last confirm arrives',
        polls=True,
    ),
    use(
        'rbfly',
        'rbfly',
        f'{ALL} batch-size/ concurrent/ far/ gaps/ latency/each,batch,flight processes/ sizes/'
        ' values/ clients/ growth/ super-plain',
        'one after the other and from tasks: `Publisher.send`; batches: `Publisher.batch`, then'
        ' `flush`; otherwise `Publisher.send_many` with a list; sub-publish and sub-batch: with'
        ' `sub_entry_size=100`; growth of messages: 100,000 at a time; several publishers: one task'
        ' each; consuming: `async for` over decoded bodies, `Offset.FIRST`',
    ),
    use(
        'rbfly-atomic',
        'rbfly',
        'sub-batch',
        '`Publisher.send_atomic` with a list of 100 bodies',
        atomic=True,
    ),
    use(
        'rbfly-polling',
        'rbfly',
        f'{ROUND_TRIPS} window tasks-100 tasks-1000 consume far/ gaps/',
        f'like `rbfly`, with `streams_client(..., busy_poll={BUSY_POLL})`',
        busy_poll=BUSY_POLL,
    ),
    use(
        'rbfly-traced',
        'rbfly',
        ROUND_TRIPS,
        'like `rbfly`, with `streams_client(..., tracing=...)`; no span is sampled',
        traced=True,
    ),
    use(
        'rbfly-spans',
        'rbfly_spans',
        ROUND_TRIPS,
        'like `rbfly`; the program begins and ends a span, which is not sampled, for each call:'
        " what OpenTelemetry's SDK costs without RbFly's instrumentation",
    ),
    use(
        'rbfly-batches',
        'rbfly',
        f'{CONSUMING} sizes/read clients-consume',
        '`async for` over `subscription.batches()`, `for` over the bodies of each batch',
        read='batches',
    ),
    use(
        'rbfly-views',
        'rbfly',
        'sizes/read',
        'like `rbfly-batches`, with `client.subscribe(..., copy=False)`',
        read='views',
    ),
    use(
        'rbfly-messages',
        'rbfly',
        CONSUMING,
        '`async for` over `subscription.messages()`, reading `stream_offset`,'
        ' `stream_timestamp`, `body` and, where present, `properties` and'
        ' `app_properties`',
        read='messages',
    ),
    use(
        'rbfly',
        'rbfly_process',
        'processing/',
        '`async for` over decoded bodies, awaiting the function for each',
    ),
    *(
        use(
            name,
            'rbfly_process',
            'processing/',
            f'`process(subscription, function, workers={workers})`',
            workers=workers,
        )
        for name, workers in (('rbfly-1-worker', 1), ('rbfly-16-workers', 16))
    ),
    use(
        'rbfly',
        'rbfly_pipe',
        'piping/',
        '`send_many` with the results of each batch, by a publisher with a name',
    ),
    use(
        'rbfly-pipe',
        'rbfly_pipe',
        'piping/',
        '`pipe(source, target, function, name=..., until=...)`',
        with_pipe=True,
    ),
    use(
        'rbfly-metrics',
        'rbfly',
        f'{ROUND_TRIPS} tasks-1000 consume',
        'like `rbfly`, with `streams_client(..., metrics=rbfly.otel.metrics(...))` and the SDK of'
        ' OpenTelemetry',
        metrics=True,
    ),
    use(
        'rbfly-amqp',
        'rbfly',
        'amqp/',
        "body `'{:010d}'.format(n).encode()`; `Publisher.send`;"
        ' `Publisher.batch` 100 times, then `flush`',
    ),
    use(
        'rbfly-raw',
        'rbfly',
        'amqp/',
        'like `rbfly-amqp`, with `client.publisher(..., amqp=False)`',
        amqp=False,
    ),
    use(
        'rstream',
        'rstream',
        f'{ROUND_TRIPS} batch-size/ sizes/send,many',
        '`Producer` with its defaults; `AMQPMessage(body=body)` created before the clock starts;'
        ' one after the other: `send_wait`; batches: `send_batch` with `on_publish_confirm`, the'
        ' next one when all are confirmed; many unconfirmed: `send_batch` of up to 1,000 messages'
        ' and 500 KB, the next one while less than 10,000 are unconfirmed',
    ),
    use(
        'aiokafka',
        'aiokafka',
        f'{BATCHES} batch-size/ concurrent/ sizes/send,many',
        "`AIOKafkaProducer(acks='all', linger_ms=0)`, values encoded by `msgpack.packb`, one"
        ' partition, one replica; one after the other and from tasks: `send_and_wait`; batches:'
        ' `create_batch`, `append`, `send_batch`, awaiting its future; many unconfirmed: `send`,'
        ' awaiting all futures at the end',
    ),
    codec(
        'rbfly',
        '`encode_amqp(buffer, stream_message_ctx(data))`, `encode_amqp_bytes`,'
        ' `decode_amqp(raw).body`; typed: `decode_amqp(raw, type=Order).body`',
        into=True,
    ),
    codec(
        'rbfly-body',
        '`encode_amqp(buffer, data)`, `encode_amqp_bytes(data)`: without a message object, as'
        ' `Publisher.send(data)` does',
        only=tuple(f'{work}-{body}' for work in ('encode-into', 'encode') for body in PLAIN),
    ),
    codec(
        'msgspec',
        'MessagePack: one `Encoder` and one `Decoder`, `encode_into` for a buffer; sections as a'
        ' map of three, or a `Struct` if only the body is read; typed: `Decoder(Order)`',
        into=True,
    ),
    codec('rstream', '`bytes(AMQPMessage(value=data))`, `amqp_decoder(raw).value`'),
    codec(
        'proton',
        'one reused `Message`: `encode` and `decode`; Data sections through `inferred=True`',
    ),
    use(
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
    use(
        'rbfly',
        'rbfly_super',
        SUPER,
        '`client.super_stream(stream).publisher(route=by_hash(bytes.decode))`; `send_many` with a'
        ' list; tasks: `send` in a loop; consuming: `client.super_stream(stream).subscribe()`,'
        ' `async for` over decoded bodies',
    ),
    use(
        'rbfly-batches',
        'rbfly_super',
        'super-consume super-nodes/consume',
        '`async for` over `subscription.batches()` of all partitions, `for` over the bodies of'
        ' each batch',
        read='batches',
    ),
    use(
        'bare-uvloop',
        'bare_uvloop',
        'percentiles/',
        'an asyncio protocol sends all due messages in one frame; another reads the bodies',
    ),
    use(
        'rbfly',
        'rbfly',
        'percentiles/',
        '`Publisher.send` in one task per message; another client consumes with `async for`',
    ),
    use(
        'rbfly-submit',
        'rbfly',
        'percentiles/',
        '`Publisher.submit` of all due messages in one task, with `add_done_callback`; another'
        ' client consumes with `async for`',
        submits=True,
    ),
    use(
        'rstream',
        'rstream',
        'concurrent/',
        '`send_wait` in each task; a tenth of the messages',
        part=0.1,
    ),
    use(
        'rstream',
        'rstream',
        'sizes/read',
        '`Consumer.subscribe` from the first offset, `amqp_decoder`, `initial_credit` 10;'
        ' a quarter of the messages',
        part=0.25,
    ),
    use(
        'rstream',
        'rstream',
        'percentiles/',
        '`send_batch` of all due messages, with `on_publish_confirm`; a `Consumer` with its'
        ' defaults',
    ),
    use(
        'aiokafka',
        'aiokafka',
        'sizes/read',
        '`AIOKafkaConsumer` with its defaults, assigned to the partition; `getmany`, values decoded'
        ' by `msgpack.unpackb`',
    ),
    use(
        'aiokafka',
        'aiokafka',
        'percentiles/',
        "`AIOKafkaProducer(acks='all', linger_ms=0)`, `send` of all due messages; an"
        ' `AIOKafkaConsumer` with its defaults',
    ),
    use(
        'pika',
        'pika',
        'latency/each,unconfirmed,connection',
        '`BlockingConnection` to a stream queue, using AMQP 0.9.1: `basic_publish` with and without'
        ' `confirm_delivery`, and on a new connection for each message',
    ),
    use(
        'pika',
        'pika',
        'latency/flight',
        '`AsyncioConnection`, `basic_publish` with up to 10,000 unconfirmed; half the messages',
        part=0.5,
    ),
    use(
        'pika',
        'pika',
        'processes/',
        '`AsyncioConnection` for each publisher, `basic_publish` with up to 10,000 unconfirmed; a'
        ' fortieth of the messages',
        part=1 / 40,
    ),
    use(
        'aio-pika',
        'aio_pika',
        'latency/each,unconfirmed',
        '`Exchange.publish` to a stream queue, using AMQP 0.9.1, with and without'
        ' `publisher_confirms`',
    ),
    use(
        'go',
        '',
        'clients/ super-publish super-consume',
        'the official Go client: `BatchSend` of 500 messages with up to 10,000 unconfirmed, or'
        ' `SuperStreamProducer.Send` with up to 40,000; a `Consumer`, or a `SuperStreamConsumer`,'
        ' from the first offset that decodes bodies; socket buffer sizes left to the OS',
    ),
    use(
        'java',
        '',
        'clients/ super-publish super-consume',
        'the official Java client: a producer with its defaults and up to 10,000 unconfirmed, or'
        ' with `superStream` and up to 5,000 unconfirmed for each partition; a consumer from the'
        ' first offset that decodes bodies',
    ),
)
