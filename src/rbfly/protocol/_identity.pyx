"""What the identity of a stream is, and where a subscription starts in it.

A stream that was deleted and created anew has the name of the old one, and offsets from 0 on again.
It is told by the chunk that was read last, which is asked for again wherever a subscription is made
again, also where nothing was read yet.
"""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from rbfly.protocol._chunk cimport Chunk

from rbfly.protocol.offset import Offset, OffsetType

cdef uint64_t UNKNOWN = 0xffffffffffffffff

SKEW = 10.0             # seconds that the broker's clock may be ahead of ours


@cython.final
cdef class LastChunk:
    """The chunk that was read last: what a stream is told by from another one of its name.

    A subscription that is made again asks for that chunk again.  If another one lies where it lay,
    or the stream begins before it and lacks it, then the stream was deleted and created anew.  No
    sign of that are:

    * a first chunk behind it: retention has removed it;
    * chunks before it: a replica that lags behind gives what was read.  One that is newer than all
      that was read was not read.  (By the broker's clock: where that is wrong, the new stream is
      told when it has come as far as the old one; nothing is lost by that.)

    At `Offset.NEXT` only the id may be known, if the subscription was lost before the last chunk
    came, or if a filter left it out.  Then a new stream that is already longer is not told, nor one
    that was made within the time that clocks may differ by.  Nor is, ever, one whose own first
    chunks are gone as far as that.

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

    def presume(self, int64_t id, int64_t max_timestamp):
        """The last chunk at `Offset.NEXT`, written up to a time, milliseconds since the epoch."""
        self.id = id
        self.end = <uint64_t> id + 1
        self.epoch = UNKNOWN
        self.max_timestamp = max_timestamp

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

    cdef bint _move(self, Chunk chunk, bint sound) noexcept:
        """Read on; false if the chunk was read before, and the last one is still to come."""
        if self.doubt and chunk.offset < <uint64_t> self.id:
            self.removed = False
            return False
        self.doubt = False
        if sound:
            if self.epoch == UNKNOWN or chunk.timestamp > self.max_timestamp:
                self.max_timestamp = chunk.timestamp
            self.id = <int64_t> chunk.offset
            self.end = chunk.offset + chunk.records
            self.timestamp = chunk.timestamp
            self.epoch = chunk.epoch
            self.crc = chunk.crc
        return True


class Start:
    """Where a subscription is to be made: at first, and again behind what was read.

    It asks nothing itself: `reference` and `needs_chunks` tell what is to be asked of the broker
    before `subscribe_at`.

    :param offset: where to start at first.
    :ivar offset: the same, once a stored offset is known.
    """

    def __init__(self, offset):
        self.offset = self._wanted = offset
        self._dropped = 0           # messages at the offset
        self._committed = None      # last committed chunk when it was to start

    @property
    def reference(self):
        """Name of a stored offset to ask for, str; None for none, or if it is known."""
        return self.offset.value if self.offset.type == OffsetType.REFERENCE else None

    def resolve(self, stored):
        """The stored offset, int; None for none."""
        if stored is None:
            self.offset = self.offset.default or Offset.FIRST
        else:
            # The message that was read last is taken along, and dropped: see LastChunk.
            self.offset = Offset.offset(stored)
            self._dropped = 1

    def needs_chunks(self, cursor):
        """True if the ids of the first and the last committed chunk are to be asked for."""
        if cursor.position is not None:
            return cursor.last_chunk.id >= 0
        if self._committed is None:
            return self.offset.type in (OffsetType.NEXT, OffsetType.LAST)
        return self.offset.type == OffsetType.NEXT and self._committed >= 0

    def subscribe_at(self, cursor, first, committed, now):
        """The offset to subscribe at; the cursor is told what to drop.

        :param first: id of the first chunk; None if the broker does not tell.
        :param committed: the same of the last committed one, -1 for none.
        :param now: seconds since the epoch.
        """
        cdef object position = cursor.position
        cdef object kind = self.offset.type
        last = cursor.last_chunk
        if position is not None:
            cursor.resume(position, cursor.skip_through_chunk)
            if last.id < 0:
                return Offset.offset(position)      # all that came was damaged
            return self._seek(last, first, committed)
        if kind in (OffsetType.NEXT, OffsetType.LAST):
            if self._committed is None:
                self._committed = committed
                if kind == OffsetType.NEXT and committed is not None and committed >= 0:
                    # The last chunk is taken along, and dropped: see LastChunk.
                    cursor.resume(0, committed)
                    last.presume(committed, round((now + SKEW) * 1000))
                    return Offset.LAST
            elif kind == OffsetType.NEXT and self._committed >= 0:
                cursor.resume(0, self._committed)
                return self._seek(last, first, committed)
            if self._committed == -1:
                # The stream was empty then: what it has now was published since.
                cursor.resume(0, -1)
                return Offset.FIRST
        skip = self.offset.value + self._dropped if kind == OffsetType.OFFSET else 0
        cursor.resume(skip, -1)
        return self.offset

    def _seek(self, last, first, committed):
        # Where the chunk that was read last is to be found, if the stream is the same.
        offset = last.seek(first, committed)
        return Offset.FIRST if offset < 0 else Offset.offset(offset)

    def start_over(self, opened):
        """The stream is gone: start at the first message of the next one.

        :param opened: it was subscribed to; else the next one begins where this was to start.
        """
        self.offset = Offset.FIRST if opened else self._wanted
        self._dropped = 0
        self._committed = None
