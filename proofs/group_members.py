"""Members of a consumer group in processes of their own, which can be killed and frozen.

A member writes its messages and events to a log, without buffers: a killed process loses
nothing.  The clock of all logs is CLOCK_MONOTONIC, which all processes share.
"""

import asyncio
import json
import logging
import multiprocessing
import os
import signal
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import uvloop

import rbfly.streams as rbs
from rbfly.error import RbFlyError
from rbfly.net.connection import Connection
from rbfly.streams import events

from .history import Record

GROUP = 'proof'
EVERY = 50  # messages after which a member stores its offset
INTERVAL = 5.0  # seconds after which it does
HANDOVER = 10.0  # seconds in which it finishes its messages
AGAIN = 0.05  # seconds between two attempts
ACLOSE, STOP = signal.SIGTERM, signal.SIGUSR1  # how a member leaves
STORE_OFFSET = 0x0A
HEAD = struct.Struct('>IHH')
EVENTS = {
    events.Activated: 'active',
    events.Deactivated: 'inactive',
    events.HandoverLate: 'late',
    events.StreamMoved: 'moved',
    events.ConnectionLost: 'lost',
}


Note = Callable[[Record], object]


@asynccontextmanager
async def membership(
    client: rbs.StreamsClient, stream: str, note: Note, *, commit: int = 0, **options: Any
) -> AsyncIterator[tuple[Any, 'asyncio.Task[None]']]:
    """Join the group; yield the subscription, and the task that notes its messages.

    :param commit: store the offset after this many messages; 0 to track it.
    :param options: of the group.
    """
    tracking: dict[str, Any] = {'every': EVERY, 'interval': INTERVAL}
    async with client:
        watching = asyncio.create_task(note_events(client.events(), note))
        messages = client.super_stream(stream).subscribe(
            group=rbs.Group(GROUP, handover_timeout=HANDOVER, **options),
            offset=rbs.Offset.FIRST,
            commit=rbs.OffsetTracking(**{'manual': True} if commit else tracking),
        )
        yield messages, asyncio.create_task(read(messages, note, commit))
    await watching


async def note_events(found: events.Events, note: Note) -> None:
    """Note the events of a client until it disconnects."""
    async for event in found:
        kind = EVENTS.get(type(event))
        if kind is not None:
            note(Record(time.monotonic(), kind, getattr(event, 'stream', '')))


async def read(messages: Any, note: Note, commit: int = 0) -> None:
    """Note the messages of a subscription until it ends.

    :param commit: store the offset after this many messages; 0 for never.
    :raises ChunkError: a chunk is damaged: the subscription would continue after it.
    """
    left = commit
    while True:
        try:
            async for message in messages.messages():
                name, offset = message.stream, message.stream_offset
                note(Record(time.monotonic(), 'message', name, offset, int(message.body)))
                left -= 1
                if not left:
                    left = commit
                    await messages.commit({name: offset})
                    note(Record(time.monotonic(), 'stored', name, offset))
        except rbs.SubscriptionClosed:
            return
        except rbs.ChunkError:
            raise
        except RbFlyError as ex:  # also if the member is not active when it commits
            note(Record(time.monotonic(), 'error', type(ex).__name__))
            await asyncio.sleep(AGAIN)
        else:
            return


# -- in the process of a member


def note_stored(note: Note) -> None:
    """Note each offset that leaves, by reading the frames that connections write."""
    write = Connection.write

    def look(self: Connection, data: bytes) -> None:
        _, key, _ = HEAD.unpack_from(data)
        if key == STORE_OFFSET:
            size = int.from_bytes(data[8:10], 'big')
            start = 10 + size + 2
            stream = data[start : start + int.from_bytes(data[start - 2 : start], 'big')]
            offset = int.from_bytes(data[start + len(stream) :], 'big')
            note(Record(time.monotonic(), 'stored', stream.decode(), offset))
        write(self, data)

    Connection.write = look  # type: ignore[method-assign, assignment]


async def take_part(
    note: Note, uris: list[str], stream: str, heartbeat: int, stranded: float
) -> None:
    """Join the group, and leave it at a signal of the proof.

    :param heartbeat: interval in seconds.
    :param stranded: seconds after which the member joins a stuck group again; 0 for never.
    """
    loop = asyncio.get_running_loop()
    aclose = asyncio.Event()
    client = rbs.streams_client(uris, connection_name='proof-member', heartbeat=heartbeat)
    async with membership(client, stream, note, stranded_after=stranded or None) as (
        messages,
        reading,
    ):
        loop.add_signal_handler(ACLOSE, aclose.set)
        loop.add_signal_handler(STOP, messages.stop)
        note(Record(time.monotonic(), 'joins'))
        closing = asyncio.create_task(aclose.wait())
        await asyncio.wait([closing, reading], return_when=asyncio.FIRST_COMPLETED)
        if aclose.is_set():
            try:
                await messages.aclose()
            except rbs.OffsetNotStored as ex:
                note(Record(time.monotonic(), 'error', type(ex).__name__))
        closing.cancel()
        await reading
    note(Record(time.monotonic(), 'left'))


def work(path: Path, *args: Any) -> None:
    """The process of a member."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the proof ends the process
    logging.getLogger('rbfly').addHandler(logging.NullHandler())  # faults are expected
    with path.open('ab', buffering=0) as log:

        def note(record: Record) -> None:
            log.write(json.dumps(record).encode() + b'\n')

        async def run() -> None:
            parent = multiprocessing.parent_process()
            assert parent is not None
            asyncio.get_running_loop().add_reader(parent.sentinel, os._exit, 1)
            await take_part(note, *args)

        note_stored(note)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())


# -- in the process of the proof


class Member:
    """A member as the proof sees it.

    :param args: of `take_part`.
    :ivar records: its log so far, in order.
    """

    def __init__(self, path: Path, *args: Any) -> None:
        self.records: list[Record] = []
        self.frozen = self.leaving = self.killed = False
        path.touch()
        self._log = path.open('rb')
        self._process = multiprocessing.get_context('spawn').Process(
            target=work, args=(path, *args), daemon=True
        )
        self._process.start()

    def update(self) -> list[Record]:
        """Read the lines that the member has written since the last call."""
        found = []
        while (line := self._log.readline()).endswith(b'\n'):
            found.append(Record(*json.loads(line)))
        self._log.seek(-len(line), os.SEEK_CUR)
        self.records += found
        return found

    def _signal(self, number: int, kind: str) -> None:
        pid = self._process.pid
        assert pid is not None
        begin = time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        self.update()
        self.records.append(Record(begin, kind))

    def leave(self, *, stop: bool) -> None:
        self.leaving = True
        self._signal(STOP if stop else ACLOSE, 'leaves')

    def freeze(self) -> None:
        self.frozen = True
        self._signal(signal.SIGSTOP, 'frozen')

    def thaw(self) -> None:
        self._signal(signal.SIGCONT, 'thawed')
        self.frozen = False

    def kill(self) -> None:
        self._signal(signal.SIGKILL, 'killed')
        self.leaving = self.killed = True

    @property
    def ready(self) -> bool:
        """Whether it can be asked to leave."""
        return bool(self.records or self.update()) and not self.frozen and not self.leaving

    async def join(self, seconds: float) -> int | None:
        """Wait for the end of the process; return its exit code, or None."""
        await asyncio.to_thread(self._process.join, seconds)
        return self._process.exitcode

    async def end(self) -> None:
        """Kill the process, and read the rest of its log."""
        self._process.kill()
        await asyncio.to_thread(self._process.join)
        self.update()
        self._log.close()
        self._process.close()
