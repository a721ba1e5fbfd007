"""Which messages of a stream are finished."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from ..streams import MessageBatch

Waiting = deque[tuple['Block', int, Any]]  # messages with one key, in order


class Block:
    """Messages that arrived together.

    :param partition: of the messages.
    :param messages: what the work receives.
    :param source: the batch, or the bytes of a message that cannot be decoded.
    :ivar offsets: offset of each message.
    :ivar left: the messages that no worker has taken, each with its index.
    :ivar done: not 0 for each message that is finished.
    """

    __slots__ = ('_messages', 'done', 'left', 'offsets', 'partition', 'source')

    def __init__(
        self,
        partition: Partition,
        messages: list[Any],
        offsets: Sequence[int],
        source: MessageBatch[Any] | bytes,
    ) -> None:
        self.partition = partition
        self.offsets = offsets
        self.left: Iterator[tuple[int, Any]] = enumerate(messages)
        self.done = bytearray(len(messages))
        self.source = source
        self._messages = messages

    def drop(self) -> None:
        """Let no worker take one of the messages that are left."""
        self._messages.clear()  # which ends `left`


class Item:
    """A message whose work has failed, or that cannot be decoded.

    :ivar key: of the message.
    :ivar is_keyed: the messages with its key wait for it.
    :ivar error: why the work cannot be called with it; None if it can.
    :ivar tries: how often the work has failed.
    """

    __slots__ = ('block', 'error', 'index', 'is_keyed', 'key', 'message', 'tries')

    def __init__(self, block: Block, index: int, message: Any) -> None:
        self.block = block
        self.index = index
        self.message = message
        self.key: Hashable = None
        self.is_keyed: bool = False
        self.error: BaseException | None = None
        self.tries: int = 0

    @property
    def offset(self) -> int:
        """Offset of the message."""
        return self.block.offsets[self.index]


class Partition:
    """The messages of a stream or partition: those of one term, if it is read by a group.

    :ivar pending: number of messages from the lowest unfinished one on, or a few more (int).
    :ivar busy: the keys of messages in work or between two tries; with the messages that wait for
        them, None for none.
    :ivar given_back: no message of it is begun any more.
    :ivar stored: the offset that was stored last (int); None for none.
    :ivar counted: number of messages at which storing an offset was last due (int).
    """

    __slots__ = (
        '_blocks', '_finished', '_last', '_timers', 'busy', 'counted', 'given_back', 'pending',
        'stored', 'stream',
    )  # fmt: skip

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.pending: int = 0
        self.busy: dict[Hashable, Waiting | None] = {}
        self.given_back: bool = False
        self.stored: int | None = None
        self.counted: int = 0
        self._blocks: deque[Block] = deque()
        self._finished = 0  # messages of blocks that are finished
        self._last: int | None = None  # offset of the last of them
        self._timers: set[asyncio.TimerHandle] = set()

    def add(
        self,
        messages: list[Any],
        offsets: Sequence[int],
        source: MessageBatch[Any] | bytes,
    ) -> Block:
        """Add messages; return their block."""
        block = Block(self, messages, offsets, source)
        self._blocks.append(block)
        self.pending += len(block.done)
        return block

    def advance(self) -> int:
        """Forget the first blocks, if they are finished.

        :returns: the number of messages below the lowest unfinished one.
        """
        blocks, count = self._blocks, 0
        while blocks and blocks[0].done.find(0) < 0:
            block = blocks.popleft()
            count += len(block.done)
            self._last = block.offsets[-1]
        self.pending -= count
        self._finished += count
        return self._finished + (blocks[0].done.find(0) if blocks else 0)

    @property
    def watermark(self) -> int | None:
        """Offset of the last message below which all are finished; None if there is none."""
        self.advance()
        if self._blocks:
            block = self._blocks[0]
            first = block.done.find(0)
            if first > 0:
                return block.offsets[first - 1]
        return self._last

    @property
    def finished(self) -> int:
        """Number of finished messages."""
        return self._finished + sum(block.done.count(1) for block in self._blocks)

    def call_later(self, delay: float, function: Callable[[Item], object], item: Item) -> None:
        """Call a function with a message after some seconds, unless messages are given back."""

        def call() -> None:
            self._timers.discard(timer)
            function(item)

        timer = asyncio.get_running_loop().call_later(delay, call)
        self._timers.add(timer)

    def give_back(self) -> None:
        """Begin no more messages; those that are not finished are delivered again."""
        self.given_back = True
        for block in self._blocks:
            block.drop()
        for waiting in self.busy.values():
            if waiting is not None:
                waiting.clear()
        while self._timers:
            self._timers.pop().cancel()
