"""Public names, and the modules that export the errors."""

import inspect
from datetime import timedelta
from typing import get_args, get_type_hints

import pytest

import rbfly.error
import rbfly.streams as rbs
import rbfly.streams.error
from rbfly.streams import types
from rbfly.streams.error import PublishError

ERRORS = {
    name: item
    for module in (rbfly.error, rbfly.streams.error)
    for name, item in vars(module).items()
    if inspect.isclass(item) and issubclass(item, rbfly.error.RbFlyError)
}


@pytest.mark.parametrize('name', ERRORS)
def test_streams_package_exports_every_error(name: str) -> None:
    assert getattr(rbs, name) is ERRORS[name]
    assert name in rbs.__all__


def test_error_modules_list_every_error() -> None:
    assert set(ERRORS) <= {*rbfly.error.__all__, *rbfly.streams.error.__all__}


def test_exported_names_exist_once() -> None:
    assert sorted(rbs.__all__) == sorted(set(rbs.__all__))
    assert [name for name in rbs.__all__ if not hasattr(rbs, name)] == []


def test_dir_shows_public_names_only() -> None:
    """Editors and shells complete from it."""
    assert dir(rbs) == sorted(rbs.__all__)


def test_annotations_can_be_evaluated() -> None:
    """Frameworks evaluate the annotations of public classes."""
    methods = [
        getattr(member, 'fget', None) or getattr(member, '__func__', member)
        for item in (getattr(rbs, name) for name in rbs.__all__)
        if inspect.isclass(item)
        for name, member in inspect.getmembers_static(item)
        if not name.startswith('_')
    ]
    functions = [method for method in methods if inspect.isfunction(method)]
    assert len(functions) > 30
    for function in functions:
        get_type_hints(function)
        inspect.signature(function, eval_str=True)
    assert timedelta in get_args(get_type_hints(rbs.StreamsClient.create_stream)['max_age'])
    assert int in get_args(get_type_hints(rbs.Publisher.send)['message'])


def test_publish_error_info_has_named_fields() -> None:
    info = PublishError(0x11, 7).errors[0]
    assert info == types.PublishErrorInfo(publish_id=7, code=0x11) == (7, 0x11)


def test_subscription_info_defaults() -> None:
    info = types.SubscriptionInfo('orders')
    assert info == types.SubscriptionInfo('orders', rbs.Offset.NEXT, None, 0, True)


async def test_subscription_implements_psubscriber() -> None:
    async with rbs.streams_client('rabbitmq-stream://localhost/') as client:
        subscriber: types.PSubscriber = client.subscribe('orders')
        assert isinstance(subscriber, types.PSubscriber)
        assert subscriber.stream == 'orders'
        await subscriber.aclose()
