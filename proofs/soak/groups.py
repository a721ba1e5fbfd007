"""A consumer group in a soak: its members join and leave while messages are published by key."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from rbfly.error import RbFlyError

from ..active_periods import NOT_AFTER, NOT_AGAIN, Timeline
from ..group_members import membership
from ..groups import LOSING, SETTLED
from ..history import Record
from .activity import client_of
from .super_stream import SuperStream

MEMBERS = 3
COMMIT = 20  # messages after which a member that stores offsets itself does so


class Groups(SuperStream):
    """Publishes by key with a name, and reads the partitions with a group.

    The members either track their offsets or commit them.

    :ivar records: of all members so far.
    """

    label = 'group'

    async def begin(self, stack: AsyncExitStack) -> None:
        await super().begin(stack)
        self.records: list[list[Record]] = []
        self.received: dict[str, set[int]] = {}
        self.commits = self.random.random() < 0.5
        self.background = [self.serve] * MEMBERS

    async def serve(self) -> None:
        """Join and leave until the round is over, then stay."""
        while True:
            records: list[Record] = []
            self.records.append(records)

            def note(record: Record, records: list[Record] = records) -> None:
                records.append(record)
                if record.kind == 'message':
                    self.scene.progress()
                    self.received.setdefault(record.partition, set()).add(record.number)
                elif record.kind == 'error':
                    self.scene.failures[record.partition] += 1

            async with membership(
                client_of(self.bed, reconnect_timeout=None),
                self.sent.stream,
                note,
                commit=COMMIT if self.commits else 0,
            ) as (messages, reading):
                await self.take_part(messages, reading)

    async def take_part(self, messages: Any, reading: 'asyncio.Task[None]') -> None:
        try:
            if self.scene.over():
                await reading
            await asyncio.wait([reading], timeout=self.random.uniform(0.1, self.scene.seconds / 3))
            how = self.random.choice(('aclose', 'stop', 'cancel'))
            if how == 'aclose':
                await messages.aclose()
            elif how == 'stop':
                messages.stop()
            if how != 'cancel':
                await reading
        except RbFlyError as ex:
            self.scene.failures[type(ex).__name__] += 1
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    def all_read(self) -> bool:
        wanted = {name: set(numbers) for name, (numbers, _) in self.stored.items() if numbers}
        return self.received == wanted

    def check_read(self) -> None:
        faults = [item for item in self.scene.faults if item.kind in LOSING]
        for name, (numbers, offsets) in self.stored.items():
            line = Timeline(name, numbers, offsets, self.records, faults, SETTLED)
            wrong: dict[str, Sequence[object]] = {**line.wrong}
            wrong.pop(NOT_AFTER, None)  # members do not note each offset that they store
            if self.commits:
                wrong.pop(NOT_AGAIN, None)
            wrong['one member at a time'] = [why for why, _ in line.overlaps() if not why]
            for claim, found in wrong.items():
                if found:
                    self.wrong(f'group, not true: {claim}', len(found))
