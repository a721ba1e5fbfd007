"""What the identity of a stream is.

A stream that was deleted and created again has the name of the old one, and offsets from 0 on.
It is told by the chunk that was read last, which is asked for again wherever a subscription is made
again, also where nothing was read yet.
"""

cimport cython
from libc.stdint cimport INT64_MAX, int64_t, uint64_t

from rbfly.protocol._chunk cimport Chunk

cdef uint64_t UNKNOWN = 0xffffffffffffffff


@cython.final
cdef class LastChunk:
    """The chunk that was read last: what a stream is told by from another one of its name.

    A subscription that is made again asks for that chunk again.  If another one lies where it lay,
    or the stream begins before it and lacks it, then the stream was deleted and created again.  No
    sign of that are:

    * a first chunk behind it: retention has removed it;
    * chunks before it: a replica that lags behind gives what was read.  One that is newer than all
      that was read was not read.  (By the broker's clock: where that is wrong, the new stream is
      told when it has come as far as the old one; nothing is lost by that.)

    Where a subscription starts behind the end of the stream, only the id of the last chunk is known
    until that chunk comes.  It is no chunk of messages, or a filter leaves it out, if a later one
    comes instead.  Until then, only a chunk that lies across that id shows another stream.

    No sign is left of a new stream whose own first chunks are gone as far as the last one.

    :ivar id: of the chunk (int); -1 for none.
    :ivar doubt: it was asked for again, and neither it nor a chunk behind it was seen (bool).
    """

    def __cinit__(self):
        self.forget()

    def forget(self):
        """Nothing was read yet."""
        self.id = -1
        self.epoch = UNKNOWN
        self.doubt = False

    def presume(self, int64_t id):
        """The last chunk of the stream, of which nothing is known but its id."""
        self.id = id
        self.end = <uint64_t> id + 1
        self.epoch = UNKNOWN
        self.max_timestamp = INT64_MAX

    def seek(self, first, committed):
        """Offset to subscribe at for the chunk to come again; -1 for the first of the stream.

        :param first: id of the first chunk of the stream; None if the broker does not tell.
        :param committed: the same for the last one, -1 for none.
        """
        self.doubt = True
        self.removed = first is None or first < 0 or first > self.id
        # Where it ends before, only its last chunk can tell; the broker would wait for the next.
        return self.id if committed is None else min(committed, self.id)

    cdef bint _is_replaced(self, Chunk chunk) noexcept:
        """True if the chunk is not of the stream that was read."""
        cdef uint64_t id = <uint64_t> self.id
        cdef bint known = self.epoch != UNKNOWN
        if not self.doubt:
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
        """True if the broker has sent the chunk before on this connection: ids only increase."""
        return (
            not self.doubt and self.epoch != UNKNOWN and chunk.offset <= <uint64_t> self.id
        )

    cdef bint _move(self, Chunk chunk, bint sound) noexcept:
        """Read on; false if the chunk was read before."""
        cdef bint known = self.epoch != UNKNOWN
        if self._has_read(chunk):
            return False
        if self.doubt and chunk.offset < <uint64_t> self.id:
            self.removed = False
            return False
        self.doubt = False
        if sound:
            if not known or chunk.timestamp > self.max_timestamp:
                self.max_timestamp = chunk.timestamp
            self.id = <int64_t> chunk.offset
            self.end = chunk.offset + chunk.records
            self.timestamp = chunk.timestamp
            self.epoch = chunk.epoch
            self.crc = chunk.crc
        return True
