"""The segment `txstore:` of zarr's URL pipelines, which no zarr has yet: here by the classes that the proposal has."""

import dataclasses
import sys
import tomllib
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Segment:
    scheme: str
    body: str
    query: str | None
    raw: str


@dataclasses.dataclass(frozen=True)
class Context:
    preceding: tuple[Segment, ...]
    mode: str | None
    storage_options: dict[str, Any] | None

    @property
    def preceding_url(self) -> str:
        return "|".join(each.raw for each in self.preceding)


@dataclasses.dataclass(frozen=True)
class Resolution:
    store: Any
    path: str = ""


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Resolution]:
    """Resolve a pipeline as zarr would, with the class that the entry point names."""
    proposed = types.ModuleType("zarr.abc.url_pipeline")
    proposed.AdapterResolution, proposed.URLPipelineAdapter = Resolution, object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "zarr.abc.url_pipeline", proposed)
    monkeypatch.delitem(sys.modules, "txstore.zarr_url_adapter", raising=False)
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, name = groups["zarr.url_adapters"]["txstore"].partition(":")
    adapter = getattr(__import__(module, fromlist=[name]), name)
    monkeypatch.delitem(sys.modules, module)

    def segment(text: str) -> Segment:
        front, mark, query = text.partition("?")
        scheme, _, body = front.partition(":")
        return Segment(scheme, body, query if mark else None, text)

    def resolve(url: str, mode: str | None = None, storage_options: dict[str, Any] | None = None) -> Resolution:
        *preceding, last = map(segment, url.split("|"))
        context = Context(tuple(preceding), mode, storage_options)
        found = zarr.core.sync.sync(adapter.open_pipeline_segment(last, context))
        assert isinstance(found, Resolution)
        return found

    return resolve


def place(repo: txstore.Repository) -> str:
    return repo.url if "://" in repo.url else f"file://{repo.url}"


def length(found: Resolution) -> int:
    return int(zarr.open_array(found.store, path=found.path, mode="r").shape[0])


def test_a_commit(filled: txstore.Repository, resolve: Callable[..., Resolution]) -> None:
    with filled.transaction("second", branch="dev") as store:
        zarr.open_array(store, path="group/position").append(np.arange(5))
    filled.tags["v-1"] = filled.head("dev")
    for mode in (None, "r", "a"):
        found = resolve(f"{place(filled)}|txstore:group/position", mode)
        assert found.store.read_only
        assert found.path == "group/position"
        assert length(found) == 10
    assert length(resolve(f"{place(filled)}/group|txstore:position?branch=dev")) == 15
    assert length(resolve(f"{place(filled)}|txstore:group/position?branch=dev&at=0")) == 10
    assert length(resolve(f"{place(filled)}|txstore:group%2Fposition?tag=v-1")) == 15
    assert length(resolve(f"{place(filled)}|txstore:?branch=dev/group/position")) == 15  # as tools append a path
    for prefix in ("txstore://", "txstore::"):
        assert length(resolve(f"{prefix}{filled.url}/group/position?branch=dev")) == 15
    for mode in ("w", "w-", "r+"):
        with pytest.raises(ValueError, match=r"unless the URL says who commits.*store\.share"):
            resolve(f"{place(filled)}|txstore:", mode)


def test_a_store_commits_when_it_is_closed(filled: txstore.Repository, resolve: Callable[..., Resolution]) -> None:
    xr = pytest.importorskip("xarray")
    url = f"{place(filled)}|txstore:?branch=dev&commit=on-close&message=m"
    store = resolve(url, "a").store
    zarr.create_array(store, name="x", data=np.arange(3))
    store.close()
    store.close()
    assert [commit.message for commit in filled.log("dev")] == ["m", "first"]
    store = resolve(url, "a").store
    xr.Dataset({"t": ("x", [1.0])}).to_zarr(store, group="below")
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        with pytest.warns(txstore.UncommittedChangesWarning, match="because of ZeroDivisionError"):
            store.close()
    assert len(filled.log("dev")) == 2
    assert not store.staged_count
    reader = resolve(url, "r").store
    assert reader.read_only
    reader.close()


def test_a_transaction(filled: txstore.Repository, resolve: Callable[..., Resolution]) -> None:
    with filled.transaction("shared") as store:
        query = store.share().partition("?")[2]
        zarr.create_array(resolve(f"{place(filled)}|txstore:?{query}", "a").store, name="x", data=np.arange(3))
        assert "x" in zarr.open_group(resolve(f"{place(filled)}|txstore:?{query}", "r").store, mode="r")
    assert "x" in zarr.open_group(filled.snapshot(), mode="r")
    with resolve(f"{place(filled)}|txstore:?transaction=run-17", "a").store as store:
        zarr.create_array(store, name="y", data=np.arange(3))
    filled.transaction(name="run-17").commit("named")
    assert "y" in zarr.open_group(filled.snapshot(), mode="r")


def test_what_is_wrong_is_said(filled: txstore.Repository, resolve: Callable[..., Resolution], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give its URL before"):
        resolve(f"{place(filled)}|zip:|txstore:")
    with pytest.raises(ValueError, match="no such parameter"):
        resolve(f"{place(filled)}|txstore:?version=1")
    with pytest.raises(txstore.RepositoryNotFoundError):
        resolve(f"file://{tmp_path}/nothing.tx|txstore:?commit=on-close", "a")
