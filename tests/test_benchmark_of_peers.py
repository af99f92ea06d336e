"""The benchmark of peers: its arithmetic, its verdicts, and what it makes of them. Nothing is timed."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import ClassVar

import pytest

from benchmarks.peers import figures, report, targets
from benchmarks.peers.bystanders import BESIDE, WITHOUT
from benchmarks.peers.figures import Figure, best_of_each
from benchmarks.peers.peer import NotOffered, Peer
from benchmarks.peers.publish import BEGIN, END, documents, filled
from benchmarks.peers.results import Results, load, ratio
from benchmarks.peers.roster import PEERS, REMOTE
from benchmarks.peers.rounds import take_rounds
from benchmarks.peers.rows import make_rows
from benchmarks.peers.targets import AIMS, AtMost, Faster, Near, NoMore, judge

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
    assert theirs is not None
    assert ratio(theirs, ours) == 1.5  # of 3, 1 and 1.5; the medians are 3 and 2
    assert (theirs.median, theirs.spread) == (3, (2, 6))


def test_rounds_that_do_not_pair_are_an_error() -> None:
    with pytest.raises(ValueError):
        judge(results(TxStore=[1, 2], HDF5=[3]), [Faster("row", "read", "HDF5", 1)])


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
    [verdict] = judge(run, [Faster("row", "read", "LocalStore", 5)])
    assert (verdict.ok, verdict.measured) == (True, "5.00x LocalStore, fused")
    assert not judge(run, [Faster("row", "read", "LocalStore", 5.1)])[0].ok


def test_every_peer_is_all_but_memory_and_ourselves() -> None:
    run = results(TxStore=[2], TxStore_fused=[1], MemoryStore_fused=[1], LocalStore_zarrs=[3], HDF5=[4])
    [verdict] = judge(run, [Faster("row", "read", targets.EVERY_PEER, 1)])
    assert verdict.measured == "1.50x LocalStore, zarrs"


@pytest.mark.parametrize("aim", [Faster("row", "read", "HDF5", 1), NoMore("row", "read", "HDF5")])
def test_what_can_not_be_compared_is_a_miss(aim: targets.Aim) -> None:
    for run in (results(TxStore=[1]), results(HDF5=[1])):
        assert [(verdict.ok, verdict.measured) for verdict in judge(run, [aim])] == [(False, "not measured")]


def test_a_row_that_was_not_run_is_not_judged_and_one_that_everybody_left_is() -> None:
    run = results(TxStore=[1])
    assert judge(run, [Faster("another row", "read", "HDF5", 1)]) == []
    run.skip("row", "TxStore", "broken")
    assert [verdict.ok for verdict in judge(run, [Faster("row", "read", "HDF5", 1)])] == [False]


def test_limits() -> None:
    run = results(TxStore=[64.0, 65.0, 1.0], HDF5=[63.0])
    assert [judge(run, [AtMost("row", "read", "TxStore", limit)])[0].ok for limit in (64, 63)] == [True, False]
    assert [judge(run, [NoMore("row", "read", "HDF5")])[0].ok] == [False]


def test_near_compares_the_best_samples() -> None:
    run = Results(ABOUT)
    for beside, without in ((1.02, 5.0), (7.0, 1.0)):
        run.add("row", BESIDE, {"read": beside}, {})
        run.add("row", WITHOUT, {"read": without}, {})
    assert [judge(run, [Near("row", "read", BESIDE, WITHOUT, limit)])[0].ok for limit in (0.021, 0.019)] == [
        True,
        False,
    ]


def test_each_aim_is_at_something_that_is_measured() -> None:
    rows = make_rows(quick=False, keys=10**5)
    for aim in AIMS:
        assert aim.row in rows
        if isinstance(aim, Faster | NoMore) and aim.than != targets.EVERY_PEER:
            assert any(peer.startswith(aim.than) for peer in rows[aim.row].peers), aim
    for figure in figures.FIGURES:
        assert {row for row, _, _ in figure.panels} <= set(rows)


def test_rows_name_peers_that_there_are() -> None:
    for row in make_rows(quick=False, keys=10**7).values():
        assert set(row.peers) <= {*PEERS, *REMOTE} or not row.roster
        assert set(row.peers) <= set(row.roster) or not row.roster


# --- rounds


class Fine(Peer):
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


# --- what is made of it


def test_json_round_trip(tmp_path: Path) -> None:
    run = results(TxStore=[1.25, 2.5], HDF5=[0.1, 0.2])
    run.skip("row", "Icechunk, fused", "not installed: icechunk")
    run.save(tmp_path / "peers.json")
    assert load(tmp_path / "peers.json") == run


def test_tables() -> None:
    run = results(TxStore=[0.5, 0.25, 0.4], HDF5_x=[0.001])
    assert report.row_of(run, "row").splitlines() == [
        "|  | durable | processes | read |",
        "| --- | --- | --- | ---: |",
        "| HDF5, x | no | yes | 1 ms |",
        "| **TxStore** | yes | yes | 400 ms (250 ms to 500 ms) |",
    ]
    run = results(TxStore=[1.0], HDF5=[3.0], LocalStore_fused=[10.0])
    assert report.summary(run, [("row", "read")]).splitlines()[-1] == "| read row | 1 s | 10x | – | 3x | – |"


def test_a_figure_has_the_best_pipeline_of_each_store_and_what_txstore_has_by_itself() -> None:
    run = results(TxStore=[2], TxStore_fused=[1], LocalStore_batched=[3], LocalStore_fused=[4], Icechunk_fused=[99])
    cells = run.of("row", "read")
    assert [cell.peer for cell in best_of_each(cells)] == ["TxStore", "LocalStore, batched", "Icechunk, fused"]
    drawn = figures.draw(run, Figure("name", "A title & more", [("row", "read", "reading <all>")]))
    assert drawn is not None
    texts = [text.text for text in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert {"A title & more", "reading <all>", "99 s", "LocalStore, batched"} <= set(texts)
    assert figures.draw(run, Figure("name", "title", [("row", "write", "writing")])) is None


def test_a_page_is_filled_between_its_marks() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert filled(page, "new") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert filled(filled(page, "new"), "new") == filled(page, "new")
    with pytest.raises(ValueError):
        filled("no marks", "new")


def test_no_figure_was_typed_by_hand() -> None:
    """What the documents show is what the kept run makes of them."""
    kept = ROOT / "docs/benchmarks/peers.json"
    if not kept.exists():
        for name in ("docs/benchmarks.md", "README.md"):
            text = (ROOT / name).read_text(encoding="utf-8")
            assert filled(text, "No run on an idle machine is kept yet.") == text
        return
    for name, content in documents(load(kept)).items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert text == (filled(text, content) if name.endswith(".md") else content), name
