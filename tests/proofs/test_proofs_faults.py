"""Short versions of the proofs with cuts and restarts hold."""

from collections.abc import Iterator

import pytest

from tests.proofs.short_runs import Beds, beds, holds

pytestmark = pytest.mark.broker


@pytest.fixture(scope='module')
def one_node() -> Iterator[Beds]:
    yield from beds(1)


@pytest.mark.parametrize('unnamed', [False, True])
@pytest.mark.parametrize('by', ['send', 'flush', 'send-many'])
async def test_publish_cuts(one_node: Beds, by: str, unnamed: bool) -> None:
    await holds(one_node, 'publish-cuts', messages=20_000, cuts=6, by=by, unnamed=unnamed)


@pytest.mark.parametrize('unnamed', [False, True])
async def test_publish_cuts_while_callers_give_up(one_node: Beds, unnamed: bool) -> None:
    run = await holds(
        one_node, 'publish-cuts', messages=20_000, cuts=6, by='giving-up', unnamed=unnamed
    )
    assert run.found['not sent']
    assert run.found['unknown and stored']


@pytest.mark.parametrize('by', ['body', 'context', 'batch'])
async def test_consume_cuts(one_node: Beds, by: str) -> None:
    await holds(one_node, 'consume-cuts', messages=20_000, cuts=6, by=by)


async def test_publish_restart(one_node: Beds) -> None:
    await holds(one_node, 'publish-restart', messages=10_000, cuts=2)


async def test_consume_restart(one_node: Beds) -> None:
    await holds(one_node, 'consume-restart', messages=10_000, cuts=2)
