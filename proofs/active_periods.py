"""When the members of a group were active in a partition, compared with what it contains.

What a member sends or delivers is *settled* if nothing happens in the next seconds that may lose
it: the member is neither killed nor frozen, does not lose its connection or the partition's leader,
and no node fails.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from .history import Fault, Record

BEFORE_FIRST = 2**64 - 1  # stored by a group that starts at offset 0
NOTICE = 2.0  # seconds in which a member that was cut off or thawed notices it
LATER = 0.1  # seconds by which the record of a fault may be late

Span = tuple[float, float]  # begin and end, in seconds

# What must hold of each partition.
DELIVERED = 'every message is delivered'
ACTIVE = 'only active members receive messages'
ORDER = 'each activity delivers one message after the other'
NOT_BEFORE = 'each activity starts after the last offset stored'
NOT_AFTER = 'each activity starts with the first message after it'
NOT_AGAIN = 'nothing is repeated after a member that leaves or hands over'
CLAIMS = (DELIVERED, ACTIVE, ORDER, NOT_BEFORE, NOT_AFTER, NOT_AGAIN)


@dataclass
class Period:
    """The time in which one member is active in one partition.

    :ivar delivered: time and index, in the partition, of each message.
    :ivar stored: time and offset of each offset that was sent to the broker.
    :ivar ended: `inactive`, `killed` or `left`; '' if the period has not ended.
    :ivar troubles: times at which the member may have lost frames that it had sent.
    :ivar late: the member has handed over before its messages were finished.
    """

    member: int
    begin: float
    troubles: list[Span]
    frozen: list[Span]
    end: float = float('inf')
    delivered: list[tuple[float, int]] = field(default_factory=list)
    stored: list[tuple[float, int]] = field(default_factory=list)
    ended: str = ''
    late: bool = False


@dataclass
class Timeline:
    """The periods of one partition, by their begin.

    :param numbers: of all messages of the partition.
    :param offsets: of these messages.
    :param histories: the records of each member, in order.
    :param faults: faults of the cluster that may lose frames that members have sent.
    :param seconds: in which something is settled.
    :ivar wrong: what contradicts each claim.
    """

    partition: str
    numbers: Sequence[int]
    offsets: Sequence[int]
    histories: Sequence[Sequence[Record]]
    faults: Iterable[Fault]
    seconds: float
    wrong: dict[str, list[str]] = field(default_factory=dict)
    periods: list[Period] = field(default_factory=list)

    def __post_init__(self) -> None:
        mine = ('', self.partition)
        self._faults = [(item.begin, item.end) for item in self.faults if item.partition in mine]
        for member, records in enumerate(self.histories):
            self._read(member, records)
        self.periods.sort(key=lambda period: period.begin)
        self._check()

    def _claim(self, claim: str, member: int, text: str) -> None:
        """Note what contradicts a claim."""
        self.wrong.setdefault(claim, []).append(f'{self.partition}, member {member}: {text}')

    # -- reading what a member has noted

    def _read(self, member: int, records: Sequence[Record]) -> None:
        period = last = None
        troubles: list[Span] = []
        frozen: list[Span] = []
        early: list[Record] = []  # messages before the member was known to be active
        for record in records:
            kind, time = record.kind, record.time
            if record.partition not in ('', self.partition):
                continue
            if kind == 'active':
                # another task of the member may have noted the first messages before
                first = [item for item in early if item.time > time - LATER]
                early = [item for item in early if item.time <= time - LATER]
                begin = first[0].time if first else time
                period = last = Period(member, begin, troubles, frozen)
                self.periods.append(period)
                for item in first:
                    self._deliver(period, item)
            elif kind == 'message' and period is None:
                early.append(record)
            elif kind == 'message' and period is not None:
                self._deliver(period, record)
            elif kind == 'stored' and last is not None:
                last.stored.append((time, record.offset))
            elif kind == 'late' and last is not None:
                last.late = True
            elif kind == 'frozen':
                frozen.append((time, float('inf')))
            elif kind == 'thawed':
                frozen[-1] = (frozen[-1][0], time)
            elif kind in ('lost', 'moved', 'killed'):
                troubles.append((time, time))
            if kind in ('inactive', 'left', 'killed') and period is not None:
                period.end, period.ended, period = time, kind, None
        troubles += frozen
        for item in early:
            self._claim(ACTIVE, member, f'received offset {item.offset} without being active')

    def _deliver(self, period: Period, record: Record) -> None:
        index = bisect_left(self.offsets, record.offset)
        where = f'offset {record.offset}'
        if index == len(self.offsets) or self.offsets[index] != record.offset:
            self._claim(ACTIVE, period.member, f'{where} holds no message')
        elif self.numbers[index] != record.number:
            text = f'{where} is {record.number}, not {self.numbers[index]}'
            self._claim(ACTIVE, period.member, text)
        else:
            period.delivered.append((record.time, index))

    # -- what holds

    def settled(self, period: Period, moment: float) -> bool:
        """Whether no fault has lost the frames that were sent at this moment."""
        end = moment + self.seconds
        return not any(
            a <= end and b >= moment for spans in (period.troubles, self._faults) for a, b in spans
        )

    def _orderly(self, period: Period) -> bool:
        """Whether a member handed over or left after it had stored its offset."""
        return (
            period.ended == 'inactive'
            and not period.late
            and self.settled(period, period.end)
            and self.settled(period, period.end - self.seconds)
        )

    def _check(self) -> None:
        received = {index for period in self.periods for _, index in period.delivered}
        for index, number in enumerate(self.numbers):
            if index not in received:
                text = f'{self.partition}: no member received {number}'
                self.wrong.setdefault(DELIVERED, []).append(text)
        for i, period in enumerate(self.periods):
            for (_, a), (_, b) in pairwise(period.delivered):
                if b != a + 1:
                    self._claim(ORDER, period.member, f'index {b} after {a}')
            if period.delivered:
                self._check_start(period, self.periods[:i])

    def _check_start(self, period: Period, before: Sequence[Period]) -> None:
        """Check the first message of a period against the earlier ones."""
        member, first = period.member, period.delivered[0][1]
        stored = [
            (-1 if offset == BEFORE_FIRST else offset, self.settled(other, when))
            for other in (period, *before)
            for when, offset in other.stored
            if when < period.begin
        ]
        certain = max((offset for offset, settled in stored if settled), default=-1)
        begins = f'begins at offset {self.offsets[first]}'
        if self.offsets[first] <= certain:
            self._claim(NOT_BEFORE, member, f'{begins}, though {certain} was stored')
        last = max((offset for offset, _ in stored), default=-1)
        if first > bisect_right(self.offsets, last):
            self._claim(NOT_AFTER, member, f'{begins}, though only {last} was stored')
        for other in before:
            if other.delivered and other.end <= period.begin and self._orderly(other):
                index = other.delivered[-1][1]
                if first <= index:
                    done = f'member {other.member} had finished {self.offsets[index]}'
                    self._claim(NOT_AGAIN, member, f'{begins}, though {done}')

    # -- measurements

    def repeats(self) -> list[tuple[int, float]]:
        """The number of settled messages in a row that were delivered again, and their seconds."""
        found = []
        for i, period in enumerate(self.periods):
            for other in self.periods[:i] if period.delivered else ():
                first = period.delivered[0][1]
                again = bisect_left(other.delivered, first, key=lambda item: item[1])
                times = [
                    (when, self.settled(other, when))
                    for when, _ in other.delivered[again:]
                    if when < period.begin
                ]
                for settled, run in groupby(times, key=lambda item: item[1]):
                    if settled:
                        moments = [when for when, _ in run]
                        found.append((len(moments), moments[-1] - moments[0]))
        return found

    def repeated(self) -> int:
        """The number of messages that were delivered more than once."""
        indexes = [index for period in self.periods for _, index in period.delivered]
        return len(indexes) - len(set(indexes))

    def overlaps(self) -> list[tuple[str, float]]:
        """Messages that a member delivered after another one had become active: why, how late.

        The reason is `frozen`: the seconds count from the moment when the member ran again; `cut
        off`: it lost its connection, or the partition's leader, within moments; or ''.
        """
        found = []
        for i, period in enumerate(self.periods):
            for other in self.periods[:i]:
                begin = period.begin
                after = bisect_right(other.delivered, begin, key=lambda item: item[0])
                if after == len(other.delivered) or other.member == period.member:
                    continue
                last = other.delivered[-1][0]
                thaws = [b for a, b in other.frozen if a <= last and b >= begin - NOTICE]
                if thaws:
                    found.append(('frozen', last - min(thaws[-1], last)))
                elif any(begin - NOTICE <= a <= last + NOTICE for a, _ in other.troubles):
                    found.append(('cut off', last - begin))
                else:
                    found.append(('', last - begin))
        return found

    def active(self) -> list[Span]:
        """When a member was active and not frozen."""
        found = []
        for period in self.periods:
            begin = period.begin
            for a, b in period.frozen:
                if a < period.end and b > begin:
                    found.append((begin, a))
                    begin = b
            found.append((begin, period.end))
        return [(a, b) for a, b in found if b > a]


def gaps(spans: Iterable[Span], end: float) -> list[Span]:
    """The times between these, in which nothing was active, from the first one on."""
    found = []
    last: float | None = None
    for a, b in [*sorted(spans), (end, end)]:
        if last is not None and a > last:
            found.append((last, min(a, end)))
        last = b if last is None else max(last, b)
    return found


def causes(gap: Span, faults: Iterable[Fault]) -> list[str]:
    """The kinds of the faults that may have caused a gap; the one that began it first."""
    near = [item for item in faults if item.begin <= gap[1] and item.end >= gap[0] - NOTICE]
    near.sort(key=lambda item: (item.begin > gap[0] + LATER, abs(item.begin - gap[0])))
    return [item.kind for item in near]
