"""Proofs: no message is lost, doubled or out of order, whatever happens to connection and node.

This table is plain data; the code of a proof is imported when it is run.  Every proof is a seeded
command, `python -m perf prove NAME`, that writes what it did and saw to a result file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ['PROOFS', 'SETTINGS', 'Proof', 'Value', 'command']

Value = int | bool | str

# What can be set, and what it means in general.
SETTINGS = {
    'messages': 'number of messages',
    'cuts': 'number of cuts, restarts, leader changes or cancelled sends',
    'tasks': 'number of tasks that send at once',
    'rounds': 'number of interleaved rounds',
    'milliseconds': 'how long a lane runs in a round, about',
    'seconds': 'how long',
    'how': "pause or partition the leader's node, or roll: stop and start all, one by one",
    'on': 'rabbitmq or memory: a cluster of three, or the broker in memory',
    'doing': 'what a soak does: all, or names joined by commas (see perf/proofs/soak.py)',
    'by': 'published by send, flush or send-many; consumed by body, context or batch',
    'unnamed': 'publish without a name: at least once',
}


@dataclass(frozen=True)
class Proof:
    """One proof.

    :ivar module: module of this package that has it, as a function of its name.
    :ivar nodes: how many nodes its broker has.
    :ivar settings: what can be set, and what is used otherwise.
    :ivar recovers: it needs a client that gets over a lost connection.
    :ivar loop: event loop; `select` has timers finer than a millisecond.
    """

    name: str
    title: str
    module: str
    settings: Mapping[str, Value]
    nodes: int = 1
    recovers: bool = False
    loop: str = 'uvloop'


def command(name: str, seed: int, settings: Mapping[str, Value]) -> str:
    """What runs a proof with these settings."""
    words = ['python -m perf prove', name, f'--seed {seed}']
    for key, value in settings.items():
        if value is not False:
            words.append(f'--{key}' if value is True else f'--{key} {value}')
    return ' '.join(words)


def proof(name: str, title: str, module: str, nodes: int = 1, **settings: Value) -> Proof:
    recovers = 'cuts' in settings and name != 'cancels'
    loop = 'select' if name == 'rtt' else 'uvloop'
    return Proof(name, title, module, MappingProxyType(settings), nodes, recovers, loop)


PROOFS = {
    item.name: item
    for item in (
        proof(
            'publish-cuts',
            'connection cut at random bytes while publishing',
            'publish',
            messages=1_000_000,
            cuts=50,
            tasks=1_000,
            by='send',
            unnamed=False,
        ),
        proof(
            'publish-restart',
            'broker stopped or killed, and started again, while publishing',
            'publish',
            messages=1_000_000,
            cuts=4,
            tasks=1_000,
            by='send',
            unnamed=False,
        ),
        proof(
            'publish-leader',
            "stream's leader killed, stopped or moved in a cluster of three, while publishing",
            'publish',
            nodes=3,
            messages=1_000_000,
            cuts=6,
            tasks=1_000,
            by='send',
            unnamed=False,
        ),
        proof(
            'publish-nodes',
            'nodes of a cluster of three paused, parted or stopped in turn, while publishing',
            'publish',
            nodes=3,
            messages=1_000_000,
            cuts=6,
            tasks=1_000,
            by='send',
            how='partition',
            unnamed=False,
        ),
        proof(
            'tasks',
            'many tasks on one publisher, each confirm to its own caller',
            'publish',
            tasks=1_000,
            messages=1_000_000,
        ),
        proof(
            'cancels',
            'sends cancelled at random moments; nothing else is touched',
            'publish',
            messages=50_000,
            cuts=10_000,
        ),
        proof(
            'latency',
            'latency of send at 1,000 messages a second, beside the floor',
            'speed',
            messages=60_000,
        ),
        proof(
            'rtt',
            'rates at round trips of 0, 1, 5 and 50 ms, as ratios to the floor',
            'speed',
            rounds=5,
            milliseconds=2_000,
        ),
        proof(
            'memory',
            'memory while publishing; it grows by less than 5 MB after the first tenth',
            'memory',
            messages=10_000_000,
            tasks=1_000,
            by='send',
        ),
        proof(
            'consume-cuts',
            'connection cut at random bytes while consuming what is being published',
            'consume',
            messages=1_000_000,
            cuts=50,
            by='body',
        ),
        proof(
            'consume-restart',
            'broker stopped or killed, and started again, while consuming',
            'consume',
            messages=1_000_000,
            cuts=4,
            by='body',
        ),
        proof(
            'consume-leader',
            "stream's leader killed, stopped or moved in a cluster of three, while consuming",
            'consume',
            nodes=3,
            messages=1_000_000,
            cuts=6,
            by='body',
        ),
        proof(
            'consume-nodes',
            'nodes of a cluster of three paused, parted or stopped in turn, while consuming',
            'consume',
            nodes=3,
            messages=1_000_000,
            cuts=6,
            by='body',
            how='partition',
        ),
        proof(
            'consume-anything',
            'valid messages among others, of which each is told with its offset',
            'anything',
            messages=100_000,
        ),
        proof(
            'consume-foreign',
            'messages of rstream, of AMQP 0.9.1 with all properties, and of MQTT',
            'foreign',
            messages=30_000,
        ),
        proof(
            'consume-memory',
            'memory while consuming; it grows by less than 5 MB after the first tenth',
            'memory',
            messages=50_000_000,
            by='body',
        ),
        proof(
            'soak',
            'every way of publishing and consuming at once, through random faults of every kind',
            'soak',
            nodes=3,
            seconds=3_600,
            on='rabbitmq',
            doing='all',
        ),
    )
}
