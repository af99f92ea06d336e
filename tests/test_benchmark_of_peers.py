"""The benchmark of peers: its arithmetic, its verdicts, and what it makes of them. Nothing is timed."""

import dataclasses
import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import zarr.storage

from benchmarks import pictures
from benchmarks.own_process import NotOffered, ask
from benchmarks.pages import KEPT, documents, filled, with_results
from benchmarks.pages import PEERS as COMMAND
from benchmarks.peers import report, targets
from benchmarks.peers.results import Results, load, ratio
from benchmarks.peers.rows import make_rows, take_rounds
from benchmarks.peers.targets import AIMS, at_most, faster, judge, no_more
from benchmarks.peers.tasks import open_among_keys, write
from benchmarks.peers.works import Work
from benchmarks.pictures import Picture, best_of_each
from benchmarks.stores import PEERS, REMOTE, Store

ROOT = Path(__file__).parents[1]
ABOUT = {
    "date": "2026-11-22T00:00:00+00:00",
    "quick": False,
    "rounds": 3,
    "machine": {"processor": "a processor", "processors": 2, "file_system": "ext4", "system": "Linux"},
    "versions": {"zarr": "3.4.2"},
}


def results(**peers: list[float]) -> Results:
    """Return a run of one row and task, in which each peer took so long; names have _ for a comma."""
    found = Results(ABOUT)
    for name, samples in peers.items():
        peer = name.replace("_", ", ")
        found.describe("row", peer, durable=peer == "TxStore", processes="yes")
        for sample in samples:
            found.add("row", peer, {"read": sample}, {})
    return found


# --- arithmetic
def test_a_ratio_is_the_median_of_the_rounds_not_of_the_medians() -> None:
    run = results(TxStore=[1, 2, 4], HDF5=[3, 2, 6])
    ours, theirs = run.find("row", "read", "TxStore"), run.find("row", "read", "HDF5")
    assert ours is not None
    assert ratio(theirs, ours) == 1.5  # of 3, 1 and 1.5; the medians are 3 and 2
    assert (theirs.median, theirs.spread) == (3, (2, 6))


def test_rounds_that_do_not_pair_are_an_error() -> None:
    with pytest.raises(ValueError):
        judge(results(TxStore=[1, 2], HDF5=[3]), [faster("row", "read", "HDF5", 1)])


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (1.2345, "s", "1.23 s"),
        (0.0451, "s", "45.1 ms"),
        (0.1234, "s", "123 ms"),
        (42.19e-6, "s", "42.2 µs"),
        (0.0, "s", "0 µs"),
        (2003.0, "", "2,003"),
        (0.125, "MiB", "0.125 MiB"),
        (1234.5, "MiB", "1,234 MiB"),
    ],
)
def test_amounts(value: float, unit: str, shown: str) -> None:
    assert report.amount(value, unit) == shown


# --- verdicts
def test_the_fastest_of_a_name_counts() -> None:
    run = results(TxStore=[1, 1], LocalStore_batched=[9, 9], LocalStore_fused=[5, 5], LocalStore_zarrs=[2, 2])
    [verdict] = judge(run, [faster("row", "read", "LocalStore", 5)])
    assert (verdict.ok, verdict.measured) == (True, "5.00x LocalStore, fused")
    assert not judge(run, [faster("row", "read", "LocalStore", 5.1)])[0].ok


def test_every_peer_is_all_but_memory_and_ourselves() -> None:
    run = results(TxStore=[2], TxStore_fused=[1], MemoryStore_fused=[1], LocalStore_zarrs=[3], HDF5=[4])
    [verdict] = judge(run, [faster("row", "read", targets.EVERY_PEER, 1)])
    assert verdict.measured == "1.50x LocalStore, zarrs"


@pytest.mark.parametrize("aim", [faster("row", "read", "HDF5", 1), no_more("row", "read", "HDF5")])
def test_what_can_not_be_compared_is_a_miss(aim: targets.Aim) -> None:
    for run in (results(TxStore=[1]), results(HDF5=[1])):
        assert [(verdict.ok, verdict.measured) for verdict in judge(run, [aim])] == [(False, "not measured")]


def test_limits() -> None:
    run = results(TxStore=[64.0, 65.0, 1.0], HDF5=[63.0])
    assert [judge(run, [at_most("row", "read", "TxStore", limit)])[0].ok for limit in (64, 63)] == [True, False]
    assert [judge(run, [no_more("row", "read", "HDF5")])[0].ok] == [False]


def test_each_aim_is_at_something_that_is_measured() -> None:
    rows = make_rows(quick=False, keys=10**5)
    for aim in AIMS:
        assert aim.row in rows
        if aim.than not in ("", targets.EVERY_PEER):
            assert any(peer.startswith(aim.than) for peer in rows[aim.row].peers), aim
    for figure in pictures.FIGURES:
        assert {row for row, _, _ in figure.panels} <= set(rows)


def test_rows_name_peers_that_there_are() -> None:
    for row in make_rows(quick=False, keys=10**7).values():
        assert set(row.peers) <= {*PEERS, *REMOTE} or not row.roster
        assert set(row.peers) <= set(row.roster) or not row.roster


# --- rounds
class Fine(Store):
    durable, processes = True, "yes"


class Missing(Fine):
    packages = ("a_package_that_nobody_has",)


class FakeRow:
    name, units, rounds = "row", {"read": "s"}, None
    peers = ("TxStore", "Missing", "Unable")
    roster: ClassVar = {"TxStore": Fine, "Missing": Missing, "Unable": Fine}

    def __init__(self) -> None:
        self.places: list[Path] = []

    def measure(self, peer: str, place: Path) -> dict[str, float]:
        self.places.append(place)
        if peer == "Unable" and len(self.places) > 2:
            raise NotOffered("it can't")
        return {"read": 1.0}


def test_who_does_not_take_part_is_told_of(tmp_path: Path) -> None:
    row, found = FakeRow(), Results(ABOUT)
    take_rounds(found, row, tmp_path, rounds=3)
    assert {(skipped.peer, skipped.why) for skipped in found.skipped} == {
        ("Missing", "not installed: a_package_that_nobody_has"),
        ("Unable", "it can't"),
    }
    assert [(cell.peer, cell.samples) for cell in found.cells] == [("TxStore", [1.0, 1.0, 1.0])]
    assert len(set(row.places)) == len(row.places)
    assert "Unable: it can't (row)" in report.left_out(found)


# --- processes
def test_a_sample_is_taken_in_another_process(tmp_path: Path) -> None:
    place = tmp_path / "place"
    assert ask(write, peer="TxStore", place=place, work=Work("keys", 10, 4))["write"] > 0
    assert ask(open_among_keys, peer="TxStore", place=place, keys=10)["open"] > 0


# --- peers
SMALL = Work("small", 6, 4, "zstd")


@pytest.fixture
def peer(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    kind = PEERS[request.param]
    if missing := kind.missing():
        pytest.skip(f"not installed: {missing}")
    monkeypatch.setenv("TXSTORE_PIPELINE", "")  # which some set
    monkeypatch.delenv("TXSTORE_PIPELINE")
    configured = zarr.config.get("codec_pipeline.path")
    with zarr.config.set({"codec_pipeline.path": configured}):  # it is put back
        try:
            yield kind(tmp_path / "place")
        except NotOffered as why:  # by an older zarr
            pytest.skip(str(why))


def peers_but(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("peer", [name for name in PEERS if not name.startswith(names)], indirect=True)


@peers_but("-")
def test_what_a_peer_writes_it_reads(peer: Store) -> None:
    peer.prepare()
    peer.write(SMALL, SMALL.data())
    assert np.array_equal(peer.read_once(np.s_[:, :]), SMALL.data())


@peers_but("HDF5")
def test_shards_that_a_peer_writes_it_reads(peer: Store) -> None:
    peer.prepare()
    peer.write(dataclasses.replace(SMALL, in_a_shard=3), SMALL.data())
    assert np.array_equal(peer.read_once(np.s_[:, :]), SMALL.data())


@peers_but("ZipStore")
def test_what_a_peer_appends_it_reads(peer: Store) -> None:
    peer.prepare()
    with peer.appending(SMALL) as append:
        for start in range(0, SMALL.shape[0], SMALL.side):
            append(SMALL.data()[start : start + SMALL.side])
    assert np.array_equal(peer.read_once(np.s_[:, :]), SMALL.data())


@peers_but("ZipStore", "MemoryStore", "HDF5")
def test_parts_that_a_peer_writes_are_all_there(peer: Store) -> None:
    peer.prepare()
    peer.create(SMALL)
    for start in (0, 12):
        peer.write_part(slice(start, start + 12), SMALL.data()[start : start + 12])
    assert np.array_equal(peer.read_once(np.s_[:, :]), SMALL.data())


# --- the bucket


def texts_in(svg: str) -> list[str | None]:
    return [text.text for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


# --- what is made of it
def test_json_round_trip(tmp_path: Path) -> None:
    run = results(TxStore=[1.25, 2.5], HDF5=[0.1, 0.2])
    run.skip("row", "Icechunk, fused", "not installed: icechunk")
    run.save(tmp_path / "peers.json")
    assert load(tmp_path / "peers.json") == run


def test_tables() -> None:
    run = results(TxStore=[0.5, 0.25, 0.4], HDF5_x=[0.001])
    assert report.tables(run).splitlines() == [
        "### row",
        "",
        "|  | read |",
        "| --- | ---: |",
        "| HDF5, x | 1 ms |",
        "| TxStore | 400 (250–500) ms |",
    ]
    run = results(TxStore=[1.0], HDF5=[3.0], LocalStore_fused=[10.0])
    assert report.summary(run).splitlines()[-1] == "| read row | 1 s | 10x | – | – | – | – | 3x | – |"
    assert report.summary(run, [("row", "read")], ["HDF5"]).splitlines()[-1] == "| read row | 1 s | 3x |"


def test_a_figure_has_the_best_pipeline_of_each_store_and_what_txstore_has_by_itself() -> None:
    run = results(TxStore=[2], TxStore_fused=[1], LocalStore_batched=[3], LocalStore_fused=[4], Icechunk_fused=[99])
    cells = run.of("row", "read")
    assert [cell.peer for cell in best_of_each(cells)] == ["TxStore", "LocalStore, batched", "Icechunk, fused"]
    drawn = pictures.draw(run, Picture("name", "A title & more", (("row", "read", "reading <all>"),)))
    assert drawn is not None
    assert {"A title & more", "reading <all>", "99 s", "LocalStore, batched"} <= set(texts_in(drawn))
    assert pictures.draw(run, Picture("name", "title", (("row", "write", "writing"),))) is None


def test_a_page_is_filled_between_its_marks() -> None:
    page = "before\n<!-- measured: make it -->\nold\n<!-- measured: end -->\nafter\n"
    new = "before\n<!-- measured: make it -->\n\nnew\n\n<!-- measured: end -->\nafter\n"
    assert filled(page, "new", "make it") == new
    assert filled(new, "new", "make it") == new
    for command in ("make that", "make"):
        with pytest.raises(ValueError):
            filled(page, "new", command)


def test_no_figure_was_typed_by_hand() -> None:
    """What the documents show is what kept runs make of them; of pictures the texts, which any matplotlib draws."""
    pytest.importorskip("matplotlib")
    for name, content in documents(load(ROOT / KEPT / "peers.json")).items():
        text = (ROOT / name).read_text(encoding="utf-8")
        if name.endswith(".svg"):
            assert texts_in(text) == texts_in(content), name
        else:
            assert text == filled(text, content, COMMAND), name
    text = (ROOT / "docs/understand/performance.md").read_text(encoding="utf-8")
    for kept in ("bench.json", "bench-remote.json"):
        run = json.loads((ROOT / KEPT / kept).read_text(encoding="utf-8"))
        assert text == with_results(text, run), kept
