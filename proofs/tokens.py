"""Proof of tokens: renewals interrupt nothing, and what they cannot keep open resumes."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import jwt

import rbfly.streams as rbs

from .history import Messages
from .run import ProofError, Run
from .test_bed import ClusterBed, body

LIFETIME = 20  # seconds
SCOPE = 'rabbitmq.read:*/* rabbitmq.write:*/* rabbitmq.configure:*/*'
PAUSE = 0.002  # seconds between messages
LOSSES = rbs.ConnectionLost, rbs.RecoveryScheduled, rbs.RenewalRefused


class Tokens:
    """The provider of the client: signs a token at each call, or fails."""

    def __init__(self, key: str) -> None:
        self.calls = 0
        self.failures = 0
        self.user = 'shop'
        self.failing = False
        self._key = key

    async def __call__(self) -> rbs.Credentials:
        if self.failing:
            self.failures += 1
            raise ProofError('no token')
        self.calls += 1
        expires = datetime.now(UTC) + timedelta(seconds=LIFETIME)
        claims = {'aud': 'rabbitmq', 'sub': self.user, 'exp': expires, 'scope': SCOPE}
        token = jwt.encode(claims, self._key, 'ES256', {'kid': 'bed'})
        return rbs.Credentials('', token, expires)


class Traffic:
    """A publisher with a name, a subscription, and the events of their client."""

    def __init__(self, run: Run, client: rbs.StreamsClient, stream: str) -> None:
        self.confirmed = 0
        self.received = 0
        self.losses: list[rbs.Event] = []
        self.refused = 0
        self._run, self._client, self._stream = run, client, stream
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Publish and consume until `stop`."""
        events = self._client.events()
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(it) for it in (self._watch(events), self._consume())]
            await group.create_task(self._publish())
            await self._reach(self.confirmed, self.confirmed)
            for task in others:
                task.cancel()

    def stop(self) -> None:
        self._stop.set()

    async def progress(self, count: int = 100) -> None:
        """Wait until messages were published and received from now on."""
        await self._reach(self.confirmed + count, self.received + count)

    async def _reach(self, confirmed: int, received: int) -> None:
        while self.confirmed < confirmed or self.received < received:  # noqa: ASYNC110
            await asyncio.sleep(PAUSE)

    async def _publish(self) -> None:
        async with self._client.publisher(self._stream, name='shop') as publisher:
            while not self._stop.is_set():
                await publisher.send(body(self.confirmed))
                self.confirmed += 1
                await asyncio.sleep(PAUSE)

    async def _consume(self) -> None:
        start = rbs.Offset.FIRST
        async with self._client.subscribe(self._stream, offset=start) as messages:
            async for found in messages:
                if found != body(self.received):
                    raise ProofError(f'received {found!r} instead of {self.received:,}')
                self.received += 1
                self._run.done += 1

    async def _watch(self, events: rbs.Events) -> None:
        async for event in events:
            if isinstance(event, LOSSES):
                self.losses.append(event)
            self.refused += isinstance(event, rbs.RenewalRefused)


async def token(run: Run, bed: ClusterBed) -> None:
    """Renew tokens for a time; then let renewals fail, restart the broker, and change the user."""
    tokens = Tokens(bed.token_key)
    seconds = run['seconds']
    async with bed.stream() as stream:
        async with (
            bed.client(credentials=tokens) as client,
            asyncio.TaskGroup() as group,
        ):
            traffic = Traffic(run, client, stream)
            task = group.create_task(traffic.run())
            await traffic.progress()
            await asyncio.sleep(seconds)
            await traffic.progress()
            run.check('no reconnect while tokens are renewed', not traffic.losses, traffic.losses)
            enough = tokens.calls >= seconds // LIFETIME
            run.check('tokens were renewed', enough, f'{tokens.calls} in {seconds} s')

            tokens.failing = True
            await asyncio.sleep(min(60, max(seconds / 5, 1.5 * LIFETIME)))
            run.check('the provider is asked again', tokens.failures > 2, tokens.failures)
            run.check('the broker closes the connections', bool(traffic.losses))
            tokens.failing = False
            await traffic.progress()

            await asyncio.to_thread(bed.broker.restart_node)
            await traffic.progress()

            tokens.user = 'other'
            begun = time.monotonic()
            while (  # noqa: ASYNC110
                not traffic.refused and time.monotonic() < begun + 3 * LIFETIME
            ):
                await asyncio.sleep(0.1)
            run.check('a token of another user is refused on open connections', traffic.refused > 0)
            await traffic.progress()
            traffic.stop()
            await task
        stored: Messages = await bed.stored(stream)
    numbers = [*stored[0]]
    run.check('stored exactly once, in order', numbers == [*range(traffic.confirmed)])
    received = f'{traffic.received:,} of {traffic.confirmed:,}'
    run.check('received exactly once, in order', traffic.received == traffic.confirmed, received)
