"""The lanes over TLS: the hot kinds of work, each with and without TLS in the same rounds."""

from collections.abc import Iterator
from dataclasses import replace

from .kinds import KINDS
from .libraries import use
from .model import Kind

HOT = (
    'single', 'batch', 'tasks-100', 'tasks-1000', 'window', 'window-1k', 'sub-publish',
    'consume', 'consume-100', 'consume-1k',
)  # fmt: skip


def windows_of_1k() -> Kind:
    window = KINDS['window']
    return replace(
        window,
        title=f'bodies of 1,024 bytes, {window.title}',
        body=1_024,
        full=200_000,
        quick=20_000,
        warm_up=4_000,
        size=400,
        frame=400,
    )


def kinds() -> Iterator[Kind]:
    for name in HOT:
        kind = KINDS[name] if name in KINDS else windows_of_1k()
        body = kind.stored.size if kind.stored else kind.body
        like = kind.name  # whose scale it shares
        for prefix, title, counterpart in (
            ('plain', 'without TLS', ''),
            ('tls', 'with TLS', f'plain-{name}'),
        ):
            yield replace(
                kind,
                name=f'{prefix}-{name}',
                scenario='tls',
                title=f'{kind.title}, {title}',
                floor='raw-socket',
                like=like,
                body=body,
                plain=counterpart,
            )


def both(names: str) -> str:
    """The kinds of work with and without TLS."""
    return ' '.join(f'plain-{name} tls-{name}' for name in names.split())


KINDS.update({kind.name: kind for kind in kinds()})

READ = both('consume consume-100 consume-1k')
ROUND_TRIPS = both('single batch')
WINDOWS = both('window window-1k')
ALL = both(' '.join(HOT))

USES = (
    use(
        'raw-socket',
        'raw_socket',
        ALL,
        'like the other lanes of the blocking socket, with a default `ssl.SSLContext`',
    ),
    use(
        'raw-socket-polling',
        'raw_socket',
        ALL,
        'the same from a non-blocking socket: `send` and `recv` in a loop until they succeed',
        polls=True,
    ),
    use('rbfly', 'rbfly', ALL, 'like the other lanes of `rbfly`, with `streams_client(..., ssl=)`'),
    use(
        'rbfly-batches',
        'rbfly',
        READ,
        '`async for` over `subscription.batches()`, `for` over the bodies of each batch',
        read='batches',
    ),
    use(
        'rbfly-aiofastnet',
        'rbfly',
        ALL,
        'like `rbfly`, on the event loop of `aiofastnet.loop_factory(uvloop.new_event_loop)`',
    ),
    use(
        'rstream',
        'rstream',
        ROUND_TRIPS,
        '`Producer(ssl_context=)`; `send_wait`, or `send_batch` with `on_publish_confirm`',
    ),
    use(
        'rstream',
        'rstream',
        WINDOWS,
        '`send_batch` of up to 1,000 messages and 500 KB, the next one while less than 10,000 are'
        ' unconfirmed; a fifth of the messages',
        part=0.2,
    ),
    use(
        'rstream',
        'rstream',
        READ,
        '`Consumer(ssl_context=)` from the first offset, `amqp_decoder`, `initial_credit` 10;'
        ' a quarter of the messages',
        part=0.25,
    ),
    use(
        'aiokafka',
        'aiokafka',
        ROUND_TRIPS,
        "`AIOKafkaProducer(acks='all', linger_ms=0, ssl_context=)`; `send_and_wait`, or"
        ' `create_batch`, `append`, `send_batch`',
    ),
    use(
        'aiokafka',
        'aiokafka',
        f'{both("tasks-100")} {WINDOWS}',
        '`send_and_wait` in each task, or `send`, awaiting all futures at the end; a tenth of the'
        ' messages',
        part=0.1,
    ),
    use(
        'aiokafka',
        'aiokafka',
        READ,
        '`AIOKafkaConsumer` with its defaults, assigned to the partition; `getmany`, values decoded'
        ' by `msgpack.unpackb`; a quarter of the messages',
        part=0.25,
    ),
    use(
        'confluent',
        'confluent',
        f'{ROUND_TRIPS} {WINDOWS}',
        "`Producer` with `acks` 'all', values encoded by `msgpack.packb`; one after the other:"
        ' `produce`, then `flush`; batches: `produce` 100 times, then `flush`; many unconfirmed:'
        ' `produce`, and `poll` while 10,000 are unconfirmed',
    ),
    use(
        'confluent',
        'confluent',
        READ,
        '`Consumer` with its defaults, assigned to the partition; `consume` of up to 1,000'
        ' messages, values decoded by `msgpack.unpackb`',
    ),
)
