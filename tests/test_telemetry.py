"""Spans and metrics, as OpenTelemetry's SDK gets them."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pytest
import zarr
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Tracer, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import txstore
from tests.tools.upkeep import put
from txstore import observing, telemetry

Open = Callable[..., txstore.Repository]


class Seen:
    """What was sent."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])

    @property
    def tracer(self) -> Tracer:
        return self.tracers.get_tracer("the caller's")  # type: ignore[return-value]

    def spans(self, begin: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(begin)]

    def metric(self, name: str, **attributes: Any) -> float:
        """Return the sum of a counter, or how often a histogram was told, over points with these attributes."""
        data = self.reader.get_metrics_data()
        points = [
            point
            for resource in ([] if data is None else data.resource_metrics)
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == f"txstore.{name}"
            for point in metric.data.data_points
        ]
        wanted = {f"txstore.{key}": value for key, value in attributes.items()}.items()
        return sum(
            getattr(point, "value", getattr(point, "count", 0))
            for point in points
            if wanted <= point.attributes.items()
        )


@pytest.fixture
def seen() -> Iterator[Seen]:
    seen = Seen()
    telemetry.enable(tracer_provider=seen.tracers, meter_provider=seen.meters)
    yield seen
    telemetry.disable()
    seen.tracers.shutdown()
    seen.meters.shutdown()


@pytest.fixture
def far(request: pytest.FixtureRequest) -> txstore.Repository:
    """A repository of objects in memory."""
    return txstore.Repository(f"memory://{request.node.name}/data.tx")


def create(repo: txstore.Repository) -> None:
    with repo.transaction("x") as store:
        zarr.create_array(store, name="x", data=np.arange(100, dtype="i4"), chunks=(10,), compressors=None)


def test_a_commit_is_a_child_of_the_callers_span(repo: txstore.Repository, seen: Seen) -> None:
    with seen.tracer.start_as_current_span("outer") as outer:
        create(repo)
    [span] = seen.spans("txstore.commit")
    head = repo.head()
    assert head is not None
    assert span.parent.span_id == outer.get_span_context().span_id
    assert dict(span.attributes or {}) == {
        "txstore.url": repo.url, "txstore.branch": "main", "txstore.commit": head.id, "txstore.version": 0,
        "txstore.unchanged": False,
    }  # fmt: skip
    assert seen.metric("commit.duration", branch="main") == 1
    assert seen.metric("io.staged") == head.statistics["bytes_set"]
    assert seen.metric("io.written") > 400


def test_threads_and_tasks_have_their_own_parents(open_repo: Open, seen: Seen) -> None:
    repo = open_repo()
    put(repo, {"a": b"0"})
    seen.exporter.clear()
    outer: dict[str, int] = {}

    def commit(name: str) -> None:
        with seen.tracer.start_as_current_span(name) as span:
            outer[name] = span.get_span_context().span_id
            put(repo, {name: b"1"}, name)

    async def commit_all() -> None:
        await asyncio.gather(*(asyncio.to_thread(commit, f"task {number}") for number in range(3)))

    threads = [threading.Thread(target=commit, args=(f"thread {number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    asyncio.run(commit_all())
    for thread in threads:
        thread.join()
    commits = {commit.id: commit.message for commit in repo.log(limit=6)}
    spans = seen.spans("txstore.commit")
    assert len(spans) == 6
    for span in spans:
        assert span.parent.span_id == outer[commits[str(span.attributes["txstore.commit"])]]


def test_a_conflict_and_a_retry(repo: txstore.Repository, seen: Seen) -> None:
    put(repo, {"a": b"0"})
    tried = []

    def work(store: txstore.TxStore) -> None:
        store.mapping["a"] = b"mine"  # type: ignore[index]
        if not tried:
            tried.append(1)
            put(repo, {"a": b"theirs"})

    repo.run(work)
    assert seen.metric("commit.conflicts") == 1
    assert seen.metric("commit.retries", reason="ConflictError") == 1
    [failed] = [span for span in seen.spans("txstore.commit") if span.status.status_code == StatusCode.ERROR]
    assert failed.attributes["error.type"] == "ConflictError"


def test_bytes_read(repo: txstore.Repository, seen: Seen) -> None:
    create(repo)
    before = seen.metric("io.read")
    z = zarr.open_array(repo.snapshot(), path="x", mode="r")
    opened = seen.metric("io.read")
    assert opened > before  # the document
    np.testing.assert_array_equal(z[:30], np.arange(30))
    assert seen.metric("io.read") - opened == 30 * 4


def test_caches(open_repo: Open, far: txstore.Repository, seen: Seen) -> None:
    repo = open_repo(chunk_cache="1 MiB")
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(100), chunks=(10,))
    z = zarr.open_array(repo.snapshot(), path="x", mode="r")
    for _ in range(3):
        z[3]
    assert seen.metric("cache.lookups", cache="chunks", hit=True) == repo.chunk_cache.hits == 2
    assert seen.metric("cache.lookups", cache="chunks", hit=False) == repo.chunk_cache.misses == 1
    create(far)
    txstore.Repository(far.url).mapping()["x/c/3"]
    assert seen.metric("cache.lookups", cache="packs") > 0


def test_operations(repo: txstore.Repository, seen: Seen) -> None:
    put(repo, {"a": b"0"})
    repo.tags["v1"] = 0
    repo.vacuum()
    names = [span.name for span in seen.spans("txstore.") if (span.attributes or {})["txstore.url"] == repo.url]
    assert names == ["txstore.commit", "txstore.create_tag", "txstore.vacuum"]  # other repositories have threads, too
    assert seen.metric("operation.duration", operation="vacuum") == 1


def test_off(repo: txstore.Repository, seen: Seen) -> None:
    telemetry.disable()
    create(repo)
    assert observing.observer is None
    assert seen.exporter.get_finished_spans() == ()


def test_opentelemetry_instrument_finds_it(seen: Seen) -> None:
    [found] = entry_points(group="opentelemetry_instrumentor", name="txstore")
    instrumentor = found.load()()
    telemetry.disable()
    instrumentor.instrument(tracer_provider=seen.tracers, meter_provider=seen.meters, skip_dep_check=True)
    assert observing.observer is not None
    instrumentor.uninstrument()
    assert observing.observer is None


def test_nothing_is_imported_without_it() -> None:
    code = "import sys, txstore; txstore.Repository; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
