"""The proofs and their settings: plain data; the code of a proof is imported when it runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Value = int | bool | str

# All settings of proofs, with their help texts.
SETTINGS = {
    'messages': 'number of messages',
    'cuts': 'number of cuts, restarts, leader changes or cancelled sends',
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
    'by': 'publish by send, flush, send-many or giving-up; consume by body, context or batch',
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

    @property
    def loop(self) -> str:
        """Event loop; `select` has timers finer than a millisecond."""
        return 'select' if self.name == 'rtt' else 'uvloop'


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
NODES: dict[str, Any] = {**MILLION, 'cuts': 6, 'how': 'partition'}

PROOFS = {
    row[0]: Proof(*row)
    for row in (
        ('publish-cuts', 'publish.publish', 1, {**MILLION, 'cuts': 50, **SENDING},
         'connections cut at random bytes while publishing'),
        ('publish-restart', 'publish.publish', 1, {**MILLION, 'cuts': 4, **SENDING},
         'broker stopped or killed, then restarted, while publishing'),
        ('publish-leader', 'publish.publish', 3, {**MILLION, 'cuts': 6, **SENDING},
         "stream's leader in a cluster of three killed, stopped or moved while publishing"),
        ('publish-nodes', 'publish.publish', 3, {**NODES, **SENDING},
         'nodes of a cluster of three paused, partitioned or restarted while publishing'),
        ('tasks', 'publish.tasks', 1, {'tasks': 1_000, **MILLION},
         'many tasks sharing one publisher, each returning after its own confirm'),
        ('cancels', 'publish.cancels', 1, {'messages': 50_000, 'cuts': 10_000},
         'sends cancelled at random moments, without effect on other messages'),
        ('latency', 'speed.latency', 1, {'messages': 60_000},
         'latency of send at 1,000 messages per second, compared with the floor'),
        ('rtt', 'speed.rtt', 1, {'rounds': 5, 'milliseconds': 2_000},
         'rates at round-trip times of 0, 1, 5 and 50 ms, compared with the floor'),
        ('memory', 'memory.publish', 1, {'messages': 10_000_000, 'tasks': 1_000, 'by': 'send'},
         'memory while publishing, which grows by less than 5 MB after the first tenth'),
        ('consume-cuts', 'consume.consume', 1, {**MILLION, 'cuts': 50, **READING},
         'connections cut at random bytes while consuming'),
        ('consume-restart', 'consume.consume', 1, {**MILLION, 'cuts': 4, **READING},
         'broker stopped or killed, then restarted, while consuming'),
        ('consume-leader', 'consume.consume', 3, {**MILLION, 'cuts': 6, **READING},
         "stream's leader in a cluster of three killed, stopped or moved while consuming"),
        ('consume-nodes', 'consume.consume', 3, {**NODES, **READING},
         'nodes of a cluster of three paused, partitioned or restarted while consuming'),
        ('consume-anything', 'invalid_messages.consume_anything', 1, {'messages': 100_000},
         'valid messages among invalid ones, each of which is reported with its offset'),
        ('consume-foreign', 'foreign.consume_foreign', 1, {'messages': 30_000},
         'messages published by rstream, by AMQP 0.9.1 with all properties, and by MQTT'),
        ('consume-memory', 'memory.consume', 1, {'messages': 50_000_000, **READING},
         'memory while consuming, which grows by less than 5 MB after the first tenth'),
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
        ('soak', 'soak.soak', 3, {'seconds': 3_600, 'on': 'rabbitmq', 'doing': 'all'},
         'all ways of publishing and consuming at the same time, with random faults'),
    )
}  # fmt: skip
