"""Credentials that a function returns: asked at each connect, renewed before they expire."""

import asyncio
import pickle
from collections import Counter
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.error import ArgumentError
from rbfly.net import credentials as renewal
from rbfly.streams import events
from rbfly.testing import StreamBroker
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, FakeConnection, Frame, Step
from tests.inside import connection_of
from tests.next_event import find

SECRET = 'token-s3cr3t'


class Tokens:
    """A provider that counts its calls, and fails while `error` is set."""

    def __init__(self, lifetime: float | None = None) -> None:
        self.calls = 0
        self.lifetime = lifetime
        self.username, self.password = 'guest', 'guest'
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> rbs.Credentials:
        self.calls += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        expires = None
        if self.lifetime is not None:
            expires = datetime.now(UTC) + timedelta(seconds=self.lifetime)
        return rbs.Credentials(self.username, self.password, expires)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew after a moment, instead of a second."""
    monkeypatch.setattr(renewal, 'SHORTEST', 0.02)


def without_user(broker: StreamBroker) -> str:
    return f'rabbitmq-stream://127.0.0.1:{broker.port}/'


# -- asked at each connect


async def test_provider_replaces_the_user_of_the_uri() -> None:
    async with FakeBroker() as fake:

        async def provider() -> rbs.Credentials:
            return rbs.Credentials('', SECRET)

        async with rbs.streams_client(fake.uri, credentials=provider) as client:
            await client.ping()
        [data] = [
            frame.decode().data
            for peer in fake.connections
            for frame in peer.frames
            if frame.key == Step.SASL_AUTHENTICATE
        ]
        assert data == f'\0\0{SECRET}'.encode()


async def test_connects_at_the_same_time_share_a_call() -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        tokens = Tokens()
        tokens.gate.clear()
        async with rbs.streams_client(without_user(broker), credentials=tokens) as client:
            opened = asyncio.gather(
                client.ping(), client.stream_exists('orders'), client.create_stream('x')
            )
            await until(lambda: tokens.calls == 1, 'the provider is asked')
            tokens.gate.set()
            await opened
            assert tokens.calls <= 3  # one for each connection, at most


async def test_each_connect_asks_again() -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        tokens = Tokens()
        async with (
            rbs.streams_client(without_user(broker), credentials=tokens) as client,
            client.publisher('orders') as publisher,
        ):
            await publisher.send('old')
            broker.set_password('guest', 'new')
            tokens.password = 'new'
            before = tokens.calls
            broker.cut()
            await publisher.send('new')
            assert tokens.calls > before
        assert broker.messages('orders') == ['old', 'new']


async def test_failing_provider_is_asked_again() -> None:
    async with StreamBroker() as broker:
        tokens = Tokens()
        tokens.error = RuntimeError('vault is sealed')
        async with rbs.streams_client(without_user(broker), credentials=tokens) as client:
            ping = asyncio.create_task(client.ping(timeout=30))
            await until(lambda: tokens.calls > 2, 'the provider is asked again')
            tokens.error = None
            await ping


@pytest.mark.own_clock
async def test_first_connect_names_the_failure_of_the_provider() -> None:
    async with StreamBroker() as broker:
        tokens = Tokens()
        tokens.error = RuntimeError('vault is sealed')
        client = rbs.streams_client(without_user(broker), credentials=tokens, connect_timeout=0.2)
        with pytest.raises(rbs.ConnectTimeout, match='RuntimeError: vault is sealed') as caught:
            await client.create_stream('x')
        assert isinstance(caught.value.__cause__, rbs.CredentialsError)
        await client.close()


@pytest.mark.own_clock
async def test_expired_credentials_are_not_sent() -> None:
    async with StreamBroker() as broker:
        tokens = Tokens(lifetime=-1)
        client = rbs.streams_client(without_user(broker), credentials=tokens, connect_timeout=0.2)
        with pytest.raises(rbs.ConnectTimeout, match='no credentials: they expired at'):
            await client.create_stream('x')
        await client.close()


async def test_first_connect_with_a_wrong_password_fails_at_once() -> None:
    async with StreamBroker() as broker:
        tokens = Tokens()
        tokens.password = SECRET
        client = rbs.streams_client(without_user(broker), credentials=tokens)
        with pytest.raises(rbs.AuthenticationError) as caught:
            await client.create_stream('x')
        assert SECRET not in str(caught.value)
        assert tokens.calls == 1
        await client.close()


async def test_established_client_asks_again_after_a_refusal() -> None:
    """The token may have expired between two calls: an outage does not end in an error."""
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        tokens = Tokens()
        async with (
            rbs.streams_client(without_user(broker), credentials=tokens) as client,
            client.publisher('orders') as publisher,
        ):
            await publisher.send(0)
            tokens.password = 'old'
            broker.cut()
            sending = asyncio.create_task(publisher.send(1))
            before = tokens.calls
            await until(lambda: tokens.calls > before + 1, 'the provider is asked twice')
            assert not sending.done()
            tokens.password = 'guest'
            await sending
        assert broker.messages('orders') == [0, 1]


@pytest.mark.own_clock
async def test_slow_provider_may_take_the_time_of_the_connect() -> None:
    async with StreamBroker() as broker:
        calls: list[int] = []

        async def provider() -> rbs.Credentials:
            calls.append(1)
            await asyncio.sleep(15)  # longer than a node may take
            return rbs.Credentials('guest', 'guest')

        async with rbs.streams_client(without_user(broker), credentials=provider) as client:
            await client.create_stream('x')
        assert len(calls) == 1


@pytest.mark.own_clock
@pytest.mark.parametrize('at_renewal', [False, True])
async def test_provider_that_hangs_is_called_again(at_renewal: bool) -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        hangs: list[asyncio.Event] = []

        async def provider() -> rbs.Credentials:
            if hangs:
                await hangs.pop().wait()
            expires = datetime.now(UTC) + timedelta(seconds=100)
            return rbs.Credentials('guest', 'guest', expires=expires)

        async with (
            rbs.streams_client(without_user(broker), credentials=provider) as client,
            client.publisher('orders') as publisher,
        ):
            await publisher.send(0)
            hangs.append(asyncio.Event())
            if at_renewal:
                await until(lambda: not hangs, 'the credentials are renewed')
            broker.cut()
            async with asyncio.timeout(600):
                await publisher.send(1)
            assert not hangs
        assert broker.messages('orders') == [0, 1]


@pytest.mark.parametrize('result', [None, ('guest', 'guest')])
async def test_other_result_of_the_provider(result: Any) -> None:
    async with StreamBroker() as broker:

        async def provider() -> Any:
            return result

        client = rbs.streams_client(without_user(broker), credentials=provider)
        with pytest.raises(TypeError, match='must return Credentials, not'):
            await client.create_stream('x')
        await client.close()


def test_provider_must_be_a_function() -> None:
    credentials: Any = rbs.Credentials('guest', 'guest')
    with pytest.raises(TypeError, match='credentials must be an async function'):
        rbs.streams_client('rabbitmq-stream://localhost', credentials=credentials)


async def test_cancelled_call_ends_the_provider() -> None:
    async with StreamBroker() as broker:
        tokens = Tokens()
        tokens.gate.clear()
        ended: list[bool] = []

        async def provider() -> rbs.Credentials:
            try:
                return await tokens()
            finally:
                ended.append(True)

        client = rbs.streams_client(without_user(broker), credentials=provider)
        call = asyncio.create_task(client.create_stream('x'))
        await until(lambda: tokens.calls == 1, 'the provider is asked')
        call.cancel()
        await until(lambda: bool(ended), 'the provider was cancelled')
        await client.close()


# -- renewed


@pytest.mark.own_clock
async def test_renewal_keeps_the_connections(caplog: pytest.LogCaptureFixture) -> None:
    async with StreamBroker(credential_lifetime=3.0) as broker:
        broker.create_stream('orders')
        tokens = Tokens(lifetime=0.5)
        async with rbs.streams_client(without_user(broker), credentials=tokens) as client:
            found = client.events()
            async with (
                client.publisher('orders') as publisher,
                client.subscribe('orders', offset=rbs.Offset.FIRST) as messages,
            ):
                number = 0
                while tokens.calls < 10:  # after more than a lifetime at the broker
                    await publisher.send(number)
                    assert await anext(messages) == number
                    number += 1
                    await asyncio.sleep(0.01)
                assert client.connected
            await found.close()
            lost = [event async for event in found if isinstance(event, events.ConnectionLost)]
        assert lost == []
    assert caplog.text == ''


async def test_renewal_asks_until_the_provider_has_credentials(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        tokens = Tokens(lifetime=2)
        async with (
            rbs.streams_client(without_user(broker), credentials=tokens) as client,
            client.publisher('orders') as publisher,
        ):
            found = client.events()
            await publisher.send(0)
            tokens.error = RuntimeError('vault is sealed')
            event = await find(found, events.RenewalFailed)
            assert 'vault is sealed' in str(event.error)
            assert event.delay > 0
            before = tokens.calls
            tokens.error = None
            await until(lambda: tokens.calls > before, 'the provider is asked again')
            await publisher.send(1)
    assert 'cannot renew the credentials: no credentials: RuntimeError: vault' in caplog.text


async def test_renewal_backs_off_as_the_client_does() -> None:
    async with StreamBroker() as broker:
        tokens = Tokens(lifetime=2)
        async with rbs.streams_client(
            without_user(broker), credentials=tokens, backoff=(0.001, 0.002)
        ) as client:
            found = client.events()
            await client.ping()
            tokens.error = RuntimeError('vault is sealed')
            delays = [(await find(found, events.RenewalFailed)).delay for _ in range(5)]
    assert max(delays) <= 0.002


@pytest.mark.parametrize('version', ['4.0', '4.3'])
async def test_refused_renewal_reconnects(version: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A token of another user: the connection ends, and a new one uses it."""
    async with StreamBroker(users={'guest': 'guest', 'other': 'o'}, version=version) as broker:
        broker.create_stream('orders')
        tokens = Tokens(lifetime=1)
        async with (
            rbs.streams_client(without_user(broker), credentials=tokens) as client,
            client.publisher('orders') as publisher,
        ):
            found = client.events()
            await publisher.send(0)
            tokens.username, tokens.password, tokens.lifetime = 'other', 'o', None
            event = await find(found, events.RenewalRefused)
            assert '0x15' in str(event.error)
            await publisher.send(1)
        assert broker.messages('orders') == [0, 1]
    lines = [record for record in caplog.records if 'refused the renewed' in record.getMessage()]
    assert len(lines) == 1


async def test_renewal_with_a_token_that_exceeds_a_frame_reconnects() -> None:
    """The limit of frames applies after signing on, where the token fits."""
    token = SECRET * 100
    async with StreamBroker(users={'guest': token}) as broker:
        tokens = Tokens(lifetime=1)
        tokens.password = token
        async with rbs.streams_client(
            without_user(broker), credentials=tokens, frame_max=512
        ) as client:
            found = client.events()
            await client.ping()
            tokens.lifetime = None
            event = await find(found, events.RenewalRefused)
            assert 'needs a frame of' in str(event.error)
            await client.ping()


async def test_connection_that_was_too_busy_to_renew_is_renewed_later() -> None:
    """As during an alarm, when the broker reads nothing: the connection stays open."""
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        tokens = Tokens(lifetime=1)
        async with (
            rbs.streams_client(
                without_user(broker), credentials=tokens, request_timeout=0.1
            ) as client,
            client.publisher('orders') as publisher,
        ):
            await publisher.send(0)
            connection = connection_of(publisher)
            broker.stall()
            confirmation = await publisher.submit(1)
            sent = connection.requests_sent
            await until(lambda: connection.requests_sent > sent, 'the connection is renewed')
            await until(lambda: not connection.pending_requests, 'that request has timed out')
            broker.heal()
            await confirmation
            calls, sent = tokens.calls, connection.requests_sent
            await until(
                lambda: tokens.calls > calls and connection.requests_sent > sent,
                'it is renewed again',
            )
            assert connection_of(publisher) is connection


async def test_connection_that_the_broker_does_not_read_delays_no_other_renewal() -> None:
    """As during an alarm, when it reads nothing from publishers."""
    answered: Counter[FakeConnection] = Counter()
    unread: list[tuple[FakeConnection, Frame]] = []

    def authenticate(peer: FakeConnection, request: Frame) -> None:
        if not unread and answered[peer] and wire.DECLARE_PUBLISHER in peer.commands():
            unread.append((peer, request))
            return
        answered[peer] += 1
        fake.default(peer, request)

    async with (
        FakeBroker(at={Step.SASL_AUTHENTICATE: authenticate}) as fake,
        rbs.streams_client(
            fake.uri, credentials=Tokens(lifetime=0.1), request_timeout=None
        ) as client,
        client.publisher('s'),
        client.subscribe('s'),
    ):
        await until(lambda: bool(unread), 'the connection of the publisher is renewed')
        [(blocked, request)] = unread
        [other] = [item for item in fake.connections if wire.SUBSCRIBE in item.commands()]
        before = answered[other]
        await until(lambda: answered[other] > before + 2, 'the other one is renewed')
        assert answered[blocked] == 1
        fake.default(blocked, request)
        await until(lambda: answered[blocked] > 2, 'it is renewed again')


async def test_client_that_is_closed_renews_no_more() -> None:
    async with StreamBroker() as broker:
        tokens = Tokens(lifetime=0.1)
        async with rbs.streams_client(without_user(broker), credentials=tokens) as client:
            await client.ping()
        calls = tokens.calls
        await asyncio.sleep(0.3)  # longer than the credentials hold
        assert tokens.calls == calls


def test_client_in_another_event_loop_asks_again() -> None:
    with StreamBroker() as broker:
        tokens: list[Tokens] = []

        async def provider() -> rbs.Credentials:
            return await tokens[-1]()

        client = rbs.streams_client(without_user(broker), credentials=provider)

        async def use() -> None:
            tokens.append(Tokens(lifetime=60))
            async with client:
                await client.ping()

        asyncio.run(use())
        asyncio.run(use())
        assert [item.calls for item in tokens] == [1, 1]


# -- arguments and secrets


class Undecided(tzinfo):
    """A time zone without an offset: its datetimes are naive."""

    def utcoffset(self, moment: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


@pytest.mark.parametrize(
    ('arguments', 'error'),
    [
        ((1, 'p'), 'username must be str'),
        (('u', b'p'), 'password must be str, not bytes'),
        (('u', 'p', 60), 'expires must be datetime'),
        (('u', 'p', datetime(2030, 1, 1)), 'aware'),
        (('u', 'p', datetime(2030, 1, 1, tzinfo=Undecided())), 'aware'),
        (('u\0', 'p'), 'NUL'),
        (('\udcff', 'p'), 'surrogate'),
    ],
)
def test_arguments_of_credentials(arguments: Any, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        rbs.Credentials(*arguments)


def test_password_that_is_not_unicode_is_in_no_error() -> None:
    """As `os.environ` returns one that is not UTF-8."""
    with pytest.raises(ArgumentError, match='surrogate') as caught:
        rbs.Credentials('me', SECRET + '\udcff')
    assert caught.value.__context__ is None
    assert SECRET not in str(caught.value)


def test_credentials_show_no_password() -> None:
    credentials = rbs.Credentials('me', SECRET, datetime(2030, 1, 1, tzinfo=UTC))
    assert repr(credentials) == "Credentials('me', expires=2030-01-01T00:00:00+00:00)"
    assert credentials.password == SECRET
    with pytest.raises(TypeError):
        vars(credentials)
    with pytest.raises(TypeError, match='pickled'):
        pickle.dumps(credentials)


async def test_anonymous_user() -> None:
    async with (
        StreamBroker() as broker,
        rbs.streams_client(without_user(broker), rbs.AuthMechanism.ANONYMOUS) as client,
    ):
        await client.ping()
