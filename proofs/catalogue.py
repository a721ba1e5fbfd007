"""The proofs and their settings.

This table is plain data; the code of a proof is imported when it runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

__all__ = ['PROOFS', 'SETTINGS', 'Proof', 'Value', 'command']

Value = int | bool | str

# All settings of proofs, with their help texts.
SETTINGS = {
    'messages': 'number of messages',
    'cuts': 'number of cuts, restarts, leader changes or cancelled sends',
    'tasks': 'number of concurrent sending tasks',
    'rounds': 'number of interleaved rounds',
    'milliseconds': 'approximate duration of a lane in a round',
    'seconds': 'duration',
    'services': 'number of publishing services, one after the other',
    'partitions': 'number of partitions of the super stream',
    'members': 'number of members of the group, at most',
    'how': "pause or partition the leader's node, or roll: restart the nodes one by one",
    'on': 'rabbitmq (a cluster of three) or memory (the in-memory broker)',
    'doing': 'activities of a soak: all, or names separated by commas (see proofs/soak)',
    'by': 'publish by send, flush, send-many or giving-up; consume by body, context or batch',
    'unnamed': 'publish without a name, which allows duplicates after a fault',
}


@dataclass(frozen=True)
class Proof:
    """One proof.

    :ivar module: module of this package with the function of the proof.
    :ivar nodes: number of nodes of its broker.
    :ivar settings: its settings and their defaults.
    :ivar loop: event loop; `select` has timers finer than a millisecond.
    """

    name: str
    title: str
    module: str
    settings: Mapping[str, Value]
    nodes: int = 1
    loop: str = 'uvloop'


def command(name: str, seed: int, settings: Mapping[str, Value]) -> str:
    """The command that runs a proof with these settings."""
    words = ['python -m proofs', name, f'--seed {seed}']
    for key, value in settings.items():
        if value is not False:
            words.append(f'--{key}' if value is True else f'--{key} {value}')
    return ' '.join(words)


def proof(name: str, title: str, module: str, nodes: int = 1, **settings: Value) -> Proof:
    loop = 'select' if name == 'rtt' else 'uvloop'
    return Proof(name, title, module, MappingProxyType(settings), nodes, loop)


# How the proofs with faults publish, by default.
PUBLISH: dict[str, Any] = {'tasks': 1_000, 'by': 'send', 'unnamed': False}

PROOFS = {
    item.name: item
    for item in (
        proof(
            'publish-cuts',
            'connections cut at random bytes while publishing',
            'publish',
            messages=1_000_000,
            cuts=50,
            **PUBLISH,
        ),
        proof(
            'publish-restart',
            'broker stopped or killed, then restarted, while publishing',
            'publish',
            messages=1_000_000,
            cuts=4,
            **PUBLISH,
        ),
        proof(
            'publish-leader',
            "stream's leader in a cluster of three killed, stopped or moved while publishing",
            'publish',
            nodes=3,
            messages=1_000_000,
            cuts=6,
            **PUBLISH,
        ),
        proof(
            'publish-nodes',
            'nodes of a cluster of three paused, partitioned or restarted while publishing',
            'publish',
            nodes=3,
            messages=1_000_000,
            cuts=6,
            how='partition',
            **PUBLISH,
        ),
        proof(
            'tasks',
            'many tasks sharing one publisher, each returning after its own confirm',
            'publish',
            tasks=1_000,
            messages=1_000_000,
        ),
        proof(
            'cancels',
            'sends cancelled at random moments, without effect on other messages',
            'publish',
            messages=50_000,
            cuts=10_000,
        ),
        proof(
            'latency',
            'latency of send at 1,000 messages per second, compared with the floor',
            'speed',
            messages=60_000,
        ),
        proof(
            'rtt',
            'rates at round-trip times of 0, 1, 5 and 50 ms, compared with the floor',
            'speed',
            rounds=5,
            milliseconds=2_000,
        ),
        proof(
            'memory',
            'memory while publishing, which grows by less than 5 MB after the first tenth',
            'memory',
            messages=10_000_000,
            tasks=1_000,
            by='send',
        ),
        proof(
            'consume-cuts',
            'connections cut at random bytes while consuming',
            'consume',
            messages=1_000_000,
            cuts=50,
            by='body',
        ),
        proof(
            'consume-restart',
            'broker stopped or killed, then restarted, while consuming',
            'consume',
            messages=1_000_000,
            cuts=4,
            by='body',
        ),
        proof(
            'consume-leader',
            "stream's leader in a cluster of three killed, stopped or moved while consuming",
            'consume',
            nodes=3,
            messages=1_000_000,
            cuts=6,
            by='body',
        ),
        proof(
            'consume-nodes',
            'nodes of a cluster of three paused, partitioned or restarted while consuming',
            'consume',
            nodes=3,
            messages=1_000_000,
            cuts=6,
            how='partition',
            by='body',
        ),
        proof(
            'consume-anything',
            'valid messages among invalid ones, each of which is reported with its offset',
            'anything',
            messages=100_000,
        ),
        proof(
            'consume-foreign',
            'messages published by rstream, by AMQP 0.9.1 with all properties, and by MQTT',
            'foreign',
            messages=30_000,
        ),
        proof(
            'consume-memory',
            'memory while consuming, which grows by less than 5 MB after the first tenth',
            'memory',
            messages=50_000_000,
            by='body',
        ),
        proof(
            'super-cuts',
            'connections cut, nodes restarted and leaders moved, and the service itself restarted,'
            ' while publishing by key to a super stream of 8 partitions',
            'super_streams',
            nodes=3,
            messages=1_000_000,
            cuts=18,
            services=10,
            on='rabbitmq',
            **PUBLISH,
        ),
        proof(
            'super-links',
            'publisher and subscription with 1,000 partitions: time to open, memory of idle links',
            'super_streams',
            partitions=1_000,
        ),
        proof(
            'group-churn',
            'members of a group join, leave, are killed and frozen, while connections are cut,'
            ' nodes restarted and leaders moved',
            'groups',
            nodes=3,
            seconds=600,
            partitions=8,
            members=4,
            on='rabbitmq',
        ),
        proof(
            'soak',
            'all ways of publishing and consuming at the same time, with random faults',
            'soak',
            nodes=3,
            seconds=3_600,
            on='rabbitmq',
            doing='all',
        ),
    )
}
