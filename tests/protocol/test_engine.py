"""The engine reads recorded sessions and invalid bytes: whole, byte by byte and in random parts."""

import random
import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbfly.error import RbFlyError
from rbfly.protocol import commands
from rbfly.protocol._chunk import Chunk, ChunkQueue
from rbfly.protocol._engine import Engine
from rbfly.protocol._pending import ConfirmWaiter
from rbfly.protocol._publish import PublishWindow
from rbfly.streams.error import ChunkError, FrameError
from tests.sizes import sized
from tests.stream_wire import (
    chunk,
    confirm,
    deliver,
    feed,
    frame,
    message,
    plain_chunk,
    refuse,
    session,
    split_frames,
)

BLOCK = 2**18
SESSIONS = [
    'life-v2.bin',
    'v1-deleted.bin',
    'burst.bin.gz',
    'heartbeats.bin',
    'wrong-password.bin',
    'broker-closes.bin',
]


class Recorder(Engine):
    """Records all frames, failures and settled waiters."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.frames: list[tuple[int, int, bytes]] = []
        self.failures: list[Exception] = []
        self.settled: list[ConfirmWaiter] = []

    def on_frame(self, key: int, version: int, body: bytes) -> None:
        self.frames.append((key, version, body))

    def on_failure(self, error: Exception) -> None:
        self.failures.append(error)

    def publisher(self, publisher_id: int, count: int = 0) -> PublishWindow:
        """Register a window with `count` messages in flight, each with its own waiter."""
        window = PublishWindow(publisher_id, 0, 10**6, 0, None, False)
        window.listen(self.settled.extend)
        self.set_publisher(publisher_id, window)
        for i in range(count):
            window.append(b'', ConfirmWaiter(i, True))
        while window.take() is not None:
            pass
        return window

    def subscription(
        self, subscription_id: int, wake: Callable[[], object] | None = None
    ) -> ChunkQueue:
        queue = ChunkQueue(wake)
        self.set_subscription(subscription_id, queue)
        return queue


def whole(data: bytes) -> Iterator[bytes]:
    yield data


def bytewise(data: bytes) -> Iterator[bytes]:
    for i in range(len(data)):
        yield data[i : i + 1]


def randomly(data: bytes, rng: random.Random) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = rng.choice([1, 2, 3, 7, 100, 5000, 70_000])
        yield data[at : at + size]
        at += size


@pytest.fixture(params=['whole', 'bytewise', *(f'random {i}' for i in range(5))])
def cut(request: pytest.FixtureRequest, rng: random.Random) -> Callable[[bytes], Iterator[bytes]]:
    cuts = {'whole': whole, 'bytewise': bytewise}
    return cuts.get(request.param, partial(randomly, rng=rng))


def content(chunk: Chunk) -> tuple[Any, ...]:
    chunk.verify()
    return (chunk.offset, chunk.records, chunk.committed_chunk_id, chunk.messages())


# -- recorded sessions


@pytest.mark.parametrize('name', SESSIONS)
def test_session_is_split_into_frames(name: str, cut: Callable[[bytes], Iterator[bytes]]) -> None:
    data = session(name)
    engine = Recorder()
    for part in cut(data):
        feed(engine, part)
    assert engine.failures == []
    assert engine.counters.bytes_received == len(data)
    handled = {0x0003, 0x0004, 0x0008}  # confirms, errors and deliveries do not reach on_frame
    assert engine.frames == [item for item in split_frames(data) if item[0] not in handled]


def test_queue_counts_chunks(cut: Callable[[bytes], Iterator[bytes]]) -> None:
    engine = Recorder()
    queue = engine.subscription(0)
    assert (queue.received, queue.last_chunk) == (0, None)
    for part in cut(session('life-v2.bin')):
        feed(engine, part)
    assert queue.received == len(queue.chunks) > 0
    assert queue.last_chunk is not None


def test_confirms_and_messages_of_a_complete_session(
    cut: Callable[[bytes], Iterator[bytes]],
) -> None:
    engine = Recorder()
    window = engine.publisher(0, 22)
    queue = engine.subscription(0)
    for part in cut(session('life-v2.bin')):
        feed(engine, part)
    # the broker refused the last message because the publisher was deleted: it will be resent
    assert [waiter.future for waiter in engine.settled] == list(range(21))
    assert [waiter.errors for waiter in engine.settled if waiter.errors] == []
    assert (window.needs_redeclare, window.unsettled) == (True, 1)
    first, second = map(content, queue.chunks)
    texts = [b'message %d' % i for i in range(20)]
    assert first == (0, 20, 0, [b'\0\x53\x75\xa0%c' % len(text) + text for text in texts])
    offset, records, committed, messages = second
    assert (offset, records, committed) == (21, 5, 21)  # offset 20 is a stored consumer offset
    assert [data[5:] for data in messages] == [b'sub %d' % i for i in range(5)]


def test_deliveries_reach_both_subscriptions(cut: Callable[[bytes], Iterator[bytes]]) -> None:
    engine = Recorder()
    engine.publisher(5, 5)
    queues = [engine.subscription(255), engine.subscription(1)]
    for part in cut(session('v1-deleted.bin')):
        feed(engine, part)
    for queue in queues:
        found = [content(item) for item in queue.chunks]
        assert [item[:3] for item in found] == [(0, 20, None), (21, 5, None), (26, 2, None)]
        assert found[-1][3] == [b'\0\x53\x75\xa0\x07named %d' % i for i in (3, 4)]
    assert [waiter.future for waiter in engine.settled] == [3, 4]


def test_confirms_and_messages_of_a_burst(cut: Callable[[bytes], Iterator[bytes]]) -> None:
    engine = Recorder()
    window = engine.publisher(1, 3016)
    queue = engine.subscription(1)
    for part in cut(session('burst.bin.gz')):
        feed(engine, part)
    assert window.unsettled == 0
    assert [waiter.future for waiter in engine.settled] == list(range(3016))
    messages = [item for found in queue.chunks for item in content(found)[3]]
    assert messages == [b''] * 3000 + [bytes([i]) * 40_000 for i in range(16)]


COMMANDS: dict[int, commands.Command[Any]] = {
    0x8011: commands.PeerProperties({}),
    0x8012: commands.SaslHandshake(),
    0x8015: commands.Open('/'),
    0x801B: commands.ExchangeCommandVersions({}),
    0x800F: commands.Metadata(()),
    0x8005: commands.QueryPublisherSequence('', ''),
    0x800B: commands.QueryOffset('', ''),
}


def responses(name: str) -> dict[int, list[Any]]:
    """Parse the responses of a session: code and value by key."""
    found: dict[int, list[Any]] = {}
    for key, _, body in split_frames(session(name)):
        if key & 0x8000 and key != 0x8009:
            reader = commands.Reader(body[4:])
            code = 1 if key == 0x800F else reader.u16()
            command = COMMANDS.get(key, commands.Delete(''))
            found.setdefault(key, []).append((code, command.parse(reader)))
            assert reader.at_end or key == 0x801C
    return found


def test_responses_of_a_complete_session() -> None:
    found = responses('life-v2.bin')
    properties = found[0x8011][0][1]
    assert (properties['product'], properties['version']) == ('RabbitMQ', '4.0.5')
    assert sorted(found[0x8012][0][1]) == ['AMQPLAIN', 'ANONYMOUS', 'PLAIN']
    assert found[0x8013] == [(1, None)]
    opened = {'advertised_host': '127.0.0.1', 'advertised_port': '5552'}
    assert found[0x8015] == [(1, opened)]
    versions = found[0x801B][0][1]
    assert len(versions) == 19
    assert versions[2] == (1, 2)
    assert found[0x800E] == [(2, None)]
    node = commands.NodeAddress('127.0.0.1', 5552)
    assert found[0x800F] == [
        (
            1,
            {
                'recorded-séssion': commands.StreamMetadata(1, node, ()),
                'no-such-stream': commands.StreamMetadata(2, None, ()),
            },
        )
    ]
    assert found[0x8005] == [(1, 0)]
    assert found[0x800B] == [(0x13, 0), (1, 12)]
    assert found[0x8016] == [(1, None)]


def test_responses_of_other_sessions() -> None:
    assert responses('wrong-password.bin')[0x8013] == [(8, None)]
    deleted = responses('v1-deleted.bin')
    assert deleted[0x8007] == [(1, None), (1, None), (2, None)]
    assert deleted[0x8005] == [(1, 4)]


def test_frames_that_the_broker_initiates() -> None:
    (update,) = (body for key, _, body in split_frames(session('v1-deleted.bin')) if key == 0x10)
    assert commands.MetadataUpdate.read(commands.Reader(update)) == commands.MetadataUpdate(
        6, 'recorded-séssion'
    )
    (close,) = (body for key, _, body in split_frames(session('broker-closes.bin')) if key == 0x16)
    reader = commands.Reader(close)
    assert reader.u32() == 1
    found = commands.Close.read(reader)
    assert found.code == 0x0D
    assert 'unknown frame' in found.reason
    for name in SESSIONS:
        for key, _, body in split_frames(session(name)):
            if key == 0x14:
                assert commands.Tune.read(commands.Reader(body)) == commands.Tune(2**20, 60)
    beats = [item for item in split_frames(session('heartbeats.bin')) if item[0] == 0x17]
    assert beats == [(0x17, 1, b'')] * 2
    assert frame(0x17) == commands.HEARTBEAT


# -- sizes


@pytest.mark.parametrize(
    'size', [4, 5, BLOCK - 5, BLOCK - 4, BLOCK - 3, BLOCK, BLOCK + 1, 2 * BLOCK + 7, 5_000_000]
)
@pytest.mark.parametrize('before', [b'', frame(0x17), frame(0x17) * 20_000])
def test_frames_around_the_block_size(size: int, before: bytes, rng: random.Random) -> None:
    body = rng.randbytes(size - 4)
    data = before + frame(0x7001, body, 9) + frame(0x17)
    engine = Recorder()
    at = 0
    while at < len(data):
        part = rng.randrange(1, 400_000)
        feed(engine, data[at : at + part])
        at += part
    beats = len(before) // 8
    assert Counter(item[0] for item in engine.frames) == Counter({0x17: beats + 1, 0x7001: 1})
    assert engine.frames[beats] == (0x7001, 9, body)
    assert engine.failures == []


@pytest.mark.parametrize('part', [1000, 65_536, BLOCK, 10**7])
@pytest.mark.parametrize('committed', [None, 2**64 - 1])
def test_deliver_of_several_megabytes(part: int, committed: int | None, rng: random.Random) -> None:
    messages = [rng.randbytes(1_000_003) for _ in range(5)]
    data = deliver(7, plain_chunk(messages, 100), committed) + deliver(7, plain_chunk([b'a'], 105))
    engine = Recorder()
    queue = engine.subscription(7)
    for at in range(0, len(data), part):
        feed(engine, data[at : at + part])
    assert list(map(content, queue.chunks)) == [
        (100, 5, committed, messages),
        (105, 1, None, [b'a']),
    ]


def test_event_loop_waits_for_the_parts_of_a_long_frame() -> None:
    engine = Recorder()
    waits: list[int] = []
    engine.collect_by(waits.append)
    data = frame(0x7001, bytes(500_000))
    for at in range(0, len(data), 100_000):
        feed(engine, data[at : at + 100_000])
    feed(engine, frame(0x17))
    assert waits == [131_072, 196_608, 98_304, 1]
    assert [key for key, _, _ in engine.frames] == [0x7001, 0x17]


@pytest.mark.parametrize('size', [40, 40_000, 200_000, BLOCK, BLOCK + 40, 3_000_000])
def test_event_loop_never_waits_for_more_than_a_frame(size: int, rng: random.Random) -> None:
    """The broker need not send another frame."""
    engine = Recorder()
    waits = [1]
    engine.collect_by(waits.append)
    data = frame(0x17) + frame(0x7001, bytes(size)) + frame(0x7002, bytes(size))
    ends = [8, 16 + size, 24 + 2 * size]
    at = 0
    while at < len(data):
        part = rng.randrange(1, 200_000)
        feed(engine, data[at : at + part])
        at = min(at + part, len(data))
        missing = next((end - at for end in ends if end > at), 0)
        assert waits[-1] == 1 or (at not in ends and 32_768 <= waits[-1] <= missing)
    assert waits[-1] == 1
    assert len(waits) > 1 or size <= 40_000
    assert len(waits) <= 2 * 10
    assert all(count != before for count, before in zip(waits[1:], waits, strict=False))


def test_engine_that_takes_bytes_at_once_waits_again_after_the_next() -> None:
    engine = Recorder()
    waits: list[int] = []
    engine.collect_by(waits.append)
    engine.take_at_once()
    assert waits == []
    data = frame(0x7001, bytes(1_000_000))
    feed(engine, data[:100])
    engine.take_at_once()
    engine.take_at_once()
    assert waits == [131_072, 1]
    feed(engine, data[100:200])
    assert waits == [131_072, 1, 131_072]


def test_engine_that_has_stopped_waits_for_no_bytes() -> None:
    engine = Recorder()
    waits: list[int] = []
    engine.collect_by(waits.append)
    queue = engine.subscription(1, engine.stop)
    feed(engine, deliver(1, plain_chunk([b'a'])) + frame(0x7001, bytes(200_000))[:100])
    assert engine.stopped
    assert len(queue.chunks) == 1
    assert waits == []


@pytest.mark.parametrize('size', range(4))
def test_frame_too_short_for_key_and_version(size: int) -> None:
    engine = Recorder()
    feed(engine, frame(0x17) + struct.pack('>I', size) + bytes(100))
    assert engine.frames == [(0x17, 1, b'')]
    assert [type(error) for error in engine.failures] == [FrameError]
    assert engine.stopped


def test_frame_size_limit() -> None:
    engine = Recorder(1000)
    feed(engine, frame(0x7001, bytes(996)))
    assert len(engine.frames) == 1
    feed(engine, struct.pack('>I', 1001))
    assert [str(error) for error in engine.failures] == [
        'a frame of 1001 bytes exceeds the limit of 1000'
    ]


def test_default_frame_size_limit() -> None:
    engine = Recorder()
    feed(engine, struct.pack('>I', 256 * 2**20 + 1))
    assert [type(error) for error in engine.failures] == [FrameError]


def test_memory_grows_with_received_bytes(rng: random.Random) -> None:
    """A frame's declared size alone allocates almost nothing."""
    data = rng.randbytes(5 * 2**20)
    engine = Recorder()
    parts = [*randomly(frame(0x7001, data), rng)]
    tracemalloc.start()
    try:
        feed(engine, struct.pack('>I', 256 * 2**20))
        feed(engine, bytes(2**20))
        _, peak = tracemalloc.get_traced_memory()
        assert peak < 8 * 2**20
        engine = Recorder()
        for part in parts:
            feed(engine, part)
    finally:
        tracemalloc.stop()
    assert engine.frames == [(0x7001, 1, data)]


@pytest.mark.parametrize(
    'greeting',
    [b'AMQP\0\0\x09\x01', b'HTTP/1.1 400 Bad Request\r\n', b'\x15\x03\x01\0\x02\x02\x50'],
)
def test_other_protocols_are_refused(greeting: bytes) -> None:
    engine = Recorder()
    for part in bytewise(greeting):
        feed(engine, part)
    assert [type(error) for error in engine.failures] == [FrameError]
    assert engine.frames == []


# -- confirms


@pytest.mark.parametrize(('make', 'width'), [(confirm, 8), (refuse, 10)])
def test_truncated_confirm_is_refused(make: Callable[[int, Any], bytes], width: int) -> None:
    ids = [0, 1] if width == 8 else [(0, 0x11), (1, 0x11)]
    _, _, body = split_frames(make(0, ids))[0]
    key = 3 if width == 8 else 4
    for size in range(len(body)):
        engine = Recorder()
        window = engine.publisher(0, 2)
        feed(engine, frame(key, body[:size]))
        assert [type(error) for error in engine.failures] == [FrameError]
        assert window.unsettled == 2
        assert engine.settled == []


def test_confirm_with_impossible_count_is_refused() -> None:
    engine = Recorder()
    engine.publisher(0, 1)
    feed(engine, frame(3, struct.pack('>BIQ', 0, 2**32 - 1, 0)))
    assert [type(error) for error in engine.failures] == [FrameError]


@pytest.mark.parametrize('count', [0, 1])
def test_extra_bytes_after_a_confirm_are_ignored(count: int) -> None:
    engine = Recorder()
    window = engine.publisher(0, 2)
    feed(engine, frame(3, struct.pack('>BIQQ', 0, count, 0, 1)))
    assert window.unsettled == 2 - count
    assert engine.failures == []


def test_frames_for_unknown_ids_are_ignored() -> None:
    engine = Recorder()
    engine.publisher(4, 1)
    engine.set_publisher(4, None)
    feed(engine, confirm(4, [0]) + refuse(9, [(0, 0x12)]) + deliver(3, b'junk') + frame(0x17))
    assert engine.frames == [(0x17, 1, b'')]
    assert engine.failures == []


def test_confirms_reach_their_publisher() -> None:
    engine = Recorder()
    windows = {i: engine.publisher(i, 3) for i in (0, 1, 255)}
    feed(engine, confirm(255, [0, 1]) + confirm(0, [2]))
    assert {i: window.unsettled for i, window in windows.items()} == {0: 2, 1: 3, 255: 1}


def test_listener_is_called_once_per_frame() -> None:
    engine = Recorder()
    calls: list[list[ConfirmWaiter]] = []
    window = engine.publisher(0, 100)
    window.listen(calls.append)
    feed(engine, confirm(0, range(60)) + confirm(0, []) + confirm(0, range(60, 100)))
    assert [len(done) for done in calls] == [60, 0, 40]


@pytest.mark.parametrize('version', [0, 2, 3])
def test_confirm_of_unknown_version_reaches_on_frame(version: int) -> None:
    engine = Recorder()
    window = engine.publisher(0, 1)
    body = struct.pack('>BIQ', 0, 1, 0)
    feed(engine, frame(3, body, version))
    assert engine.frames == [(3, version, body)]
    assert window.unsettled == 1


# -- deliveries


@pytest.mark.parametrize('committed', [None, 5])
def test_truncated_deliver_is_refused(committed: int | None) -> None:
    _, version, body = split_frames(deliver(0, plain_chunk([b'abc']), committed))[0]
    for size in range(len(body)):
        engine = Recorder()
        queue = engine.subscription(0)
        feed(engine, frame(8, body[:size], version))
        assert len(engine.failures) == 1
        assert isinstance(engine.failures[0], FrameError | ChunkError)
        assert not queue.chunks


def test_deliver_of_unknown_version_reaches_on_frame() -> None:
    engine = Recorder()
    engine.subscription(0)
    feed(engine, frame(8, b'\0junk', 3))
    assert engine.frames == [(8, 3, b'\0junk')]


def test_chunks_outlive_the_block() -> None:
    engine = Recorder()
    queue = engine.subscription(0)
    data = b''.join(deliver(0, plain_chunk([b'%d' % i * 50], i)) for i in range(10_000))
    feed(engine, data)
    feed(engine, frame(0x7001, b'\xff' * 200_000))
    found = [content(item) for item in queue.chunks]
    assert [item[3] for item in found] == [[b'%d' % i * 50] for i in range(10_000)]


# -- callbacks


@pytest.mark.parametrize('key', [0, 0x0002, 0x0005, 0x7FFF, 0x8009, 0xFFFF])
def test_frames_of_unknown_keys_reach_on_frame(key: int) -> None:
    engine = Recorder()
    feed(engine, frame(key, b'abc', 0xFFFF) + frame(key, b'', 0))
    assert engine.frames == [(key, 0xFFFF, b'abc'), (key, 0, b'')]


def test_many_frames_in_one_segment() -> None:
    engine = Recorder()
    window = engine.publisher(0, 5000)
    queue = engine.subscription(0)
    parts = []
    for i in range(5000):
        parts += [confirm(0, [i]), frame(0x17), deliver(0, plain_chunk([b'%d' % i], i))]
    feed(engine, b''.join(parts))
    assert window.unsettled == 0
    assert len(engine.frames) == len(queue.chunks) == 5000


class Failing(Recorder):
    def on_frame(self, key: int, version: int, body: bytes) -> None:
        super().on_frame(key, version, body)
        if key == 0x7001:
            raise KeyError('mine')


def test_callback_that_raises_stops_the_engine() -> None:
    engine = Failing()
    feed(engine, frame(0x17) + frame(0x7001) + frame(0x17))
    feed(engine, frame(0x17))
    assert [item[0] for item in engine.frames] == [0x17, 0x7001]
    assert [repr(error) for error in engine.failures] == ["KeyError('mine')"]
    assert engine.stopped


@pytest.mark.parametrize('where', ['on_settled', 'wake'])
def test_listener_that_raises_stops_the_engine(where: str) -> None:
    def fail(*args: object) -> None:
        raise KeyError(where)

    engine = Recorder()
    engine.publisher(0, 1).listen(fail)
    engine.subscription(0, fail)
    data = confirm(0, [0]) if where == 'on_settled' else deliver(0, plain_chunk([b'a']))
    feed(engine, data + frame(0x17))
    assert [repr(error) for error in engine.failures] == [f"KeyError('{where}')"]
    assert engine.frames == []


@pytest.mark.parametrize('size', [4, BLOCK - 8, 3 * BLOCK])
def test_bytes_after_stop_are_ignored(size: int) -> None:
    engine = Recorder()
    data = frame(0x7001, bytes(size))
    feed(engine, data + data[: len(data) // 2])
    assert len(engine.frames) == 1
    engine.stop()
    feed(engine, data[len(data) // 2 :] + data * 3)
    assert len(engine.frames) == 1
    assert engine.failures == []
    assert engine.counters.bytes_received == len(data) * 5


class Stopping(Recorder):
    def on_frame(self, key: int, version: int, body: bytes) -> None:
        super().on_frame(key, version, body)
        self.stop()


def test_callback_can_stop_the_engine() -> None:
    engine = Stopping()
    feed(engine, frame(0x17) * 5)
    assert len(engine.frames) == 1


def test_callback_can_unregister_a_publisher() -> None:
    engine = Recorder()
    window = engine.publisher(0, 2)
    window.listen(lambda done: engine.set_publisher(0, None))
    feed(engine, confirm(0, [0]) + confirm(0, [1]))
    assert window.unsettled == 1


@pytest.mark.parametrize('id', [-1, 256])
def test_ids_out_of_range_are_refused(id: int) -> None:
    engine = Recorder()
    with pytest.raises(OverflowError):
        engine.set_publisher(id, None)
    with pytest.raises(OverflowError):
        engine.set_subscription(id, None)


def test_buffer_is_never_empty_and_never_moves() -> None:
    engine = Recorder()
    data = frame(0x7001, bytes(3 * BLOCK)) + frame(0x17)
    first = engine.get_buffer(-1)
    at = 0
    while at < len(data):
        target = engine.get_buffer(-1)
        assert len(target) > 0
        n = min(len(target), 100_001, len(data) - at)
        target[:n] = data[at : at + n]
        at += n
        engine.buffer_updated(n)
    assert len(engine.frames) == 2
    assert engine.get_buffer(-1).obj is first.obj


@given(
    parts=st.lists(st.binary(max_size=60), max_size=10),
    key=st.sampled_from([3, 4, 8, 0x10]),
    version=st.integers(0, 3),
)
@settings(max_examples=sized(75, 300))
def test_any_bytes_yield_frames_or_one_error(parts: list[bytes], key: int, version: int) -> None:
    engine = Recorder()
    engine.publisher(0, 3)
    queue = engine.subscription(0)
    feed(engine, b''.join(frame(key, b'\0' + part, version) for part in parts))
    feed(engine, b''.join(parts))
    assert len(engine.failures) <= 1
    for error in engine.failures:
        assert isinstance(error, RbFlyError)
        assert engine.stopped
    for found in queue.chunks:
        assert found.records >= 0


def test_damaged_chunk_does_not_stop_the_engine() -> None:
    engine = Recorder()
    queue = engine.subscription(0)
    feed(engine, deliver(0, chunk([message(b'a')], 1, crc=1)) + frame(0x17))
    assert engine.failures == []
    with pytest.raises(ChunkError):
        queue.chunks[0].verify()
