# The ring buffer in which a window finds the entries of its messages by publishing id, all inline.

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from rbfly._wire cimport load_u64

cdef enum:
    SMALLEST_RING = 2       # entries; a publisher that stays idle needs none

# States of an entry (Entry.state); 0 if it is queued or in flight.
cdef enum:
    SETTLED = 1             # confirmed, refused or withdrawn
    GIVEN_UP = 2            # queued or in flight, but its caller has given up


cdef struct Entry:
    uint64_t id
    uint32_t frame      # number of its frame, modulo 2**32
    uint32_t waiter     # index into the frame's waiters
    uint32_t start      # position in the frame
    uint32_t size       # from its publishing id to the end of its message, or to a large body
    uint32_t order      # index among its waiter's messages, modulo 2**32
    uint16_t spans      # of a sub-entry: number of spans, from `waiter` on; else 0
    uint8_t state       # SETTLED or GIVEN_UP; else 0


# Entries, in ascending order of their ids.
cdef struct Ring:
    Entry *entries
    uint64_t mask
    # Positions: [head, sent) may be in flight, [sent, tail) queued.
    uint64_t head, sent, tail
    uint64_t cursor     # of the entry whose confirm is expected next


# The publishing ids from 0 to `last`, if any.
cdef struct Ids:
    bint any
    uint64_t last


cdef inline bint contains(Ids *ids, uint64_t id) noexcept:
    return ids.any and id <= ids.last


cdef inline void reach(Ids *ids, uint64_t id) noexcept:
    if not contains(ids, id):
        ids.any = True
        ids.last = id


cdef inline Entry *entry_at(Ring *ring, uint64_t position) noexcept:
    return &ring.entries[position & ring.mask]


cdef inline int ring_open(Ring *ring) except -1:
    ring.entries = <Entry *> PyMem_Malloc(SMALLEST_RING * sizeof(Entry))
    if ring.entries is NULL:
        raise MemoryError
    ring.mask = SMALLEST_RING - 1
    return 0


# Make space for one more entry.
cdef inline int ring_reserve(Ring *ring) except -1:
    cdef uint64_t i, size = ring.mask + 1
    cdef Entry *entries
    if ring.tail - ring.head < size:
        return 0
    entries = <Entry *> PyMem_Malloc(2 * size * sizeof(Entry))
    if entries is NULL:
        raise MemoryError
    for i in range(ring.head, ring.tail):
        entries[i & (2 * size - 1)] = entry_at(ring, i)[0]
    PyMem_Free(ring.entries)
    ring.entries = entries
    ring.mask = 2 * size - 1
    return 0


# Position of the entry with an id before `end`; `end` if there is none.
cdef inline uint64_t ring_search(Ring *ring, uint64_t id, uint64_t end) noexcept:
    cdef uint64_t low = ring.head, high = end, middle, found
    while low < high:
        middle = low + (high - low) // 2
        found = entry_at(ring, middle).id
        if found == id:
            return middle
        if found < id:
            low = middle + 1
        else:
            high = middle
    return end


# The entry of a confirm, and the cursor behind it; NULL if none with this id was sent.
cdef inline Entry *ring_find(Ring *ring, uint64_t id) noexcept:
    cdef uint64_t position = ring.cursor
    if position >= ring.sent or entry_at(ring, position).id != id:
        position = ring_search(ring, id, ring.sent)
        if position == ring.sent:
            return NULL
    ring.cursor = position + 1
    return entry_at(ring, position)


# The frame and the waiter of an entry, in one load.
cdef inline uint64_t place_of(Entry *entry) noexcept:
    return <uint64_t> entry.waiter << 32 | entry.frame


# Count the entries from the found one on that have the ids at `p` and belong to the same waiter and
# frame; the cursor is then behind them.
cdef inline Py_ssize_t ring_follow(
    Ring *ring, Entry *found, const uint8_t *p, Py_ssize_t count
) noexcept:
    cdef uint64_t first = ring.cursor, position = first, place = place_of(found)
    cdef uint64_t end = min(ring.sent, first + <uint64_t> count - 1)
    cdef Entry *next
    if found.spans:
        return 1
    while position < end:
        next = entry_at(ring, position)
        p += 8
        if next.id != load_u64(p) or place_of(next) != place or next.spans | next.state:
            break
        position += 1
    ring.cursor = position
    return <Py_ssize_t> (position - first) + 1
