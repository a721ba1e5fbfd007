"""Short versions of the proofs on a cluster of three nodes hold."""

from collections.abc import Iterator

import pytest

from tests.proofs.short_runs import Beds, beds, holds

pytestmark = pytest.mark.broker


@pytest.fixture(scope='module')
def three_nodes() -> Iterator[Beds]:
    yield from beds(3)


async def test_publish_leader(three_nodes: Beds) -> None:
    await holds(three_nodes, 'publish-leader', messages=6_000, cuts=2)


async def test_consume_leader(three_nodes: Beds) -> None:
    await holds(three_nodes, 'consume-leader', messages=6_000, cuts=2)


@pytest.mark.parametrize('how', ['pause', 'partition', 'roll'])
async def test_publish_nodes(three_nodes: Beds, how: str) -> None:
    await holds(three_nodes, 'publish-nodes', messages=6_000, cuts=1, how=how)


async def test_consume_nodes(three_nodes: Beds) -> None:
    await holds(three_nodes, 'consume-nodes', messages=6_000, cuts=1, how='partition')
