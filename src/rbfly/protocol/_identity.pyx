"""Recognizes a stream that was deleted and created again.

The new stream has the name of the old one, and its offsets start at 0.  The chunk that was read
last identifies the old stream: after each reconnect, a subscription requests that chunk again, even
if it has not read a message yet.
"""

cimport cython
from libc.stdint cimport INT64_MAX, int64_t, uint64_t

from rbfly.protocol._chunk cimport Chunk

cdef uint64_t UNKNOWN = 0xffffffffffffffff


@cython.final
cdef class LastChunk:
    """The chunk that was read last, which distinguishes a stream from others of the same name.

    A subscription requests that chunk again after a reconnect; a member of a group, when it joins
    and when it becomes active.  If another chunk is in its place, or the stream begins before it
    but lacks it, the stream was deleted and created again.  Two observations prove nothing:

    * The stream now begins after the chunk: retention has removed it.
    * Earlier chunks arrive: a lagging replica delivers chunks that were read before.  But a chunk
      with a later timestamp than all chunks read is new.  (If the broker's clock is wrong, the new
      stream is recognized once it is as long as the old one; no message is lost.)

    If a subscription starts after the end of the stream, only the id of the last chunk is known
    until that chunk arrives.  If a later chunk arrives instead, the last one contained no messages,
    or a filter dropped it.  Until then, only a chunk that spans that id shows another stream.

    A new stream is not recognized if its own chunks have been removed up to the last one.

    :ivar id: id of the chunk (int); -1 for none.
    :ivar unverified: it was requested again, and neither it nor a later chunk has arrived (bool).
    """

    def __cinit__(self):
        self.forget()

    def forget(self):
        """Forget the chunk: nothing has been read."""
        self.id = -1
        self.epoch = UNKNOWN
        self.unverified = False

    def assume(self, int64_t id):
        """Set the last chunk of the stream, of which only the id is known."""
        self.id = id
        self.end = <uint64_t> id + 1
        self.epoch = UNKNOWN
        self.max_timestamp = INT64_MAX

    def seek(self, first, committed):
        """Return the offset at which to subscribe to receive the chunk again; -1 for the first.

        :param first: id of the first chunk of the stream; None if the broker does not report it.
        :param committed: the same for the last one, -1 for none.
        """
        self.unverified = True
        self.removed = first is None or first < 0 or first > self.id
        # A shorter stream shows its identity by its last chunk; after it, the broker would wait.
        return self.id if committed is None else min(committed, self.id)

    def note(self, Chunk chunk not None):
        """Set the last chunk of the stream."""
        self.forget()
        self._move(chunk, True)

    def is_replaced(self, Chunk chunk):
        """Return true if the chunk that arrives after `seek` is not of the stream that was read.

        :param chunk: None if the stream has no messages from there on.
        """
        if chunk is None:
            return self.epoch != UNKNOWN    # else it may be a chunk of stored offsets
        return self._is_replaced(chunk)

    cdef bint _is_replaced(self, Chunk chunk) noexcept:
        """True if the chunk is not of the stream that was read."""
        cdef uint64_t id = <uint64_t> self.id
        cdef bint known = self.epoch != UNKNOWN
        if not self.unverified:
            return False
        if chunk.offset > id:
            return known and (chunk.offset < self.end or not self.removed)
        if chunk.offset == id and known:
            return (
                chunk.timestamp != self.timestamp
                or chunk.epoch != self.epoch
                or chunk.crc != self.crc
            )
        return (
            chunk.timestamp > self.max_timestamp
            or chunk.epoch > self.epoch
            or (chunk.offset < id and chunk.offset + chunk.records > id)
        )

    cdef bint _has_read(self, Chunk chunk) noexcept:
        """True if the broker has already sent the chunk on this connection: ids only increase."""
        return (
            not self.unverified and self.epoch != UNKNOWN and chunk.offset <= <uint64_t> self.id
        )

    cdef bint _move(self, Chunk chunk, bint sound) noexcept:
        """Advance to a chunk; return false if it was read before."""
        cdef bint known = self.epoch != UNKNOWN
        if self._has_read(chunk):
            return False
        if self.unverified and chunk.offset < <uint64_t> self.id:
            self.removed = False
            return False
        self.unverified = False
        if sound:
            if not known or chunk.timestamp > self.max_timestamp:
                self.max_timestamp = chunk.timestamp
            self.id = <int64_t> chunk.offset
            self.end = chunk.offset + chunk.records
            self.timestamp = chunk.timestamp
            self.epoch = chunk.epoch
            self.crc = chunk.crc
        return True
