"""OpenTelemetry: metrics of clients.  Needs the extra `otel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ..later import later

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from ._metrics import ClientMetrics as ClientMetrics
else:  # OpenTelemetry may not be installed
    __getattr__ = later(__name__, {'rbfly.otel._metrics': 'ClientMetrics'})

__all__ = ['ClientMetrics', 'metrics']


def metrics(meter_provider: MeterProvider | None = None, *, streams: bool = False) -> ClientMetrics:
    """Export the metrics of clients: pass the result as `metrics` to :func:`.streams_client`.

    Several clients may share the result: their numbers add up.  Clients with a `connection_name`
    are told apart by the attribute `messaging.client.id`.  See :ref:`metrics` for the names.

    :param meter_provider: where the metrics go; None for the global provider, also if that is set
        later.
    :param streams: give each stream and partition its own numbers, with its name in the attribute
        `messaging.destination.name`.
    :raises ModuleNotFoundError: `opentelemetry-api` is not installed: install RbFly's extra `otel`.
    :raises TypeError: `meter_provider` is no meter provider.
    """
    try:
        from ._metrics import ClientMetrics
    except ModuleNotFoundError as ex:
        raise_missing(ex)
    return ClientMetrics(meter_provider, streams)


def raise_missing(error: ModuleNotFoundError) -> NoReturn:
    """Name the extra if OpenTelemetry is missing; raise any other error unchanged."""
    if error.name is None or error.name.partition('.')[0] != 'opentelemetry':
        raise error
    text = "rbfly.otel needs the package opentelemetry-api: install RbFly's extra `otel`"
    raise ModuleNotFoundError(text, name=error.name) from None
