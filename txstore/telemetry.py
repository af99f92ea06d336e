"""Sends spans and metrics of what this process does to OpenTelemetry. Needs `txstore[otel]`.

`enable()` begins, or `opentelemetry-instrument`, which finds `Instrumentor` by its entry point.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from txstore import observing
from txstore.observing import Attribute

try:
    from opentelemetry import metrics, trace
    from opentelemetry.trace import SpanKind, Status, StatusCode
except ModuleNotFoundError as error:
    told = "txstore.telemetry needs opentelemetry-api: pip install 'txstore[otel]'"
    raise ModuleNotFoundError(told, name=error.name) from error

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, MeterProvider
    from opentelemetry.trace import TracerProvider

#: The counters: unit, and what they count.
COUNTERS = {
    "commit.conflicts": ("{conflict}", "Commits that conflicted with newer ones"),
    "commit.retries": ("{retry}", "Attempts to commit that were repeated"),
    "request.retries": ("{retry}", "Requests to an object store that were sent again"),
    "cache.lookups": ("{lookup}", "Look-ups in caches"),
    "io.staged": ("By", "Bytes of the values of commits"),
    "io.written": ("By", "Bytes of the files of commits"),
    "io.read": ("By", "Bytes of values read from commits, as they are stored"),
}
#: Seconds: what takes less than the first is not told apart.
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: What is in spans and not in metrics: there would be a series for each.
_OF_ONE = {"path", "commit", "version"}


def enable(*, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None) -> None:
    """Send spans and metrics from now on, in this process. Calling it again changes the providers.

    Parameters
    ----------
    tracer_provider, meter_provider : optional
        By default those that `opentelemetry.trace.set_tracer_provider` and `opentelemetry.metrics.set_meter_provider`
        have set. Without a provider that sends, OpenTelemetry drops everything.
    """
    observing.observe(_Telemetry(tracer_provider, meter_provider))


def disable() -> None:
    """Send nothing from now on."""
    observing.observe(None)


class Instrumentor:
    """What `opentelemetry-instrument` looks for. It needs nothing of the package `opentelemetry-instrumentation`."""

    def instrument(self, **options: Any) -> None:
        """Call `enable` with the providers among the options."""
        given = {name: options[name] for name in ("tracer_provider", "meter_provider") if name in options}
        enable(**given)

    def uninstrument(self, **_: Any) -> None:
        """Call `disable`."""
        disable()


class _Span(observing.Span):
    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self.told: dict[str, Attribute] = {}

    def tell(self, **attributes: Attribute) -> None:
        self.told |= attributes
        self._span.set_attributes(_named(attributes))


class _Telemetry:
    """The observer."""

    def __init__(self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None) -> None:
        ours = version("txstore")
        self._tracer = trace.get_tracer("txstore", ours, tracer_provider)
        meter = metrics.get_meter("txstore", ours, meter_provider)
        self._counters: dict[str, Counter] = {
            name: meter.create_counter(f"txstore.{name}", unit, about) for name, (unit, about) in COUNTERS.items()
        }
        self._durations = {
            name: meter.create_histogram(
                f"txstore.{name}.duration", "s", about, explicit_bucket_boundaries_advisory=_BOUNDS
            )
            for name, about in (
                ("commit", "Duration of commits"),
                ("request", "Duration of requests to an object store, with their retries"),
                ("operation", "Duration of maintenance, and of changes of branches and tags"),
            )
        }

    def count(self, name: str, amount: int, **attributes: Attribute) -> None:
        self._counters[name].add(amount, _named(attributes))

    @contextmanager
    def span(self, name: str, **attributes: Attribute) -> Iterator[_Span]:
        began, failed = perf_counter(), ""
        kind = SpanKind.CLIENT if name == "request" else SpanKind.INTERNAL
        shown = f"txstore.{name} {attributes['operation']}" if name == "request" else f"txstore.{name}"
        with self._tracer.start_as_current_span(
            shown, kind=kind, attributes=_named(attributes), record_exception=False, set_status_on_exception=False
        ) as span:
            told = _Span(span)
            try:
                yield told
            except BaseException as error:
                failed = type(error).__qualname__
                # A missing object is an answer: whoever asks whether there is one gets it so.
                if not isinstance(error, FileNotFoundError | FileExistsError):
                    span.set_status(Status(StatusCode.ERROR, str(error)))
                span.set_attribute("error.type", failed)
                raise
            finally:
                said = {key: value for key, value in {**attributes, **told.told}.items() if key not in _OF_ONE}
                if name not in self._durations:
                    said["operation"] = name
                named = _named(said) | ({"error.type": failed} if failed else {})
                duration = self._durations.get(name, self._durations["operation"])
                duration.record(perf_counter() - began, named)


def _named(attributes: dict[str, Attribute]) -> dict[str, Attribute]:
    """Return attributes by the names that OpenTelemetry has for them, or by ours."""
    found: dict[str, Attribute] = {}
    for name, value in attributes.items():
        found[f"txstore.{name}"] = value
        if name == "url" and "://" in str(value) and (host := urlsplit(str(value)).hostname):
            found["server.address"] = host
    return found
