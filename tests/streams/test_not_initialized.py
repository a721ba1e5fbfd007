"""Objects of which only `__new__` was called raise errors: compiled code never uses them."""

from collections.abc import Callable
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.amqp._message import restore_message  # type: ignore[attr-defined]
from rbfly.error import PublisherError, SubscriptionError


@pytest.mark.parametrize(
    ('cls', 'send'),
    [
        (rbs.Publisher, lambda publisher: publisher.send('x').send(None)),
        (rbs.Publisher, lambda publisher: publisher.batch('x')),
        (rbs.Publisher, lambda publisher: publisher.batch(b'x')),
        (rbs.SuperStreamPublisher, lambda publisher: publisher.batch('x')),
        (rbs.SuperStreamPublisher, lambda publisher: publisher.send('x').send(None)),
    ],
)
def test_publisher_that_was_never_opened(cls: Any, send: Callable[[Any], None]) -> None:
    with pytest.raises(PublisherError, match='the publisher is not open'):
        send(cls.__new__(cls))


@pytest.mark.parametrize('cls', [rbs.Subscription, rbs.SuperStreamSubscription])
def test_subscription_that_was_never_opened(cls: Any) -> None:
    subscription = cls.__new__(cls)
    for iterator in (subscription, subscription.messages(), subscription.batches()):
        with pytest.raises(SubscriptionError, match='the subscription is not open'):
            anext(iterator).send(None)


@pytest.mark.parametrize(
    'arguments',
    [
        *([0] * count for count in range(14)),
        [b'\0Su\xa0\0', None, False, False, [None] * 5, 0, 0, None, 0, 0.0, 0, False, None],
    ],
)
def test_message_is_not_restored_from_a_damaged_pickle(arguments: list[Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        restore_message(*arguments)
