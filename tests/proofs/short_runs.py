"""Run proofs in tests."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from brokers import BrokerError
from proofs.catalogue import PROOFS, Value
from proofs.run import Run, prove
from proofs.site import Place, Site
from tests.seed import of_run

Sites = Callable[[], AbstractAsyncContextManager[Site]]


def sites(nodes: int, version: str | None = None) -> Iterator[Sites]:
    """Start a broker whose nodes advertise the ports of proxies, with new proxies for each test.

    :param version: of RabbitMQ; None for that of the run.
    """
    place = Place.private(nodes, version=version)
    try:
        place.broker.start()
    except (BrokerError, OSError) as ex:
        pytest.fail(f'no RabbitMQ behind proxies: {ex}')

    @asynccontextmanager
    async def site() -> AsyncIterator[Site]:
        async with Site.before(place, of_run()) as found:
            yield found

    yield site
    place.broker.stop(orderly=False)


async def holds(site: Sites, name: str, **settings: Value) -> Run:
    """Run a proof and assert that it holds."""
    run = Run(PROOFS[name], of_run(), **settings)
    async with site() as found:
        await prove(run, found)
    assert run.holds, '\n'.join(run.summary())
    return run
