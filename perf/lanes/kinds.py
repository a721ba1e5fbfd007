"""Tables of the scenarios of the benchmark and their kinds of work, as plain data.

A study does one kind of work for a series of values, to see what its speed depends on.
"""

from typing import Any

from .model import Kind, Scenario, Stored

ONE_BY_ONE = 'each message confirmed before the next'
BY_BATCH = 'batches of 100, each confirmed before the next'

SCENARIOS = {
    'publish': Scenario(
        'Publishing to a broker',
        'messages of 10 bytes, confirmed: one after the other, in batches of 100, and in batches'
        ' that the broker stores as one entry',
    ),
    'amqp': Scenario(
        'AMQP 1.0 compared with raw bytes',
        'what AMQP 1.0 costs: messages of 10 bytes, as AMQP and as raw bytes, confirmed',
    ),
    'pipeline': Scenario(
        'Publishing with many messages in flight',
        'messages of 10 bytes, with up to 10,000 in flight',
    ),
    'tasks': Scenario(
        'Publishing from many tasks',
        'messages of 10 bytes from many tasks, each awaiting its own confirms',
    ),
    'sub-entries': Scenario(
        'Sub-entries', 'messages of 10 bytes in uncompressed sub-entries of 100'
    ),
    'consume': Scenario(
        'Consuming',
        'a stream consumed from first to last message, of 10 bytes unless stated otherwise',
    ),
    'processing': Scenario(
        'Working on messages',
        'a stream consumed from first to last message, of 10 bytes, and an async function awaited'
        ' for each message',
    ),
    'piping': Scenario(
        'Piping messages',
        'a stream consumed from first to last message, of 10 bytes, and a result of each message'
        ' published to another stream',
    ),
    'codec': Scenario(
        'Encoding and decoding AMQP 1.0',
        'AMQP 1.0 messages encoded and decoded, without a broker; the small map is'
        " `{'large-int': 2**31-1, 'small-list': [1, 2, 3], 'bin-string': b'abc'}`",
    ),
    'batch-size': Scenario(
        'Batch size',
        'messages of 10 bytes in batches of 1 to 1,000, each confirmed before the next',
        'messages per batch',
        {'batch': 'each batch confirmed before the next'},
    ),
    'concurrent': Scenario(
        'Concurrent tasks',
        'messages of 10 bytes from 1 to 1,000 tasks, each awaiting its own confirms',
        'tasks',
        {'tasks': 'each task awaits the confirm of its message'},
    ),
    'far': Scenario(
        'Busy polling, with a distant broker',
        'messages of 10 bytes through a proxy that adds 1 to 20 ms per round trip: busy polling'
        ' cannot help there',
        'round trip in ms',
        {'each': ONE_BY_ONE, 'batch': BY_BATCH},
    ),
    'gaps': Scenario(
        'Busy polling, with work between messages',
        'messages of 10 bytes, each confirmed before the program works for 20 to 500 µs and'
        ' sends the next; rate and CPU include this work',
        'microseconds of work',
        {'gaps': 'each message confirmed before the work'},
    ),
    'latency': Scenario(
        'Network latency',
        'messages of 10 bytes through a proxy that adds 0 to 100 ms per round trip',
        'round trip in ms',
        {
            'each': ONE_BY_ONE,
            'batch': BY_BATCH,
            'flight': 'up to 10,000 messages in flight',
            'unconfirmed': 'without confirms',
            'connection': 'one connection per message',
        },
    ),
    'percentiles': Scenario(
        'Latency at a fixed rate',
        'messages of 10 bytes sent at a fixed rate, however many are unconfirmed: the'
        ' time from when each message is due until it is confirmed, and until it is consumed',
        'messages per second',
        {'rate': ''},
    ),
    'processes': Scenario(
        'Processes and publishers',
        'messages of 10 bytes from one or two processes with 1 to 5 publishers each',
        'publishers per process',
        {'1': 'one process', '2': 'two processes'},
    ),
    'sizes': Scenario(
        'Message size',
        'messages of 10 bytes to 900 KB, published and consumed',
        'bytes per body',
        {
            'send': 'published, each confirmed before the next',
            'many': 'published, up to 10,000 messages in flight',
            'read': 'consumed',
        },
    ),
    'values': Scenario(
        'Value types',
        'the cost of AMQP 1.0 types, published and consumed',
        'value',
        {'publish': 'published', 'read': 'consumed'},
    ),
    'clients': Scenario(
        'Clients in other languages',
        'the official RabbitMQ Streams clients for Go and Java, as separate programs',
    ),
    'super': Scenario(
        'Super streams',
        'messages of 10 bytes by key to a super stream of 8 partitions, each message being its'
        ' own key, and read from all partitions',
    ),
    'super-nodes': Scenario(
        'Super streams in a cluster',
        'messages of 10 bytes by key to a super stream of 9 partitions, and read from'
        ' all of them, in a cluster of three nodes: every partition has a replica on each node, and'
        ' all leaders are on one node or three on each; the nodes and the client share the'
        ' processors of one machine, so this shows what more connections cost, and not how a'
        ' cluster scales',
        'nodes that lead partitions',
        {'publish': 'published by key', 'consume': 'consumed from all partitions'},
    ),
    'pythons': Scenario(
        'Python 3.14',
        'the same work on the Python of the run and on Python 3.14, in the same rounds',
    ),
    'tls': Scenario(
        'TLS',
        'the same work with and without TLS, in the same rounds; messages of 10 bytes unless stated'
        ' otherwise',
    ),
    'cost': Scenario(
        'What a million messages cost',
        'processor time of client and broker, and bytes on the wire: messages of 10 bytes, with up'
        ' to 10,000 in flight, and read from first to last',
    ),
    'growth': Scenario(
        'Growth',
        'the cost per message as messages, streams and subscriptions grow in number',
        'number',
        {
            'messages': 'messages published by one publisher',
            'streams': 'streams with one publisher each',
            'subscriptions': 'subscriptions of one client',
        },
    ),
}

# What codecs encode and decode, and how; not every combination is a kind of work.
CODEC_WORK = {
    'encode-into': 'encoded into a reused buffer',
    'encode': 'encoded to new bytes',
    'decode': 'decoded, and the body read',
    'decode-all': 'decoded, and all sections read',
    'decode-typed': 'decoded to dataclasses',
    'decode-struct': 'decoded to Structs of msgspec',
    'decode-by-hand': 'decoded to a dict, from which the program builds dataclasses',
}
TYPED_WORK = ('decode-typed', 'decode-struct', 'decode-by-hand')
CODEC_MESSAGES = {
    'seed': 'a small map',
    'data10': 'a body of 10 bytes',
    'data1k': 'a body of 1,024 bytes',
    'properties': 'the small map with 5 properties and 10 application properties',
    'nested': 'a document of 100 values in maps and lists',
    'order': 'an order of 15 values, three items in it',
}

# What is consumed, and the number of messages at scale 1.
CONSUMED = {
    'consume': ('bodies of 10 bytes, consumed', 1_000_000, Stored()),
    'consume-100': ('bodies of 100 bytes, consumed', 1_000_000, Stored(size=100)),
    'consume-1k': ('bodies of 1,024 bytes, consumed', 200_000, Stored(size=1024, frame=800)),
    'consume-properties': (
        'messages with 5 properties and 10 application properties, consumed',
        400_000,
        Stored(properties=True, frame=2_000),
    ),
    'consume-2': ('consumed by 2 subscriptions at once', 1_000_000, Stored(readers=2)),
    'consume-4': ('consumed by 4 subscriptions at once', 1_000_000, Stored(readers=4)),
    'sub-consume': (
        'sub-entries of 100 messages, consumed',
        10_000_000,
        Stored(sub_entry=100, frame=10_000),
    ),
}

# The values that studies vary.
BATCHES = (1, 10, 50, 100, 200, 500, 1_000)
TASKS = (1, 8, 32, 100, 1_000)
DELAYS = (0, 1, 5, 10, 50, 100)  # milliseconds
FAR = (1, 5, 20)  # milliseconds
GAPS = (20, 50, 100, 200, 500)  # microseconds
RATES = (1_000, 10_000)  # messages per second
PUBLISHERS = (1, 2, 3, 4, 5)
SIZES = (10, 100, 1_000, 10_000, 100_000, 900_000)  # bytes
VALUES = {
    'bytes': '10 bytes',
    'str': 'a str of 10 letters',
    'int': 'an int of 32 bits',
    'map': 'a small map of three values',
    'map-20': 'a map of 20 fields',
    'properties': '10 bytes with 5 application properties',
}
MESSAGES = tuple(10**i for i in range(4, 9))
MANY = (1, 10, 100, 1_000)  # streams, subscriptions

PARTITIONS = 8  # of a super stream
ON_NODES = 9  # partitions of a super stream in a cluster
NODES = 3  # of the cluster

ROUNDS = 20  # for kinds that measure many points
WINDOW = 10_000
FRAME = 1_000
ROUND_SECONDS = 2  # length of an open loop's round

KINDS: dict[str, Kind] = {}


def add(name: str, scenario: str, title: str, full: int, scale: float = 1, **about: Any) -> None:
    defaults: dict[str, Any] = {'quick': full // 10, 'size': 1, 'floor': '', 'slowest': 100}
    KINDS[name] = Kind(name, scenario, title, full, scale, **defaults | about)


def study(
    scenario: str, name: str, title: str, count: int, work: str, at: int = 0, **about: Any
) -> None:
    """Add a kind of work with whole batches of `count` messages, a tenth of them in a quick run."""
    size = about.setdefault('size', 1)
    about = {'warm_up': size, 'rounds': ROUNDS, 'work': work, 'at': at} | about
    about.setdefault('quick', max(count // 10 // size, 1) * size)
    add(f'{scenario}-{name}', scenario, title, max(count // size, 1) * size, **about)


def batched(size: int) -> dict[str, Any]:
    """A batch is a frame, and is confirmed before the next one."""
    return {'size': size, 'frame': size, 'window': size}


def plural(count: int, what: str) -> str:
    return f'{count:,} {what}' if count == 1 else f'{count:,} {what}s'


IN_FLIGHT: dict[str, Any] = {'size': FRAME, 'frame': FRAME, 'window': WINDOW}
BARE: dict[str, Any] = {'floor': 'bare-uvloop'}
RAW: dict[str, Any] = {'floor': 'raw-socket'}
AWAITS = 'each awaits the confirm of a message before sending another'


def publishing() -> None:
    single: dict[str, Any] = {
        'full': 200_000, 'scale': 0.05, 'quick': 500, 'warm_up': 200, 'work': 'single',
    }  # fmt: skip
    batch: dict[str, Any] = {
        'full': 1_000_000, 'scale': 0.2, 'quick': 20_000, 'slowest': 2_000, 'warm_up': 2_000,
        'work': 'batch', **batched(100),
    }  # fmt: skip
    add('single', 'publish', ONE_BY_ONE, **single, **BARE)
    add('batch', 'publish', BY_BATCH, **batch, **BARE)
    entry = {'like': 'batch', 'work': 'sub-batch', 'frame': 1, 'window': 1}
    add('sub-batch', 'publish', f'{BY_BATCH}; a batch is one entry', **batch | BARE | entry)
    for name, title, about in (('single', ONE_BY_ONE, single), ('batch', BY_BATCH, batch)):
        title = f'AMQP 1.0 and raw bytes, {title}'
        add(f'{name}-format', 'amqp', title, like=name, **about)
    window: dict[str, Any] = {
        'full': 1_000_000, 'scale': 0.5, 'quick': 200_000, 'slowest': 5_000, 'warm_up': 20_000,
        'work': 'window', **IN_FLIGHT,
    }  # fmt: skip
    add('window', 'pipeline', 'up to 10,000 messages unconfirmed', **window, **RAW)
    tasks = batch | BARE | {'slowest': 1_000, 'work': 'tasks', 'tasks': 100}
    add('tasks-100', 'tasks', f'100 tasks, {AWAITS}', **tasks)
    tasks |= {'scale': 0.5, 'quick': 50_000, 'warm_up': 20_000, 'slowest': 2_000, 'tasks': 1_000}
    add('tasks-1000', 'tasks', f'1,000 tasks, {AWAITS}', **tasks | batched(1_000) | RAW)
    entries: dict[str, Any] = {
        'full': 10_000_000, 'scale': 0.5, 'quick': 1_000_000, 'slowest': 50_000,
        'warm_up': 100_000, 'work': 'sub-publish', 'size': 10_000, 'frame': 100, 'window': 1_000,
    }  # fmt: skip
    title = 'sub-entries of 100 messages, published, up to 1,000 sub-entries unconfirmed'
    add('sub-publish', 'sub-entries', title, **entries, **RAW)


def consuming() -> None:
    for name, (title, full, stored) in CONSUMED.items():
        size = stored.frame * stored.readers
        scenario = 'sub-entries' if stored.sub_entry else 'consume'
        about = {'quick': full // 5 // size * size, 'warm_up': 5 * size, 'slowest': 5_000} | RAW
        add(name, scenario, title, full, 0.5, size=size, work='consume', stored=stored, **about)


def processing() -> None:
    for name, waits, title, count, frame in (
        ('process', 0, 'a function that does not wait', 1_000_000, 4_000),
        ('process-wait', 1_000, 'a function that waits for a millisecond', 5_000, 100),
    ):
        about = {'at': waits, 'size': frame, 'warm_up': frame, 'work': 'process'}
        stored = Stored(frame=frame)
        quick = max(count // 10 // frame, 1) * frame
        add(name, 'processing', title, count, 0.2, quick=quick, stored=stored, **about)


def piping() -> None:
    frame = 4_000
    about = {'size': frame, 'warm_up': frame, 'work': 'pipe', 'stored': Stored(frame=frame)}
    quick = 100 * frame
    add('relay', 'piping', 'a result for each message', 400_000, 0.5, quick=quick, **about)


def codecs() -> None:
    for message, content in CODEC_MESSAGES.items():
        nested = message == 'nested'
        about = {'quick': 1_000 if nested else 10_000, 'slowest': 500, 'warm_up': 1_000}
        for work, done in CODEC_WORK.items():
            # if there is only a body, reading all sections means reading the body
            if work == 'decode-all' and message != 'properties':
                continue
            if (work in TYPED_WORK) != (message == 'order'):
                continue
            name, title, scale = f'{work}-{message}', f'{content}, {done}', 0.1 if nested else 1
            add(name, 'codec', title, 10_000, scale, **about)


def batch_sizes_and_tasks() -> None:
    for size in BATCHES:
        count = size * (500 if size < 100 else 250 if size < 500 else 100)
        about = BARE | batched(size) | {'series': 'batch'}
        study('batch-size', f'{size}', f'batches of {size:,}', count, 'batch', size, **about)
    for tasks in TASKS:
        title = f'{plural(tasks, "task")}, {AWAITS}'
        count = tasks * max(500 // tasks, 100 if tasks < 1_000 else 40)
        about = BARE | batched(tasks) | {'series': 'tasks', 'tasks': tasks}
        study('concurrent', f'{tasks}', title, count, 'tasks', tasks, **about)


def polling() -> None:
    about: dict[str, Any]
    for series, work, title, size in (
        ('each', 'single', ONE_BY_ONE, 1),
        ('batch', 'batch', BY_BATCH, 100),
    ):
        for delay in FAR:
            about = {'slowest': 1, 'rounds': 0, 'delay': delay, 'series': series} | batched(size)
            name, text = f'{series}-{delay}', f'{title}, round trips of {delay} ms'
            study('far', name, text, max(500 // delay, 100) * size, work, delay, **about)
    for gap in GAPS:
        about = {'series': 'gaps', 'rounds': 0, 'warm_up': 200}
        title = f'{gap} µs of work between a confirm and the next message'
        study('gaps', f'{gap}', title, 1_000, 'gaps', gap, **about)


def latency() -> None:
    about: dict[str, Any]
    # work, title, messages at 0 ms, minimum number of messages, and other settings
    for series, work, title, count, least, more in (
        ('each', 'single', ONE_BY_ONE, 300, 5, RAW),
        ('batch', 'batch', BY_BATCH, 20_000, 500, RAW | batched(100)),
        ('flight', 'window', 'up to 10,000 unconfirmed', 20_000, 20_000, RAW | IN_FLIGHT),
        ('unconfirmed', 'unconfirmed', 'without confirms', 2_000, 2_000, {}),
        ('connection', 'connection', 'a connection for each message', 10, 2, {}),
    ):
        for delay in DELAYS:
            # half a second of round trips; a new connection needs eight of them per message
            trips = more.get('size', 1) * 500 // max(delay, 1)
            trips //= 8 if series == 'connection' else 1
            about = {'series': series, 'delay': delay, 'slowest': 1} | more
            name, text = f'{series}-{delay}', f'{title}, round trips of {delay} ms'
            study('latency', name, text, max(min(count, trips), least), work, delay, **about)
    for rate in RATES:
        title, count = f'{rate:,} messages per second', rate * ROUND_SECONDS
        about = {'rate': rate, 'series': 'rate', 'warm_up': rate // 2} | BARE
        study('percentiles', f'{rate}', title, count, 'open-loop', rate, **about)


def processes() -> None:
    size = 12_000  # divisible among the publishers of each process, including pika's
    for number, words in ((1, '1 process'), (2, '2 processes')):
        for count in PUBLISHERS:
            name, title = f'{number}-{count}', f'{words}, {plural(count, "publisher")} each'
            about = IN_FLIGHT | {'processes': number, 'publishers': count, 'series': f'{number}'}
            about |= {'size': size}
            study('processes', name, title, 480_000, 'publishers', count, **about)


def sizes() -> None:
    for size in SIZES:
        about: dict[str, Any] = {'at': size, 'body': size, 'slowest': 10}
        text, count = f'{size:,} bytes', max(min(600, 30_000_000 // size), 30)
        each = BARE | {'series': 'send', 'warm_up': 10}
        title = f'{text}, each confirmed before the next'
        study('sizes', f'send-{size}', title, count, 'single', **about, **each)
        title = f'{text}, up to 10,000 messages unconfirmed'
        frame, count = max(1, min(FRAME, 500_000 // size)), min(100_000, 40_000_000 // size)
        many = RAW | batched(frame) | {'series': 'many', 'window': WINDOW}
        study('sizes', f'many-{size}', title, count, 'window', **about, **many)
        stored = Stored(size=size, frame=max(1, min(4_000, 800_000 // (size + 10))))
        count = min(200_000, 60_000_000 // size) // stored.frame * stored.frame
        read = RAW | {'series': 'read', 'size': stored.frame, 'stored': stored}
        study('sizes', f'read-{size}', f'{text}, consumed', count, 'consume', **about, **read)


def values() -> None:
    for name, title in VALUES.items():
        for verb, done, count, work, about in (
            ('publish', 'published', 80_000, 'window', {'window': WINDOW, 'value': name}),
            ('read', 'consumed', 200_000, 'consume', {'stored': Stored(value=name)}),
        ):
            more: dict[str, Any] = {'size': 4_000, 'series': verb, **about}
            study('values', f'{verb}-{name}', f'{title}, {done}', count, work, **more)


def clients() -> None:
    title = 'published by clients in three languages, up to 10,000 messages unconfirmed'
    about = RAW | {'warm_up': 100_000}
    study('clients', 'publish', title, 200_000, 'window', **about, **IN_FLIGHT)
    title = 'consumed by clients in three languages, from first to last message'
    study('clients', 'consume', title, 800_000, 'consume', size=4_000, stored=Stored(), **about)


def super_streams() -> None:
    tasks = RAW | {'size': FRAME, 'rounds': 0, 'warm_up': 20_000, 'slowest': 2_000}
    window = tasks | {'frame': FRAME, 'window': 5_000}
    many = 'up to 5,000 messages unconfirmed'
    for name, title, work, about in (
        ('publish', f'8 partitions, {many} in each', 'window', window | {'partitions': PARTITIONS}),
        (
            'tasks',
            f'8 partitions by 1,000 tasks, {AWAITS}',
            'tasks',
            tasks | {'tasks': 1_000, 'partitions': PARTITIONS},
        ),
        ('one', f'a single partition, {many}', 'window', window | {'partitions': 1}),
        ('plain', f'a plain stream, {many}', 'window', window),
    ):
        study('super', name, f'published to {title}', 200_000, work, **about)
    about = tasks | {'size': 4_000 * PARTITIONS, 'warm_up': 160_000, 'partitions': PARTITIONS}
    title = f'consumed from {PARTITIONS} partitions, from first to last message'
    study('super', 'consume', title, 960_000, 'consume', stored=Stored(), **about)

    about = window | {'series': 'publish', 'partitions': ON_NODES}
    for nodes in (1, NODES):
        title = f'published to 9 partitions led by {plural(nodes, "node")}, {many} in each'
        name = f'publish-{nodes}'
        study('super-nodes', name, title, 200_000, 'window', nodes, nodes=nodes, **about)
    # subscriptions use replicas, so it does not matter to them how many nodes lead
    title = f'consumed from 9 partitions led by {NODES} nodes, from first to last message'
    about = tasks | {'size': 4_000 * ON_NODES, 'warm_up': 180_000, 'partitions': ON_NODES}
    about |= {'series': 'consume', 'nodes': NODES, 'stored': Stored()}
    study('super-nodes', f'consume-{NODES}', title, 972_000, 'consume', NODES, **about)


def growth() -> None:
    about: dict[str, Any]
    for count in MESSAGES:
        rounds = min(ROUNDS, MESSAGES[-1] // count)
        about = {'series': 'messages', 'rounds': rounds, 'window': WINDOW, 'slowest': 5_000}
        title, quick = f'{count:,} messages published', min(count, 10**6)
        study('growth', f'messages-{count}', title, count, 'on-and-on', count, quick=quick, **about)
    for count in MANY:
        about = {'series': 'streams', 'size': 1_000, 'streams': count}
        title = f'to {plural(count, "stream")}'
        study('growth', f'streams-{count}', title, 200_000, 'streams', count, **about)
    for count in MANY:
        stored = Stored(frame=1_000, readers=count)
        about = {'series': 'subscriptions', 'size': 1_000 * count, 'stored': stored} | RAW
        title = f'by {plural(count, "subscription")}'
        study('growth', f'subscriptions-{count}', title, 1_000_000, 'consume', count, **about)


def names(scenario: str, *series: str) -> tuple[str, ...]:
    """Kinds of a scenario, optionally of some series only."""
    return tuple(
        kind.name
        for kind in KINDS.values()
        if kind.scenario == scenario and (not series or kind.series in series)
    )


for add_kinds in (
    publishing, consuming, processing, piping, codecs, batch_sizes_and_tasks, polling, latency,
    processes,
    sizes, values, clients, super_streams, growth,
):  # fmt: skip
    add_kinds()
