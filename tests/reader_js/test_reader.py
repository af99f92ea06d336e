"""The reader in JavaScript: what it finds, what it refuses, and how many requests it makes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.reader_js.node import ROOT, Node, Refused, content, served
from txstore.format import commitfile, encoding

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


def test_commits(repo: txstore.Repository, where: str, node: Node) -> None:
    for branch in ("main", "Dev"):
        found = node.ask("commits", f"{where}/data.tx", branch=branch)
        assert [each["message"] for each in found] == [commit.message for commit in repo.log(branch)]
        assert [each["author"] for each in found] == [commit.author for commit in repo.log(branch)]
    first = found[-1]
    assert first["properties"] == {"run": 7}
    assert first["time"] == repo.log()[2].time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert len(node.ask("log", f"{where}/data.tx", branch="main", limit=2)) == 2


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
    for damage in (b"", b"TXSTHEAD" + bytes(56), None):
        head.unlink() if damage is None else head.write_bytes(damage)
        assert node.ask("content", f"{where}/data.tx", at="main", prefix="")["values"] == expected


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


# --- damage


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
        node.ask("get", f"{base}/data.tx", at="main", key="large/c/1")
        # format.json, head cache, commit, next version, run of the second commit, value
        assert node.requests["count"] <= 7


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
    assert len(bundled) <= 40 << 10


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
