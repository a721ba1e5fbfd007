"""What studies measure: one kind of work for a series of values, to see what its speed depends on.

Like :mod:`perf.lanes`, a table of plain data.
"""

from typing import Any

from .model import Kind, Stored

__all__ = ['KINDS', 'ROUNDS', 'SCENARIOS', 'names']

SCENARIOS = {
    'batch-size': 'messages of 10 bytes in batches of 1 to 1,000, each confirmed before the next',
    'concurrent': 'messages of 10 bytes from 1 to 1,000 tasks, each awaiting its own confirms',
    'far': 'messages of 10 bytes through a proxy that adds 1 to 20 ms per round trip: busy polling'
    ' cannot help there',
    'gaps': 'messages of 10 bytes, each confirmed before the program works for 20 to 500 µs and'
    ' sends the next; rate and CPU include this work',
    'latency': 'messages of 10 bytes through a proxy that adds 0 to 100 ms per round trip',
    'percentiles': 'messages of 10 bytes sent at a fixed rate, however many are unconfirmed: the'
    ' time from when each message is due until it is confirmed, and until it is consumed',
    'processes': 'messages of 10 bytes from one or two processes with 1 to 5 publishers each',
    'sizes': 'messages of 10 bytes to 900 KB, published and consumed',
    'values': 'the cost of AMQP 1.0 types, published and consumed',
    'clients': 'the official RabbitMQ Streams clients for Go and Java, as separate programs',
    'super': 'messages of 10 bytes by key to a super stream of 8 partitions, each message being its'
    ' own key, and read from all partitions',
    'super-nodes': 'messages of 10 bytes by key to a super stream of 9 partitions, and read from'
    ' all of them, in a cluster of three nodes: every partition has a replica on each node, and'
    ' all leaders are on one node or three on each; the nodes and the client share the processors'
    ' of one machine, so this shows what more connections cost, and not how a cluster scales',
    'growth': 'the cost per message as messages, streams and subscriptions grow in number',
}

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
SUB_SECONDS = 2  # length of an open loop's round


def study(scenario: str, name: str, title: str, count: int, **about: Any) -> Kind:
    """A kind of work with `count` messages per round, or a tenth of them in a quick run."""
    size = about.setdefault('size', 1)
    about = {'floor': '', 'slowest': 100, 'warm_up': size, 'rounds': ROUNDS} | about
    return Kind(
        name=f'{scenario}-{name}',
        scenario=scenario,
        title=title,
        full=max(count // size, 1) * size,
        scale=1,
        quick=about.pop('quick', max(count // 10 // size, 1) * size),
        **about,
    )


def plural(count: int, what: str) -> str:
    return f'{count:,} {what}' if count == 1 else f'{count:,} {what}s'


def batch_sizes() -> list[Kind]:
    return [
        study(
            'batch-size',
            str(size),
            f'batches of {size:,}' if size > 1 else 'batches of 1',
            size * (500 if size < 100 else 250 if size < 500 else 100),
            work='batch',
            size=size,
            frame=size,
            window=size,
            at=size,
            series='batch',
            floor='bare-uvloop',
        )
        for size in BATCHES
    ]


def concurrent() -> list[Kind]:
    return [
        study(
            'concurrent',
            str(tasks),
            f'{plural(tasks, "task")}, each awaits the confirm of a message before sending another',
            tasks * max(500 // tasks, 100 if tasks < 1_000 else 40),
            work='tasks',
            tasks=tasks,
            size=tasks,
            frame=tasks,
            window=tasks,
            at=tasks,
            series='tasks',
            floor='bare-uvloop',
        )
        for tasks in TASKS
    ]


def latency() -> list[Kind]:
    # title, messages at 0 ms, minimum number of messages, and other settings
    series: dict[str, tuple[str, int, int, dict[str, Any]]] = {
        'each': ('each message confirmed before the next', 300, 5, {'work': 'single'}),
        'batch': (
            'batches of 100, each confirmed before the next',
            20_000,
            500,
            {'work': 'batch', 'size': 100, 'frame': 100, 'window': 100},
        ),
        'flight': (
            'up to 10,000 unconfirmed',
            20_000,
            20_000,
            {'work': 'window', 'size': FRAME, 'frame': FRAME, 'window': WINDOW},
        ),
        'unconfirmed': ('without confirms', 2_000, 2_000, {'work': 'unconfirmed'}),
        'connection': ('a connection for each message', 10, 2, {'work': 'connection'}),
    }
    kinds = []
    for name, (title, count, least, about) in series.items():
        floor = 'raw-socket' if about['work'] in ('single', 'batch', 'window') else ''
        for delay in DELAYS:
            # half a second of round trips; a new connection needs eight of them per message
            trips = (
                about.get('size', 1) * 500 // max(delay, 1) // (8 if name == 'connection' else 1)
            )
            kinds.append(
                study(
                    'latency',
                    f'{name}-{delay}',
                    f'{title}, round trips of {delay} ms',
                    max(min(count, trips), least),
                    series=name,
                    at=delay,
                    delay=delay,
                    floor=floor,
                    slowest=1,
                    **about,
                )
            )
    return kinds


def far() -> list[Kind]:
    return [
        study(
            'far',
            f'{name}-{delay}',
            f'{title}, round trips of {delay} ms',
            max(500 // delay, 100) * size,
            size=size,
            frame=size,
            window=size,
            work=work,
            series=name,
            at=delay,
            delay=delay,
            slowest=1,
            rounds=0,
            references=(('rbfly', f'rbfly-far-{name}-{delay}'),),
        )
        for name, work, title, size in (
            ('each', 'single', 'each message confirmed before the next', 1),
            ('batch', 'batch', 'batches of 100, each confirmed before the next', 100),
        )
        for delay in FAR
    ]


def gaps() -> list[Kind]:
    return [
        study(
            'gaps',
            str(gap),
            f'{gap} µs of work between a confirm and the next message',
            1_000,
            work='gaps',
            series='gaps',
            at=gap,
            rounds=0,
            warm_up=200,
            references=(('rbfly', f'rbfly-gaps-{gap}'),),
        )
        for gap in GAPS
    ]


def percentiles() -> list[Kind]:
    return [
        study(
            'percentiles',
            str(rate),
            f'{rate:,} messages per second',
            rate * SUB_SECONDS,
            work='open-loop',
            at=rate,
            rate=rate,
            series='rate',
            floor='bare-uvloop',
            warm_up=rate // 2,
        )
        for rate in RATES
    ]


def processes() -> list[Kind]:
    return [
        study(
            'processes',
            f'{number}-{publishers}',
            f'{number} process{"es" if number > 1 else ""}, {plural(publishers, "publisher")} each',
            480_000,
            work='publishers',
            size=12_000,  # divisible among the publishers of each process, including pika's
            frame=FRAME,
            window=WINDOW,
            processes=number,
            publishers=publishers,
            at=publishers,
            series=str(number),
            references=(('pika', f'pika-processes-{number}-{publishers}'),),
        )
        for number in (1, 2)
        for publishers in PUBLISHERS
    ]


def sizes() -> list[Kind]:
    kinds = []
    for size in SIZES:
        about: dict[str, Any] = {'at': size, 'body': size}
        frame = max(1, min(FRAME, 500_000 // size))
        stored = Stored(size=size, frame=max(1, min(4_000, 800_000 // (size + 10))))
        read = min(200_000, 60_000_000 // size)
        kinds += [
            study(
                'sizes',
                f'send-{size}',
                f'{size:,} bytes, each confirmed before the next',
                max(min(600, 30_000_000 // size), 30),
                work='single',
                series='send',
                floor='bare-uvloop',
                slowest=10,
                warm_up=10,
                **about,
            ),
            study(
                'sizes',
                f'many-{size}',
                f'{size:,} bytes, up to 10,000 messages unconfirmed',
                min(100_000, 40_000_000 // size),
                work='window',
                series='many',
                size=frame,
                frame=frame,
                window=WINDOW,
                floor='raw-socket',
                slowest=10,
                **about,
            ),
            study(
                'sizes',
                f'read-{size}',
                f'{size:,} bytes, consumed',
                read // stored.frame * stored.frame,
                work='consume',
                series='read',
                size=stored.frame,
                floor='raw-socket',
                slowest=10,
                stored=stored,
                **about,
            ),
        ]
    return kinds


def values() -> list[Kind]:
    kinds = []
    for name, title in VALUES.items():
        bare = name == 'bytes'
        kinds += [
            study(
                'values',
                f'{verb}-{name}',
                f'{title}, {done}',
                count,
                size=4_000,
                series=verb,
                references=() if bare else (('bytes', f'rbfly-values-{verb}-bytes'),),
                **about,
            )
            for verb, done, count, about in (
                (
                    'publish',
                    'published',
                    80_000,
                    {'work': 'window', 'window': WINDOW, 'value': name},
                ),
                ('read', 'consumed', 200_000, {'work': 'consume', 'stored': Stored(value=name)}),
            )
        ]
    return kinds


def clients() -> list[Kind]:
    return [
        study(
            'clients',
            'publish',
            'published by clients in three languages, up to 10,000 messages unconfirmed',
            200_000,
            work='window',
            size=FRAME,
            frame=FRAME,
            window=WINDOW,
            floor='raw-socket',
            warm_up=100_000,
        ),
        study(
            'clients',
            'consume',
            'consumed by clients in three languages, from first to last message',
            800_000,
            work='consume',
            size=4_000,
            stored=Stored(),
            floor='raw-socket',
            warm_up=100_000,
        ),
    ]


def super_streams() -> list[Kind]:
    about: dict[str, Any] = {'size': FRAME, 'rounds': 0, 'warm_up': 20_000, 'slowest': 2_000}
    window: dict[str, Any] = {'work': 'window', 'frame': FRAME}
    floor: dict[str, Any] = {'floor': 'raw-socket', 'partitions': PARTITIONS}
    return [
        study(
            'super',
            'publish',
            'published to 8 partitions, up to 5,000 messages unconfirmed in each',
            200_000,
            window=5_000,
            **window,
            **floor,
            **about,
        ),
        study(
            'super',
            'tasks',
            'published to 8 partitions by 1,000 tasks, each awaits the confirm of a message before'
            ' sending another',
            200_000,
            work='tasks',
            tasks=1_000,
            **floor,
            **about,
        ),
        study(
            'super',
            'one',
            'published to a single partition, up to 5,000 messages unconfirmed',
            200_000,
            window=5_000,
            partitions=1,
            floor='raw-socket',
            references=(('a plain stream', 'rbfly-super-plain'),),
            **window,
            **about,
        ),
        study(
            'super',
            'plain',
            'published to a plain stream, up to 5,000 messages unconfirmed',
            200_000,
            window=5_000,
            floor='raw-socket',
            **window,
            **about,
        ),
        study(
            'super',
            'consume',
            'consumed from 8 partitions, from first to last message',
            960_000,
            work='consume',
            stored=Stored(),
            **(about | {'size': 4_000 * PARTITIONS, 'warm_up': 160_000}),
            **floor,
        ),
    ]


def super_nodes() -> list[Kind]:
    about: dict[str, Any] = {'partitions': ON_NODES, 'floor': 'raw-socket', 'rounds': 0}
    kinds = [
        study(
            'super-nodes',
            f'publish-{nodes}',
            f'published to 9 partitions led by {plural(nodes, "node")}, up to 5,000 messages'
            ' unconfirmed in each',
            200_000,
            work='window',
            frame=FRAME,
            size=FRAME,
            window=5_000,
            warm_up=20_000,
            slowest=2_000,
            series='publish',
            at=nodes,
            nodes=nodes,
            **about,
        )
        for nodes in (1, NODES)
    ]
    # subscriptions use replicas, so it does not matter to them how many nodes lead
    kinds.append(
        study(
            'super-nodes',
            f'consume-{NODES}',
            f'consumed from 9 partitions led by {plural(NODES, "node")}, from first to last'
            ' message',
            972_000,
            work='consume',
            stored=Stored(),
            size=4_000 * ON_NODES,
            warm_up=180_000,
            slowest=2_000,
            series='consume',
            at=NODES,
            nodes=NODES,
            **about,
        )
    )
    return kinds


def growth() -> list[Kind]:
    kinds = [
        study(
            'growth',
            f'messages-{count}',
            f'{count:,} messages published',
            count,
            quick=min(count, 10**6),
            work='on-and-on',
            window=WINDOW,
            series='messages',
            at=count,
            rounds=1,
            slowest=5_000,
        )
        for count in MESSAGES
    ]
    kinds += [
        study(
            'growth',
            f'streams-{streams}',
            f'to {plural(streams, "stream")}',
            200_000,
            work='streams',
            size=1_000,
            streams=streams,
            series='streams',
            at=streams,
            rounds=1,
        )
        for streams in MANY
    ]
    kinds += [
        study(
            'growth',
            f'subscriptions-{readers}',
            f'by {plural(readers, "subscription")}',
            1_000_000,
            work='consume',
            size=1_000 * readers,
            stored=Stored(frame=1_000, readers=readers),
            series='subscriptions',
            at=readers,
            rounds=1,
        )
        for readers in MANY
    ]
    return kinds


STUDIES = [
    *batch_sizes(), *concurrent(), *far(), *gaps(), *latency(), *percentiles(), *processes(),
    *sizes(), *values(), *clients(), *super_streams(), *super_nodes(),
    *growth(),
]  # fmt: skip
KINDS = {kind.name: kind for kind in STUDIES}


def names(scenario: str, *series: str) -> tuple[str, ...]:
    """Kinds of a scenario, optionally of some series only."""
    return tuple(
        kind.name
        for kind in STUDIES
        if kind.scenario == scenario and (not series or kind.series in series)
    )
