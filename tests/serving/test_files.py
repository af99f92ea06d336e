"""`/files/`: what a reader of files finds there, and what nobody does. Ranges and tags: `test_plain_zarr.py`."""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.reader_js.node import content, node
from tests.serving.asking import Answer, ask
from tests.tools.far_away import Requests
from tests.tools.faults import watch
from tests.tools.inside import branch_id, objects_of, staged
from tests.tools.upkeep import below
from txstore.format import names
from txstore.serving import application
from txstore.serving.server import Server

FIRST = "commits/main/0000000000"


def test_the_reader_in_javascript_reads_them(repo: txstore.Repository) -> None:
    """The list of branches and tags, commits, packs; what lies outside it leaves alone."""
    repo.branches["dev"] = repo.commit("v1")
    repo.optimize()
    server = Server(repo)  # it needs its token, which is in the path
    server.start()
    try:
        url = f"{server.base}files"
        assert node().ask("branches", url) == ["main", "dev"]
        assert node().ask("tags", url) == ["v1"]
        for at in ("main", "v1", "dev"):
            found = node().ask("content", url, at=at)["values"]
            expected = content(repo.mapping(at=at))
            assert {key for key in expected if found[key] != expected[key]} == {
                "three/outside/c/0",
                "three/outside/c/1",
            }
    finally:
        server.close()


def listed(answer: Answer) -> list[str]:
    assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
    return re.findall(r'<a href="([^"]*)">', answer.body.decode())


@pytest.fixture
def own(tmp_path: Path) -> txstore.Repository:
    """A repository that a test may break."""
    repo = txstore.Repository(tmp_path / "own.tx")
    with repo.begin() as mapping:
        mapping["x"] = b"1"
    repo.tags["v1"] = repo.head()
    return repo


def test_lists_have_the_names_of_data(own: txstore.Repository) -> None:
    own.branches["Dev"] = own.head()
    root, app = Path(own.url), application(own)

    def get(path: str, **given: Any) -> Answer:
        return ask(app, path, **given)

    for other in ("commits/x", "commits/main/0000000009.lead", "tags/-x", "tags/~", "branches/a b"):
        (root / other).write_bytes(b"x")
    branch = branch_id(own, "Dev")
    assert listed(get("/files/commits/")) == ["../", "main/"]
    assert listed(get("/files/commits/main/")) == ["../", "0000000000"]
    assert listed(get("/files/tags/")) == ["../", "v1"]
    assert listed(get("/files/branches/")) == ["../", "dev"]
    for empty in (f"commits/{branch}", f"oldest_kept/{branch}", "erased"):
        assert listed(get(f"/files/{empty}/")) == ["../"]
    packed = get("/files/commits/main/", headers={"accept-encoding": "gzip"})
    assert packed.headers.get("content-encoding") is None  # it is short
    for version in range(200):
        (root / f"oldest_kept/main/{version:010}").touch()
    packed = get("/files/oldest_kept/main/", headers={"accept-encoding": "br, gzip"})
    assert gzip.decompress(packed.body) == get("/files/oldest_kept/main/").body


ID = "a" * 32
NO_DATA = [
    "", "/", ".", "..", "zarr.json", ".staging", ".staging/", "locks/", "locks/pins", "locks/commit", "operations/",
    "quarantine/", "packs", "packs/", "packs/ab/", "heads", "heads/", "commits", "commits/main", "tags", "erased",
    "commits/x/", "commits/main/0000000000/", "commits/main/00000000000", f"commits/main/0000000000.orphan-{ID}",
    f"commits/main/0000000000.proposal-{ID}", "commits/main/0000000000.lead", f"commits/main/stop-0000000000-{ID}",
    "commits//0000000000", "//format.json", "./format.json", "commits/../format.json", "tags/../format.json", "tags/..",
    "tags/.v1", "packs/../format.json", "..%2fformat.json", "%66ormat.json", "tags/v%31", "format.json%00", "tags\\v1",
    "tags/v1/..", "heads/../../secret", "../secret", "/etc/passwd", "tags/" + "a" * 101, "\xff",
]  # fmt: skip


@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_nothing_else_is_there(repo: txstore.Repository, tmp_path: Path, place: str) -> None:
    if place == "elsewhere":
        repo = txstore.Repository(f"memory://{tmp_path}/far.tx", single_writer=True)
    (tmp_path / "secret").write_text("secret")
    with repo.begin() as mapping:
        mapping["x"] = b"1"
    repo.vacuum()
    with repo.transaction(name="open") as store:
        zarr.create_group(store, path="new")
        there = [names.operation_path(each.id) for each in repo.log(operations=True)]
        there += [f".staging/{name}" for name in staged(repo)]
        assert len({path.partition("/")[0] for path in there}) == 2
        for path in [*NO_DATA, *there]:
            answer = ask(application(repo), f"/files/{path}")
            assert (answer.status, answer.json["error"]["type"]) == (404, "FileNotFound"), path


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links")
@pytest.mark.parametrize(
    "path", ["tags/secret", FIRST, "commits/main/0000000009", "packs/ab/" + "ab" * 16, "heads/main"]
)
def test_no_link_is_followed(own: txstore.Repository, tmp_path: Path, path: str) -> None:
    """Also above the file. It is no missing file, either: a reader would do without."""
    (tmp_path / "secret").write_text("secret")
    app, at = application(own), Path(own.url, path)
    if path.startswith("packs"):
        (tmp_path / at.name).write_text("secret")
        at.parent.symlink_to(tmp_path, target_is_directory=True)
    else:
        at.unlink(missing_ok=True)
        at.symlink_to(tmp_path / "secret")
    for given in ({}, {"method": "HEAD"}, {"headers": {"range": "bytes=0-3"}}):
        answer = ask(app, f"/files/{path}", **given)
        assert answer.status == 500
        assert b"secret" not in answer.body.replace(b"tags/secret", b"")


@pytest.mark.parametrize("path", ["tags/key", FIRST, "packs/ab/" + "ab" * 16, "erased/" + "ab" * 16, "heads/main"])
def test_a_private_file_that_another_user_has_linked_to(own: txstore.Repository, tmp_path: Path, path: str) -> None:
    secret = tmp_path / "key"
    secret.write_text('{"checksum": "of-mine"}')
    at = Path(own.url, path)
    at.parent.mkdir(parents=True, exist_ok=True)
    at.unlink(missing_ok=True)
    at.hardlink_to(secret)
    answer = ask(application(own), f"/files/{path}")
    assert answer.status == 500
    assert b"of-mine" not in answer.body


@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_what_was_erased_comes_from_no_memory(tmp_path: Path, place: str) -> None:
    url = str(tmp_path / "data.tx") if place == "here" else f"memory://{tmp_path}/data.tx"
    repo = txstore.Repository(url, single_writer=True if place == "elsewhere" else None)
    secret = np.random.default_rng(1).bytes(1 << 17)
    with repo.begin() as mapping:
        mapping["zarr.json"] = b'{"zarr_format": 3, "node_type": "group"}'
        mapping["ann/zarr.json"] = b'{"zarr_format": 3, "node_type": "group"}'
        mapping["ann/secret"] = secret
    del mapping
    app = application(repo)
    first = ask(app, f"/files/{FIRST}")
    assert secret in first.body
    if place == "elsewhere":
        assert first.headers["cache-control"] == "no-store"
        assert "etag" not in first.headers
    repo.erase("ann")
    given = {} if place == "elsewhere" else {"if-none-match": first.headers["etag"], "if-range": first.headers["etag"]}
    for asked in ({}, {"range": "bytes=0-9999999"}):
        answer = ask(app, f"/files/{FIRST}", headers=given | asked)
        assert (answer.status, len(answer.body)) in ((200, len(first.body)), (206, len(first.body)))
        assert secret[:100] not in answer.body


def test_what_is_written_in_place_has_another_tag(own: txstore.Repository) -> None:
    app = application(own)
    first = ask(app, "/files/heads/main")
    with own.begin() as mapping:
        mapping["x"] = b"2"
    second = ask(app, "/files/heads/main", headers={"if-none-match": first.headers["etag"]})
    assert (second.status, len(second.body)) == (200, len(first.body))
    assert second.body != first.body


def test_from_far_away_a_file_takes_one_request(tmp_path: Path, requests: Requests) -> None:
    """Its end, where readers begin, comes with its length, which stays known."""
    repo = txstore.Repository(f"memory://{tmp_path}/far.tx", single_writer=True)
    with repo.begin() as mapping:
        mapping["x"] = np.random.default_rng(1).bytes(9 << 20)
    [pack] = [path for path, _ in below(objects_of(repo), "packs")]
    whole = ask(application(repo), f"/files/{pack}").body
    assert len(whole) > 9 << 20
    app = application(repo)
    assert ask(app, "/files/format.json").headers["etag"]
    requests.clear()
    assert ask(app, f"/files/{pack}", headers={"range": "bytes=-16384"}).body == whole[-16384:]
    assert ask(app, f"/files/{pack}", headers={"range": "bytes=5-99"}).body == whole[5:100]
    assert requests == [pack] * 2


def test_a_file_that_is_cut_meanwhile_is_an_error(own: txstore.Repository) -> None:
    watch(own).after["open"] = lambda path, *_: os.truncate(Path(own.url, path), 10)
    answer = ask(application(own), f"/files/{FIRST}")
    assert (answer.status, answer.json["error"]["type"]) == (500, "CorruptionError")
