"""What the benchmark measures: scenarios, kinds of work, and libraries.

A lane is one library doing one kind of work.  This table is plain data.  A lane's code is in its
library's module, which only the process of that lane imports, so reading the table does not
require any of the measured libraries.
"""

import importlib.metadata
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from .. import programs
from . import libraries, studies
from .model import BUSY_POLL, POLLING, Kind, Lane, Library, Stored

__all__ = [
    'BUSY_POLL',
    'KINDS',
    'LANES',
    'LIBRARIES',
    'POLLING',
    'SCENARIOS',
    'Kind',
    'Lane',
    'Library',
    'Stored',
    'find',
    'missing',
    'select',
    'version',
    'versions',
]

SCENARIOS = {
    'publish': 'messages of 10 bytes, confirmed: one after the other, and in batches of 100',
    'amqp': 'what AMQP 1.0 costs: messages of 10 bytes, as AMQP and as raw bytes, confirmed',
    'pipeline': 'messages of 10 bytes, with up to 10,000 in flight',
    'tasks': 'messages of 10 bytes from many tasks, each awaiting its own confirms',
    'sub-entries': 'messages of 10 bytes in uncompressed sub-entries of 100',
    'consume': 'a stream consumed from first to last message, of 10 bytes unless stated otherwise',
    'codec': 'AMQP 1.0 messages encoded and decoded, without a broker; the small map is'
    " `{'large-int': 2**31-1, 'small-list': [1, 2, 3], 'bin-string': b'abc'}`",
    **studies.SCENARIOS,
}


# What codecs encode and decode, and how; not every combination is a kind of work.
CODEC_WORK = {
    'encode-into': 'encoded into a reused buffer',
    'encode': 'encoded to new bytes',
    'decode': 'decoded, and the body read',
    'decode-all': 'decoded, and all sections read',
}
CODEC_MESSAGES = {
    'seed': 'a small map',
    'data10': 'a body of 10 bytes',
    'data1k': 'a body of 1,024 bytes',
    'properties': 'the small map with 5 properties and 10 application properties',
    'nested': 'a document of 100 values in maps and lists',
}
PEERS_OF_CODEC = ('msgspec', 'rstream', 'proton')


def codec_kind(work: str, message: str) -> Kind:
    # encoding into a buffer is compared with creating bytes, for codecs that can only do that
    peers = 'encode' if work == 'encode-into' else work
    references = [(name, f'{name}-{peers}-{message}') for name in PEERS_OF_CODEC]
    if (work, message) == ('decode', 'properties'):
        references.append(('rbfly without properties', 'rbfly-decode-seed'))
    return Kind(
        name=f'{work}-{message}',
        scenario='codec',
        title=f'{CODEC_MESSAGES[message]}, {CODEC_WORK[work]}',
        full=10_000,
        scale=0.1 if message == 'nested' else 1,
        quick=1_000 if message == 'nested' else 10_000,
        size=1,
        floor='',
        slowest=500,
        warm_up=1_000,
        references=tuple(references),
    )


CODEC_KINDS = {
    kind.name: kind
    for kind in (
        codec_kind(work, message)
        for message in CODEC_MESSAGES
        for work in CODEC_WORK
        # if there is only a body, reading all sections means reading the body
        if work != 'decode-all' or message == 'properties'
    )
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


def consume_kind(name: str, title: str, full: int, stored: Stored) -> Kind:
    size = stored.frame * stored.readers
    return Kind(
        name=name,
        scenario='sub-entries' if stored.sub_entry else 'consume',
        title=title,
        full=full,
        scale=0.5,
        quick=full // 5 // size * size,
        size=size,
        floor='raw-socket',
        slowest=5_000,
        warm_up=5 * size,
        work='consume',
        stored=stored,
    )


CONSUME_KINDS = {name: consume_kind(name, *about) for name, about in CONSUMED.items()}

SINGLE = Kind(
    name='single',
    scenario='publish',
    title='each message confirmed before the next',
    full=200_000,
    scale=0.05,
    quick=500,
    size=1,
    floor='bare-uvloop',
    slowest=100,
    warm_up=200,
    work='single',
)
BATCH = Kind(
    name='batch',
    scenario='publish',
    title='batches of 100, each confirmed before the next',
    full=1_000_000,
    scale=0.2,
    quick=20_000,
    size=100,
    floor='bare-uvloop',
    slowest=2_000,
    warm_up=2_000,
    work='batch',
    frame=100,
    window=100,
)
WINDOW = Kind(
    name='window',
    scenario='pipeline',
    title='up to 10,000 messages unconfirmed',
    full=1_000_000,
    scale=0.5,
    quick=200_000,
    size=1_000,
    floor='raw-socket',
    slowest=5_000,
    warm_up=20_000,
    work='window',
    frame=1_000,
    window=10_000,
)
TASKS = replace(
    BATCH,
    name='tasks-100',
    scenario='tasks',
    title='100 tasks, each awaits the confirm of a message before sending another',
    slowest=1_000,
    work='tasks',
    tasks=100,
)


def format_kind(kind: Kind) -> Kind:
    """The same work, to compare AMQP 1.0 with raw bytes."""
    name = f'{kind.name}-format'
    return replace(
        kind,
        name=name,
        scenario='amqp',
        title=f'AMQP 1.0 and raw bytes, {kind.title}',
        floor='',
        like=kind.name,
        references=(('raw bytes', f'rbfly-raw-{name}'),),
    )


KINDS = {
    kind.name: kind
    for kind in (
        SINGLE,
        BATCH,
        format_kind(SINGLE),
        format_kind(BATCH),
        WINDOW,
        TASKS,
        replace(
            TASKS,
            name='tasks-1000',
            title='1,000 tasks, each awaits the confirm of a message before sending another',
            scale=0.5,
            quick=50_000,
            size=1_000,
            floor='raw-socket',
            slowest=2_000,
            warm_up=20_000,
            tasks=1_000,
            frame=1_000,
            window=1_000,
        ),
        Kind(
            name='sub-publish',
            scenario='sub-entries',
            title='sub-entries of 100 messages, published, up to 1,000 sub-entries unconfirmed',
            full=10_000_000,
            scale=0.5,
            quick=1_000_000,
            size=10_000,
            floor='raw-socket',
            slowest=50_000,
            warm_up=100_000,
            work='sub-publish',
            frame=100,
            window=1_000,
        ),
        *CONSUME_KINDS.values(),
        *CODEC_KINDS.values(),
        *studies.KINDS.values(),
    )
}

CONSUMING = tuple(CONSUME_KINDS)
ROUND_TRIPS = ('single', 'batch')
ALL = (*ROUND_TRIPS, 'window', 'tasks-100', 'tasks-1000', 'sub-publish', *CONSUMING)
FORMATS = ('single-format', 'batch-format')

LIBRARIES = {
    library.name: library
    for library in (
        libraries.library(
            'raw-socket',
            'raw_socket',
            ALL,
            'blocking socket; frames encoded before the clock starts, confirms counted;'
            ' single: 1 message per frame, batch: 100, window: 1,000; tasks: what all tasks send'
            ' at the same time in one frame; sub-publish: 100 sub-entries;'
            ' consuming: credit for 10 chunks, renewed after each; record counts read from'
            ' chunk headers',
        ),
        libraries.library(
            'bare-uvloop',
            'bare_uvloop',
            (*ROUND_TRIPS, 'tasks-100'),
            'the frames of the blocking socket, sent by an asyncio protocol; one future per round'
            ' trip',
        ),
        libraries.library(
            'raw-socket-polling',
            'raw_socket_polling',
            ROUND_TRIPS,
            'the same frames from a non-blocking socket: `recv` in a loop until confirms arrive',
        ),
        libraries.library(
            'bare-uvloop-polling',
            'bare_uvloop_polling',
            ROUND_TRIPS,
            'the same asyncio protocol, and a callback that schedules itself by `call_soon` until'
            ' the last confirm arrives',
        ),
        libraries.library(
            'rbfly',
            'rbfly',
            ALL,
            'single: `Publisher.send`; batch: `Publisher.batch` for 100 messages, then'
            ' `flush`; window: `Publisher.send_many` with a list; tasks: `Publisher.send` in a'
            ' loop; sub-publish: `send_many` with `sub_entry_size=100`;'
            ' consuming: `async for` over decoded bodies, `Offset.FIRST`',
        ),
        libraries.library(
            'rbfly-polling',
            'rbfly_polling',
            (*ROUND_TRIPS, 'window', 'tasks-100', 'tasks-1000', 'consume'),
            f'like `rbfly`, with `streams_client(..., busy_poll={BUSY_POLL})`',
        ),
        libraries.library(
            'rbfly-batches',
            'rbfly_batches',
            CONSUMING,
            '`async for` over `subscription.batches()`, `for` over the bodies of each batch',
        ),
        libraries.library(
            'rbfly-messages',
            'rbfly_messages',
            CONSUMING,
            '`async for` over `subscription.messages()`, reading `stream_offset`,'
            ' `stream_timestamp`, `body` and, where present, `properties` and'
            ' `app_properties`',
        ),
        libraries.library(
            'rbfly-amqp',
            'rbfly',
            FORMATS,
            "body `'{:010d}'.format(n).encode()`; `Publisher.send`;"
            ' `Publisher.batch` 100 times, then `flush`',
        ),
        libraries.library(
            'rbfly-raw',
            'rbfly_raw',
            FORMATS,
            'like `rbfly-amqp`, with `client.publisher(..., amqp=False)`',
        ),
        libraries.library(
            'rstream',
            'rstream',
            ROUND_TRIPS,
            '`Producer` with its defaults; `AMQPMessage(body=body)` created before the clock'
            ' starts; single: `send_wait`; batch: `send_batch` of 100 with `on_publish_confirm`,'
            ' the next one when all 100 are confirmed',
        ),
        libraries.library(
            'aiokafka',
            'aiokafka',
            ROUND_TRIPS,
            "`AIOKafkaProducer(acks='all', linger_ms=0)`, values encoded by `msgpack.packb`,"
            ' one partition, one replica; single: `send_and_wait`; batch: `create_batch`, `append`'
            ' 100 times, `send_batch`, awaiting its future',
            broker='kafka',
        ),
    )
}


def codec(name: str, needs: str, how: str, into: bool = False) -> Library:
    return Library(
        name=name,
        module=f'codec_{name}',
        kinds=tuple(kind for kind in CODEC_KINDS if into or not kind.startswith('encode-into')),
        needs=(needs,),
        loop='none',
        broker='',
        how=how,
    )


# The same libraries as codecs; listed separately, as they need neither a broker nor an event loop.
CODECS = (
    codec(
        'rbfly',
        'rbfly',
        '`encode_amqp(buffer, stream_message_ctx(data))`, `encode_amqp_bytes`,'
        ' `decode_amqp(raw).body`',
        into=True,
    ),
    codec(
        'msgspec',
        'msgspec',
        'MessagePack: one `Encoder` and one `Decoder`, `encode_into` for a buffer; sections as a'
        ' map of three, or a `Struct` if only the body is read',
        into=True,
    ),
    codec('rstream', 'rstream', '`bytes(AMQPMessage(value=data))`, `amqp_decoder(raw).value`'),
    codec(
        'proton',
        'python-qpid-proton',
        'one reused `Message`: `encode` and `decode`; Data sections through `inferred=True`',
    ),
)
LIBRARIES |= {f'{library.name} codec': library for library in CODECS}
LIBRARIES |= {f'{library.name} {library.kinds[0]}': library for library in libraries.LIBRARIES}

LANES = {
    lane.name: lane
    for lane in (
        Lane(library, KINDS[kind]) for library in LIBRARIES.values() for kind in library.kinds
    )
}

# How to install what is missing; the package index has a different project named rbfly.
INSTALL = "pip install '.[uvloop]' in the checkout"
PEERS = "pip install '.[perf]' in the checkout"


def find(name: str) -> Lane:
    """Return the lane with this name."""
    return LANES[name]


def select(words: list[str], scenarios: list[str]) -> list[Lane]:
    """Return the lanes of the scenarios that match a word: a lane, library, kind or pattern.

    Without words or scenarios, all match.

    :raises ValueError: a name is unknown.
    """
    for scenario in scenarios:
        if scenario not in SCENARIOS:
            raise ValueError(f'no scenario {scenario}; there are {", ".join(SCENARIOS)}')
    lanes = [ln for ln in LANES.values() if not scenarios or ln.kind.scenario in scenarios]
    if not words:
        return lanes
    chosen = set()
    for word in words:
        names = {
            ln.name
            for ln in lanes
            if word in (ln.library.name, ln.kind.name) or fnmatchcase(ln.name, word)
        }
        if not names:
            known = ', '.join(ln.name for ln in lanes)
            raise ValueError(f'no lane, library or kind {word}; lanes are {known}')
        chosen |= names
    return [ln for ln in lanes if ln.name in chosen]


def missing(library: Library) -> str:
    """Return what is not installed and how to install it; empty if nothing is missing."""
    if library.program:
        return programs.missing(library.program)
    absent = [name for name in library.needs if version(name) is None]
    if not absent:
        return ''
    how = INSTALL if 'rbfly' in absent else PEERS
    return f'{", ".join(absent)} not installed; {how}'


def version(name: str) -> str | None:
    """Version of an installed distribution; for rbfly, of this project and not of its namesake."""
    try:
        release = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    if name == 'rbfly' and release.split('.')[0] == '0':
        return None
    return release


def versions(libraries: Iterable[Library]) -> dict[str, str]:
    """Versions of the distributions that these libraries need."""
    chosen = list(libraries)
    names = sorted({name for library in chosen for name in library.needs})
    texts = {name: version(name) for name in names}
    texts |= {ln.program: programs.version(ln.program) for ln in chosen if ln.program}
    return {name: text for name, text in texts.items() if text is not None}
