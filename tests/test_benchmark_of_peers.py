"""The benchmark of peers: its arithmetic, its verdicts, and what it makes of them. Nothing is timed."""

import dataclasses
import http.client
import json
import os
import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qsl, quote

import numpy as np
import pytest
import zarr.storage
from multidict import CIMultiDict

from benchmarks import pictures
from benchmarks.memory import read_status
from benchmarks.own_process import Failed, NotOffered, ask
from benchmarks.pages import KEPT, documents, filled, with_results
from benchmarks.pages import PEERS as COMMAND
from benchmarks.peers import report, targets
from benchmarks.peers.results import Results, load, ratio
from benchmarks.peers.rows import make_rows, take_rounds
from benchmarks.peers.targets import AIMS, at_most, faster, judge, near, no_more
from benchmarks.peers.tasks import BESIDE, WITHOUT, append, open_among_keys, pipelines_of, write
from benchmarks.peers.works import Work
from benchmarks.pictures import Picture, best_of_each
from benchmarks.simulated.s3_stub import BUCKET, S3Stub, Stub, Traffic, move_away
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


def test_a_row_that_was_not_run_is_not_judged_and_one_that_everybody_left_is() -> None:
    run = results(TxStore=[1])
    assert judge(run, [faster("another row", "read", "HDF5", 1)]) == []
    run.skip("row", "TxStore", "broken")
    assert [verdict.ok for verdict in judge(run, [faster("row", "read", "HDF5", 1)])] == [False]


def test_limits() -> None:
    run = results(TxStore=[64.0, 65.0, 1.0], HDF5=[63.0])
    assert [judge(run, [at_most("row", "read", "TxStore", limit)])[0].ok for limit in (64, 63)] == [True, False]
    assert [judge(run, [no_more("row", "read", "HDF5")])[0].ok] == [False]


def test_near_compares_the_best_samples() -> None:
    run = Results(ABOUT)
    for beside, without in ((1.02, 5.0), (7.0, 1.0)):
        run.add("row", BESIDE, {"read": beside}, {})
        run.add("row", WITHOUT, {"read": without}, {})
    assert [judge(run, [near("row", "read", BESIDE, WITHOUT, limit)])[0].ok for limit in (0.021, 0.019)] == [
        True,
        False,
    ]


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


def test_pipelines_below_shards_are_looked_at_too() -> None:
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(store, name="sharded", shape=(8,), chunks=(2,), shards=(4,), dtype="f4")
    assert len(pipelines_of(array)) == 2
    assert len(pipelines_of(zarr.create_array(store, name="x", shape=(8,), chunks=(2,), dtype="f4"))) == 1


# --- processes
def test_a_sample_is_taken_in_another_process(tmp_path: Path) -> None:
    place = tmp_path / "place"
    assert ask(write, peer="TxStore", place=place, work=Work("keys", 10, 4))["write"] > 0
    assert ask(open_among_keys, peer="TxStore", place=place, keys=10)["open"] > 0


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of memory in /proc")
def test_memory_is_that_of_the_process() -> None:
    before = read_status(os.getpid())
    grown = np.ones(64 << 20, dtype="u1")
    after = read_status(os.getpid())
    assert 60 << 20 < after["RssAnon"] - before["RssAnon"] < 80 << 20
    assert after["VmHWM"] >= after["RssAnon"] > grown.nbytes


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="Error: "):
        ask(open_among_keys, peer="TxStore", place=tmp_path / "nothing" / "here", keys=-1)
    with pytest.raises(NotOffered, match="zip"):
        ask(append, peer="ZipStore, batched", place=tmp_path / "place", commits=1)


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
def request(
    stub: Stub, method: str, key: str, *, body: bytes = b"", query: str = "", **headers: str
) -> tuple[int, bytes]:
    told = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    answer = stub.answer(method, key, body, dict(parse_qsl(query, keep_blank_values=True)), told)
    return answer.status, answer.body or answer.headers.get("ETag", "").encode()


def test_of_all_who_create_an_object_one_succeeds() -> None:
    stub = Stub()
    status, etag = request(stub, "PUT", "a", body=b"one", if_none_match="*")
    assert status == 200
    assert request(stub, "PUT", "a", body=b"two", if_none_match="*")[0] == 412
    assert request(stub, "PUT", "a", body=b"two", if_match="another")[0] == 412
    assert request(stub, "PUT", "b", body=b"two", if_match="another")[0] == 412
    assert request(stub, "PUT", "a", body=b"two", if_match=etag.decode().strip('"'))[0] == 200
    assert request(stub, "GET", "a") == (200, b"two")
    assert stub.traffic.requests == 6


def test_ranges() -> None:
    stub = Stub()
    request(stub, "PUT", "a", body=b"0123456789")
    for wanted, found in (("bytes=2-4", b"234"), ("bytes=7-", b"789"), ("bytes=-3", b"789"), ("bytes=8-99", b"89")):
        assert request(stub, "GET", "a", range=wanted) == (206, found)
    assert request(stub, "GET", "a", range="bytes=10-")[0] == 416
    assert request(stub, "GET", "b")[0] == 404


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_listing_in_pages_has_everything_once(most: int) -> None:
    stub, found, token = Stub(), [], ""
    for key in ("x/1", "x/10", "x/2/a", "x/2/b", "x/3", "y"):
        request(stub, "PUT", key)
    while True:
        after = f"&continuation-token={quote(token)}" if token else ""
        query = f"list-type=2&prefix=x/&delimiter=/&max-keys={most}{after}"
        page = request(stub, "GET", "", query=query)[1].decode()
        found += re.findall(r"<(?:Key|CommonPrefixes><Prefix)>([^<]+)<", page)
        if "<IsTruncated>false" in page:
            break
        [token] = re.findall(r"<NextContinuationToken>([^<]+)<", page)
    assert found == ["x/1", "x/10", "x/2/", "x/3"]


def test_pieces_that_are_signed_one_by_one() -> None:
    stub = Stub()
    body = b"3;chunk-signature=1\r\nabc\r\n2\r\nde\r\n0;chunk-signature=2\r\nx-amz-checksum-crc32:x\r\n\r\n"
    request(stub, "PUT", "a", body=body, **{"x-amz-decoded-content-length": "5"})
    assert request(stub, "GET", "a") == (200, b"abcde")


def test_requests_are_counted_by_kind() -> None:
    stub = Stub()
    request(stub, "PUT", "a", body=b"one", if_none_match="*")
    request(stub, "PUT", "a", body=b"four")
    request(stub, "GET", "a")
    request(stub, "GET", "", query="list-type=2")
    request(stub, "POST", "", body=b"<Key>a</Key>", query="delete=")
    counts = stub.traffic.counts
    kinds = {kind: number for kind, number in counts.items() if kind not in ("received", "sent", "objects")}
    assert kinds == {"create": 1, "put": 1, "get": 1, "list": 1, "delete": 1}
    assert counts["received"] == 3 + 4 + len(b"<Key>a</Key>")
    assert counts["objects"] == 1
    assert request(stub, "GET", "a")[0] == 404


def test_requests_are_counted_and_as_late_as_was_asked_for() -> None:
    with S3Stub() as stub:
        move_away(stub.port, 0.2)
        connection = http.client.HTTPConnection("127.0.0.1", stub.port, timeout=60)
        connection.request("PUT", f"/{BUCKET}/a%20b/c", b"values")
        assert connection.getresponse().read() == b""
        connection.request("HEAD", f"/{BUCKET}/a%20b/c")
        assert connection.getresponse().headers["Content-Length"] == "6"
        connection.close()
        told = move_away(stub.port)
        assert (told.requests, told.counts["received"], told.counts["objects"]) == (2, 6, 1)
        assert all(ended - began >= 0.2 for began, ended in told.seen)
        assert move_away(stub.port) == Traffic(Counter(), [])


def test_a_way_is_half_of_the_distance() -> None:
    stub = Stub()
    stub.seconds = 0.03
    assert stub.way() == 0.015
    stub.jitter = 0.5
    assert all(0.0075 <= stub.way() <= 0.0225 for _ in range(100))


def test_how_many_requests_were_under_way_in_each_part_of_the_time() -> None:
    for seen, expected in (
        ([], [0, 0, 0, 0]),
        ([(7, 9)], [1, 1, 1, 1]),
        ([(10, 12), (11, 14)], [1, 2, 1, 1]),
        ([(0, 0.5), (1, 4)], [0.5, 1, 1, 1]),
    ):
        assert Traffic(Counter(), seen).under_way(4) == expected


def texts_in(svg: str) -> list[str | None]:
    return [text.text for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_what_was_far_away_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figures = [{"who": who, "seconds": 2.0, "under way": [1.0, 2.0, 0.5]} for who in ("TxStore", "obstore")]
    rows = [{"name": "distance many", "figures": figures}, {"name": "distance open requests", "figures": []}]
    path = tmp_path / "far-away.svg"
    assert pictures.draw_far_away(rows, path) == f"drawn: {path}"
    texts = texts_in(path.read_text())
    assert {pictures.TITLE, pictures.PANELS["distance many"], "TxStore", "obstore"} <= set(texts)
    assert "nothing was measured" in pictures.draw_far_away(rows[1:], path)


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
