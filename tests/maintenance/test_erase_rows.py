"""Erasing rows: no file has them afterwards, and every other element of every commit reads as before."""

from __future__ import annotations

import contextlib
import gc
import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import txstore
from tests.maintenance.erased_rows import Contents, array_of, check, contents, files_of, leaks
from tests.tools.faults import Killed, watch
from txstore.labels.erasing import Choice
from txstore.maintenance import erase as erasing

DRAWN = random.Random(3)


def secret(length: int = 2) -> np.ndarray[Any, Any]:
    """Elements like no others: 8 bytes each."""
    return np.frombuffer(DRAWN.randbytes(8 * length), np.uint64)


class Study:
    """Patients and their values, in several commits: rows are changed, appended, and inserted before others."""

    def __init__(self, repo: txstore.Repository, **options: Any) -> None:
        self.repo = repo
        self.rows: list[bytes] = []  # all that was ever written of patient 20
        labels = [10, 20, 30]
        with repo.transaction("first") as store:
            zarr.create_group(store)
            array_of(store, "patient", np.array(labels), ["patient"], (2,))
            array_of(store, "v", self.data(labels), ["patient", "x"], (2, 2), **options)
            array_of(store, "g/w", self.data(labels), ["x", "patient"], (3, 3), **options)
            array_of(store, "other", np.arange(5), ["x"], (5,))
        repo.tags["v1"] = 0
        with repo.transaction("changed") as store:
            zarr.open_array(store, path="v")[1] = self.noted(secret(3))
        labels = [10, 20, 30, 40, 50]
        with repo.transaction("appended") as store:
            for path, data in {"patient": np.array([40, 50]), "v": secret(6).reshape(2, 3)}.items():
                zarr.open_array(store, path=path).append(data)
            zarr.open_array(store, path="g/w").resize((3, 5))
        repo.branches["dev"] = repo.head()
        labels = [5, *labels]
        with repo.transaction("inserted before") as store:
            for path in ("patient", "v"):
                array = zarr.open_array(store, path=path)
                old = array[...]
                array.resize((6, *array.shape[1:]))
                array[1:] = old
                array[:1] = 5 if path == "patient" else secret(3)[None]
            array = zarr.open_array(store, path="g/w")
            old = array[...]
            array.resize((3, 6))
            array[:, 1:] = old
        with repo.transaction("on dev", branch="dev") as store:
            zarr.open_array(store, path="v")[1] = self.noted(secret(3))
            zarr.open_array(store, path="v")[1] = self.noted(secret(3))  # twice in one transaction
        gc.collect()

    def noted(self, row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        self.rows += [each.tobytes() for each in row]
        return row

    def data(self, labels: list[int]) -> np.ndarray[Any, Any]:
        shape = (len(labels), 3) if not hasattr(self, "second") else (3, len(labels))
        found = secret(3 * len(labels)).reshape(shape)
        self.noted(found[1] if not hasattr(self, "second") else found[:, 1])
        self.second = True
        return found

    def where(self, before: Contents) -> Callable[[str, int, str], Any]:
        """Return what says which elements are those of patient 20."""

        def is_erased(branch: str, version: int, path: str) -> Any:
            rows = np.flatnonzero(before[branch, version, "patient"] == 20)
            return {"v": (rows,), "g/w": (slice(None), rows)}.get(path)

        return is_erased


def test_no_file_has_a_byte_of_it(repo: txstore.Repository) -> None:
    study = Study(repo)
    commits = {commit.id for name in ("main", "dev") for commit in repo.log(name)}
    before = contents(repo)
    assert leaks(repo.url, *study.rows)

    report = repo.erase("", {"patient": 20})

    assert leaks(repo.url, *study.rows) == []
    for each in (repo, txstore.Repository(repo.url)):
        check(before, contents(each), study.where(before), lambda _: 0)
    assert repo.verify().faults == []
    assert {commit.id for name in ("main", "dev") for commit in repo.log(name)} >= commits
    assert report.commit == repo.head()
    assert repo.head().message == "erased rows of 'g/w', 'v' along 'patient'"
    [erasure] = repo.erasures()
    assert (erasure.paths, erasure.dimensions, erasure.values) == (("g/w", "v"), ("patient",), report.values)
    assert "rows of 'g/w', 'v' along 'patient'" in str(erasure)
    assert repo.erase("", {"patient": 20}).commit is None
    assert repo.verify(repair=True).faults == []


@pytest.mark.parametrize(
    "options",
    [
        {"compressors": "auto"},
        {"shards": (2, 4), "compressors": None},
        {"shards": (4, 4), "compressors": zarr.codecs.GzipCodec()},
        {"zarr_format": 2, "compressors": None},
        {"fill_value": 7, "compressors": zarr.codecs.BloscCodec()},
    ],
    ids=["zstd", "sharded", "sharded and gzip", "format 2", "blosc"],
)
def test_whatever_encodes_the_chunks(repo: txstore.Repository, options: dict[str, Any]) -> None:
    fill = options.get("fill_value", 0)
    labels, versions = np.array([3, 1, 2]), [secret(12).reshape(3, 4) for _ in range(3)]
    is_v2 = options.get("zarr_format") == 2
    with repo.transaction() as store:
        if is_v2:
            zarr.create_group(store, zarr_format=2)
            for path, data, dims, chunks in (("p", labels, ["p"], (3,)), ("v", versions[0], ["p", "x"], (2, 2))):
                zarr.create_array(
                    store, name=path, data=data, chunks=chunks, attributes={"_ARRAY_DIMENSIONS": dims}, **options
                )
        else:
            array_of(store, "p", labels, ["p"], (3,))
            array_of(store, "v", versions[0], ["p", "x"], (2, 2), **options)
    for each in versions[1:]:
        with repo.transaction() as store:
            zarr.open_array(store, path="v")[...] = each
    before = contents(repo)
    repo.erase("v", {"p": 1})
    check(before, contents(repo), lambda *place: 1 if place[2] == "v" else None, lambda _: fill)
    pieces = [each.tobytes() for data in versions for each in data[1]]
    assert leaks(repo.url, *pieces) == []


def test_texts(repo: txstore.Repository) -> None:
    names = np.array(["Ann Lee", "Bob Ray", "Cy Fox"], dtype=object)
    with repo.transaction() as store:
        for path, data in {"who": names, "says": np.array(["one", "two " * 9, "three"], dtype=object)}.items():
            z = zarr.create_array(
                store, name=path, shape=3, chunks=2, dtype=str, dimension_names=["who"], compressors=None
            )
            z[:] = data
    assert leaks(repo.url, b"two two")
    repo.erase("", {"who": "Bob Ray"}, labels=True)
    assert leaks(repo.url, b"two two", b"Bob Ray") == []
    found = {path: list(zarr.open_array(repo.snapshot(at=0), path=path, mode="r")[:]) for path in ("who", "says")}
    assert found == {"who": ["Ann Lee", "", "Cy Fox"], "says": ["one", "", "three"]}
    with pytest.raises(txstore.ErasureError, match="no commit has such rows"):
        repo.erase("", {"who": "Bob Ray"}, labels=True)


def test_records_say_no_labels(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        z = zarr.create_array(store, name="who", shape=2, dtype=str, dimension_names=["who"], compressors=None)
        z[:] = np.array(["Ann Lee", "Bob Ray"], dtype=object)
        array_of(store, "v", np.arange(1, 3), ["who"], (1,))
    repo.erase("v", {"who": "Bob Ray"}, labels=True)
    assert leaks(repo.url, b"Bob Ray") == []
    [operation] = [each for each in repo.log(operations=True) if each.operation == "erase"]
    assert operation.arguments == {"paths": 2, "dimensions": 1}  # how many


def days(start: str, count: int) -> xr.Dataset:
    time = np.datetime64(start, "ns") + np.arange(count) * np.timedelta64(1, "D")
    return xr.Dataset(
        {"t": (("time", "x"), np.random.default_rng(count).random((count, 2)))}, {"time": time, "x": [0, 1]}
    )


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("2024-01-30", slice("2024-01-30", "2024-01-30")),
        ("2024-02", slice("2024-02-01", "2024-02-29")),
        (slice("2024-01-30", "2024-02"), slice("2024-01-30", "2024-02-29")),
        (slice(None, "2024-02-03"), slice(None, "2024-02-03")),
        (["2024-02-01", np.datetime64("2024-02-03")], ["2024-02-01", "2024-02-03"]),
        (np.array(["2024-02-01"], "M8[s]"), ["2024-02-01"]),
    ],
)
def test_dates(repo: txstore.Repository, chosen: Any, expected: Any) -> None:
    with repo.transaction() as store:
        days("2024-01-20", 20).to_zarr(store, encoding={"t": {"chunks": (7, 2)}})
    with repo.transaction() as store:
        days("2024-02-09", 30).to_zarr(store, append_dim="time")

    def read(at: int) -> xr.DataArray:
        with xr.open_dataset(repo.snapshot(at=at), engine="zarr", consolidated=False) as ds:
            return xr.DataArray(ds.t.values, {"time": ds.time.values}, ("time", "x"))

    before = [read(at) for at in range(2)]
    gc.collect()
    repo.erase("t", {"time": chosen})
    for at, was in enumerate(before):
        gone = was.time.isin(was.sel(time=expected).time)
        np.testing.assert_array_equal(read(at), was.where(~gone))  # NaN: the `_FillValue` that xarray has written


def test_labels_that_descend_in_some_commits_only(repo: txstore.Repository) -> None:
    """A slice names the same labels in each of them."""
    with repo.transaction() as store:
        array_of(store, "t", np.array([5]), ["t"], (4,))
        array_of(store, "v", np.array([50]), ["t"], (4,))
    with repo.transaction() as store:
        for path, more in {"t": [4, 3, 1], "v": [40, 30, 10]}.items():
            zarr.open_array(store, path=path).append(np.array(more))
    with pytest.raises(ValueError, match=r"'t': the labels descend in some commit.*give both ends"):
        repo.erase("v", {"t": slice(3, None)})
    repo.erase("v", {"t": slice(3, 5)})
    found = [zarr.open_array(repo.snapshot(at=at), path="v", mode="r")[:].tolist() for at in range(2)]
    assert found == [[0], [0, 0, 0, 10]]


def test_nanoseconds_of_pandas(repo: txstore.Repository) -> None:
    """Rows that are half a microsecond apart."""
    durations = pd.to_timedelta([1000, 1500], "ns")
    labels = durations + pd.Timestamp("2024-01-01")
    with repo.transaction() as store:
        xr.Dataset({"v": ("time", [1.0, 2.0])}, {"time": labels.to_numpy()}).to_zarr(store, consolidated=False)
    with pytest.raises(ValueError, match="time zone"):
        repo.erase("v", {"time": labels[1].tz_localize("UTC")})
    repo.erase("v", {"time": labels[1]})
    np.testing.assert_array_equal(zarr.open_array(repo.snapshot(), path="v", mode="r")[:], [1, np.nan])
    assert Choice("x", durations[1], by_position=False).among(durations.to_numpy()).tolist() == [1]


@pytest.mark.parametrize(
    ("labels", "chosen"),
    [
        (np.arange(12, dtype="u8") + 2**60, [np.uint64(2**60), *(2**60 + n for n in range(1, 10))]),
        (np.arange(12, dtype="f4") / np.float32(10), [n / 10 for n in range(10)]),
        (np.arange(12, dtype="i1"), [*range(10), 300, 2**40, 0.5]),
        (np.array(list("abcdefghijkl")), [*"abcdefghij", "kl"]),
    ],
)
def test_long_lists_name_what_short_ones_name(labels: Any, chosen: list[Any]) -> None:
    choice = Choice("x", chosen, by_position=False)
    assert choice.among(labels).tolist() == list(range(10))
    assert choice.unmet == set(range(10, len(chosen)))
    found = [Choice("x", [label], by_position=False).among(labels).tolist() for label in chosen]
    assert found == [[place] for place in range(10)] + [[]] * (len(chosen) - 10)


def test_positions(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        array_of(store, "v", np.arange(1, 7), ["x"], (2,))
    with repo.transaction() as store:
        zarr.open_array(store, path="v").append(np.arange(7, 10))
    before = contents(repo)
    with pytest.raises(txstore.ErasureError, match="no coordinate"):
        repo.erase("v", {"x": 2})
    repo.erase("v", {"x": [0, 3]}, positions=True)
    repo.erase("v", {"x": slice(6, None)}, positions=True)
    check(before, contents(repo), lambda _, version, __: [0, 3] if not version else [0, 3, 6, 7, 8], lambda _: 0)
    assert repo.erase("v", {"x": 0}, positions=True).commit is None


def test_what_names_no_rows(repo: txstore.Repository) -> None:
    Study(repo)
    head = repo.head()
    for rows, options, kind, words in (
        ({}, {}, ValueError, "name the rows"),
        ({"patient": []}, {}, ValueError, "no labels"),
        ({"patient": slice(None)}, {}, ValueError, "all of it"),
        ({"patient": slice(1, 9, 2)}, {}, ValueError, "step"),
        ({"patient": "20"}, {}, TypeError, "another kind"),
        ({"patient": float("nan")}, {}, ValueError, "NaN"),
        ({"patient": -1}, {"positions": True}, ValueError, "from the end"),
        ({"patient": 1.5}, {"positions": True}, TypeError, "integers"),
        ({"patient": 20, "x": 1}, {"labels": True}, ValueError, "one dimension"),
        ({"patient": 21}, {}, txstore.ErasureError, "no commit has such rows .'patient': 21"),
        ({"time": 21}, {}, txstore.ErasureError, "dimensions 'time'"),
        ({"patient": 99}, {"positions": True}, txstore.ErasureError, "no commit has such rows"),
    ):
        with pytest.raises(kind, match=words):
            repo.erase("v", rows, **options)
    with pytest.raises(txstore.NodeNotFoundError):
        repo.erase("absent", {"patient": 20})
    with pytest.raises(ValueError, match="are about rows"):
        repo.erase("v", labels=True)
    with pytest.raises(TypeError, match="comes last"):
        repo.erase({"patient": 20}, "v")
    with pytest.raises(ValueError, match="name the arrays"):
        repo.erase({"patient": 20})
    assert repo.head() == head
    assert repo.erasures() == []


# --- what is in the way


def test_a_commit_without_labels(repo: txstore.Repository) -> None:
    """A value that some commit has under a label is found by it; one that no commit has labelled can't be."""
    with repo.transaction("values first") as store:
        array_of(store, "v", np.arange(1, 5), ["p"], (2,))
    with repo.transaction("then labels") as store:
        array_of(store, "p", np.arange(4), ["p"], (4,))
    repo.erase("v", {"p": 1})
    assert list(zarr.open_array(repo.snapshot(at=0), path="v", mode="r")[:]) == [1, 0, 3, 4]
    with repo.begin("labels go") as mapping:
        mapping.delete_dir("p")
    with repo.transaction("changed without labels") as store:
        zarr.open_array(store, path="v")[0] = 9
    del mapping, store
    gc.collect()
    with pytest.raises(txstore.ErasureError, match="no coordinate that says which rows"):
        repo.erase("v", {"p": 2})


def test_labels_that_are_not_written_yet(repo: txstore.Repository) -> None:
    """As long as a coordinate has only fill values, they are no labels."""
    with repo.transaction("values first") as store:
        array_of(store, "v", np.arange(1, 5), ["p"], (2,))
        zarr.create_array(store, name="p", shape=4, dtype="i8", dimension_names=["p"])
    with repo.transaction("then labels") as store:
        zarr.open_array(store, path="p")[:] = np.arange(4)
    before = contents(repo)
    repo.erase("v", {"p": 0})
    check(before, contents(repo), lambda *place: 0 if place[2] == "v" else None, lambda _: 0)


def test_values_outside_are_refused_by_name(repo: txstore.Repository, tmp_path: Path) -> None:
    outside = tmp_path / "data.bin"
    outside.write_bytes(np.arange(4).tobytes())
    repo = txstore.Repository(repo.url, sources=[f"file://{tmp_path}"])
    with repo.transaction() as store:
        array_of(store, "p", np.arange(4), ["p"], (4,))
        zarr.create_array(store, name="v", shape=4, chunks=2, dtype="i8", dimension_names=["p"], compressors=None)
        store.set_reference("v/c/0", f"file://{outside}", 0, 16)
        zarr.open_array(store, path="v")[2:] = [7, 8]
    del store
    gc.collect()
    with pytest.raises(txstore.ErasureError, match="'v/c/0' lies in a file outside"):
        repo.erase("v", {"p": 1})
    assert repo.erasures() == []
    repo.erase("v", {"p": 3})
    assert list(zarr.open_array(repo.snapshot(at=0), path="v", mode="r")[:]) == [0, 1, 7, 0]


@pytest.mark.parametrize("chunks", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_rows_of_many_chunks(repo: txstore.Repository, chunks: int) -> None:
    """All new values of a pack are written by one call, which passes on more parts than the system takes at once."""
    data = secret(2 * chunks).reshape(2, chunks)
    with repo.transaction() as store:
        array_of(store, "v", data, ["patient", "x"], (2, 1))
    assert repo.erase("v", {"patient": 1}, positions=True).values == chunks
    found = zarr.open_array(repo.snapshot(at=0), path="v", mode="r")[:]
    assert np.array_equal(found, [data[0], np.zeros(chunks)])


@pytest.mark.parametrize("rows", [[{"patient": 20}], []], ids=["rows", "whole"])
@pytest.mark.parametrize("when", ["vacuum", "write_replacements"])
@pytest.mark.parametrize("how", ["restored", "branch"])
def test_what_older_commits_have_is_not_written_again_meanwhile(
    repo: txstore.Repository, monkeypatch: pytest.MonkeyPatch, how: str, when: str, rows: list[Any]
) -> None:
    """By one that begins behind the last look for readers."""
    study = Study(repo)
    pieces = [each.tobytes() for each in zarr.open_array(repo.snapshot(at=0), path="v", mode="r")[1]]
    assert set(pieces) <= set(study.rows)
    other, real, left = txstore.Repository(repo.url), getattr(erasing, when), [1]

    def beside(*args: Any, **options: Any) -> Any:
        if left and left.pop():
            with contextlib.suppress(txstore.ErasedError):
                if how == "branch":
                    other.branches["old"] = other.commit(0)
                with other.transaction("beside", branch="old" if how == "branch" else "main") as store:
                    if how == "restored":
                        store.restore("patient", at=0)  # the labels at that commit
                        store.restore("v", at=0)
                    zarr.open_array(store, path="v")[0, 0] = 7
            gc.collect()
        return real(*args, **options)

    monkeypatch.setattr(erasing, when, beside)
    repo.erase("v", *rows)
    assert leaks(repo.url, *pieces) == []


# --- afterwards


def test_what_older_commits_had_comes_back_without_it(repo: txstore.Repository) -> None:
    study = Study(repo)
    repo.erase("", {"patient": 20})
    with repo.transaction("restored") as store:
        store.restore("v", at=0)
    with repo.transaction("copied") as store:
        store.copy("v", "old", at=repo.commit(1))
    del store
    for path, row in {"v": 1, "old": 1}.items():
        array = zarr.open_array(repo.snapshot(), path=path, mode="r")[...]
        assert not array[row].any()
        assert array[0].all()
    assert [node.path for node in repo.diff(0, 1).changed] in ([], ["v"])
    gc.collect()
    repo.optimize()
    repo.vacuum()
    assert not zarr.open_array(repo.snapshot(), path="old", mode="r")[1].any()
    gc.collect()
    with pytest.raises(txstore.ErasureError, match="no coordinate that says which rows"):
        repo.erase("v", "old", {"patient": 10})  # it is shorter than the coordinate
    repo.erase("v", "old", {"patient": 0}, positions=True)
    assert not zarr.open_array(repo.snapshot(), path="old", mode="r")[:2].any()
    assert repo.verify().ok
    assert leaks(repo.url, *study.rows) == []


def test_values_that_no_commit_has_any_more(repo: txstore.Repository) -> None:
    """Their files are kept for other values. Nobody can tell which rows they have: they are erased as a whole."""
    rows = [secret(4) for _ in range(3)]
    for row in rows:
        with repo.transaction() as store:
            if "p/zarr.json" not in store:
                array_of(store, "p", np.arange(4), ["p"], (4,))
                array_of(store, "v", row, ["p"], (4,))
                array_of(store, "kept", np.arange(9), ["x"], (9,))
            zarr.open_array(store, path="v")[:] = row
    del store
    gc.collect()
    repo.vacuum(keep=1)
    assert leaks(repo.url, rows[0].tobytes())
    repo.erase("v", {"p": 2})
    assert leaks(repo.url, *(row[2].tobytes() for row in rows)) == []
    assert list(zarr.open_array(repo.snapshot(), path="kept", mode="r")[:]) == list(range(9))
    gc.collect()
    assert repo.verify().ok


def shortened(repo: txstore.Repository) -> np.ndarray[Any, Any]:
    """Write an array, make it two rows shorter, and write its last chunk anew; return the rows of the first commit."""
    rows = secret(8)
    with repo.transaction() as store:
        array_of(store, "p", np.arange(10, 18), ["p"], (8,))
        array_of(store, "v", rows, ["p"], (4,))
    with repo.transaction("shorter") as store:
        for path in ("p", "v"):
            zarr.open_array(store, path=path).resize((6,))
    with repo.transaction("written anew") as store:
        zarr.open_array(store, path="v")[4] = 1
    return rows


@pytest.mark.parametrize("grows", [False, True])
def test_what_a_shorter_array_hides(repo: txstore.Repository, grows: bool) -> None:
    """The chunk at the end is copied with the rows that no reader sees any more."""
    rows = shortened(repo)
    if grows:
        with repo.transaction("longer") as store:
            for path in ("p", "v"):
                zarr.open_array(store, path=path).resize((8,))
            zarr.open_array(store, path="p")[6:] = [20, 21]
        del store
    gc.collect()
    before = contents(repo)
    if grows:  # the old values are seen again, under other labels
        assert before["main", 3, "v"][7] == rows[7]
        repo.erase("v", {"p": [17, 21]})
    else:
        repo.erase("v", {"p": 17})
        assert leaks(repo.url, rows[6].tobytes())  # of the first commit, in which it is seen
    assert leaks(repo.url, rows[7].tobytes()) == []

    def is_erased(branch: str, version: int, path: str) -> Any:
        return np.isin(before[branch, version, "p"], [17, 21]) if path == "v" else None

    check(before, contents(repo), is_erased, lambda _: 0)
    gc.collect()
    assert repo.erase("v", {"p": 17}).commit is None


@pytest.mark.parametrize("grows", [False, True])
def test_what_a_commit_has_shown_that_has_expired(repo: txstore.Repository, grows: bool) -> None:
    """No kept commit says that the array was longer once."""
    rows = shortened(repo)
    with repo.transaction("its label is another row's") as store:
        zarr.open_array(store, path="p")[0] = 17
        if grows:  # one of them is seen again
            for path in ("p", "v"):
                zarr.open_array(store, path=path).resize((7,))
            zarr.open_array(store, path="p")[6] = 30
    del store
    gc.collect()
    repo.vacuum(keep=2)
    gc.collect()
    before = contents(repo)
    repo.erase("v", {"p": 17})
    assert leaks(repo.url, rows[7].tobytes()) == []
    assert bool(leaks(repo.url, rows[6].tobytes())) == grows
    # Of the same value, whatever was under the label at any commit.
    check(before, contents(repo), lambda branch, version, path: 0 if path == "v" else None, lambda _: 0)
    gc.collect()
    assert repo.erase("v", {"p": 17}).commit is None


def test_a_value_whose_labels_were_exchanged(repo: txstore.Repository) -> None:
    """The commit that overwrites the rows carries none on that this value had under the label in another commit."""
    values = secret(4)
    with repo.transaction() as store:
        array_of(store, "p", np.arange(4), ["p"], (4,))
        array_of(store, "v", values, ["p"], (4,))
    with repo.transaction("exchanged") as store:
        zarr.open_array(store, path="p")[:] = [0, 2, 1, 3]
    del store
    repo.erase("v", {"p": 1}, timeout=5)
    for commit in repo.log():
        found = zarr.open_array(repo.snapshot(at=commit.version), path="v", mode="r")[:]
        assert np.array_equal(found, [values[0], 0, 0, values[3]]), commit
    assert not leaks(repo.url, values[1].tobytes(), values[2].tobytes())


def test_what_only_a_deleted_branch_has_shown(repo: txstore.Repository) -> None:
    """No kept commit says that the array was longer once, and none of main has expired."""
    with repo.transaction() as store:
        array_of(store, "p", np.arange(10, 16), ["p"], (8,))
        array_of(store, "v", secret(6), ["p"], (4,))
    repo.branches["dev"] = repo.head()
    rows = secret(2)
    with repo.transaction("longer", branch="dev") as store:
        zarr.open_array(store, path="p").append(np.array([16, 17]))
        zarr.open_array(store, path="v").append(rows)
    with repo.transaction("shorter", branch="dev") as store:
        for path in ("p", "v"):
            zarr.open_array(store, path=path).resize((6,))
        zarr.open_array(store, path="v")[4] = 1
    del store
    gc.collect()
    repo.merge("dev")
    del repo.branches["dev"]
    repo.vacuum(keep=9)
    gc.collect()
    assert leaks(repo.url, rows[1].tobytes())
    before = contents(repo)
    repo.erase("v", {"p": 12})
    assert leaks(repo.url, rows[1].tobytes()) == []
    check(before, contents(repo), lambda branch, version, path: 2 if path == "v" else None, lambda _: 0)


def test_what_a_shorter_array_hides_and_a_roll_moves(repo: txstore.Repository) -> None:
    """How much of a chunk is hidden is told by each commit from where the chunk lies there."""
    rows = secret(20)
    with repo.transaction() as store:
        array_of(store, "p", np.arange(100, 120), ["p"], (20,))
        array_of(store, "v", rows, ["p"], (4,))
    with repo.transaction("shorter") as store:
        for path in ("p", "v"):
            zarr.open_array(store, path=path).resize((18,))
    with repo.transaction("written anew") as store:
        zarr.open_array(store, path="v")[16] = 1
    with repo.transaction("moved") as store:
        txstore.roll(store, "p", keep=10)
    del store
    gc.collect()
    before = contents(repo)
    repo.erase("v", {"p": [116, 119]})
    assert leaks(repo.url, rows[19].tobytes()) == []
    check(before, contents(repo), _labelled(before, [116, 119]), lambda _: 0)


def test_what_one_commit_hides_and_another_shows_elsewhere(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        array_of(store, "p", np.arange(100, 104), ["p"], (20,))
        array_of(store, "v", secret(4), ["p"], (4,))
    with repo.transaction("moved and shorter") as store:
        txstore.prepend(xr.Dataset({"v": ("p", secret(4))}, {"p": np.arange(96, 100)}), store, dim="p")
        for path in ("p", "v"):
            zarr.open_array(store, path=path).resize((6,))
    with repo.transaction("shorter") as store:
        for path in ("p", "v"):
            zarr.open_array(store, path=path).resize((5,))
    del store
    gc.collect()
    before = contents(repo)
    repo.erase("v", {"p": 100})
    check(before, contents(repo), _labelled(before, [100]), lambda _: 0)


def test_what_one_array_hides_and_its_copy_by_reference_shows(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        array_of(store, "p", np.arange(100, 104), ["p"], (20,))
        array_of(store, "v", secret(4), ["p"], (4,))
    with repo.transaction("shorter") as store:
        for path in ("p", "v"):
            zarr.open_array(store, path=path).resize((2,))
    with repo.transaction("written anew") as store:
        zarr.open_array(store, path="v")[0] = 1
    with repo.transaction("copied") as store:
        zarr.create_group(store, path="g")
        store.copy("v", "g/v")
    with repo.transaction("longer") as store:
        zarr.open_array(store, path="g/v").resize((4,))
        array_of(store, "g/p", np.arange(100, 104), ["p"], (20,))
    del store
    gc.collect()
    before = contents(repo)
    repo.erase("v", "g/v", {"p": 101})

    def is_erased(branch: str, version: int, path: str) -> Any:
        return 1 if path in ("v", "g/v") else None

    check(before, contents(repo), is_erased, lambda _: 0)


def _labelled(before: Contents, labels: list[int]) -> Callable[[str, int, str], Any]:
    return lambda branch, version, path: np.isin(before[branch, version, "p"], labels) if path == "v" else None


# --- interrupted


def test_parts_of_shards_are_read_before_all_runs_say_that_they_were_replaced(repo: txstore.Repository) -> None:
    rows = secret(8)
    with repo.transaction("first") as store:
        array_of(store, "p", np.arange(8), ["p"], (8,))
        array_of(store, "v", rows, ["p"], (2,), shards=(8,), compressors=None)
    with repo.transaction("second") as store:
        store["other"] = b"1"
    del store
    repo.optimize()
    gc.collect()
    file = Path(repo.url, "commits/main/0000000002")  # of the run alone
    before = file.read_bytes()
    repo.erase("v", {"p": 2})
    file.write_bytes(before)
    array = zarr.open_array(txstore.Repository(repo.url).snapshot(at=2), path="v", mode="r")
    np.testing.assert_array_equal([array[at] for at in range(8)], np.where(np.arange(8) == 2, 0, rows))


# --- copies


def test_a_backup_that_has_more(repo: txstore.Repository, tmp_path: Path) -> None:
    """A copy has commits that were expired here: nobody here knows their rows, so they are erased as a whole there."""
    study = Study(repo)
    copy = tmp_path / "copy.tx"
    repo.backup(copy)
    del repo.tags["v1"]
    repo.vacuum(keep=1)
    repo.vacuum(keep=1, branch="dev")
    repo.erase("", {"patient": 20})
    gc.collect()
    repo.backup(copy, erase=True)
    assert leaks(copy, *study.rows) == []
    copied = txstore.Repository(copy)
    assert copied.verify().faults == []
    assert list(zarr.open_array(copied.snapshot(at=0), path="patient", mode="r")[:]) == [10, 20, 30]


# --- the fill value


@pytest.mark.parametrize(
    ("dtype", "declared", "expected"),
    [
        ("u1", 255, 255), ("u1", -1, 7), ("u1", 300, 7), ("i4", 1.5, 7), ("i4", "none", 7), ("i4", "AAAAAAAA+H8=", 7),
        ("i8", 1 << 70, 7), ("f4", 1e300, 7), ("f4", "AAAAAAAA+H8=", np.nan), ("f8", -1.5, -1.5), ("f8", "NaN", 7),
        (str, "AAAAAAAA+H8=", ""), (str, 3, ""), (bool, 1, False),
    ],
)  # fmt: skip
def test_a_declared_fill_value_counts_if_the_array_can_hold_it(
    repo: txstore.Repository, dtype: Any, declared: Any, expected: Any
) -> None:
    fill = {str: "", bool: False}.get(dtype, 7)
    with repo.transaction() as store:
        array_of(store, "p", np.arange(3), ["p"], (3,))
        attributes = {"_FillValue": declared}
        z = zarr.create_array(
            store, name="v", shape=3, dtype=dtype, chunks=(3,), dimension_names=["p"], attributes=attributes,
            fill_value=fill, compressors=None,
        )  # fmt: skip
        z[:] = np.array(["a", "b", "c"], object) if dtype is str else np.array([1, 1, 1]).astype(dtype)
    del store, z
    gc.collect()
    repo.erase("v", {"p": 1})
    found = zarr.open_array(repo.snapshot(at=0), path="v", mode="r")[:]
    np.testing.assert_array_equal(found[1], expected)
    assert not {found[0], found[2]} & {found[1]}


def test_a_branch_at_an_older_commit_is_given_nothing_of_older_maps(repo: txstore.Repository) -> None:
    """A process keeps runs open, and so maps of files. A second erasure does not reach what the first one replaced."""
    kept = secret(4)
    with repo.transaction("first") as store:
        array_of(store, "p", np.arange(4), ["p"], (4,))
        array_of(store, "v", kept, ["p"], (4,))
        array_of(store, "w", secret(4), ["p"], (4,))
    del store
    zarr.open_array(repo.snapshot(), path="v", mode="r")[:]
    gc.collect()
    other = txstore.Repository(repo.url)
    other.erase("w")
    other.erase("v", {"p": 2})
    repo.branches["old"] = next(commit for commit in repo.log() if commit.version == 0)
    assert zarr.open_array(repo.snapshot(branch="old"), path="v", mode="r")[2] == 0
    with repo.transaction("again", branch="old") as store:
        zarr.open_array(store, path="v")[0] = 7
    assert [path for path, content in files_of(repo.url) if kept[2].tobytes() in content] == []


def test_a_commit_far_away_compacts_what_is_stored_and_not_what_was_read() -> None:
    """Where no pins are seen, an erasure does not wait for who has opened a run."""
    url = f"memory://{uuid.uuid4().hex}/data.tx"
    repo, other = (txstore.Repository(url, single_writer=True) for _ in range(2))
    with repo.transaction() as store:
        array_of(store, "a", np.arange(1, 5), ["x"], (1,))
        array_of(store, "b", np.arange(1, 41), ["y"], (1,))
    first = other.mapping()
    assert first["a/c/0"]
    repo.erase("a")
    other.branches["old"] = repo.log()[-1]
    for number in (50, 60):
        with other.transaction(branch="old") as store:
            zarr.open_array(store, path="b")[:] = number
    with pytest.raises(txstore.ErasedError):
        first["a/c/0"]
    with repo.transaction() as store:
        array_of(store, "a", np.arange(1, 5), ["x"], (1,))
    repo.erase("a", {"x": 2}, positions=True)
    assert zarr.open_array(txstore.Repository(url).snapshot(), path="a", mode="r")[:].tolist() == [1, 2, 0, 4]
    assert repo.verify().faults == []


def test_what_was_read_between_two_interruptions_is_not_believed() -> None:
    """All repositories of a process share what is in memory. A file that was replaced since must not be in it."""
    url = f"memory://{uuid.uuid4().hex}/data.tx"
    repo = txstore.Repository(url, single_writer=True)
    values = np.arange(1, 7)
    with repo.transaction("first") as store:
        array_of(store, "v", values, ["x"], (6,))
    with repo.transaction("second") as store:
        zarr.open_array(store, path="v")[5] = 9
    for rows, dies_at in ((1, 0), (2, 1)):
        dying = txstore.Repository(url, single_writer=True)
        watched, left = watch(dying), iter(range(dies_at))

        def die(*_: Any, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise Killed

        watched.before["replace_blanked"] = die
        with pytest.raises(Killed):
            dying.erase("v", {"x": rows}, positions=True)
        del dying, watched, die
        gc.collect()
        with contextlib.suppress(txstore.ErasedError, KeyboardInterrupt), repo.transaction() as store:
            store.restore("v", at=0)  # it heeds the erasure; nothing is committed
            raise KeyboardInterrupt
        np.asarray(zarr.open_array(repo.snapshot(at=0), path="v", mode="r")[:])
        gc.collect()
    repo.erase("v", {"x": 3}, positions=True)
    again = txstore.Repository(url, single_writer=True)
    assert zarr.open_array(again.snapshot(at=0), path="v", mode="r")[:].tolist() == [1, 0, 3, 0, 5, 6]
    assert again.verify().faults == []
