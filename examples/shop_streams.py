"""A module of a Django project or a Celery app: one publisher for each process."""

import functools
import os
from typing import Any

import rbfly.streams as rbs
import rbfly.sync

URI = os.environ.get('RBFLY_URI', 'rabbitmq-stream://guest:guest@localhost:5552/')
STREAM = os.environ.get('ORDERS_STREAM', 'orders')

client = rbfly.sync.streams_client(URI, connection_name='shop')  # connects when used


@functools.cache
def publisher() -> rbfly.sync.Publisher:
    """Open the publisher at the first call: after the server has forked its workers."""
    return client.publisher(STREAM)


def publish_order(order: dict[str, Any]) -> bool:
    """Return whether the order is stored; False if that is unknown, or if it is not."""
    try:
        publisher().send(order, timeout=5)
    except rbs.RbFlyError as ex:
        print('not confirmed:', ex.outcome, ex)
        return False
    return True
