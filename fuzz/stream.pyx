# cython: language_level=3str
"""Target: read arbitrary bytes as a chunk, or as data received from a socket."""

from zlib import crc32

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from fuzz.checks cimport finding, same
from rbfly._wire cimport store_u32

from rbfly.error import AMQPDecoderError
from rbfly.protocol import compression

# keep decompression fast for all allowed sizes; set before these limits are read
compression.BATCH_MAX = 1 << 16
compression.CHUNK_MAX = 1 << 17

from rbfly.protocol._batch import MessageBatch
from rbfly.protocol._chunk import Chunk, ChunkQueue
from rbfly.protocol._cursor import KINDS, MessageCursor
from rbfly.protocol._decoder import POLICIES, Decoder
from rbfly.protocol._engine import Engine
from rbfly.protocol._pending import ConfirmWaiter
from rbfly.protocol._publish import PublishWindow
from rbfly.streams._consume._iteration import FastSubscription
from rbfly.streams.error import ChunkError, CompressionError, FrameError
from rbfly.streams.types import MessageFilter

cdef extern from '<sanitizer/asan_interface.h>':
    void ASAN_POISON_MEMORY_REGION(const void *p, size_t n) noexcept
    void ASAN_UNPOISON_MEMORY_REGION(const void *p, size_t n) noexcept

cdef enum:
    HEADER = 48
    FRAME_CAP = 1 << 19
    GUARD = 4096


# --- chunks ---

DAMAGED = (ChunkError, CompressionError)
NO_LIMIT = 2**31 - 1            # messages of a batch


class Cursor(MessageCursor):
    """A message cursor that stands in for a subscription, without an event loop."""

    def __init__(self, amqp, chunk, start=0, policy='raise', filter=None):
        super().__init__(self, Decoder(amqp, policy), filter)
        self.resume(start)
        self.consumed = 0
        self.queue.push(chunk)

    def on_chunk_consumed(self, chunk):
        self.consumed += 1

    def on_progress(self):
        pass                    # an offset was reached

    def check_loop(self):
        pass

    def advance(self, kind=KINDS['body'], limit=NO_LIMIT):
        return FastSubscription(self, self)._advance(self, kind, limit)

    def take(self, kind=KINDS['body']):
        return FastSubscription(self, self)._take(self, kind)


cdef list drain(object cursor, Py_ssize_t limit):
    """Read the only chunk; return its messages and error types."""
    cdef list results = []
    while True:
        if len(results) > limit:
            finding('reading a chunk does not end')
        try:
            if not cursor.advance():
                break
        except DAMAGED:
            results.append(ChunkError)
            continue
        try:
            results.append(cursor.take())
        except DAMAGED:
            results.append(ChunkError)
        except AMQPDecoderError as ex:
            if ex.offset is None or type(ex.data) is not bytes:
                finding('decoder error without offset and data')
            results.append(AMQPDecoderError)
        else:
            try:
                cursor.last.context()
            except AMQPDecoderError:
                if cursor.decoder.amqp:
                    finding('message has a body but no context')
    if cursor.consumed != 1:
        finding(f'chunk was consumed {cursor.consumed} times')
    return results


cdef list outcome(object cursor, str kind, Py_ssize_t limit, Py_ssize_t max_messages):
    """Offset, body and bytes of each message; offset, error and data of each invalid one."""
    cdef list received = [], results = []
    while True:
        if len(received) > max_messages:
            finding('reading a chunk does not end')
        try:
            if not cursor.advance(KINDS[kind], limit):
                break
            item = cursor.take(KINDS[kind])
        except DAMAGED:
            received.append(None)
        except AMQPDecoderError as ex:
            received.append((ex.offset, AMQPDecoderError, ex.data))
        else:
            received.append(item if kind != 'body' else cursor.last.context())
    # inspect the results after the chunk is gone
    cursor.drop()
    for item in received:
        if type(item) is MessageBatch:
            if not 0 < len(item) <= limit:
                finding(f'batch of {len(item)} messages')
            contexts = list(item.contexts())
            if [ctx.stream_offset for ctx in contexts] != list(item.offsets):
                finding('offsets of a batch differ from those of its messages')
            if not same([ctx.body for ctx in contexts], list(item)):
                finding('bodies of a batch differ from those of its messages')
        elif item is None or type(item) is tuple:
            results.append(item)
            continue
        else:
            contexts = [item]
        for ctx in contexts:
            raw = None if ctx.raw is None else bytes(ctx.raw)
            results.append((ctx.stream_offset, ctx.body, raw))
    return results


def no_value(ctx):
    return None


cdef int check_kinds(bytes data, Py_ssize_t max_messages, uint8_t how) except -1:
    """Check that bodies, contexts and batches return the same messages under any error policy."""
    policy = sorted(POLICIES)[(how >> 1) % 3]
    everything = MessageFilter(no_value, {''})
    for amqp in (True, False):
        first = outcome(Cursor(amqp, Chunk.parse(data), 0, policy), 'body', 1, max_messages)
        for kind, filter in (
            ('context', None), ('batch', None), ('context', everything), ('batch', everything)
        ):
            cursor = Cursor(amqp, Chunk.parse(data), 0, policy, filter)
            other = outcome(cursor, kind, 1 + (how >> 3), max_messages)
            if not same(first, other):
                finding(f'bodies are {first!r}, but {kind} returns {other!r}')
    return 0


cdef int check_chunk(bytes data, uint8_t how) except -1:
    cdef Py_ssize_t n = PyBytes_GET_SIZE(data)
    cdef uint8_t *p = <uint8_t *> PyBytes_AS_STRING(data)
    cdef list messages = None
    if how & 1 == 0 and n >= HEADER:
        # random bytes rarely have a correct length and CRC
        p[0] = 0x50
        store_u32(p + 36, <unsigned int> (n - HEADER))
        store_u32(p + 32, crc32(memoryview(data)[HEADER:]))
    try:
        chunk = Chunk.parse(data)
    except ChunkError:
        return 0
    try:
        chunk.verify()
    except ChunkError:
        if how & 1 == 0:
            finding('chunk with a correct CRC is refused')
        return 0
    try:
        messages = Chunk.parse(data).messages()
    except DAMAGED:
        pass
    # a small compressed batch may expand to this size
    n += 2 * compression.CHUNK_MAX
    if chunk.offset < 2**63:
        check_kinds(data, n, how)
    raw = drain(Cursor(False, chunk, 0), n)
    if messages is not None and raw != messages:
        finding(f'chunk contains {messages!r}, but the cursor returns {raw!r}')
    decoded = drain(Cursor(True, Chunk.parse(data), 0), n)
    if len(decoded) != len(raw):
        finding(f'{len(raw)} messages, but {len(decoded)} bodies')
    if chunk.offset >= 2**63:
        return 0
    later = drain(Cursor(False, Chunk.parse(data), chunk.offset + (how >> 4)), n)
    if messages is not None and later != messages[how >> 4:]:
        finding(f'{messages!r} from offset {how >> 4} returns {later!r}')
    return 0


# --- frames ---

class Recorder(Engine):
    """An engine with a publisher and a subscription that records all events."""

    def __init__(self):
        super().__init__(FRAME_CAP)
        self.events = []
        self.queue = ChunkQueue()
        self.window = PublishWindow(2, 1 << 16, 16, 1)
        self.window.listen(self.on_settled)
        self.waiter = ConfirmWaiter(sealed=True)
        for message in (b'a', b'b', b'c'):
            self.window.append(message, self.waiter)
        self.window.take()
        self.set_publisher(2, self.window)
        self.set_subscription(1, self.queue)

    def on_settled(self, done):
        self.events.append(('settled', len(done), self.window.in_flight))

    def on_frame(self, key, version, body):
        self.events.append((key, version, body))

    def on_failure(self, error):
        if not isinstance(error, (FrameError, ChunkError)):
            raise error
        self.events.append(repr(error))

    def outcome(self):
        chunks = [(c.offset, c.records, c.committed_chunk_id) for c in self.queue.chunks]
        return self.events, chunks, self.window.in_flight, self.waiter.errors


cdef int receive(object engine, const uint8_t *p, Py_ssize_t n) except -1:
    """Receive data like an event loop; poison the rest of the buffer."""
    cdef Py_buffer view
    cdef uint8_t *guard
    cdef Py_ssize_t part, guarded
    while n > 0:
        PyObject_GetBuffer(engine.get_buffer(-1), &view, PyBUF_WRITABLE)
        try:
            if view.len <= 0:
                finding('engine returned an empty buffer')
            part = min(n, view.len)
            memcpy(view.buf, p, part)
            guard = <uint8_t *> view.buf + part
            guarded = min(view.len - part, <Py_ssize_t> GUARD)
        finally:
            PyBuffer_Release(&view)
        ASAN_POISON_MEMORY_REGION(guard, guarded)
        try:
            engine.buffer_updated(part)
        finally:
            ASAN_UNPOISON_MEMORY_REGION(guard, guarded)
        p += part
        n -= part
    return 0


cdef int check_frames(const uint8_t *p, Py_ssize_t n, uint8_t cuts) except -1:
    cdef Py_ssize_t at = 0, part
    whole = Recorder()
    receive(whole, p, n)
    pieces = Recorder()
    while at < n:
        part = min(1 + (cuts & 0x0f), n - at)
        receive(pieces, p + at, part)
        at += part
        cuts = <uint8_t> (cuts * 5 + 3)
    if whole.outcome() != pieces.outcome():
        finding(f'all at once gives {whole.outcome()}, in pieces {pieces.outcome()}')
    if whole.counters.bytes_received != n or pieces.counters.bytes_received != n:
        finding('wrong count of received bytes')
    return 0


cdef api int target(const uint8_t *data, Py_ssize_t size) except -1:
    if size < 2:
        return 0
    if data[0] & 1:
        check_frames(data + 2, size - 2, data[1])
    else:
        check_chunk(
            PyBytes_FromStringAndSize(<const char *> data + 1, size - 1), data[0] >> 1
        )
    return 0
