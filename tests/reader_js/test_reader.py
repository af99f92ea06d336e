"""The reader in JavaScript: what it finds, what it refuses, and how many requests it makes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec
import numpy as np
import pytest
import zarr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import txstore
from tests.reader_js.node import ROOT, WITHOUT_LISTS, Listing, Node, Refused, content, listed, running, served
from tests.tools.forged_headers import forge_header
from tests.tools.waiting import wait_until
from txstore.format import commitfile, encoding
from txstore.format.carried import carry
from txstore.history.opening import open_commits, open_storage

READER = ROOT / "txstore/reader_js"


def test_all_that_is_there(repo: txstore.Repository, where: str, node: Node) -> None:
    url = f"{where}/data.tx"
    heads: dict[str | int, Any] = {
        "main": repo.mapping(), "Dev": repo.mapping(branch="Dev"), "v1": repo.mapping(tag="v1"), 0: repo.mapping(0),
        repo.log()[1].id: repo.mapping(1),
    }  # fmt: skip
    for at, there in heads.items():
        answer = node.ask("content", url, at=at, prefix="")
        assert answer["values"] == content(there), at
        assert answer["commit"] == there.commit.id
    assert node.ask("content", url, at=0, prefix="old/")["values"] == content(repo.mapping(0), "old/")


def test_unusual_keys(tmp_path: Path, where: str, node: Node) -> None:
    repo = txstore.Repository(tmp_path / "data.tx")
    keys = [
        "\ufeffbom", "a/\ufeff/b", "a%2Fb", "a%b", "a#b", "a?b=c", " lead", "trail ", "\u00fc", "u\u0308", "\uffff",
        "\U0001f600", "\ud7ff\ue000", "x" * 4000, "tab\tx", "nul\0x", "\x7f", "a\\b", "..a", "__proto__", "constructor",
    ]  # fmt: skip
    with repo.begin() as mapping:
        for key in keys:
            mapping[key] = key.encode()
    assert node.ask("content", f"{where}/data.tx", at="main", prefix="")["values"] == content(repo.mapping())
    for key in keys:
        assert node.ask("get", f"{where}/data.tx", at="main", key=key) == content(repo.mapping())[key]


def test_commits(repo: txstore.Repository, where: str, node: Node) -> None:
    for branch in ("main", "Dev"):
        found = node.ask("commits", f"{where}/data.tx", branch=branch)
        assert [each["message"] for each in found] == [commit.message for commit in repo.log(branch)]
        assert [each["author"] for each in found] == [commit.author for commit in repo.log(branch)]
    first = found[-1]
    assert first["properties"] == {"run": 7}
    assert first["time"] == repo.log()[2].time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert len(node.ask("log", f"{where}/data.tx", branch="main", limit=2)) == 2


def test_a_carried_header_of_another_version(tmp_path: Path, where: str, node: Node) -> None:
    """Its hash is what the commit says of its parent. Commits of such versions could be one another's ancestors."""
    repo = txstore.Repository(tmp_path / "data.tx")
    for value in (b"0", b"1", b"2"):
        with repo.begin() as transaction:
            transaction["a"] = value
    assert len(node.ask("log", f"{where}/data.tx", branch="main")) == 3
    files = open_commits(open_storage(tmp_path / "data.tx")).files
    parent, head = (files.read("main", version) for version in (1, 2))
    encoded = replace(parent.header, version=9, seq=10).encode()
    footer = replace(parent.footer, header_length=len(encoded), header_checksum=encoding.crc32c(encoded),
                     file_length=parent.footer.header_offset + len(encoded) + 64)  # fmt: skip
    more = carry(encoded, footer.encode(), b"")
    section = commitfile.Section(commitfile.SECTION_CARRIED, head.footer.header_offset, len(more))
    sections = [each for each in head.header.sections if each.kind != commitfile.SECTION_CARRIED]
    forge_header(
        tmp_path / "data.tx", 2, more=more, sections=(*sections, section), parent_hash=commitfile.header_hash(encoded)
    )
    with pytest.raises(Refused, match="CorruptionError"):
        node.ask("log", f"{where}/data.tx", branch="main", limit=2)


def test_names(repo: txstore.Repository, where: str, node: Node) -> None:
    url = f"{where}/data.tx"
    if where.startswith("http") and not _lists(where):
        for what in ("branches", "tags"):
            with pytest.raises(Refused, match="this server lists no names"):
                node.ask(what, url)
    else:
        assert node.ask("branches", url) == ["main", "Dev"]
        assert node.ask("tags", url) == ["v1"]
    for name in ("dev", "v2", "../format.json", "0" * 32 if not where.startswith("http") else "v3"):
        with pytest.raises(Refused, match="is no branch, tag or commit here"):
            node.ask("content", url, at=name, prefix="")
    with pytest.raises(Refused, match="those that are kept are 0 to 2"):
        node.ask("content", url, at=3, prefix="")


def _lists(where: str) -> bool:
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"{where}/data.tx/commits/") as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


def test_no_head_cache(repo: txstore.Repository, where: str, tmp_path: Path, node: Node) -> None:
    expected = content(repo.mapping())
    head = tmp_path / "data.tx/heads/main"
    for damage, error in (b"", "CorruptionError"), (b"TXSTHEAD" + bytes(56), "CorruptionError"), (None, "RequestError"):
        head.unlink() if damage is None else head.write_bytes(damage)
        if where.startswith("http") and not _lists(where):
            with pytest.raises(Refused, match="this server lists no names: the newest commit can't be found") as caught:
                node.ask("content", f"{where}/data.tx", at="main", prefix="")
            assert caught.value.name == error
        else:
            assert node.ask("content", f"{where}/data.tx", at="main", prefix="")["values"] == expected


def filled(folder: Path, kind: str) -> Callable[[], txstore.Repository]:
    """Make a repository with a tag, on a disk or as on an object store; return what opens it."""
    url = str(folder / "data.tx") if kind == "file" else f"memory://{folder.name}-{os.getpid()}/data.tx"
    repo = txstore.Repository(url)
    with repo.begin() as transaction:
        transaction["a"] = b"0"
    repo.tags["v1"] = repo.head()
    publish(folder, kind)
    return lambda: txstore.Repository(url)


def publish(folder: Path, kind: str) -> None:
    """Copy what is in memory to where it is served from, when the newest commit has a head cache."""
    if kind == "memory":
        shutil.rmtree(folder / "data.tx", ignore_errors=True)
        there, memory = f"/{folder.name}-{os.getpid()}/data.tx", fsspec.filesystem("memory")
        newest = bytes.fromhex(str(txstore.Repository(f"memory:/{there}").head().id))
        wait_until(lambda: memory.exists(f"{there}/heads/main") and newest in memory.cat(f"{there}/heads/main")[:64])
        memory.get(there, str(folder / "data.tx"), recursive=True)


@pytest.mark.parametrize("kind", ["file", "memory"])
@pytest.mark.parametrize("server", WITHOUT_LISTS)
def test_a_repository_stays_open_during_a_vacuum(tmp_path: Path, node: Node, server: str, kind: str) -> None:
    """No commit that was known at opening is kept, but for a tagged one, and the server lists no names."""
    repo = filled(tmp_path, kind)
    with WITHOUT_LISTS[server](tmp_path) as base:
        url, keep = f"{base}/data.tx", f"{server} {kind}"
        node.ask("opened", url, keep=keep)
        for _ in range(2):
            assert node.ask("content", url, keep=keep, at="main", prefix="")["values"] == content(repo().mapping())
            for value in (b"1", b"2"):
                with repo().begin() as transaction:
                    transaction["a"] = value
            repo().optimize()
            repo().vacuum(keep=1)
            publish(tmp_path, kind)


@pytest.mark.parametrize("damage", ["gone", "header", "head cache"])
@pytest.mark.parametrize("branch", ["main", "Dev"])
def test_the_newest_commit_is_damaged(
    repo: txstore.Repository, where: str, tmp_path: Path, node: Node, branch: str, damage: str
) -> None:
    """Never an older commit, nor the one that the branch begins at."""
    path = tmp_path / "data.tx"
    with repo.begin(branch=branch) as transaction:
        transaction["newest"] = b"1"
    expected = content(repo.mapping(branch=branch))
    head_cache = next(each for each in (path / "heads").iterdir() if (each.name == "main") == (branch == "main"))
    newest = max((path / "commits" / head_cache.name).iterdir())
    if damage == "gone":
        newest.unlink()
    else:
        flipped(newest if damage == "header" else head_cache, -80 if damage == "header" else 20)
    if damage == "head cache" and not (where.startswith("http") and not _lists(where)):
        assert node.ask("content", f"{where}/data.tx", at=branch, prefix="")["values"] == expected
        return
    with pytest.raises(Refused) as caught:
        node.ask("content", f"{where}/data.tx", at=branch, prefix="")
    assert caught.value.name == "CorruptionError"


def test_a_file_of_another_copy(where: str, tmp_path: Path, node: Node) -> None:
    """Two copies went on by themselves, and a file of one was put into the other."""
    repo = txstore.Repository(tmp_path / "data.tx")
    with repo.begin() as transaction:
        for number in range(4):
            transaction[f"{number}"] = b"1"
    shutil.copytree(tmp_path / "data.tx", tmp_path / "other.tx")
    for value, path in (b"2", "data.tx"), (b"3", "other.tx"):
        with txstore.Repository(tmp_path / path).begin() as transaction:
            transaction["0"] = value
    with repo.begin() as transaction:
        transaction["1"] = b"4"
    (tmp_path / "other.tx/commits/main/0000000001").replace(tmp_path / "data.tx/commits/main/0000000001")
    for question in ({"what": "get"}, {"what": "range", "range": {"offset": 0, "length": 1}}):
        with pytest.raises(Refused) as caught:
            node.ask(question.pop("what"), f"{where}/data.tx", at="main", key="0", **question)  # type: ignore[arg-type]
        assert caught.value.name == "CorruptionError"


def test_an_old_head_cache(repo: txstore.Repository, where: str, tmp_path: Path, node: Node) -> None:
    old = (tmp_path / "data.tx/heads/main").read_bytes()
    for number in range(3):
        with repo.begin() as transaction:
            transaction[f"{number}"] = b"1"
    (tmp_path / "data.tx/heads/main").write_bytes(old)
    assert node.ask("content", f"{where}/data.tx", at="main", prefix="")["values"] == content(repo.mapping())


def test_parts(repo: txstore.Repository, where: str, node: Node) -> None:
    value = bytes(repo.mapping()["large/c/1"])
    for part, expected in (
        ({"offset": 3, "length": 10}, value[3:13]), ({"offset": 3, "length": 1 << 30}, value[3:]),
        ({"suffixLength": 7}, value[-7:]), ({"suffixLength": 1 << 30}, value), ({"offset": 5, "length": 0}, b""),
    ):  # fmt: skip
        assert node.ask("range", f"{where}/data.tx", at="main", key="large/c/1", range=part) == expected.hex()
    assert node.ask("range", f"{where}/data.tx", at="main", key="none", range={"suffixLength": 1}) is None


@pytest.mark.parametrize("key", ["none", "a", "a/c/", "/", "", "a//c", "../format.json", "a/c/00", "a/c/1/x"])
def test_a_key_that_is_not_there(repo: txstore.Repository, tmp_path: Path, node: Node, key: str) -> None:
    assert node.ask("get", tmp_path / "data.tx", at="main", key=key) is None


def test_zeros(repo: txstore.Repository, where: str, tmp_path: Path, node: Node) -> None:
    """Without a record of an erasure, a value of zeros is damaged."""
    value = bytes(repo.mapping()["large/c/1"])
    path = tmp_path / "data.tx/commits/main/0000000001"
    path.write_bytes(path.read_bytes().replace(value, bytes(len(value))))
    repo.erase("sharded")
    for question in ({"what": "get"}, {"what": "range", "range": {"offset": 0, "length": 1}}):
        with pytest.raises(Refused) as caught:
            node.ask(question.pop("what"), f"{where}/data.tx", at="main", key="large/c/1", **question)  # type: ignore[arg-type]
        assert caught.value.name == "CorruptionError"


def test_erased(repo: txstore.Repository, where: str, node: Node) -> None:
    repo.erase("large")
    for question in ({"what": "get"}, {"what": "range", "range": {"offset": 0, "length": 1}}):
        with pytest.raises(Refused) as caught:
            node.ask(question.pop("what"), f"{where}/data.tx", at="v1", key="large/c/1", **question)  # type: ignore[arg-type]
        assert caught.value.name == "ErasedError"
    assert "large/c/1" not in node.ask("content", f"{where}/data.tx", at="v1", prefix="")["values"]


def test_values_that_lie_elsewhere(tmp_path: Path, node: Node) -> None:
    (tmp_path / "raw.bin").write_bytes(b"head1234")
    with served(tmp_path) as base:
        repo = txstore.Repository(tmp_path / "data.tx", sources=[base, tmp_path])
        with repo.transaction() as store:
            store.set_reference("x", tmp_path / "raw.bin", 4, 4)
            store.set_reference("y", f"{base}/raw.bin", 4, 4)
        for key, told in (("x", "it reads http and https only"), ("y", "Allow it by `allowForeign")):
            with pytest.raises(Refused, match=told) as caught:
                node.ask("get", tmp_path / "data.tx", at="main", key=key)
            assert caught.value.name == "ForeignError"
        assert node.ask("get", f"{base}/data.tx", at="main", key="y", foreign=True) == content(repo.mapping())["y"]
        (tmp_path / "raw.bin").write_bytes(b"HEAD12345")
        with pytest.raises(Refused, match="has changed since"):
            node.ask("get", f"{base}/data.tx", at="main", key="y", foreign=True)


def test_a_file_elsewhere_that_leads_to_a_third_place(tmp_path: Path, node: Node) -> None:
    """Its server may send a reader to any URL, of another host, too."""
    (tmp_path / "raw.bin").write_bytes(b"head1234")
    asked: list[bytes] = []
    leads = False
    with served(tmp_path) as there:

        def answer(request: Request) -> Response:
            asked.append(request.scope["raw_path"])
            return RedirectResponse(f"{there}/raw.bin") if leads else FileResponse(tmp_path / "raw.bin")

        with running(Starlette(routes=[Route("/{path:path}", answer)])) as base:
            repo, url = txstore.Repository(tmp_path / "data.tx", sources=[base]), f"{base}/a%2Fb.bin"
            with repo.transaction() as store:
                store.set_reference("y", url, 4, 4)
            there_is = content(repo.mapping())["y"]
            ask = partial(node.ask, "get", f"{there}/data.tx", at="main", key="y")
            assert ask(foreign=url) == there_is
            assert {*asked} == {b"/a%2Fb.bin"}
            leads = True
            with pytest.raises(Refused, match=f"leads to another URL, at {there}. Allow that, too") as caught:
                ask(foreign=url)
            assert caught.value.name == "ForeignError"
            assert ask(foreign=True) == there_is


def test_a_file_elsewhere_of_which_no_version_is_told(tmp_path: Path, node: Node) -> None:
    """It may have changed, and have the same length."""
    (tmp_path / "raw.bin").write_bytes(b"head1234")
    with served(tmp_path) as base:
        repo = txstore.Repository(tmp_path / "data.tx", sources=[base])
        with repo.transaction() as store:
            store.set_reference("y", f"{base}/raw.bin", 4, 4)
        port = urlsplit(base).port
    (tmp_path / "raw.bin").write_bytes(b"HEAD5678")
    with ThreadingHTTPServer(("127.0.0.1", port), partial(Listing, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(Refused, match="tells no ETag") as caught:
            node.ask("get", tmp_path / "data.tx", at="main", key="y", foreign=True)
        server.shutdown()
    assert caught.value.name == "ForeignError"


# --- damage


def flipped(path: Path, at: int) -> None:
    """Flip a bit of a byte."""
    damaged = bytearray(path.read_bytes())
    damaged[at] ^= 1
    path.write_bytes(damaged)


def rewritten(path: Path, at: int, new: bytes) -> None:
    """Change bytes of a commit's header, with the right checksums."""
    whole = path.read_bytes()
    footer = commitfile.Footer.decode(whole[-commitfile.FOOTER_SIZE :])
    header = bytearray(whole[footer.header_offset : footer.header_offset + footer.header_length])
    header[at : at + len(new)] = new
    renewed = commitfile.Footer(
        len(header), footer.header_offset, len(whole), footer.pack_id, encoding.crc32c(bytes(header))
    )
    path.write_bytes(whole[: footer.header_offset] + bytes(header) + renewed.encode())


def test_features(repo: txstore.Repository, where: str, tmp_path: Path, node: Node) -> None:
    path = tmp_path / "data.tx/commits/main/0000000002"
    for at, new, told in (
        (8, b"\x04", "required feature 2"), (11, b"\x80", "required feature 31"), (4, b"\x02", "a header of kind 2"),
    ):  # fmt: skip
        before = path.read_bytes()
        rewritten(path, at, new)
        with pytest.raises(Refused, match=told) as caught:
            node.ask("content", f"{where}/data.tx", at="main", prefix="")
        assert caught.value.name == "UnsupportedError"
        path.write_bytes(before)
    rewritten(path, 15, b"\x80")  # a feature of those who commit
    rewritten(path, 23, b"\x80")  # an optional one
    assert node.ask("content", f"{where}/data.tx", at="main", prefix="")["values"] == content(repo.mapping(2))


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ('{"txstore": 2}', "UnsupportedError"), ("[]", "CorruptionError"), ('{"txstore": 1}', "CorruptionError"),
        ("{", "CorruptionError"), (None, "NotFoundError"),
    ],
)  # fmt: skip
def test_format_json(
    repo: txstore.Repository, where: str, tmp_path: Path, node: Node, document: str | None, error: str
) -> None:
    path = tmp_path / "data.tx/format.json"
    path.unlink()
    if document is not None:
        path.write_text(document)
    with pytest.raises(Refused) as caught:
        node.ask("content", f"{where}/data.tx", at="main", prefix="")
    assert caught.value.name == error


@pytest.mark.parametrize(
    "more",
    ['"x": 1e-7', '"x": 1E5', '"x": 1.0', '"x": -0', '"x": 18014398509481985', '"\\ue000": 1, "\\ud83d\\ude00": 2',
     '"x": {"10": 1, "9": [1.5e300, 0.00001, null, "\\u007f"]}', '"__proto__": 1'],
)  # fmt: skip
def test_the_checksum_of_format_json(repo: txstore.Repository, tmp_path: Path, node: Node, more: str) -> None:
    """What others write, in other forms of numbers and another order of names."""
    path = tmp_path / "data.tx/format.json"
    members = json.loads(path.read_text())
    del members["checksum"]
    members["required"] = (1 << 63) + (1 << 40)
    text = f"{{{more}, {json.dumps(members)[1:]}"
    canonical = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    path.write_text(f'{{"checksum": "{encoding.crc32c(canonical.encode()):08x}", {text[1:]}')
    assert txstore.Repository(tmp_path / "data.tx").head() == repo.head()
    assert node.ask("get", tmp_path / "data.tx", at="main", key="a/c/0") == content(repo.mapping())["a/c/0"]


def test_a_feature_beside_a_large_number(repo: txstore.Repository, tmp_path: Path, node: Node) -> None:
    """JavaScript's numbers have no room for the lowest bits beside bit 63."""
    path = tmp_path / "data.tx/format.json"
    members = json.loads(path.read_text()) | {"required": (1 << 63) + 4}
    del members["checksum"]
    canonical = json.dumps(members, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**members, "checksum": f"{encoding.crc32c(canonical.encode()):08x}"}))
    with pytest.raises(Refused, match="required feature 2"):
        node.ask("get", tmp_path / "data.tx", at="main", key="a/c/0")


def test_damage_of_a_value(repo: txstore.Repository, where: str, tmp_path: Path, node: Node) -> None:
    value = bytes(repo.mapping()["large/c/1"])
    path = tmp_path / "data.tx/commits/main/0000000001"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(value, value[:-1] + bytes([value[-1] ^ 1])))
    with pytest.raises(Refused, match="has a wrong checksum") as caught:
        node.ask("get", f"{where}/data.tx", at="main", key="large/c/1")
    assert caught.value.name == "CorruptionError"
    path.unlink()
    for key in ("large/c/1", "none", "a/c/0"):
        with pytest.raises(Refused, match="the file is missing"):
            node.ask("get", f"{where}/data.tx", at="main", key=key)


# --- requests


def test_requests(repo: txstore.Repository, tmp_path: Path, node: Node) -> None:
    with served(tmp_path) as base:
        url = f"{base}/data.tx"
        node.ask("get", url, keep="requests", at="main", key="large/c/1")
        # format.json, head cache, commit, next version, three that ask in vain for a list, head and run of the second
        # commit, value
        assert node.requests["count"] <= 11
        node.ask("get", url, keep="requests", at="main", key="large/c/1")
        # head cache, commit, next version, value
        assert node.requests["count"] <= 4


@pytest.mark.parametrize(
    ("path", "meanwhile"),
    [("heads/main", "commits/"), ("commits/main/0000000002", "commits/main/0000000003")],
)  # fmt: skip
def test_requests_that_are_under_way_together(
    repo: txstore.Repository, tmp_path: Path, node: Node, path: str, meanwhile: str
) -> None:
    """The server answers one only when it was asked for the other."""
    files, asked = Starlette(routes=[Mount("/", StaticFiles(directory=tmp_path))]), asyncio.Event()

    async def held(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == f"/data.tx/{meanwhile}":
            asked.set()
        if scope["path"] == f"/data.tx/{path}":
            await asyncio.wait_for(asked.wait(), 20)
        await files(scope, receive, send)

    with running(held) as base:
        assert node.ask("get", f"{base}/data.tx", at="main", key="a/c/0") == content(repo.mapping())["a/c/0"]


def test_a_server_that_is_busy(repo: txstore.Repository, where: str, node: Node) -> None:
    if where.startswith("http"):
        answer = node.ask("get", f"{where}/data.tx", at="main", key="a/c/0", faults=[503, "TypeError", 429, "cut"])
        assert answer == content(repo.mapping())["a/c/0"]
        with pytest.raises(Refused, match="the server answers 503") as caught:
            node.ask("get", f"{where}/data.tx", at="main", key="a/c/0", faults=[503] * 99)
        assert caught.value.name == "RequestError"
        with pytest.raises(Refused, match="403: give credentials"):
            node.ask("get", f"{where}/data.tx", at="main", key="a/c/0", faults=[403] * 99)


def test_whoever_waits_no_more(repo: txstore.Repository, where: str, node: Node) -> None:
    with pytest.raises(Refused) as caught:
        node.ask("aborted", f"{where}/data.tx", at="main", key="a/c/0")
    assert caught.value.name == "AbortError"


@pytest.mark.parametrize("server", WITHOUT_LISTS)
def test_a_server_that_lists_no_names(repo: txstore.Repository, tmp_path: Path, node: Node, server: str) -> None:
    """Where readers may not list, buckets answer 403 for what is missing."""
    repo.branches["bare"] = repo.head("Dev")
    with WITHOUT_LISTS[server](tmp_path) as base:
        url = f"{base}/data.tx"
        for name, there in (("v1", {"tag": "v1"}), ("bare", {"branch": "bare"}), (repo.log()[1].id, {"at": 1})):
            answer = node.ask("content", url, at=name, prefix="")
            assert answer["values"] == content(repo.mapping(**there))  # type: ignore[arg-type]
        with pytest.raises(Refused, match="this server lists no names"):
            node.ask("tags", url)
        with pytest.raises(Refused, match="is no branch, tag or commit here"):
            node.ask("content", url, at="v2", prefix="")


def test_a_bucket_that_is_closed_meanwhile(repo: txstore.Repository, tmp_path: Path, node: Node) -> None:
    """Where `format.json` may not be read either, 403 says nothing of what is missing."""
    with served(tmp_path) as base, pytest.raises(Refused, match="the server answers 403"):
        node.ask("get", f"{base}/data.tx", at="main", key="a/c/0", faults=[None, *[403] * 99])


def test_a_server_that_compresses(repo: txstore.Repository, where: str, node: Node) -> None:
    """Its answers are longer than it says, and a page of another origin does not see why."""
    if where.startswith("http"):
        answer = node.ask("get", f"{where}/data.tx", at="main", key="a/c/0", faults=["compressed"])
        assert answer == content(repo.mapping())["a/c/0"]
        with pytest.raises(Refused, match="Switch compression off"):
            node.ask("get", f"{where}/data.tx", at="main", key="a/c/0", faults=["cut"] * 99)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("format.json", "at most 4194304 are possible"), ("tags/v1", "at most 4194304 are possible"),
        ("commits/main/0000000002", "the server sends more than 268435456"),
    ],
)  # fmt: skip
def test_answers_without_end(repo: txstore.Repository, tmp_path: Path, node: Node, path: str, told: str) -> None:
    """A server that knows no ranges sends zeros for ever: no more is read than can be of use."""

    class Endless(Listing):
        def do_GET(self) -> None:
            if self.path != f"/data.tx/{path}":
                super().do_GET()
                return
            self.send_response(200)
            if path.startswith("commits"):
                self.send_header("Content-Length", str(1 << 40))
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(bytes(1 << 20))

    with listed(tmp_path, Endless) as base, pytest.raises(Refused, match=told):
        node.ask("get", f"{base}/data.tx", at="v1" if path == "tags/v1" else "main", key="a/c/0")


@pytest.mark.parametrize(
    ("length", "told"), [(1 << 40, "at most 1073741824 are read"), (1 << 30, "CorruptionError.*it ends before byte")]
)
def test_a_run_that_is_longer_than_its_file(
    repo: txstore.Repository, tmp_path: Path, node: Node, length: int, told: str
) -> None:
    """What a header declares is looked at before anything is read: a server of a stranger may send it for ever."""

    class Lying(Listing):
        def do_GET(self) -> None:
            first, last = (self.headers.get("Range") or "bytes=-0").removeprefix("bytes=").split("-")
            if not first or int(last) - int(first) < 8 << 20:
                super().do_GET()
                return
            size = 1 << 50 if length > 1 << 30 else int(first) + (1 << 20)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{min(int(last), size - 1)}/{size}")
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(bytes(1 << 10))
                    time.sleep(0.01)

    header = open_commits(open_storage(tmp_path / "data.tx")).files.read("main", 2).header
    forge_header(tmp_path / "data.tx", 2, runs=(header.runs[0]._replace(offset=64, length=length),))
    with listed(tmp_path, Lying) as base, pytest.raises(Refused, match=told):
        node.ask("get", f"{base}/data.tx", at="main", key="a/c/0")


def test_an_own_run_that_a_header_gives_no_seq(repo: txstore.Repository, tmp_path: Path, node: Node) -> None:
    """Else Python lists none of its keys, and returns each by its name."""
    runs = open_commits(open_storage(tmp_path / "data.tx")).files.read("main", 2).header.runs
    lying = [runs[0], *(each._replace(seq=0) for each in runs[1:])]
    forge_header(tmp_path / "data.tx", 2, runs=tuple(lying))
    for place in "a/c/0", "zarr.json":
        with pytest.raises(txstore.CorruptionError, match="not the one that the header lists"):
            txstore.Repository(tmp_path / "data.tx").mapping()[place]
        with pytest.raises(Refused, match="not the one that the header lists"):
            node.ask("get", tmp_path / "data.tx", at="main", key=place)
    with pytest.raises(txstore.CorruptionError):
        list(txstore.Repository(tmp_path / "data.tx").mapping())
    with pytest.raises(Refused):
        node.ask("content", tmp_path / "data.tx", at="main", prefix="")
    assert txstore.Repository(tmp_path / "data.tx").verify().faults


def test_a_version_that_javascript_cannot_count(repo: txstore.Repository, tmp_path: Path, node: Node) -> None:
    """The format allows it, and the newest commit may lie there: an older one is not the head."""
    shutil.copy(tmp_path / "data.tx/commits/main/0000000002", tmp_path / f"data.tx/commits/main/{2**62}")
    (tmp_path / "data.tx/heads/main").unlink()
    with pytest.raises(Refused, match="has a version that is too large"):
        node.ask("content", tmp_path / "data.tx", at="main", prefix="")


@pytest.mark.parametrize("faults", [1, 99])
def test_a_list_that_a_busy_server_does_not_send(tmp_path: Path, node: Node, faults: int) -> None:
    """A list tells that a head cache was written late. Without its answer, an old commit is not taken for the head."""
    repo = txstore.Repository(tmp_path / "data.tx")
    for number in range(4):
        with repo.begin() as transaction:
            transaction["a"] = b"%d" % number
        if number == 0:
            repo.tags["kept"] = repo.head()
            late = (tmp_path / "data.tx/heads/main").read_bytes()
    repo.vacuum(keep=1)
    (tmp_path / "data.tx/heads/main").write_bytes(late)
    left = [faults]

    class Busy(Listing):
        def do_GET(self) -> None:
            if "oldest_kept" in self.path and left[0]:
                left[0] -= 1
                self.send_error(503)
            else:
                super().do_GET()

    with listed(tmp_path, Busy) as base:
        if faults == 1:
            assert node.ask("content", f"{base}/data.tx", at="main", prefix="")["values"] == content(repo.mapping())
        else:
            with pytest.raises(Refused, match="the server answers 503"):
                node.ask("content", f"{base}/data.tx", at="main", prefix="")


def test_a_repository_that_was_restored_while_it_was_open(tmp_path: Path, where: str, node: Node) -> None:
    """After a restore another commit is in the version of one that was read, and has the same lengths."""
    path, keep = tmp_path / "data.tx", f"restored {where}"
    with txstore.Repository(path).begin() as transaction:
        transaction["a"] = b"first"
    shutil.copytree(path, tmp_path / "backup.tx")
    for value in (b"one", b"two"):
        repo = txstore.Repository(path)
        with repo.begin() as transaction:
            transaction["a"] = value
        there = node.ask("content", f"{where}/data.tx", keep=keep, at="main", prefix="")
        assert there == {"commit": str(repo.head().id), "values": content(repo.mapping())}
        del repo
        shutil.rmtree(path)
        shutil.copytree(tmp_path / "backup.tx", path)


def test_parts_of_a_file_that_was_replaced_meanwhile(tmp_path: Path, where: str, node: Node) -> None:
    """Nothing but the head of a file says whose it is; a checksum is of a whole value."""
    path = tmp_path / "data.tx"
    for first in range(2):
        with txstore.Repository(path).begin() as transaction:
            transaction["a"] = bytes((each + first) % 256 for each in range(256)) * 400
            transaction["b"] = bytes(20_000)
        path.rename(tmp_path / f"{first}.tx")
    shutil.copytree(tmp_path / "0.tx", path)
    question = {"keep": f"replaced {where}", "hold": f"replaced {where}", "at": "main", "key": "a"}
    read = partial(node.ask, "range", f"{where}/data.tx", **question)
    assert read(range={"offset": 1000, "length": 4}) == bytes([232, 233, 234, 235]).hex()
    shutil.copyfile(tmp_path / "1.tx" / "commits/main/0000000000", path / "commits/main/0000000000")
    os.utime(path / "commits/main/0000000000", (1e9, 1e9))  # `http.server` says it in seconds
    with pytest.raises(Refused, match="another pack") as caught:
        read(range={"offset": 40_000, "length": 4})
    assert caught.value.name == "CorruptionError"


def test_a_page_of_absolute_links(repo: txstore.Repository, tmp_path: Path, node: Node) -> None:
    """As Tomcat makes them; a page that leads elsewhere tells no names."""

    class Absolute(Listing):
        before = ""

        def list_directory(self, path: Any) -> Any:
            names = [f"{each.name}/" if each.is_dir() else each.name for each in sorted(Path(path).iterdir())]
            links = [f'<a href="{self.before}{self.path}{name}">{name}</a>' for name in names]
            content = f"<title>Directory Listing For [{self.path}]</title><a href='/'>up</a>{links}".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            return io.BytesIO(content)

    with listed(tmp_path, Absolute) as base:
        assert node.ask("branches", f"{base}/data.tx") == ["main", "Dev"]
        assert node.ask("tags", f"{base}/data.tx") == ["v1"]
        (tmp_path / "data.tx" / "heads" / "main").unlink()
        assert node.ask("content", f"{base}/data.tx", at="main", prefix="")["commit"] == str(repo.head().id)
        Absolute.before = "/behind/a/proxy"
        for question in ("branches", "tags", "log"):
            with pytest.raises(Refused, match="this server lists no names"):
                node.ask(question, f"{base}/data.tx")


def test_a_page_that_takes_long_to_read(repo: txstore.Repository, tmp_path: Path, node: Node) -> None:
    page = "Index of /" + '<a b="' * 300_000

    async def lists(request: Request) -> Response:
        return Response(page)

    routes = [Route("/data.tx/commits/", lists), Mount("/data.tx", StaticFiles(directory=tmp_path / "data.tx"))]
    with running(Starlette(routes=routes)) as base:
        assert node.ask("get", f"{base}/data.tx", at="main", key="a/c/0") == content(repo.mapping())["a/c/0"]


@pytest.mark.parametrize("token", ["again", "another"])
def test_a_list_without_end(repo: txstore.Repository, tmp_path: Path, node: Node, token: str) -> None:
    """Whether its pages lead back to it, or each to one more."""
    asked = 0

    async def lists(request: Request) -> Response:
        nonlocal asked
        asked += 1
        more = token if token == "again" else f"{token}{asked}"
        page = f"<ListBucketResult><NextContinuationToken>{more}</NextContinuationToken></ListBucketResult>"
        return Response(page if "list-type" in request.query_params else "", status_code=200)

    files = Mount("/data.tx", StaticFiles(directory=tmp_path / "data.tx"))
    app = Starlette(routes=[files, Route("/", lists)])
    with running(app) as base, pytest.raises(Refused, match="does not end"):
        node.ask("tags", f"{base}/data.tx")
    assert asked < 1000


# --- beside other programs


def test_zarrita(repo: txstore.Repository, where: str) -> None:
    module = ROOT / "build/zarrita/node_modules/zarrita/dist/src/index.js"
    if not module.exists():
        _missing("zarrita is missing: npm install --prefix build/zarrita zarrita@0.7")
    script = str(Path(__file__).with_name("zarrita.js"))
    ran = subprocess.run(
        ["node", script, f"{where}/data.tx", "a", "sharded", "large"], env={**os.environ, "ZARRITA": str(module)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    for path, found in json.loads(ran.stdout).items():
        array = zarr.open_array(repo.snapshot(), path=path, mode="r")
        assert [int(value) for value in found] == np.ravel(array[...]).tolist()


def test_types() -> None:
    compiler = ROOT / "build/typescript/node_modules"
    if not compiler.exists():
        _missing("TypeScript is missing: npm install --prefix build/typescript typescript@5 @types/node@20 esbuild")
    command = [str(compiler / ".bin/tsc"), "-p", str(READER), "--typeRoots", str(compiler / "@types")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    lines = sum(len(path.read_text().splitlines()) for path in READER.glob("*.js"))
    small = [str(compiler / ".bin/esbuild"), str(READER / "node.js"), "--bundle", "--minify", "--format=esm"]
    bundled = subprocess.run([*small, "--platform=node"], capture_output=True, check=True).stdout
    assert lines <= 2500
    assert len(bundled) <= 41 << 10


def test_the_package(repo: txstore.Repository, tmp_path: Path) -> None:
    """What npm packs can be installed, and reads."""
    npm = shutil.which("npm")
    if npm is None:
        _missing("npm is missing: install it with Node")
    package, home = tmp_path / "package", tmp_path / "home"
    package.mkdir()
    home.mkdir()
    packed = subprocess.run(
        [str(npm), "pack", "--pack-destination", str(package), str(READER)], capture_output=True, text=True, check=True
    )
    archive = package / packed.stdout.split()[-1]
    (home / "package.json").write_text('{"type": "module"}')
    subprocess.run(
        [str(npm), "install", "--offline", "--no-audit", "--no-fund", str(archive)], cwd=home, check=True,
        capture_output=True,
    )  # fmt: skip
    script = "import { openRepository } from 'txstore-reader/node'; const repo = await openRepository(process.argv[1]);"
    script += " console.log((await (await repo.at()).get('a/c/5')).length)"
    ran = subprocess.run(
        ["node", "--input-type=module", "-e", script, str(tmp_path / "data.tx")], cwd=home, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert int(ran.stdout) == len(bytes(repo.mapping()["a/c/5"]))


def _missing(what: str) -> None:
    if os.environ.get("TXSTORE_REQUIRE_SERVERS"):
        pytest.fail(what)
    pytest.skip(what)
