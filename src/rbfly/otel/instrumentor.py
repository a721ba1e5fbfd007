"""Traces and measures all clients that are created later; `opentelemetry-instrument` calls this.

Needs `opentelemetry-instrumentation`, which has the command `opentelemetry-instrument`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from ..streams.client import DEFAULTS
from . import metrics, tracing


class RbFlyInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Sets `tracing` and `metrics` of clients created later, unless they have their own."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages that are instrumented: only this one."""
        return ()

    def _instrument(self, **options: Any) -> None:
        names = ('tracer_provider', 'propagate', 'create_spans', 'continue_trace')
        chosen = {name: options[name] for name in names if name in options}
        DEFAULTS.update(tracing=tracing(**chosen), metrics=metrics(options.get('meter_provider')))

    def _uninstrument(self, **options: Any) -> None:
        DEFAULTS.clear()
