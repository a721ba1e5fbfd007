"""Random walks over the registrations of publishers and subscriptions.

Everything but the sockets and the choice of a node is the real client; the walk reads and writes
the bytes of its connections.  A rule takes effect at once, within the current turn of the event
loop; `turn` runs further turns, and only `wait` lets time pass.
"""

from __future__ import annotations

import asyncio
import gc
import math
import re
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import rbfly.streams as rbs
from rbfly.error import RbFlyError, StreamConnectionError, StreamDoesNotExist, protocol_error
from rbfly.net.cluster import Cluster
from rbfly.net.connection import Connection
from rbfly.net.observer import Life, Observer, Role, State
from rbfly.net.registration import LIFE, TRANSITIONS, Registration
from rbfly.net.retry import Deadline
from rbfly.net.uri import Settings, parse_uri
from rbfly.protocol import commands, message_frames
from rbfly.protocol.const import Key, ResponseCode
from rbfly.streams._consume import waiter as reading
from tests.clock import ClockLoop
from tests.fake_broker import chunk, deliver
from tests.inside import cluster_of, pool_of, session_of
from tests.raw_client import decode_frame
from tests.sizes import sized
from tests.stream_wire import feed, split_frames

URI = 'rabbitmq-stream://guest:guest@node:5552/'
LIMIT = 20.0  # seconds that an outage may last
TURNS = 30  # turns of the event loop after which only a response can change something
USERS = 4
FINAL = [ResponseCode.ACCESS_REFUSED, ResponseCode.STREAM_DOES_NOT_EXIST]
CODES = [
    *[ResponseCode.OK] * 4,
    *[ResponseCode.STREAM_NOT_AVAILABLE] * 2,
    ResponseCode.INTERNAL_ERROR,
    ResponseCode.PRECONDITION_FAILED,
    *FINAL,
]
SAME_TURN = [*[''] * 4, 'lose', 'move']  # what else happens in the turn of a response
DECLARE = {Key.DECLARE_PUBLISHER: 'publisher_id', Key.SUBSCRIBE: 'subscription_id'}
UNDECLARE = {Key.DELETE_PUBLISHER: 'publisher_id', Key.UNSUBSCRIBE: 'subscription_id'}


class Peer(asyncio.Transport):
    """The transport of a connection, with the broker behind it.

    :ivar requests: unanswered requests.
    :ivar held: registrations by id, until the broker confirms their removal.
    :ivar leaving: ids whose removal the client has requested.
    :ivar moved: ids that the broker has removed by itself.
    """

    def __init__(self, walk: Walk, role: Role) -> None:
        super().__init__()
        self.walk, self.role = walk, role
        self.lost = False
        self.requests: list[commands.Request] = []
        self.held: dict[int, Registration] = {}
        self.leaving: set[int] = set()
        self.moved: set[int] = set()
        self.unconfirmed: list[message_frames.Publish] = []
        self.connection = Connection(parse_uri(URI).address, Settings([]))
        self.connection.connection_made(self)
        self.connection.start(commands.Tune(0, 0), {}, None, ())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        for key, version, body in split_frames(data):
            found = decode_frame(key, version, body)
            assert not isinstance(found, commands.Response)
            command = found.command if isinstance(found, commands.Request) else found
            self.check(command)
            if isinstance(found, commands.Request):
                self.requests.append(found)

    def check(self, command: Any) -> None:
        """Check a command of the client against the state of its registration."""
        with self.walk.collect_failures():
            self._check(command)

    def _check(self, command: Any) -> None:
        key = command.key
        if key in DECLARE:
            number = getattr(command, DECLARE[key])
            assert number not in self.held, 'an id has one owner'
            owners = [
                registration for registration in self.registrations if registration.id == number
            ]
            assert len(owners) == 1, 'a registration is registered before its request is sent'
            assert self.walk.states[owners[0]] is State.OPENING, 'only an opening one declares'
            self.held[number] = owners[0]
        elif key in UNDECLARE:
            number = getattr(command, UNDECLARE[key])
            assert number in self.held
            assert number not in self.leaving, 'an id is removed once'
            self.leaving.add(number)
        elif isinstance(command, message_frames.Publish):
            assert self.walk.states[self.held[command.publisher_id]] is State.OPEN
            self.unconfirmed.append(command)
        elif isinstance(command, commands.Credit):
            assert self.walk.states[self.held[command.subscription_id]] is State.OPEN

    @property
    def registrations(self) -> list[Registration]:
        return [
            registration
            for registration in self.connection.registrations
            if isinstance(registration, Registration)
        ]

    def answer(self, code: ResponseCode) -> None:
        """Answer the oldest request."""
        request = self.requests.pop(0)
        command: Any = request.command
        if command.key in UNDECLARE:
            number = getattr(command, UNDECLARE[command.key])
            del self.held[number]
            self.leaving.discard(number)
            self.moved.discard(number)
            code = ResponseCode.OK
        value = None
        if isinstance(command, commands.StreamStats) and code == ResponseCode.OK:
            value = dict.fromkeys(('first_chunk_id', 'last_chunk_id', 'committed_chunk_id'), 1)
        feed(self.connection, command.respond(request.correlation_id, value, code))

    def abort(self) -> None:
        if not self.lost:
            self.lost = True
            self.walk.loop.call_soon(self.connection.connection_lost, None)

    close = abort

    def lose(self) -> None:
        """Lose the connection at once."""
        self.lost = True
        self.connection.connection_lost(None)


class User:
    """A publisher or a subscription of the program, and the tasks that use it."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.registration: Registration | None = None
        self.waiting: list[asyncio.Task[Any]] = []
        self.leaving: list[asyncio.Task[Any]] = []
        self.loop = walk.loop

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.walk.loop.create_task(work)
        self.waiting.append(task)
        return task

    @property
    def is_usable(self) -> bool:
        return False

    @property
    def is_opening(self) -> bool:
        """Whether the program waits for it to open for the first time."""
        return False

    def use(self) -> None:
        pass

    def close(self) -> None:
        pass

    def cancel(self) -> None:
        pass

    def reap(self) -> None:
        """Check the outcome of each task that is done."""
        for task in [item for item in self.waiting + self.leaving if item.done()]:
            assert not task.cancelled() or task.cancelling(), 'only the walk cancels tasks'
            if not task.cancelled() and (error := task.exception()) is not None:
                assert isinstance(error, RbFlyError | StopAsyncIteration), repr(error)
                assert error not in self.walk.raised, 'each raise has its own exception'
                self.on_error(error)
            (self.waiting if task in self.waiting else self.leaving).remove(task)

    def on_error(self, error: BaseException) -> None:
        pass


class PublisherUser(User):
    def __init__(self, walk: Walk, name: str | None) -> None:
        super().__init__(walk)
        self.publisher: rbs.Publisher | None = None
        self.leave = asyncio.Event()
        self.scope = walk.loop.create_task(self.run(name))
        self.leaving.append(self.scope)

    async def run(self, name: str | None) -> None:
        async with self.walk.client.publisher('test', name=name, amqp=False) as publisher:
            self.publisher = publisher
            self.registration = session_of(publisher).registration
            await self.leave.wait()

    @property
    def is_opening(self) -> bool:
        return self.publisher is None and not self.scope.done()

    @property
    def is_usable(self) -> bool:
        if self.publisher is None or self.leaving == [] or self.loop is not self.walk.loop:
            return False
        session = session_of(self.publisher)
        return not self.leave.is_set() and not session.registration.is_disconnected

    def use(self) -> None:
        if self.publisher is not None:
            self.start(self.publisher.send(b'x'))

    def close(self) -> None:
        self.leave.set()

    def cancel(self) -> None:
        self.scope.cancel()


class SubscriptionUser(User):
    def __init__(self, walk: Walk, offset: rbs.Offset) -> None:
        super().__init__(walk)
        self.messages: rbs.Subscription | None = walk.client.subscribe(
            'test', offset=offset, amqp=False
        )
        self.registration = session_of(self.messages).registration

    @property
    def is_usable(self) -> bool:
        return self.messages is not None and not self.leaving

    def use(self) -> None:
        if self.messages is not None and not self.waiting:
            self.start(next_of(self.messages))

    def on_error(self, error: BaseException) -> None:
        if not isinstance(error, StopAsyncIteration):
            self.walk.raised.append(error.with_traceback(None))  # it refers to the subscription

    def close(self) -> None:
        if self.messages is not None and not self.leaving:
            self.leaving.append(self.walk.loop.create_task(self.messages.aclose()))

    def cancel(self) -> None:
        for task in self.waiting:
            task.cancel()

    def drop(self) -> None:
        self.messages = None


async def next_of(messages: rbs.Subscription) -> None:
    await anext(messages, None)


indices = st.integers(0, USERS - 1)
rarely = st.sampled_from([False] * 5 + [True])


def having(*states: State) -> Callable[[Any], bool]:
    """Return a precondition: some registration is in one of these states."""
    return lambda self: any(state in states for state in self.states.values())


serving = precondition(lambda self: any(peer.held for peer in self.open_peers))


class Walk(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.turns = pytest.MonkeyPatch()
        self.turns.setattr(reading, 'TURN', math.inf)  # real time would change the walk
        self.states: dict[Registration, State] = {}
        self.lives: dict[Registration, Life] = {}
        self.raised: list[BaseException] = []
        self.users: list[User] = []
        self.peers: list[Peer] = []
        self.asked: list[tuple[Role, asyncio.Future[Connection]]] = []
        self.failures: list[object] = []
        self.disconnecting: asyncio.Task[None] | None = None
        self.begin_loop()
        with self.inside():
            self.client = rbs.streams_client(URI, connect_timeout=LIMIT, reconnect_timeout=LIMIT)
        self.cluster: Cluster = cluster_of(self.client)
        self.cluster.reserve = self.reserve
        self.cluster.observers.add(TransitionCheck(self))

    # -- the event loop, and the choice of a node

    def begin_loop(self) -> None:
        self.loop = ClockLoop()
        self.loop.set_exception_handler(lambda _, context: self.failures.append(context))

    @contextmanager
    def inside(self) -> Iterator[None]:
        asyncio._set_running_loop(self.loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)

    @contextmanager
    def collect_failures(self) -> Iterator[None]:
        """Keep failed assertions for an invariant, as callers may swallow them."""
        try:
            yield
        except AssertionError as ex:
            self.failures.append(ex)

    def run(self, turns: int = TURNS) -> None:
        for _ in range(turns):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    async def reserve(
        self, role: Role, stream: str, deadline: Deadline, declared: bool
    ) -> tuple[Connection, int]:
        """Replace that of the cluster; a disconnect ends the wait."""
        self.check(deadline)
        asked: asyncio.Future[Connection] = self.loop.create_future()
        self.asked.append((role, asked))
        attempts: dict[Any, Any] = pool_of(self.client)._connects
        attempts[asked] = SimpleNamespace(task=asked)
        try:
            await asyncio.wait([asked])
        finally:
            del attempts[asked]
            asked.cancel()
        self.check(deadline)
        connection = asked.result()
        return connection, connection.ids(role).pop()

    def check(self, deadline: Deadline) -> None:
        if deadline.generation != self.cluster.generation:
            raise StreamConnectionError('the client was disconnected')

    def user(self, index: int) -> User | None:
        return self.users[index] if index < len(self.users) else None

    @property
    def open_peers(self) -> list[Peer]:
        return [peer for peer in self.peers if peer.connection.is_open]

    def peer(self, index: int) -> Peer | None:
        found = self.open_peers
        return found[index % len(found)] if found else None

    # -- rules: the program

    @initialize(rounds=st.integers(0, 5))
    def begin(self, rounds: int) -> None:
        self.publisher(named=True)
        self.subscription(stored=False)
        self.serve(rounds)

    @precondition(lambda self: len(self.users) < USERS)
    @rule(named=st.booleans())
    def publisher(self, named: bool) -> None:
        with self.inside():
            self.users.append(PublisherUser(self, str(len(self.users)) if named else None))

    @precondition(lambda self: len(self.users) < USERS)
    @rule(stored=st.booleans())
    def subscription(self, stored: bool) -> None:
        """With a stored offset, the client queries it before it subscribes."""
        offset = rbs.Offset.reference('me') if stored else rbs.Offset.FIRST
        user = SubscriptionUser(self, offset)
        self.users.append(user)
        with self.inside():
            user.use()

    @rule(index=indices)
    def ensure_open(self, index: int) -> None:
        user = self.user(index)
        if user is not None:
            with self.inside():
                user.use()

    @precondition(having(*State))
    @rule(index=indices)
    def close(self, index: int) -> None:
        user = self.user(index)
        if user is not None and user.loop is self.loop:
            with self.inside():
                user.close()

    @precondition(having(*State))
    @rule(index=indices)
    def drop(self, index: int) -> None:
        user = self.user(index)
        if isinstance(user, SubscriptionUser):
            with self.inside():
                user.drop()

    @precondition(having(*State))
    @rule(index=indices)
    def cancel(self, index: int) -> None:
        user = self.user(index)
        if user is not None:
            user.cancel()

    @precondition(having(State.OPENING, State.BACKING_OFF))
    @rule(index=indices)
    def cancel_opening(self, index: int) -> None:
        """Cancel the task that opens a registration, as the end of `asyncio.run` does."""
        user = self.user(index)
        if (
            user is not None
            and user.registration is not None
            and user.registration._task is not None
        ):
            user.registration._task.cancel()

    @precondition(lambda self: self.disconnecting is None)
    @rule(now=rarely, found=st.booleans())
    def disconnect(self, now: bool, found: bool) -> None:
        """Disconnect the client, perhaps in the turn in which a registration finds its node."""
        if now:
            self.disconnecting = self.loop.create_task(self.client.disconnect())
            if found:
                self.find(ResponseCode.OK)

    @precondition(having(*State))
    @rule(now=rarely)
    def end_loop(self, now: bool) -> None:
        """End the event loop as `asyncio.run` does, and continue in another one."""
        if not now:
            return
        cancel_all(self.loop)
        self.run()
        assert not asyncio.all_tasks(self.loop)
        self.loop.close()
        self.disconnecting = None
        self.peers.clear()
        self.asked.clear()
        self.begin_loop()
        with self.inside():
            self.cluster.check_loop()
        for user in self.users:
            user.reap()
            if isinstance(user, SubscriptionUser):
                user.loop = self.loop  # a subscription can continue, a publisher cannot

    # -- rules: the broker

    @rule(rounds=st.integers(1, 4))
    def serve(self, rounds: int) -> None:
        """Find nodes and answer requests, without faults."""
        for _ in range(rounds):
            self.run(2)
            self.find(ResponseCode.OK)
            self.run(2)
            for index in range(len(self.open_peers)):
                self.answer(index, ResponseCode.OK)

    @precondition(lambda self: any(not asked.done() for _, asked in self.asked))
    @rule(code=st.sampled_from([ResponseCode.OK] * 3 + FINAL))
    def find(self, code: ResponseCode) -> None:
        """End the first wait for a node, with a connection or an error."""
        while self.asked:
            role, asked = self.asked.pop(0)
            if asked.done():
                continue
            if code == ResponseCode.STREAM_DOES_NOT_EXIST:
                asked.set_exception(StreamDoesNotExist('test'))
                asked.exception()  # retrieved: perhaps no task waits
            elif code != ResponseCode.OK:
                asked.set_exception(protocol_error(code))
                asked.exception()
            else:
                asked.set_result(self.connect(role))
            return

    def connect(self, role: Role) -> Connection:
        group: list[Connection] = pool_of(self.client)._connections[role]
        group[:] = [item for item in group if item.is_open]
        if not group:
            with self.inside():
                peer = Peer(self, role)
            self.peers.append(peer)
            group.append(peer.connection)
        return group[0]

    @precondition(lambda self: any(peer.requests for peer in self.open_peers))
    @rule(index=indices, code=st.sampled_from(CODES), also=st.sampled_from(SAME_TURN))
    def answer(self, index: int, code: ResponseCode, also: str = '') -> None:
        peer = self.peer(index)
        if peer is not None and peer.requests:
            with self.inside():
                peer.answer(code)
        if also == 'lose':
            self.lose(index)
        elif also == 'move':
            self.move(index)

    @serving
    @rule(index=indices)
    def lose(self, index: int) -> None:
        peer = self.peer(index)
        if peer is not None:
            with self.inside():
                peer.lose()

    @serving
    @rule(index=indices)
    def move(self, index: int) -> None:
        peer = self.peer(index)
        if peer is not None:
            peer.moved.update(peer.held)
            with self.inside():
                feed(peer.connection, commands.MetadataUpdate(0x06, 'test').encode())

    @precondition(lambda self: any(peer.unconfirmed for peer in self.open_peers))
    @rule(index=indices, unknown=st.booleans())
    def confirm(self, index: int, unknown: bool) -> None:
        """Confirm a Publish, or refuse it because the publisher is unknown."""
        peer = self.peer(index)
        while peer is not None and peer.unconfirmed:
            publish = peer.unconfirmed.pop(0)
            ids = [entry.publishing_id for entry in publish.entries]
            if publish.publisher_id in peer.held:
                code = ResponseCode.PUBLISHER_DOES_NOT_EXIST
                errors = tuple((number, code) for number in ids)
                frame = (
                    message_frames.PublishError(publish.publisher_id, errors)
                    if unknown
                    else message_frames.PublishConfirm(publish.publisher_id, tuple(ids))
                )
                with self.inside():
                    feed(peer.connection, frame.encode())
                return

    @precondition(having(State.OPEN))
    @rule(index=indices)
    def deliver(self, index: int) -> None:
        peer = self.peer(index)
        if peer is not None and peer.role is Role.CONSUME:
            for number, registration in peer.held.items():
                if self.states[registration] is State.OPEN and number not in peer.leaving:
                    with self.inside():
                        feed(peer.connection, deliver(number, chunk(1, [b'x'])))
                    return

    # -- rules: time

    @rule(turns=st.integers(1, 4))
    def turn(self, turns: int) -> None:
        self.run(turns)

    @rule(seconds=st.sampled_from([0.5, 6.0, LIMIT + 1, 40.0]))
    def wait(self, seconds: float) -> None:
        self.loop._clock.passed += seconds
        self.run(1)

    @precondition(having(State.BACKING_OFF))
    @rule(rounds=st.integers(0, 4))
    def try_again(self, rounds: int) -> None:
        """End the delay; the broker answers."""
        self.wait(0.5)
        self.serve(rounds)

    @rule()
    def settle(self) -> None:
        """Run until only a response can change something; no task waits for nothing."""
        self.run()
        for user in self.users:
            user.reap()
            registration = user.registration
            if registration is None or user.loop is not self.loop:
                continue
            if registration.state is State.IDLE:
                assert not user.waiting, f'{registration} is idle and a task waits'
            if registration.state in (State.OPENING, State.BACKING_OFF):
                assert registration._task is not None
                assert not registration._task.done()
            if registration.state is State.LOST:
                assert isinstance(user, SubscriptionUser), 'a publisher always reconnects'
                assert not user.waiting
        if self.disconnecting is not None and self.disconnecting.done():
            self.disconnecting = None
        if self.disconnecting is None:  # otherwise its connection has to end first
            first = [
                registration
                for registration in self.states
                if registration.state in (State.OPENING, State.BACKING_OFF)
                and not registration.declared
            ]
            opening = [
                registration for registration in first if registration._owner.role is Role.PUBLISH
            ]
            assert len(opening) == sum(user.is_opening for user in self.users)

    @precondition(lambda self: self.disconnecting is None)
    @precondition(having(State.IDLE))
    @rule()
    def use_again(self) -> None:
        """A use reopens a failed registration.

        A subscription first returns the messages that have arrived, then raises its error.
        """
        self.settle()
        for user in self.users:
            registration = user.registration
            if registration is None or registration.life is not Life.ACTIVE or not user.is_usable:
                continue
            for _ in range(20):
                if registration.state is State.IDLE:
                    with self.inside():
                        user.use()
                    self.run(3)
                    user.reap()
            assert registration.state is not State.IDLE

    # -- invariants

    @invariant()
    def no_failures(self) -> None:
        assert not self.failures, self.failures

    @invariant()
    def states_match_transitions(self) -> None:
        for registration, state in self.states.items():
            assert registration.state is state
            assert registration.life is self.lives.get(registration, Life.ACTIVE)
            if state is State.IDLE:
                assert registration not in self.cluster.registrations
                assert all(registration not in peer.connection.registrations for peer in self.peers)
            if state in (State.OPENING, State.BACKING_OFF, State.LOST):
                assert registration in self.cluster.registrations
            if state in (State.BACKING_OFF, State.LOST):
                assert registration.connection is None
            assert (registration.id == -1) is (registration.connection is None)
            if registration.life is Life.CLOSED:
                assert state is State.IDLE
                assert registration._closed is None or registration._closed.is_set()
            if state is State.OPEN:
                assert registration.connection is not None
                assert registration in registration.connection.registrations

    @invariant()
    def ids_have_one_owner(self) -> None:
        for peer in self.peers:
            if peer.connection.is_open:
                free = peer.connection.ids(peer.role)
                assert not free & peer.held.keys()
                assert all(
                    self.states[peer.held[number]] is not State.OPEN
                    for number in peer.moved - peer.leaving
                )
                taken = [
                    registration
                    for registration in self.states
                    if registration.connection is peer.connection
                ]
                assert len({registration.id for registration in taken}) == len(taken)

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            self.turns.undo()
            if not self.loop.is_closed():
                self.loop.close()

    def finish(self) -> None:
        """Close everything, answer every request: all ids are free and no task remains."""
        self.settle()
        for index, user in enumerate(self.users):
            self.close(index)
            if isinstance(user, SubscriptionUser) and user.messages is None:
                user.cancel()  # its waiting task keeps the subscription alive
        self.settle()
        for _ in range(100):
            open_peers = [peer for peer in self.peers if peer.connection.is_open]
            if not any(peer.requests or peer.unconfirmed for peer in open_peers):
                break
            for index in range(len(open_peers)):
                self.confirm(index, unknown=False)
                self.answer(index, ResponseCode.OK)
            self.run()
        while self.asked:
            self.find(ResponseCode.STREAM_DOES_NOT_EXIST)
        for _ in range(5):
            self.wait(LIMIT)
            self.run()
        self.settle()
        self.no_failures()
        self.states_match_transitions()
        for user in self.users:
            assert not user.waiting
            assert user.loop is not self.loop or not user.leaving
            if isinstance(user, SubscriptionUser):
                user.drop()
        assert not asyncio.all_tasks(self.loop)
        for peer in self.peers:
            if peer.connection.is_open:
                assert not peer.held
                assert len(peer.connection.ids(peer.role)) == 256
                assert not peer.connection.registrations
        task = self.loop.create_task(self.client.disconnect())
        self.run()
        self.wait(LIMIT)
        self.run()
        assert task.done()
        assert not self.cluster.registrations
        assert not asyncio.all_tasks(self.loop)


class TransitionCheck(Observer):
    """Checks each transition, and follows the states of the registrations."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk

    def on_transition(
        self,
        registration: object,
        before: State | Life,
        after: State | Life,
        error: Exception | None,
    ) -> None:
        assert isinstance(registration, Registration)
        walk = self.walk
        with walk.collect_failures():
            if isinstance(after, State):
                assert walk.states.get(registration, State.IDLE) is before
                assert after in TRANSITIONS[walk.states.get(registration, State.IDLE)]
                walk.states[registration] = after
            else:
                assert walk.lives.get(registration, Life.ACTIVE) is before
                assert after in LIFE[walk.lives.get(registration, Life.ACTIVE)]
                walk.lives[registration] = after


def cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks of a loop, oldest first.

    No variable of the caller refers to a task: the traceback of its error may keep the caller's
    frame, so that the task, with the subscription that it used, would live on in a cycle.
    """
    for task in sorted(asyncio.all_tasks(loop), key=number):
        task.cancel()


def number(task: asyncio.Task[Any]) -> int:
    """Return the number of a task, to sort tasks by age."""
    return int(task.get_name().rpartition('-')[2])


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    """Disable the garbage collector: when it runs depends on earlier tests."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


TestWalk = Walk.TestCase
TestWalk.settings = settings(
    max_examples=sized(120, 500),
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.generate],  # finding a shorter walk takes minutes
)


def draw_table(table: Mapping[Any, Sequence[Any]]) -> str:
    """Return a table as the docstring shows it."""
    return ''.join(
        f'    {before.name} -> {", ".join(state.name for state in after)}\n'
        for before, after in table.items()
        if after
    )


def test_docstring_shows_every_transition() -> None:
    text = sys.modules[Registration.__module__].__doc__ or ''
    shown = re.findall(r'::\n\n((?: {4}.*\n)+)', text)
    assert shown == [draw_table(TRANSITIONS), draw_table(LIFE)]


def test_transition_tables_list_every_state() -> None:
    assert TRANSITIONS.keys() == set(State)
    assert LIFE.keys() == set(Life)


MAKE_ILLEGAL_TRANSITION = """
from rbfly.net.observer import Observers, State
from rbfly.net.registration import Registration
from tests.sizes import sized

class Cluster:
    observers, generation = Observers(), 0

registration = Registration(Cluster(), 'owner')
assert False, 'assert statements are ignored'
try:
    registration._enter(State.OPEN)
except AssertionError as ex:
    print(ex, registration.state)
"""


def test_illegal_transition_raises_even_in_optimized_mode() -> None:
    command = [sys.executable, '-O', '-c', MAKE_ILLEGAL_TRANSITION]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert 'illegal transition IDLE -> OPEN State.IDLE' in found.stdout
