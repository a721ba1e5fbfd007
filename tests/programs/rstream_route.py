"""Chooses the partition that rstream chooses."""

from collections.abc import Sequence

import mmh3
import rbfly.streams as rbs


def route(message: rbs.AMQPBody | rbs.Message, partitions: Sequence[str]) -> str:
    assert isinstance(message, rbs.Message)
    key = str(message.app_properties['customer']).encode('utf-16')
    digest = mmh3.hash_bytes(key, 104729)
    return partitions[int.from_bytes(digest, 'little') % len(partitions)]
