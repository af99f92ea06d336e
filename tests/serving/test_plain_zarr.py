"""`/at/` and `/files/` as HTTP: methods, ranges, tags, caching, and what is said of what is not there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

import txstore
from tests.serving.asking import Answer, ask, scope_of
from txstore.history.snapshot import Snapshot
from txstore.serving import answers, application
from txstore.serving.application import Application

Get = Callable[..., Answer]
KEY = "three/plain/c/0/0"
#: What is read from a map, from memory, from a file outside, and as it is.
PLACES = (f"/at/main/{KEY}", "/at/main/zarr.json", "/at/main/three/outside/c/0", "/files/commits/main/0000000000")


def value(repo: txstore.Repository, key: str = KEY) -> bytes:
    return repo.mapping()[key]


def test_values_are_those_of_the_repository(get: Get, repo: txstore.Repository) -> None:
    for ref, at in (("main", None), ("v1", "v1"), (repo.head().id, None), (repo.commit("v1").id, "v1")):  # type: ignore[union-attr]
        snapshot = repo.mapping(at=at)
        for key in snapshot:
            answer = get(f"/at/{ref}/{key}")
            assert answer.status == 200
            if key.endswith("zarr.json") and json.loads(snapshot[key])["node_type"] == "group":
                told = answer.json
                assert told.pop("consolidated_metadata")["kind"] == "inline"
                assert told == json.loads(snapshot[key])
            else:
                assert answer.body == snapshot[key]
            assert answer.headers["content-type"] == (
                "application/json"
                if key.endswith((".json", ".zarray", ".zgroup", ".zattrs"))
                else "application/octet-stream"
            )


def test_each_answer_is_asked_for_anew(get: Get, repo: txstore.Repository) -> None:
    """Below a commit's id, too: an erasure takes values out of it, and no cache may keep those for a year."""
    commit = repo.commit("v1")
    repo.tags["a" * 32] = commit
    for ref, key in product(("main", "v1", commit.id[:12], commit.id, "a" * 32), (KEY, "zarr.json")):
        assert get(f"/at/{ref}/{key}").headers["cache-control"] == "no-cache"


def test_a_tag_of_http_tells_whether_it_is_the_same(get: Get, repo: txstore.Repository) -> None:
    for place in PLACES:
        first = get(place)
        tag = first.headers["etag"]
        for given in (tag, f"W/{tag}", f'"x", {tag}', "*"):
            again = get(place, headers={"if-none-match": given})
            assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
            assert "content-length" not in again.headers
        assert get(place, headers={"if-none-match": '"x"'}).status == 200
    with repo.transaction() as store:
        zarr.open_array(store, path="three/plain")[0, 0] = 77
    tag = get(f"/at/v1/{KEY}").headers["etag"]
    changed = get(f"/at/main/{KEY}", headers={"if-none-match": tag})
    assert (changed.status, changed.body) == (200, value(repo))
    # What was not changed has the same tag in both commits.
    other = "three/sharded/c/1/1"
    assert get(f"/at/v1/{other}").headers["etag"] == get(f"/at/main/{other}").headers["etag"]


RANGES = {
    "bytes=0-0": slice(0, 1),
    "bytes=3-9": slice(3, 10),
    "bytes=5-": slice(5, None),
    "bytes=-4": slice(-4, None),
    "bytes=-999999": slice(None),
    "bytes=0-99999999999999999999999999999": slice(None),
    "bytes=2-" + "9" * 5000: slice(2, None),
    "bytes=-" + "9" * 5000: slice(None),
    "bytes= 1 - 2 ": slice(1, 3),
}


def test_ranges(get: Get) -> None:
    for place, (asked, wanted) in product((*PLACES, "/at/main/three/sharded/c/0/0"), RANGES.items()):
        whole = get(place).body
        answer = get(place, headers={"range": asked})
        start, stop, _ = wanted.indices(len(whole))
        assert (answer.status, answer.body) == (206, whole[wanted]), (place, asked)
        assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(whole)}"
        head = get(place, headers={"range": asked}, method="HEAD")
        assert (head.status, head.body, head.headers) == (206, b"", answer.headers)


def test_ranges_behind_the_end(get: Get) -> None:
    for place, asked in product(PLACES, ("bytes=999999-", "bytes=-0", "bytes=" + "9" * 5000 + "-")):
        length = len(get(place).body)
        answer = get(place, headers={"range": asked})
        assert (answer.status, answer.body, answer.headers["content-range"]) == (416, b"", f"bytes */{length}"), asked


def test_what_is_no_range_is_ignored(get: Get) -> None:
    """Several ranges are sent as the whole, which is allowed."""
    many = "bytes=" + ",".join(f"{at}-{at}" for at in range(2000))
    none = ("bytes=1-2,4-5", many, "bytes=5-2", "bytes=-", "bytes=a-b", "items=0-1", "", "bytes=0x1-2")
    for place, asked in product(PLACES, none):
        answer = get(place, headers={"range": asked})
        assert (answer.status, answer.body) == (200, get(place).body), asked


def test_a_long_range_takes_no_longer(get: Get) -> None:
    """A server answers nobody else meanwhile."""
    long = 1_000_000
    attacks = (" " * long + "x", "1-" + " " * long + "x", "1" + " " * long + "x", "1" * long + "x")
    for place, given in product(PLACES, attacks):
        assert get(place, headers={"range": f"bytes={given}"}).status == 200


def test_a_part_of_another_value_is_not_asked_for(get: Get) -> None:
    for place in PLACES:
        whole = get(place)
        same = get(place, headers={"range": "bytes=0-1", "if-range": whole.headers["etag"]})
        other = get(place, headers={"range": "bytes=0-1", "if-range": '"x"'})
        assert (same.status, other.status, other.body) == (206, 200, whole.body)


def test_an_empty_value(get: Get, repo: txstore.Repository) -> None:
    with repo.begin() as mapping:
        mapping["three/empty"] = b""
    answer = get("/at/main/three/empty")
    assert (answer.status, answer.body) == (200, b"")
    assert get("/at/main/three/empty", headers={"range": "bytes=0-"}).status == 416


def test_head_says_what_get_does(get: Get) -> None:
    for place in (*PLACES, "/at/main/no/such", "/files/tags/none", "/files/tags/"):
        there, asked = get(place), get(place, method="HEAD")
        assert (asked.status, asked.headers, asked.body) == (there.status, there.headers, b"")


@pytest.mark.parametrize("size", [1 << 18, (1 << 18) + 1, 3 << 20])
def test_long_values_are_sent_in_pieces(get: Get, repo: txstore.Repository, size: int) -> None:
    content = np.random.default_rng(1).bytes(size)
    with repo.begin() as mapping:
        mapping["big"] = content
    answer = get("/at/main/big")
    assert answer.body == content
    assert answer.pieces == -(-size // (1 << 18))
    part = get("/at/main/big", headers={"range": f"bytes=7-{size - 2}"})
    assert (part.status, part.body) == (206, content[7:-1])


@pytest.mark.parametrize("size", [1000, 9 << 20])
def test_from_object_stores_and_from_files_outside(open_repo: Any, tmp_path: Path, size: int) -> None:
    """By requests of a few mebibytes; the checksum of what is longer is compared on the way."""
    content = np.random.default_rng(1).bytes(size)
    (tmp_path / "raw.bin").write_bytes(b"head" + content)
    repo = txstore.Repository(f"memory://{tmp_path}/far.tx", single_writer=True, sources=[tmp_path])
    with repo.begin() as mapping:
        mapping["here"] = content
        mapping.set_reference("outside", tmp_path / "raw.bin", 4, size)
    app = application(repo)
    for key in ("here", "outside"):
        assert ask(app, f"/at/main/{key}").body == content
        assert ask(app, f"/at/main/{key}", headers={"range": "bytes=-10"}).body == content[-10:]
        assert ask(app, f"/at/main/{key}", method="HEAD").headers["content-length"] == str(size)


async def test_nothing_is_read_for_who_has_left(repo: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    with repo.begin() as mapping:
        mapping["big"] = bytes(64 << 18)
    sent: list[Any] = []
    left = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 4:
            left.set()
        await asyncio.sleep(0)  # as a server's does, where others may run

    scope = scope_of("/at/main/big") | {"raw_path": None}  # which not every server tells
    await application(repo)(scope, receive, send)
    assert 4 <= len(sent) < 10


@pytest.mark.parametrize("place", ["at", "files"])
async def test_many_who_do_not_read_hold_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Each has a piece in memory; what fetches from object stores ends the process if there is none left."""
    monkeypatch.setattr(answers, "FETCHED", 4 * answers.PIECE)
    monkeypatch.setattr(answers, "HELD", 4 * answers.PIECE)
    repo = txstore.Repository(f"memory://{tmp_path}/far.tx", single_writer=True)
    with repo.begin() as mapping:
        mapping["big"] = bytes(4 * answers.PIECE - 1)
    app = application(repo)
    [pack] = fsspec.filesystem("memory").glob(f"{tmp_path}/far.tx/packs/*/*")
    path = "/at/main/big" if place == "at" else f"/files/{pack.partition('/far.tx/')[2]}"
    held: list[int] = []

    async def stuck(message: Any) -> None:
        if message["type"] == "http.response.body":
            held.append(len(message["body"]))
            await asyncio.get_running_loop().create_future()

    asking = [asyncio.ensure_future(app(scope_of(path), asyncio.Event().wait, stuck)) for _ in range(40)]
    while len(held) < 40:
        await asyncio.sleep(0.01)
    for each in asking:
        each.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    assert sum(held) < 2 * 40 * answers.PIECE


# --- what is not there


def error(answer: Answer) -> str:
    assert set(answer.json) == {"error"}
    assert set(answer.json["error"]) == {"type", "message", "anchor"}
    assert answer.headers["content-type"] == "application/json"
    kind: str = answer.json["error"]["type"]
    return kind


ASKED = ({}, {"method": "HEAD"}, {"headers": {"range": "bytes=0-3"}}, {"headers": {"range": "bytes=-4"}})


def test_what_is_missing(get: Get, repo: txstore.Repository) -> None:
    """404 is a key that this commit does not have, and nothing else: to readers of Zarr it means fill values."""
    for path, status, kind in (
        ("main/three/plain/c/2/9", 404, "KeyNotFound"),
        ("main/three", 404, "KeyNotFound"),
        ("nothing/zarr.json", 410, "CommitNotFoundError"),
        ("nothing/three/plain/c/2/9", 410, "CommitNotFoundError"),
        ("f" * 32 + "/zarr.json", 410, "CommitNotFoundError"),
        ("f" * 8 + f"/{KEY}", 410, "CommitNotFoundError"),
        ("main/", 400, "KeyFormatError"),
        ("main", 400, "KeyFormatError"),
        ("nothing", 400, "KeyFormatError"),
        ("main/three//plain/c/0/0", 400, "KeyFormatError"),
        ("main/three/plain/c%2F0%2F0", 400, "KeyFormatError"),
        ("-no-name/zarr.json", 400, "KeyFormatError"),
    ):
        for given in ASKED:
            answer = get(f"/at/{path}", **given)
            assert answer.status == status, (path, given)
            if answer.body:
                assert error(answer) == kind
    assert get("/at/nothing/zarr.json").json["error"]["anchor"] == "reference/errors#commitnotfounderror"
    assert error(get("/else")) == "NotFound"


#: To one reader or another a value that was never written: 404 to all; the others to TensorStore.
MISSING = {204, 304, 404, 412}


def errors_of_all_kinds() -> list[Exception]:
    known: list[Exception] = [
        kind.__new__(kind)  # type: ignore[call-overload]
        for kind in vars(txstore.errors).values()
        if isinstance(kind, type) and issubclass(kind, txstore.TxStoreError) and kind is not txstore.NodeNotFoundError
    ]
    return [
        *known,
        FileNotFoundError(2, "there is no such object"), NotADirectoryError(20, "no directory"), KeyError("key"),
        IsADirectoryError(21, "a directory"), PermissionError(13, "not allowed"), OSError(5, "bad"), TimeoutError(),
        FileExistsError(17, "it exists"), LookupError("nothing"), ValueError("a value"), MemoryError(),
    ]  # fmt: skip


@pytest.mark.parametrize("failing", ["lookup", "view_of", "get_part", "runs"])
def test_no_error_reads_as_missing(get, repo, monkeypatch, failing):
    for raised in errors_of_all_kinds():

        def fail(*_: Any, raised: Exception = raised, **__: Any) -> Any:
            raise raised

        with monkeypatch.context() as patch:
            patch.setattr(Snapshot, failing, property(fail) if failing == "runs" else fail)
            for path, given in product(("main/" + KEY, "v1/zarr.json"), ASKED):
                answer = get(f"/at/{path}", **given)
                is_read = failing in ("lookup", "runs") and not path.endswith("zarr.json")
                assert answer.status not in MISSING, (path, given, raised)
                assert answer.status >= 400 or not is_read, (path, given, raised)


def test_a_repository_that_is_away(repo: txstore.Repository) -> None:
    repo.branches["dev"] = repo.commit("v1")
    head = repo.head()
    assert head is not None
    app = application(txstore.Repository(repo.url))  # which knows that it is there, and has read nothing
    away = Path(f"{repo.url}.away")
    Path(repo.url).rename(away)
    try:
        for ref in ("main", "v1", "dev", head.id, head.id[:12]):
            for given in ASKED:
                assert ask(app, f"/at/{ref}/{KEY}", **given).status == 503, (ref, given)
        for place in (
            "api/transactions", "api/locks", "api/feeds", "api/events", "files/format.json", "files/heads/main",
            "files/commits/main/0000000000", "files/commits/",
        ):  # fmt: skip
            answer = ask(app, f"/{place}")
            assert (answer.status, error(answer)) == (503, "RepositoryNotFoundError"), place
    finally:
        away.rename(repo.url)
    assert ask(app, f"/at/v1/{KEY}").status == 200


def test_what_was_erased_is_not_missing(get: Get, repo: txstore.Repository, app: Application) -> None:
    old = repo.commit("v1").id
    assert get(f"/at/{old}/{KEY}").status == 200
    app.positions.let_go(idle=0)
    repo.erase("three/plain")
    answer = get(f"/at/{old}/{KEY}")
    assert (answer.status, error(answer)) == (410, "ErasedError")
    assert get(f"/at/main/{KEY}").status in (404, 410)


def test_no_document_that_was_erased_comes_from_memory(get: Get, repo: txstore.Repository, app: Application) -> None:
    with repo.transaction() as store:
        zarr.open_group(store, path="three").attrs["patient"] = "ann"
    old = repo.head()
    assert old is not None
    for path in ("", "three/"):
        assert b"ann" in get(f"/at/{old.id}/{path}zarr.json").body
    app.positions.let_go(idle=0)
    repo.erase("three")
    assert b"ann" not in get(f"/at/{old.id}/zarr.json").body
    answer = get(f"/at/{old.id}/three/zarr.json")
    assert (answer.status, error(answer)) == (410, "ErasedError")


@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_who_has_what_was_erased_is_told_so(tmp_path: Path, place: str) -> None:
    """Elsewhere no pin makes an erasure wait, and the server has read the commit when another process erases rows."""
    url, alone = (str(tmp_path / "data.tx"), None) if place == "here" else (f"memory://{tmp_path}/data.tx", True)
    repo = txstore.Repository(url, single_writer=alone)
    with repo.transaction() as store:
        for name, values in (("x", [10, 20, 30, 40]), ("v", [1, 2, 3, 4])):
            zarr.create_array(
                store, name=name, data=np.array(values, "i4"), chunks=(4,), compressors=None, dimension_names=["x"]
            )
    old = repo.head()
    assert old is not None
    with repo.transaction() as store:
        zarr.open_array(store, path="v")[0] = 9
    app, place = application(txstore.Repository(url, single_writer=alone)), f"/at/{old.id}/v/c/0"
    given = ask(app, place)
    for label, left in ((40, [1, 2, 3, 0]), (20, [1, 0, 3, 0])):
        if alone is None:
            app.positions.let_go(idle=0)
        repo.erase("v", {"x": label})
        answer = ask(app, place, headers={"if-none-match": given.headers["etag"]})
        assert (answer.status, np.frombuffer(answer.body, "i4").tolist()) == (200, left)
        given = answer
    if alone is None:
        app.positions.let_go(idle=0)
    repo.erase("v")
    assert ask(app, place, headers={"if-none-match": given.headers["etag"]}).status == 410


def test_a_source_that_has_changed(get: Get, repo: txstore.Repository, tmp_path: Path) -> None:
    (tmp_path / "raw.bin").write_bytes(b"other")
    answer = get("/at/main/three/outside/c/0")
    assert (answer.status, error(answer)) == (502, "SourceChangedError")


def test_what_a_vacuum_has_given_up(get: Get, repo: txstore.Repository, app: Application) -> None:
    first = repo.commit("v1").id
    del repo.tags["v1"]
    assert get(f"/at/{first}/{KEY}").status == 200
    repo.vacuum(keep=1)
    assert get(f"/at/{first}/{KEY}").status == 200, "it is being read"
    app.positions.let_go(idle=0)
    repo.vacuum(keep=1)
    answer = get(f"/at/{first}/{KEY}")
    assert (answer.status, error(answer)) in ((410, "SnapshotExpiredError"), (410, "CommitNotFoundError"))
    assert get(f"/at/main/{KEY}").status == 200


def test_a_repository_that_is_not_there_yet(open_repo: Any) -> None:
    repo = open_repo("none.tx")
    app = application(repo)
    assert ask(app, "/at/main/zarr.json").status == 503
    for place in ("files/format.json", "files/commits/"):
        assert error(ask(app, f"/{place}")) == "FileNotFound"
    with repo.transaction() as store:
        zarr.create_group(store)
    assert ask(app, "/at/main/zarr.json").status == 200
    assert ask(app, "/files/commits/main/0000000000").status == 200


def test_below_a_path_of_another_application(app: Application, repo: txstore.Repository) -> None:
    answer = ask(app, f"/data/at/main/{KEY}", root_path="/data")
    assert (answer.status, answer.body) == (200, value(repo))
    assert ask(app, "/data/api/repository", root_path="/data").status == 200
    assert ask(app, "/data/files/commits/", root_path="/data").status == 200
    assert ask(app, "/data/", root_path="/data").headers["content-type"].startswith("text/html")
