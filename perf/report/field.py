"""Performance reports of other projects, and what they say about how they were measured.

A field is empty if its report does not say.
"""

from dataclasses import dataclass, field

__all__ = ['PUBLISHED', 'Published']


@dataclass(frozen=True)
class Published:
    """A published report.

    :ivar libraries: versions of the measured libraries, by distribution name.
    :ivar kafka: how Kafka was run.
    :ivar counts: messages per measurement.
    :ivar hardware: machine and operating system.
    :ivar notes: other differences.
    """

    title: str
    address: str
    libraries: dict[str, str] = field(default_factory=dict)
    kafka: str = ''
    counts: str = ''
    hardware: str = ''
    notes: str = ''


PUBLISHED = (
    Published(
        title='RbFly 0.10, Performance Report',
        address='https://wrobell.dcmod.org/rbfly/performance.html',
        libraries={'aiokafka': '0.11.0', 'rstream': '0.20.6', 'python-qpid-proton': '0.39.0'},
        kafka='with ZooKeeper',
        notes='peers are those of its `performance` extra; uvloop; single messages and batches of'
        ' 100, each confirmed before the next; encoding and decoding by several codecs; no floor'
        ' lanes',
    ),
    Published(
        title='rstream, Client Performances',
        address='https://github.com/rabbitmq-community/rstream#client-performances',
        counts='1,000,000 messages by `send_batch`',
        hardware='4 cores, 8 GB, Ubuntu',
        notes='the clock stops without waiting for confirms; here it stops at the last confirm',
    ),
)
