"""Codecs that a stranger's document names are not run to show, compare, merge or load values; those of a list are."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numcodecs
import numcodecs.registry
import numpy as np
import pytest
import xarray as xr
import zarr

import txstore
from txstore.codecs.allowed_codecs import check_codecs
from txstore.codecs.chunk_codec import ChunkCodec, NotMergeableError
from txstore.errors import CodecRefusedError, SourceError
from txstore.loaders import Samples
from txstore.views import Reduce

pytestmark = pytest.mark.filterwarnings("ignore")

OpenRepo = Callable[..., txstore.Repository]


class Spy(numcodecs.abc.Codec):  # type: ignore[misc]
    """A codec that changes nothing, and notes that it was run."""

    codec_id = "txstore-test-spy"
    ran: list[str]

    def encode(self, buf: Any) -> Any:
        self.ran.append("encode")
        return buf

    def decode(self, buf: Any, out: Any = None) -> Any:
        self.ran.append("decode")
        return buf


@pytest.fixture
def ran() -> Iterator[list[str]]:
    """What the spy has done. It can be found by its name, as codecs of other packages can."""
    Spy.ran = []
    numcodecs.register_codec(Spy)
    yield Spy.ran
    del numcodecs.registry.codec_registry[Spy.codec_id]


def spied(store: Any, name: str = "x") -> Any:
    z = zarr.create_array(
        store, name=name, shape=(8,), chunks=(4,), dtype="i4", zarr_format=2, filters=[Spy()], compressors=None
    )
    z[:] = np.arange(8)
    return z


def format_2(**members: Any) -> dict[str, Any]:
    return {"zarr_format": 2, "filters": None, "compressor": None, **members}


def format_3(*codecs: Any) -> dict[str, Any]:
    return {"zarr_format": 3, "node_type": "array", "codecs": [{"name": "bytes"}, *codecs]}


def within(*codecs: Any) -> dict[str, Any]:
    return {"name": "sharding_indexed", "configuration": {"codecs": codecs, "index_codecs": [{"name": "bytes"}]}}


ZSTD = {"name": "zstd", "configuration": {"level": 1}}
PICKLE = {"name": "pickle"}

GOOD: list[tuple[str, dict[str, Any]]] = [
    (".zarray", format_2()),
    (".zarray", {"zarr_format": 2}),
    (".zarray", format_2(filters=[{"id": "delta", "dtype": "<i4"}, {"id": "vlen-utf8"}], compressor={"id": "zlib"})),
    ("zarr.json", format_3()),
    ("zarr.json", format_3(ZSTD, {"name": "numcodecs.zlib"}, {"name": "crc32c", "configuration": None})),
    ("zarr.json", format_3(within({"name": "vlen-utf8"}, ZSTD))),
]
BAD: list[tuple[str, dict[str, Any], list[str]]] = [
    (".zarray", format_2(filters=[{"id": "vlen-utf8"}, {"id": "pickle"}]), ["pickle"]),
    (".zarray", format_2(compressor={"id": "pickle"}), ["pickle"]),
    # What says in one format which codecs there are says nothing in the other.
    (".zarray", format_2(compressor={"id": "pickle"}, codecs=[{"name": "bytes"}]), ["pickle"]),
    ("zarr.json", format_3(PICKLE) | {"filters": None, "compressor": None}, ["pickle"]),
    ("zarr.json", format_3({"name": "numcodecs.pickle"}, {"name": "z"}), ["numcodecs.pickle", "z"]),
    ("zarr.json", format_3(within(within(ZSTD, PICKLE))), ["pickle"]),
    ("zarr.json", format_3(within(ZSTD) | {"configuration": {"index_codecs": [PICKLE]}}), ["pickle"]),
    (".zarray", {}, []),
    ("zarr.json", {}, []),
    (".zarray", format_2(filters=["pickle"]), []),
    (".zarray", format_2(compressor={"id": ["pickle"]}), []),
    (".zarray", format_2(compressor=[["pickle"]]), []),
    ("zarr.json", {"codecs": "pickle"}, []),
    ("zarr.json", format_3("pickle"), []),
    ("zarr.json", format_3({"name": "bytes", "configuration": [1]}), []),
]


@pytest.mark.parametrize(("name", "document"), GOOD)
def test_codecs_that_only_compute_are_allowed(name: str, document: dict[str, Any]) -> None:
    check_codecs("x", name, document)


@pytest.mark.parametrize(("name", "document", "refused"), BAD)
def test_all_others_are_refused(name: str, document: dict[str, Any], refused: list[str]) -> None:
    with pytest.raises(CodecRefusedError) as caught:
        check_codecs("x", name, document)
    assert caught.value.codecs == tuple(refused)
    assert all(each in str(caught.value) for each in refused)


def test_the_user_may_allow_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXSTORE_CODECS", " pcodec, numcodecs.zfpy,")
    check_codecs("x", "zarr.json", format_3({"name": "numcodecs.pcodec"}, {"name": "numcodecs.zfpy"}))
    with pytest.raises(CodecRefusedError):
        check_codecs("x", "zarr.json", format_3(PICKLE))


def test_no_package_is_loaded_for_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        def load(self) -> Any:
            raise AssertionError("the package of a codec was loaded")

    monkeypatch.setitem(numcodecs.registry.entries, "stranger", Entry())
    document = format_2(shape=[2], chunks=[2], dtype="<i4", fill_value=0, order="C", compressor={"id": "stranger"})
    with pytest.raises(NotMergeableError, match="TXSTORE_CODECS=stranger"):
        ChunkCodec(".zarray", json.dumps(document).encode(), "0")


@pytest.fixture
def two_sides(open_repo: OpenRepo, ran: list[str]) -> txstore.Repository:
    """Two branches that have each changed one element of the same chunk."""
    repo = open_repo()
    with repo.transaction("one") as store:
        spied(store)
    repo.branches["other"] = repo.head()
    for branch, at in (("main", 0), ("other", 1)):
        with repo.transaction("two", branch=branch) as store:
            zarr.open_array(store, path="x")[at] = 7
    ran.clear()
    return repo


def test_zarr_itself_runs_what_the_user_opens(two_sides: txstore.Repository, ran: list[str]) -> None:
    assert zarr.open_array(two_sides.snapshot(), path="x", mode="r")[0] == 7
    assert "decode" in ran


def test_a_diff_runs_none(two_sides: txstore.Repository, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    diff = two_sides.diff(two_sides.head())
    assert diff["x"].regions
    with pytest.raises(CodecRefusedError, match=Spy.codec_id):
        list(diff.values("x"))
    two_sides.blame("x")
    assert not ran
    monkeypatch.setenv("TXSTORE_CODECS", Spy.codec_id)
    assert [values.after[0] for values in diff.values("x")] == [7]


def test_a_staged_diff_runs_none(two_sides: txstore.Repository, ran: list[str]) -> None:
    with two_sides.transaction("three") as store:
        del store.mapping["x/0"]
        with pytest.raises(CodecRefusedError):
            list(store.diff().values("x"))
        store.rollback()
    assert not ran


def test_a_merge_runs_none(two_sides: txstore.Repository, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunk that both have changed is a conflict, as a whole: nothing of it is decoded."""
    with pytest.raises(txstore.MergeConflictError, match="x"):
        two_sides.merge("other")
    assert not ran
    monkeypatch.setenv("TXSTORE_CODECS", Spy.codec_id)
    two_sides.merge("other")
    np.testing.assert_array_equal(zarr.open_array(two_sides.snapshot(), path="x", mode="r")[:3], [7, 7, 2])


def test_loaders_run_none(two_sides: txstore.Repository, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CodecRefusedError):
        Samples(two_sides, ["x"])
    assert not ran
    monkeypatch.setenv("TXSTORE_CODECS", Spy.codec_id)
    assert len(Samples(two_sides, ["x"])) == 8


def test_what_is_joined_by_an_import_runs_none(open_repo: OpenRepo, ran: list[str], tmp_path: Path) -> None:
    """Plain Zarr is copied byte for byte; if several are joined, their arrays are decoded."""
    repo = open_repo()
    for name in ("a.zarr", "b.zarr"):
        spied(str(tmp_path / name)).attrs["_ARRAY_DIMENSIONS"] = ["t"]
    ran.clear()
    with pytest.raises((CodecRefusedError, SourceError), match=Spy.codec_id):
        repo.import_from([tmp_path / "a.zarr", tmp_path / "b.zarr"], concat="t")
    assert not ran


@pytest.fixture
def labelled(open_repo: OpenRepo, ran: list[str]) -> txstore.Repository:
    """A coordinate, and values along it, both with the spy."""
    repo = open_repo()
    with repo.transaction() as store:
        for name in ("t", "v"):
            spied(store, name).attrs.update(
                {"_ARRAY_DIMENSIONS": ["t"], **({"units": "days since 2020-01-01"} if name == "t" else {})}
            )
    ran.clear()
    return repo


def rows(*labels: int) -> xr.Dataset:
    days = np.datetime64("2020-01-01") + np.array(labels).astype("m8[D]")
    return xr.Dataset({"v": ("t", np.array(labels, "i4"))}, {"t": days.astype("M8[ns]")})


BY_LABEL: dict[str, Callable[[txstore.Repository, txstore.TxStore], Any]] = {
    "upsert": lambda repo, store: txstore.upsert(rows(3, 9), store, dim="t"),
    "prepend": lambda repo, store: txstore.prepend(rows(-2, -1), store, dim="t"),
    "roll": lambda repo, store: txstore.roll(store, "t", keep=3),
    "shift": lambda repo, store: store.shift("v", {0: 1}),
    "shift, with a value": lambda repo, store: store.shift("v", {0: 4}, fill=7),
    "a view by labels": lambda repo, store: store.views.update({"mean": Reduce("v", "t", "mean", "mean", by="month")}),
}


@pytest.mark.parametrize("name", BY_LABEL)
def test_what_goes_by_labels_runs_none(labelled: txstore.Repository, ran: list[str], name: str) -> None:
    with labelled.transaction() as store:
        with pytest.raises(CodecRefusedError, match=Spy.codec_id):
            BY_LABEL[name](labelled, store)
        store.rollback()
    assert not ran


@pytest.mark.parametrize("name", ["upsert", "roll", "rechunk", "erase"])
def test_what_repositories_do_alone_runs_none(labelled: txstore.Repository, ran: list[str], name: str) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "upsert": lambda: labelled.upsert(rows(3, 9), dim="t"),
        "roll": lambda: labelled.run(lambda store: txstore.roll(store, "t", keep=3)),
        "rechunk": lambda: labelled.rechunk("v", chunks=(2,)),
        "erase": lambda: labelled.erase("v", {"t": 3}),
    }
    with pytest.raises((CodecRefusedError, txstore.ErasureError), match=Spy.codec_id):
        calls[name]()
    assert not ran


def test_what_goes_by_labels_runs_what_the_user_allows(labelled, ran, monkeypatch):
    monkeypatch.setenv("TXSTORE_CODECS", Spy.codec_id)
    labelled.upsert(rows(3, 9), dim="t")
    assert zarr.open_array(labelled.snapshot(), path="v", mode="r")[:].tolist() == [*range(8), 9]
    assert ran
