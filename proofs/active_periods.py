"""The activities of the members of a group, compared with the contents of its partitions.

A *stint* is the time in which one member is active in one partition.  What a member sends or
delivers is *settled* if nothing happens in the next seconds that may lose it: the member is neither
killed nor frozen, does not lose its connection or the partition's leader, and no node fails.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import NamedTuple

from .group_members import Record

BEFORE_FIRST = 2**64 - 1  # stored by a group that starts at offset 0
NOTICE = 2.0  # seconds in which a member that was cut off or thawed notices it
LATER = 0.1  # seconds by which the record of a fault may be late

Span = tuple[float, float]  # begin and end, in seconds


class Fault(NamedTuple):
    """A fault of the brokers, or of a member.

    :ivar partition: '' for all.
    """

    begin: float
    end: float
    kind: str
    partition: str = ''


@dataclass
class Stint:
    """A member's activity in one partition.

    :ivar delivered: time and index, in the partition, of each message.
    :ivar stored: time and offset of each offset that was sent to the broker.
    :ivar ended: how the stint has ended: `inactive`, `killed`, `left`, or '' if it has not.
    :ivar troubles: times at which the member may have lost frames that it had sent.
    :ivar late: it has handed over before its messages were finished.
    """

    member: int
    begin: float
    end: float = float('inf')
    delivered: list[tuple[float, int]] = field(default_factory=list)
    stored: list[tuple[float, int]] = field(default_factory=list)
    ended: str = ''
    troubles: list[Span] = field(default_factory=list)
    frozen: list[Span] = field(default_factory=list)
    late: bool = False

    @property
    def first(self) -> int:
        """Index of the first message."""
        return self.delivered[0][1]


class Timeline:
    """The stints in one partition.

    :param offsets: of all messages of the partition.
    :param numbers: of these messages.
    :param histories: the records of each member, in order.
    :param faults: faults of the cluster that may lose frames that members have sent.
    :param seconds: in which something is settled.
    :ivar wrong: messages that contradict the partition, or that a member received without being
        active.
    """

    def __init__(
        self,
        partition: str,
        numbers: Sequence[int],
        offsets: Sequence[int],
        histories: Sequence[Sequence[Record]],
        faults: Iterable[Fault],
        seconds: float,
    ) -> None:
        self.partition = partition
        self.wrong: list[str] = []
        self._numbers = numbers
        self._offsets = offsets
        self._seconds = seconds
        self._faults = [
            (item.begin, item.end) for item in faults if item.partition in ('', partition)
        ]
        self.stints = [
            stint for i, records in enumerate(histories) for stint in self._read(i, records)
        ]
        self.stints.sort(key=lambda stint: stint.begin)

    def _read(self, member: int, records: Sequence[Record]) -> list[Stint]:
        found: list[Stint] = []
        stint: Stint | None = None
        troubles: list[Span] = []
        frozen: list[Span] = []
        early: list[Record] = []  # messages before the member was known to be active
        for record in records:
            if record.partition not in ('', self.partition):
                continue
            kind = record.kind
            if kind == 'active':
                # another task of the member may have noted the first messages before
                first = [item for item in early if item.time > record.time - LATER]
                early = [item for item in early if item.time <= record.time - LATER]
                begin = first[0].time if first else record.time
                stint = Stint(member, begin, troubles=troubles, frozen=frozen)
                for item in first:
                    self._deliver(stint, item)
                found.append(stint)
            elif kind == 'message':
                if stint is None:
                    early.append(record)
                else:
                    self._deliver(stint, record)
            elif kind == 'stored' and found:
                found[-1].stored.append((record.time, record.offset))
            elif kind == 'late' and found:
                found[-1].late = True
            elif kind == 'frozen':
                frozen.append((record.time, float('inf')))
            elif kind == 'thawed':
                frozen[-1] = (frozen[-1][0], record.time)
            elif kind in ('lost', 'moved', 'killed'):
                troubles.append((record.time, record.time))
            if kind in ('inactive', 'left', 'killed') and stint is not None:
                stint.end, stint.ended, stint = record.time, kind, None
        troubles += frozen
        self.wrong += [
            f'{self.partition}, member {member}: offset {item.offset} was delivered to a member'
            ' that is not active'
            for item in early
        ]
        return found

    def _deliver(self, stint: Stint, record: Record) -> None:
        index = bisect_left(self._offsets, record.offset)
        where = f'{self.partition}, member {stint.member}: offset {record.offset}'
        if index == len(self._offsets) or self._offsets[index] != record.offset:
            self.wrong.append(f'{where} holds no message')
        elif self._numbers[index] != record.number:
            self.wrong.append(f'{where} is {record.number}, not {self._numbers[index]}')
        else:
            stint.delivered.append((record.time, index))

    # -- what holds

    def settled(self, stint: Stint, moment: float) -> bool:
        """Whether no fault has lost the frames that were sent at this moment."""
        end = moment + self._seconds
        return not any(
            a <= end and b >= moment for spans in (stint.troubles, self._faults) for a, b in spans
        )

    def missing(self) -> list[int]:
        """The numbers of messages that no member has received."""
        found = {index for stint in self.stints for _, index in stint.delivered}
        return [number for i, number in enumerate(self._numbers) if i not in found]

    def unordered(self) -> list[str]:
        """Where a stint did not deliver one message after the other."""
        return [
            f'{self.partition}, member {stint.member}: index {b} after {a}'
            for stint in self.stints
            for (_, a), (_, b) in pairwise(stint.delivered)
            if b != a + 1
        ]

    def _started(self) -> Iterable[tuple[Stint, list[Stint]]]:
        """The stints that have delivered something, with those that had begun before."""
        for i, stint in enumerate(self.stints):
            if stint.delivered:
                yield stint, self.stints[:i]

    def _stored(self, stint: Stint, before: Iterable[Stint], *, settled: bool) -> int:
        """The last offset that was sent to the broker before a stint; -1 for none."""
        return max(
            (
                -1 if offset == BEFORE_FIRST else offset
                for other in (stint, *before)
                for when, offset in other.stored
                if when < stint.begin and (not settled or self.settled(other, when))
            ),
            default=-1,
        )

    def early(self) -> list[str]:
        """The stints that began before the last offset stored."""
        found = []
        for stint, before in self._started():
            start, stored = self._offsets[stint.first], self._stored(stint, before, settled=True)
            if start <= stored:
                found.append(
                    f'{self.partition}, member {stint.member}: began at offset {start}, though'
                    f' {stored} was stored'
                )
        return found

    def skipping(self) -> list[str]:
        """The stints that began later than after the last offset stored."""
        found = []
        for stint, before in self._started():
            stored = self._stored(stint, before, settled=False)
            if stint.first > (index := bisect_right(self._offsets, stored)):
                found.append(
                    f'{self.partition}, member {stint.member}: began at index {stint.first}, not'
                    f' {index}'
                )
        return found

    def orderly(self, stint: Stint) -> bool:
        """Whether a member handed over or left after it had stored its offset."""
        return (
            stint.ended == 'inactive'
            and not stint.late
            and self.settled(stint, stint.end)
            and self.settled(stint, stint.end - self._seconds)
        )

    def reread(self) -> list[str]:
        """The stints that repeat a message of a member that had handed over or left in order."""
        return [
            f'{self.partition}, member {stint.member}: began at index {stint.first}, though member'
            f' {other.member} had finished {other.delivered[-1][1]}'
            for stint, before in self._started()
            for other in before
            if other.delivered
            and other.end <= stint.begin
            and self.orderly(other)
            and stint.first <= other.delivered[-1][1]
        ]

    def repeats(self) -> list[tuple[int, float]]:
        """The number of settled messages in a row that were delivered again, and their seconds."""
        found = []
        for stint, before in self._started():
            for other in before:
                again = bisect_left(other.delivered, stint.first, key=lambda item: item[1])
                times = [
                    (when, self.settled(other, when))
                    for when, _ in other.delivered[again:]
                    if when < stint.begin
                ]
                for settled, run in groupby(times, key=lambda item: item[1]):
                    if settled:
                        moments = [when for when, _ in run]
                        found.append((len(moments), moments[-1] - moments[0]))
        return found

    def repeated(self) -> int:
        """The number of messages that were delivered more than once."""
        count = sum(len(stint.delivered) for stint in self.stints)
        return count - len({index for stint in self.stints for _, index in stint.delivered})

    def overlaps(self) -> list[tuple[str, float]]:
        """Messages that a member delivered after another one had become active: why, how late.

        The reason is `frozen`: the seconds count from the moment when the member ran again; `cut
        off`: it lost its connection, or the partition's leader, within moments; or ''.
        """
        found = []
        for i, stint in enumerate(self.stints):
            for other in self.stints[:i]:
                after = bisect_right(other.delivered, stint.begin, key=lambda item: item[0])
                late = [when for when, _ in other.delivered[after:]]
                if not late or other.member == stint.member:
                    continue
                thaws = [b for a, b in other.frozen if a <= late[-1] and b >= stint.begin - NOTICE]
                if thaws:
                    found.append(('frozen', late[-1] - min(thaws[-1], late[-1])))
                elif any(stint.begin - NOTICE <= a <= late[-1] + NOTICE for a, _ in other.troubles):
                    found.append(('cut off', late[-1] - stint.begin))
                else:
                    found.append(('', late[-1] - stint.begin))
        return found

    def active(self) -> list[Span]:
        """When a member was active and not frozen."""
        found = []
        for stint in self.stints:
            begin = stint.begin
            for a, b in stint.frozen:
                if a < stint.end and b > begin:
                    found.append((begin, a))
                    begin = b
            found.append((begin, stint.end))
        return [(a, b) for a, b in found if b > a]


def gaps(spans: Iterable[Span], end: float) -> list[Span]:
    """The times between these, in which nothing was active, from the first one on."""
    found = []
    last: float | None = None
    for a, b in sorted(spans):
        if last is not None and a > last:
            found.append((last, min(a, end)))
        last = b if last is None else max(last, b)
    if last is not None and last < end:
        found.append((last, end))
    return found


def causes(gap: Span, faults: Iterable[Fault]) -> list[str]:
    """The kinds of the faults that may have caused a gap; the one that began it first."""
    near = [item for item in faults if item.begin <= gap[1] and item.end >= gap[0] - NOTICE]
    near.sort(key=lambda item: (item.begin > gap[0] + LATER, abs(item.begin - gap[0])))
    return [item.kind for item in near]
