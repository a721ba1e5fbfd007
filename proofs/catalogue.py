"""The proofs and their settings: plain data; the code of a proof is imported when it runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Value = int | bool | str

# All settings of proofs, with their help texts.
SETTINGS = {
    'messages': 'number of messages',
    'cuts': 'number of cuts, restarts, leader changes or cancelled sends',
    'kills': 'number of times that a publishing process is killed',
    'tasks': 'number of concurrent sending tasks',
    'rounds': 'number of interleaved rounds',
    'milliseconds': 'approximate duration of each measurement in a round',
    'seconds': 'duration',
    'services': 'number of publishing services, one after the other',
    'partitions': 'number of partitions of the super stream',
    'members': 'number of members of the group, at most',
    'how': "pause or partition the leader's node, or roll: restart the nodes one by one",
    'on': 'rabbitmq (a cluster of three) or memory (the in-memory broker)',
    'doing': 'activities of a soak: all, or names separated by commas (see proofs/soak)',
    'by': 'way of publishing or consuming',
    'unnamed': 'publish without a name, which allows duplicates after a fault',
}


@dataclass(frozen=True)
class Proof:
    """One proof.

    :ivar code: module and function of the proof.
    :ivar nodes: number of nodes of its broker.
    :ivar settings: its settings and their defaults.
    """

    name: str
    code: str
    nodes: int
    settings: Mapping[str, Value]
    title: str


def command(name: str, seed: int, settings: Mapping[str, Value]) -> str:
    """The command that runs a proof with these settings."""
    words = ['python -m proofs', name, f'--seed {seed}']
    for key, value in settings.items():
        if value is not False:
            words.append(f'--{key}' if value is True else f'--{key} {value}')
    return ' '.join(words)


MILLION = {'messages': 1_000_000}
SENDING: dict[str, Any] = {'tasks': 1_000, 'by': 'send', 'unnamed': False}
READING: dict[str, Any] = {'by': 'body'}
# The faults of `publish-*` and `consume-*`: nodes, settings and titles.
FAULTS: dict[str, tuple[int, dict[str, Value], str]] = {
    'cuts': (1, {'cuts': 50}, 'connections cut at random bytes'),
    'restart': (1, {'cuts': 4}, 'broker stopped or killed, then restarted,'),
    'leader': (3, {'cuts': 6}, "stream's leader in a cluster of three killed, stopped or moved"),
    'nodes': (3, {'cuts': 6, 'how': 'partition'},
              'nodes of a cluster of three paused, partitioned or restarted'),
}  # fmt: skip


def with_faults(work: str, settings: Mapping[str, Value], doing: str) -> Iterator[tuple[Any, ...]]:
    for kind, (nodes, faults, title) in FAULTS.items():
        more = {**MILLION, **faults, **settings}
        yield f'{work}-{kind}', f'{work}.{work}', nodes, more, f'{title} while {doing}'


PROOFS = {
    row[0]: Proof(*row)
    for row in (
        *with_faults('publish', SENDING, 'publishing'),
        ('tasks', 'publish.tasks', 1, {'tasks': 1_000, **MILLION},
         'many tasks sharing one publisher, each returning after its own confirm'),
        ('cancels', 'publish.cancels', 1, {'messages': 50_000, 'cuts': 10_000},
         'sends cancelled at random moments, without effect on other messages'),
        ('atomic', 'atomic.atomic', 1, {'kills': 1_000, 'on': 'rabbitmq', 'unnamed': False},
         'a process killed while it sends atomic batches, of which no part is ever stored'),
        ('pipe', 'pipe.pipe', 1, {'messages': 10_000_000, 'kills': 1_000, 'on': 'rabbitmq'},
         'processes of a pipe between super streams killed, each output stored exactly once'),
        ('latency', 'speed.latency', 1, {'messages': 60_000},
         'latency of send at 1,000 messages per second, compared with the floor'),
        ('rtt', 'speed.rtt', 1, {'rounds': 5, 'milliseconds': 2_000},
         'rates at round-trip times of 0, 1, 5 and 50 ms, compared with the floor'),
        ('memory', 'memory.publish', 1, {'messages': 10_000_000, 'tasks': 1_000, 'by': 'send'},
         'memory while publishing, which grows by less than 5 MB after the first tenth'),
        *with_faults('consume', READING, 'consuming'),
        ('consume-anything', 'invalid_messages.consume_anything', 1, {'messages': 100_000},
         'valid messages among invalid ones, each of which is reported with its offset'),
        ('consume-foreign', 'foreign.consume_foreign', 1, {'messages': 30_000},
         'messages published by rstream, by AMQP 0.9.1 with all properties, and by MQTT'),
        ('consume-memory', 'memory.consume', 1, {'messages': 50_000_000, **READING},
         'memory while consuming, which grows by less than 5 MB after the first tenth'),
        ('token', 'tokens.token', 1, {'seconds': 300},
         'publishing and consuming with OAuth 2 tokens of 20 seconds, which are renewed, fail to be'
         ' renewed for a minute, expire during a restart, and change their user'),
        ('super-cuts', 'super_streams.super_cuts', 3,
         {**MILLION, 'cuts': 18, 'services': 10, 'on': 'rabbitmq', **SENDING},
         'connections cut, nodes restarted and leaders moved, and the service itself restarted,'
         ' while publishing by key to a super stream of 8 partitions'),
        ('super-links', 'super_streams.super_links', 1, {'partitions': 1_000},
         'publisher and subscription with 1,000 partitions: time to open, memory of idle links'),
        ('group-churn', 'groups.group_churn', 3,
         {'seconds': 600, 'partitions': 8, 'members': 4, 'on': 'rabbitmq'},
         'members of a group join, leave, are killed and frozen, while connections are cut,'
         ' nodes restarted and leaders moved'),
        ('process', 'processing.processing', 1,
         {**MILLION, 'cuts': 12, 'partitions': 8, 'members': 3, 'on': 'rabbitmq'},
         'many messages at once, in order by key, in a group whose members are killed, stopped and'
         ' cut off, while work fails, hangs and is slow'),
        ('soak', 'soak.soak', 3, {'seconds': 3_600, 'on': 'rabbitmq', 'doing': 'all'},
         'all ways of publishing and consuming at the same time, with random faults'),
    )
}  # fmt: skip
