"""Cut received bytes into frames and dispatch them.

    frame   size u32 (of what follows) | key u16 | version u16 | ...

PublishConfirm and PublishError go to the publisher's window and Deliver to the subscription's
queue, in C; all other frames go to `on_frame`.  The engine creates no future, task or timer.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITE
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from rbfly._wire cimport load_u16, load_u32, load_u64
from rbfly.protocol._block cimport Block, new_block
from rbfly.protocol._chunk cimport Chunk, ChunkQueue, RunningSum, parse_chunk, sum_up
from rbfly.protocol._publish cimport PublishWindow

from rbfly.error import FrameError
from rbfly.protocol.fields import too_long


cdef enum:
    BLOCK = 1 << 18
    HEAD = 1 << 12                  # bytes to receive where a long frame is expected
    FEW = 1 << 15                   # bytes of a frame that are not worth a system call
    ENOUGH = 1 << 17                # bytes of a long frame to wait for
    KEY_CONFIRM = 0x0003
    KEY_ERROR = 0x0004
    KEY_DELIVER = 0x0008

# The client's own limit: brokers send Deliver frames larger than the negotiated frame_max.
LEAST_WAIT = FEW
FRAME_CAP = 256 * 2**20


# Where the chunk of a Deliver frame begins, after the size of the frame.
cdef inline Py_ssize_t chunk_at(int version) noexcept:
    return 5 if version == 1 else 13


@cython.final
cdef class Counters:
    """Totals of the connections of one client, counted per read and write.

    :ivar connections: number of open connections (int).
    :ivar connections_lost: connections that ended without being closed by the client (int).
    :ivar bytes_sent: bytes of the frames written (int).
    :ivar bytes_received: bytes received (int).
    """

    cdef readonly Py_ssize_t connections
    cdef readonly uint64_t connections_lost, bytes_sent, bytes_received

    def on_open(self):
        """Count a connection that has opened."""
        self.connections += 1

    def on_end(self, bint lost):
        """Count an open connection that has ended."""
        self.connections -= 1
        self.connections_lost += lost


cdef class Engine:
    """The bytes of a connection, in both directions.

    :param frame_cap: size of the longest accepted frame, in bytes.
    :param counters: counters to add to; by default the engine's own.
    :ivar sink: called with the bytes to send; None while nothing may be sent.
    :ivar gather: the same, called with a list of bytes.
    :ivar wrote: set to true when bytes are sent (bool).
    :ivar heard: set to true when bytes are received (bool).
    :ivar publishers: windows of the publishers by id, None for unused ids (list).
    """

    cdef readonly Counters counters
    cdef public uint32_t frame_cap
    cdef readonly bint stopped
    cdef readonly object sink, gather
    cdef object wait_for            # of `collect_by`
    cdef Py_ssize_t awaited         # what it was last called with; it may wait for fewer
    cdef public bint wrote, heard
    cdef object block               # bytearray, never resized: the loop may hold views of it
    cdef object view, head          # of the block; of its start
    cdef object target              # where to receive data while the block is empty: one of these
    cdef uint8_t *base
    cdef Py_ssize_t start           # [start, fill) is received, but not dispatched
    cdef Py_ssize_t fill
    cdef Block large                # a frame longer than the block, received in place
    cdef Py_ssize_t large_fill
    cdef Py_ssize_t large_size      # of the whole frame
    cdef RunningSum sum             # of the chunk in it
    cdef readonly list publishers
    cdef list subscriptions

    def __init__(self, uint32_t frame_cap=FRAME_CAP, Counters counters=None):
        self.frame_cap = frame_cap
        self.counters = Counters() if counters is None else counters
        self.block = bytearray(BLOCK)
        self.view = self.target = memoryview(self.block)
        self.head = self.view[:HEAD]
        self.awaited = 1
        self.base = <uint8_t *> PyByteArray_AS_STRING(self.block)
        self.publishers = [None] * 256
        self.subscriptions = [None] * 256

    # -- receivers of frames

    def set_publisher(self, uint8_t id, PublishWindow window):
        """Pass the confirms of publisher `id` to a window; None to drop them."""
        self.publishers[id] = window

    def set_subscription(self, uint8_t id, ChunkQueue queue):
        """Pass the chunks of subscription `id` to a queue; None to drop them."""
        self.subscriptions[id] = queue

    def on_frame(self, int key, int version, bytes body not None):
        """Handle a frame that belongs to no publisher or subscription."""
        raise NotImplementedError

    def on_failure(self, error):
        """Handle malformed data or the exception of a callback; the engine has stopped."""
        raise NotImplementedError

    def stop(self):
        """Drop all data received from now on."""
        self.stopped = True

    # -- sending

    def send_to(self, sink, gather=None):
        """Pass written bytes to a function from now on; None to drop them.

        :param gather: the same for a list of bytes, sent one after the other; None to join them.
        """
        self.sink = sink
        self.gather = gather

    @cython.binding(False)
    def write(self, data not None):
        """Write whole frames (bytes, or a list of bytes); do nothing while nothing may be sent."""
        if type(data) is not bytes:
            self._write_parts(data)
        elif self.sink is not None:
            self.wrote = True
            self.counters.bytes_sent += <uint64_t> PyBytes_GET_SIZE(data)
            self.sink(data)

    cdef int _write_parts(self, list parts) except -1:
        if self.sink is None:
            return 0
        if self.gather is None:
            self.write(b''.join(parts))
            return 0
        self.wrote = True
        for part in parts:
            self.counters.bytes_sent += <uint64_t> PyBytes_GET_SIZE(part)
        self.gather(parts)
        return 0

    # -- receiving

    def collect_by(self, wait_for):
        """Call a function with the number of bytes for which the event loop is to wait.

        :param wait_for: called with 1 when the loop is to wait for any; None if it always does.
        """
        self.wait_for = wait_for

    def get_buffer(self, sizehint):
        """Return the buffer for received bytes, see :class:`asyncio.BufferedProtocol`."""
        if self.large is not None:
            return PyMemoryView_FromMemory(
                <char *> self.large.start + self.large_fill,
                min(self.large.capacity, self.large_size) - self.large_fill,
                PyBUF_WRITE,
            )
        return self.view[self.fill:] if self.fill else self.target

    def buffer_updated(self, Py_ssize_t nbytes):
        """Dispatch the frames that `nbytes` in the buffer complete."""
        cdef Block frame
        self.counters.bytes_received += <uint64_t> nbytes
        self.heard = True
        if self.stopped:
            self.start = self.fill = 0
            return
        try:
            if self.large is not None:
                self.large_fill += nbytes
                self._sum_up()
                if self.large_fill == self.large_size:
                    frame, self.large = self.large, None
                    frame.size = self.large_size
                    self.target = self.head       # another one may follow
                    self._dispatch(frame.start + 4, frame.size - 4, frame)
                elif self.large_fill == self.large.capacity:
                    # Double it, but no more: a frame that only announces a large size uses little.
                    self.large.grow(min(2 * self.large_fill, self.large_size))
            else:
                self.fill += nbytes
                self._cut()
                if self.large is None and self.target is not self.view:
                    self.target = self.view
            if self.wait_for is not None and not self.stopped:
                self._wait_for_more()
        except Exception as ex:
            self.stopped = True
            self.large = None
            self.on_failure(ex)

    # Otherwise, the broker and the client take turns: each part of a chunk wakes the event loop.
    cdef int _wait_for_more(self) except -1:
        cdef Py_ssize_t missing = 0
        if self.large is not None:
            missing = self.large_size - self.large_fill
        elif self.fill >= 4:
            missing = 4 + <Py_ssize_t> load_u32(self.base) - self.fill
        if missing >= 2 * ENOUGH:
            missing = ENOUGH
        # A multiple, so that the number changes a few times per frame only.
        self._await(max(1, missing & ~<Py_ssize_t> (FEW - 1)))
        return 0

    cdef int _await(self, Py_ssize_t count) except -1:
        if count != self.awaited:
            self.awaited = count
            self.wait_for(count)
        return 0

    def take_at_once(self):
        """Receive the next bytes as they arrive."""
        self._await(1)

    cdef int _cut(self) except -1:
        cdef Py_ssize_t left
        cdef uint32_t size
        while not self.stopped:
            left = self.fill - self.start
            if left < 4:
                break
            size = load_u32(self.base + self.start)
            if size < 4:
                raise FrameError(f'a frame of size {size} is too short')
            if size > self.frame_cap:
                raise too_long(size, self.frame_cap)
            if left - 4 < <Py_ssize_t> size:
                if <Py_ssize_t> size + 4 > BLOCK:
                    self.large_size = <Py_ssize_t> size + 4
                    self.large = new_block()
                    self.sum = RunningSum(0, 0, 0)
                    memcpy(self.large.start, self.base + self.start, left)
                    self.large_fill = left
                    self.start = self.fill = 0
                break
            self.start += 4 + <Py_ssize_t> size
            self._dispatch(self.base + self.start - size, size, None)
        if self.start == self.fill:
            self.start = self.fill = 0
        elif self.start:
            memmove(self.base, self.base + self.start, self.fill - self.start)
            self.fill -= self.start
            self.start = 0
        return 0

    # A large chunk is often read when it is no longer in the processor's caches.
    cdef void _sum_up(self) noexcept:
        cdef const uint8_t *p = self.large.start
        if self.large_fill >= 8 and load_u16(p + 4) == KEY_DELIVER:
            sum_up(&self.sum, p, 4 + chunk_at(load_u16(p + 6)), self.large_fill, self.large_size)

    cdef int _dispatch(self, const uint8_t *p, Py_ssize_t n, Block frame) except -1:
        # [p, p+n) follows the size; `frame` owns it, or it is part of the block.
        cdef int key = load_u16(p)
        cdef int version = load_u16(p + 2)
        cdef uint32_t count
        cdef int width
        cdef PublishWindow window
        cdef ChunkQueue queue
        cdef Py_ssize_t at
        cdef bytes copied
        cdef list done
        cdef object committed = None
        cdef Chunk chunk
        if version == 1 and (key == KEY_CONFIRM or key == KEY_ERROR):
            width = 8 if key == KEY_CONFIRM else 10
            if n < 9:
                raise FrameError('a confirm frame ends within its header')
            count = load_u32(p + 5)
            if (n - 9) // width < count:
                raise FrameError(
                    f'a confirm frame has {(n - 9) // width} of the ids it announces ({count})'
                )
            window = self.publishers[p[4]]
            if window is not None:
                if key == KEY_CONFIRM:
                    done = window.confirm(p + 9, count)
                else:
                    done = window.refuse(p + 9, count)
                if window.on_settled is not None:
                    window.on_settled(done)
        elif key == KEY_DELIVER and (version == 1 or version == 2):
            at = chunk_at(version)
            if n < at:
                raise FrameError('a deliver frame ends within its header')
            queue = self.subscriptions[p[4]]
            if queue is not None:
                if version == 2:
                    committed = load_u64(p + 5)
                n -= at
                if frame is None:
                    copied = p[at:at + n]
                    chunk = parse_chunk(
                        copied, <const uint8_t *> PyBytes_AS_STRING(copied), n, committed
                    )
                else:
                    chunk = parse_chunk(memoryview(frame), p + at, n, committed)
                    chunk.found = self.sum.crc
                    chunk.is_summed = frame.start + self.sum.at == chunk.data_end
                queue.push(chunk)
        else:
            self.on_frame(key, version, p[4:n])
        return 0
