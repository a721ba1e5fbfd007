"""Chooses the partitions of each message, and fills the windows of partitions for `send_many`.

The hash is the 32-bit MurmurHash3 for x86, as in the other clients of RabbitMQ Streams.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rbfly._turn cimport Turn
from rbfly.amqp._decode cimport keep_error
from rbfly.amqp._message cimport Message
from rbfly.amqp._types cimport clip
from rbfly.protocol._decoder cimport rbfly_steal
from rbfly.protocol._publish cimport PublishWindow
from rbfly.streams._publish._confirm cimport ConfirmGroup

from rbfly.error import (
    ArgumentError, ArgumentTypeError, NoRouteError, PublisherError, of_callback,
)
from rbfly.net.locator import named
from rbfly.streams._publish._core import NOT_OPEN

cdef extern from 'Python.h':
    PyObject *PyObject_CallOneArg(object function, object argument) noexcept

cdef enum:
    SEED = 104729
    C1 = 0xCC9E2D51
    C2 = 0x1B873593
    TURN_BYTES = 1 << 18    # `fill` returns to write what it has encoded


cdef inline uint32_t load_little(const uint8_t *p) noexcept nogil:
    return p[0] | <uint32_t> p[1] << 8 | <uint32_t> p[2] << 16 | <uint32_t> p[3] << 24


cdef inline uint32_t rotate(uint32_t value, int bits) noexcept nogil:
    return value << bits | value >> (32 - bits)


cdef uint32_t murmur3(const uint8_t *p, Py_ssize_t size) noexcept nogil:
    cdef const uint8_t *end = p + (size & ~<Py_ssize_t> 3)
    cdef uint32_t found = SEED, rest = 0
    cdef Py_ssize_t left = size & 3
    while p < end:
        found ^= rotate(load_little(p) * <uint32_t> C1, 15) * <uint32_t> C2
        found = rotate(found, 13) * 5 + <uint32_t> 0xE6546B64
        p += 4
    while left:
        left -= 1
        rest = rest << 8 | p[left]
    found ^= rotate(rest * <uint32_t> C1, 15) * <uint32_t> C2
    found ^= <uint32_t> size
    found = (found ^ found >> 16) * <uint32_t> 0x85EBCA6B
    found = (found ^ found >> 13) * <uint32_t> 0xC2B2AE35
    return found ^ found >> 16


cdef uint32_t hash_of(object key) except? 0xdead:
    cdef Py_ssize_t size = 0
    cdef const char *text
    if type(key) is not str and not isinstance(key, str):
        raise ArgumentTypeError(
            f'the key of a message must be str, not {type(key).__name__}: return str(key)'
        )
    try:
        text = PyUnicode_AsUTF8AndSize(key, &size)
    except UnicodeEncodeError as ex:
        raise ArgumentError(f'the key of a message is not valid Unicode: {ex}') from None
    return murmur3(<const uint8_t *> text, size)


@cython.final
cdef class HashRoute:
    """Routes a message by the hash of its key.

    :param key: returns the key of a message (str).
    """

    cdef readonly object key

    def __init__(self, key):
        self.key = key

    def __call__(self, message, partitions):
        cdef uint32_t found = hash_of(self.key(message))
        cdef Py_ssize_t count = len(partitions)
        if count == 0:
            raise ArgumentError('by_hash cannot choose a partition: there are none')
        return partitions[found % count]


@cython.final
cdef class KeyRoute:
    """Routes a message to the partitions that the broker has bound to its key.

    :param key: returns the key of a message (str).
    """

    cdef readonly object key

    def __init__(self, key):
        self.key = key


@cython.final
cdef class PublishTarget:
    """One partition of a publisher: its own publisher.

    :param index: number of the partition.
    :param publisher: publishes to the partition.
    """

    cdef readonly Py_ssize_t index
    cdef readonly object publisher, session, core
    cdef PublishWindow window

    def __init__(self, index, publisher):
        self.index = index
        self.publisher = publisher
        self.session = publisher._session
        self.core = publisher._core
        self.window = self.core.window


# The key of a message.
cdef inline object call_key(Router router, object message):
    cdef PyObject *found = PyObject_CallOneArg(router.key, message)
    if found is NULL:
        fail_key(router, message)
    return rbfly_steal(found)


cdef int fail_key(Router router, object message) except -1:
    name = 'by_hash' if router.hashed else 'by_key'
    try:
        keep_error()
    except BaseException as ex:
        raise of_callback(ex, f'the key function of {name} for the message {clip(message)}')


cdef enum Ids:
    ANY                     # no message so far
    AUTOMATIC
    EXPLICIT


@cython.final
cdef class Router:
    """Finds the partitions of each message, and checks that publishing ids are of one kind.

    :param route: HashRoute, KeyRoute, or a function of a message and the names of the partitions.
    :param names: names of the partitions in order; a partition may occur several times.
    :param partitions: PublishTarget by name.
    :ivar cache: targets by key, for a KeyRoute.
    """

    cdef readonly object route, key
    cdef readonly tuple names
    cdef readonly dict partitions, cache
    cdef list slots         # PublishTarget of each name
    cdef uint32_t count     # of slots
    cdef bint hashed, asked
    cdef Ids ids
    cdef readonly bint holds    # messages of `batch` wait for their routes

    def __init__(self, route, tuple names, dict partitions):
        self.route = route
        self.names = names
        self.partitions = partitions
        self.slots = [partitions[name] for name in names]
        self.count = <uint32_t> len(names)
        self.hashed = type(route) is HashRoute
        self.asked = type(route) is KeyRoute
        self.key = route.key if self.hashed or self.asked else None
        self.cache = {}

    cdef object _find(self, object message):
        # A PublishTarget, or a tuple of them; the key (str) if the broker must be asked.
        if self.ids != kind_of(message):
            self._change_ids(kind_of(message))
        return self._route(message)

    @cython.final
    cdef inline object _route(self, object message):
        if self.hashed:
            return <PublishTarget> self.slots[hash_of(call_key(self, message)) % self.count]
        if self.asked:
            key = call_key(self, message)
            hash_of(key)            # check it
            found = self.cache.get(key)
            if type(found) is PublishTarget and (<PublishTarget> found).core.error is None:
                return found
            if type(found) is tuple and not any([item.core.error for item in found]):
                return found
            self.cache.pop(key, None)   # a partition may be gone
            return key
        try:
            found = self.route(message, self.names)
            if not isinstance(found, (str, tuple, list)) and hasattr(found, '__iter__'):
                found = tuple(found)    # it may run code of the program
        except BaseException as ex:
            raise of_callback(ex, f'`route` for the message {clip(message)}')
        return self.targets(found)

    cdef int _change_ids(self, Ids ids) except -1:
        # Automatic ids continue the sequence of a partition, explicit ids that of the program: an
        # automatic one could hide a later explicit one from the broker.
        cdef PublishTarget item
        for item in self.partitions.values():
            if self.ids != ANY and (self.holds or item.window.used.any):
                this, others = 'an automatic', 'explicit'
                if ids == EXPLICIT:
                    this, others = 'an explicit', 'automatic'
                raise ArgumentError(
                    f'{this} publishing id in a publisher of {others} ones: a publisher of a super'
                    ' stream uses one kind only'
                )
        self.ids = ids
        return 0

    def find_batch(self, messages, bint explicit):
        """Return what `find` returns for each message of an atomic batch, without duplicates.

        :param explicit: the batch has an explicit publishing id; its messages have none.
        """
        cdef Ids ids = EXPLICIT if explicit else AUTOMATIC
        if self.ids != ids:
            self._change_ids(ids)
        return list(dict.fromkeys([self._route(message) for message in messages]))

    def hold(self, bint holds):
        """Note that messages of `batch` wait for their routes, or that they no longer do."""
        self.holds = holds

    def find(self, message):
        """Return a PublishTarget, or a tuple of several; a key (str) to ask the broker for."""
        return self._find(message)

    def targets(self, found, key=None):
        """Return the PublishTarget with a name, or a tuple for a sequence of names.

        :raises NoRouteError: the sequence is empty.
        :raises ArgumentError: there is no such partition.
        """
        cdef dict partitions = self.partitions
        if isinstance(found, str):
            if found in partitions:
                return partitions[found]
            found = (found,)
        try:
            names = dict.fromkeys(found)
        except TypeError:
            raise ArgumentTypeError(
                f'route must return the names of partitions, not {found!r}'
            ) from None
        for name in names:
            if name not in partitions:
                if key is not None:
                    raise NoRouteError(
                        f'key {key!r} is bound to {name!r}, which was no partition when the'
                        ' publisher was opened: open it again'
                    )
                raise ArgumentError(
                    f'route returned {name!r}, which is not one of the partitions'
                    f' {named([*partitions])}'
                )
        if not names:
            text = 'route chose no partition for the message' if key is None else (
                f'no partition is bound to key {key!r}')
            raise NoRouteError(f'{text}; the message was not sent')
        if len(names) == 1:
            return partitions[next(iter(names))]
        return tuple([partitions[name] for name in names])


cdef inline bint has_id(object message):
    return type(message) is Message and (<Message> message).is_set_stream_publish_id


cdef inline Ids kind_of(object message):
    return EXPLICIT if has_id(message) else AUTOMATIC


cdef class FastRoutedPublisher:
    """Methods of publishers over partitions that run for each message."""

    cdef public Router _router

    @cython.binding(False)
    def batch(self, message):
        """Queue a message for its partition; `flush` sends it.

        See :meth:`Publisher.batch`.  The next `send`, `submit` or `send_many` sends the messages
        that are queued for the partitions of its own messages.  With :func:`by_key`, a message
        whose route is unknown, and those after it, are encoded only when the broker has reported
        the route: do not change them before.

        :param message: body, or context with a body; bytes if the publisher is not `amqp`.
        :raises NoRouteError: the message has no partition; for `by_key`, `flush` raises this.

        And the errors of :meth:`Publisher.batch`.
        """
        cdef object found
        if self._router is None:
            raise PublisherError(NOT_OPEN)
        found = self._router._find(message)
        if type(found) is PublishTarget and not self._router.holds:
            (<PublishTarget> found).publisher.batch(message)
        else:
            self._batch(found, message)

    @cython.binding(False)
    def _begin(self, message, timeout):
        """Put a message into the window of its partition, if it can go there now.

        Returns what to await: a ConfirmFuture; or a coroutine, which puts the message later.
        """
        cdef Router router = self._router
        cdef object found, wait
        if router is None:          # only `__new__` was called
            raise PublisherError(NOT_OPEN)
        found = router._find(message)
        if type(found) is not PublishTarget or router.holds:
            return self._send(found, message, timeout)
        if timeout is None and not has_id(message):
            wait = (<PublishTarget> found).publisher._begin(message)
            if wait is not None:
                return wait
        return (<PublishTarget> found).publisher.send(message, timeout)


@cython.final
cdef class Share:
    # The part of one call of `send_many` that goes to one partition.
    cdef PublishTarget partition
    cdef ConfirmGroup group
    cdef Py_ssize_t left    # free places of the window; 0 before the partition is asked
    cdef bint queued        # messages were queued in the window since the last `write`


@cython.final
cdef class RoutedMessages:
    """The messages of one call of `send_many`, with a ConfirmGroup for each partition.

    :param router: of the publisher.
    :ivar taken: number of messages taken.
    :ivar in_hand: a message was taken, but not sent to all its partitions.
    :ivar target: what the router has found for the message in hand.
    :ivar groups: the messages that each session has taken.
    :ivar skipped: indexes of the messages that no partition has taken.
    :ivar partial: the same, of those that only some of their partitions have taken.
    """

    cdef Router router
    cdef list shares        # by index of the partition
    cdef list queued        # shares with messages to write
    cdef readonly uint64_t taken
    cdef readonly object target
    cdef readonly bint in_hand
    cdef readonly dict groups
    cdef readonly list skipped, partial
    cdef object message     # in hand
    cdef bint begun         # a partition has taken the message in hand
    cdef uint64_t encoded

    def __init__(self, Router router not None):
        self.router = router
        self.shares = [None] * len(router.partitions)
        self.queued = []
        self.groups = {}
        self.skipped = []
        self.partial = []

    def fill(self, iterator, Turn turn not None):
        """Take messages and put them into their windows until the end of the turn.

        Returns False when the iterator is exhausted.  Stops with a message in hand if a window is
        full, or if the message has no single known partition.

        :raises Exception: an error of the iterator, of routing or of encoding.
        """
        cdef Router router = self.router
        cdef Share share
        cdef uint64_t bytes_before
        self.encoded = 0
        for message in iterator:
            self.message = message
            self.in_hand = True
            self.target = target = router._find(message)
            if type(target) is not PublishTarget:
                return True
            share = <Share> self.shares[(<PublishTarget> target).index]
            if share is None:
                share = self._share(<PublishTarget> target)
            if share.left <= 0 and not self._refresh(share):
                return True
            bytes_before = share.partition.window.bytes_encoded
            self._append(share)
            self.in_hand = False
            self.taken += 1
            share.left -= 1
            self.encoded += share.partition.window.bytes_encoded - bytes_before
            if self.encoded >= TURN_BYTES or turn._is_over():
                return True
        return False

    cdef int _append(self, Share share) except -1:
        # Indexes of the group's messages are those of the whole call.
        cdef PublishWindow window = share.partition.window
        share.group.count = self.taken
        window._append(self.message, share.group)
        if not share.queued:
            share.queued = True
            self.queued.append(share)
        if window.queued >= window.frame_entries:
            share.left = 0          # write whole frames before the window is filled further
        return 0

    cdef Share _share(self, PublishTarget partition):
        cdef Share share = Share.__new__(Share)
        share.partition = partition
        share.group = ConfirmGroup()
        self.shares[partition.index] = share
        self.groups[partition.session] = share.group
        return share

    cdef bint _refresh(self, Share share) except -1:
        # True if the window has capacity now, and no error has ended the call.
        cdef object core = share.partition.core
        cdef Py_ssize_t free
        if share.group.errors is not None or share.group.settled:
            return False
        if not core.accepts or core.capacity.waiting:
            return False
        if share.partition.window.queued >= share.partition.window.frame_entries:
            core.write()
        free = core.free()
        share.left = free
        return free > 0

    def put(self, PublishTarget partition not None):
        """Put the message in hand into the window of one of its partitions, which has capacity."""
        cdef Share share = <Share> self.shares[partition.index]
        if share is None:
            share = self._share(partition)
        self._append(share)
        self.begun = True

    def take(self, message):
        """Take a message in hand."""
        self.message = message
        self.in_hand = True

    def find(self):
        """Find the partitions of the message in hand."""
        self.target = self.router._find(self.message)

    def finish(self):
        """Count the message in hand, which all its partitions have taken."""
        self.in_hand = self.begun = False
        self.taken += 1

    def skip(self):
        """Count the message in hand, which cannot be sent, at least not to all its partitions."""
        (self.partial if self.begun else self.skipped).append(self.taken)
        self.message = None
        self.finish()

    def write(self):
        """Write the messages that were queued in the windows."""
        cdef Share share
        for share in self.queued:
            share.left = 0
            share.queued = False
            share.partition.core.write()
        self.queued.clear()

    def has_failed(self, sessions):
        """True if a message to one of some sessions was refused, or its publisher gave up."""
        cdef ConfirmGroup group
        for session in sessions:
            group = self.groups.get(session)
            if group is not None and (group.errors is not None or group.settled):
                return True
        return False


def hash32(str key not None):
    """Return the hash of a key: MurmurHash3 for x86, 32 bits, of its UTF-8 (int)."""
    return hash_of(key)
