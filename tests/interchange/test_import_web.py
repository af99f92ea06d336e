"""Import from web servers and archives: what they say of their files, where they lead to, and how much they send."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import os
import socket
import tarfile
import threading
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yarl
import zarr
from fsspec.archive import AbstractArchiveFileSystem
from fsspec.implementations.http import HTTPFileSystem
from fsspec.implementations.tar import TarFileSystem

import txstore
from txstore.codecs import bounded_codecs
from txstore.interchange import web_sources
from txstore.storage.objects.backend import Refusal


class Handler(SimpleHTTPRequestHandler):
    """Lists directories as many servers do: with links that sort the list, and one to the directory above."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if not self.path.endswith("/"):
            super().do_GET()
            return
        names = [each.name + "/" * each.is_dir() for each in Path(self.translate_path(self.path)).iterdir()]
        above = os.path.dirname(self.path.rstrip("/"))
        links = [f'<a href="{each}">' for each in ("?C=N;O=D", f"{above.rstrip('/')}/", *names)]
        self.answer("text/html", "".join(links).encode())

    def answer(self, kind: str, content: bytes, **headers: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)


Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Return a function that starts a server of this test's files and returns its URL."""
    with ExitStack() as servers:
        yield lambda handler=Handler: servers.enter_context(_serving(handler, tmp_path))


@contextmanager
def _serving(handler: Any, directory: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(directory))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def _write(path: Path, name: str = "x", start: int = 0) -> None:
    group = zarr.open_group(path, mode="a")
    group.create_array(name, shape=40, chunks=10, dtype="i4", compressors=None, dimension_names=["n"])
    group[name][:] = np.arange(start, start + 40)


def test_plain_zarr(repo: txstore.Repository, tmp_path: Path, serve: Serve) -> None:
    _write(tmp_path / "a.zarr")
    commit = repo.import_from(f"{serve()}/a.zarr")
    assert commit.properties["import"]["files"] == 6
    assert commit.properties["import"]["bytes"] > 160
    np.testing.assert_array_equal(zarr.open_group(repo.snapshot(), mode="r")["x"][:], np.arange(40))
    assert sorted(repo.mapping()) == ["x/c/0", "x/c/1", "x/c/2", "x/c/3", "x/zarr.json", "zarr.json"]


def test_a_source_that_is_joined_and_changes_meanwhile(repo: txstore.Repository, tmp_path: Path, serve: Serve) -> None:
    """A page says neither the size of a file nor its version."""
    chunk, new = tmp_path / "b.zarr" / "x" / "c" / "0", tmp_path / "new"

    class Changing(Handler):
        def do_GET(self) -> None:
            if self.path.endswith("b.zarr/x/c/3"):
                new.write_bytes(np.full(10, 7, "<i4").tobytes())
                os.utime(new, (1e9, 1e9))
                new.replace(chunk)
            super().do_GET()

    for name, start in (("a", 0), ("b", 40)):
        _write(tmp_path / f"{name}.zarr", start=start)
    url = serve(Changing)
    with pytest.raises(txstore.SourceError, match="has changed while it was imported"):
        repo.import_from([f"{url}/a.zarr", f"{url}/b.zarr"], concat="n")
    repo.import_from([f"{url}/a.zarr", f"{url}/b.zarr"], concat="n")
    assert zarr.open_group(repo.snapshot(), mode="r")["x"][39:42].tolist() == [39, 7, 7]


def test_a_name_that_a_page_has_escaped(repo: txstore.Repository, tmp_path: Path, serve: Serve) -> None:
    class Escaping(Handler):
        def answer(self, kind: str, content: bytes, **headers: str) -> None:
            super().answer(kind, content.replace(b"x y", b"x%20y"), **headers)

    _write(tmp_path / "a.zarr", "x y")
    with pytest.raises(txstore.SourceError, match=r"x%20y.* has escapes"):
        repo.import_from(f"{serve(Escaping)}/a.zarr")


@pytest.mark.parametrize("sent", ["bytes 2-5/8", "bytes 0-3/8"])
def test_an_answer_that_is_another_range(serve: Serve, sent: str) -> None:
    class Ranging(Handler):
        def do_GET(self) -> None:
            self.send_response(206)
            self.send_header("Content-Range", sent)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"abcd")

    async def read() -> bytes:
        fs = HTTPFileSystem(asynchronous=True, skip_instance_cache=True, get_client=web_sources.client)
        async with await fs.set_session():
            content: bytes = await fs._cat_file(f"{serve(Ranging)}/x", start=2, end=6)
            return content

    if sent == "bytes 2-5/8":
        assert asyncio.run(read()) == b"abcd"
        return
    with pytest.raises(OSError, match="another range"):
        asyncio.run(read())


@pytest.mark.parametrize("page", ["<a" + " " * 100_000, "<a x " * 100_000, '<a href="?' + "<a  " * 100_000 + '">'])
def test_a_page_that_takes_hours_to_search(repo: txstore.Repository, tmp_path: Path, serve: Serve, page: str) -> None:
    """One of 4 kB took a quarter of an hour, while no other thread could run."""

    class Long(Handler):
        def answer(self, kind: str, content: bytes, **headers: str) -> None:
            super().answer(kind, content + page.encode(), **headers)

    _write(tmp_path / "a.zarr")
    url = serve(Long)
    repo.import_from(f"{url}/a.zarr")
    assert len(repo.mapping()) == 6
    assert not txstore.Repository(f"{url}/other.tx").exists


def test_links_of_pages(serve: Serve) -> None:
    """As fsspec finds them itself, but for spaces."""
    page = """<A HREF='a'>x</A><a class="b"
        href="b c">http://data.example/d e</a><a>href="f"</a><a href="http://127.0.0.1/g"><p href="h">
        <a title=">" href="i">
        <a href=""><link href='j'><area href="k"><a x<a y href="l" href="m">"""

    class Given(Handler):
        def do_GET(self) -> None:
            self.answer("text/html", page.encode())

    async def found(**options: Any) -> list[str]:
        fs = HTTPFileSystem(asynchronous=True, skip_instance_cache=True, **options)
        session = await fs.set_session()
        names: list[str] = await fs._ls(f"{url}/", detail=False)
        await session.close()
        return sorted(names)

    url = serve(Given)
    assert asyncio.run(found(get_client=web_sources.client)) == asyncio.run(found())


def test_a_directory_that_leads_to_itself(repo: txstore.Repository, serve: Serve) -> None:
    class Endless(Handler):
        def do_GET(self) -> None:
            if self.path.endswith("zarr.json"):
                self.answer("application/json", b'{"zarr_format": 3, "node_type": "group"}')
            elif self.path.endswith(("format.json", "commits")):
                self.send_error(404)
            else:
                self.answer("text/html", f'<a href="zarr.json"><a href="{"x" * 200}/">'.encode())

    with pytest.raises(txstore.SourceError, match="has no end"):
        repo.import_from(f"{serve(Endless)}/a.zarr")


@pytest.mark.parametrize("concat", [None, "n"])
def test_an_answer_that_is_longer_than_its_server_has_told(
    repo: txstore.Repository, tmp_path: Path, serve: Serve, concat: str | None
) -> None:
    """Eight are read at once, or more, each of which could take as much memory as one may."""

    class Compressing(Handler):
        def do_GET(self) -> None:
            if self.path.endswith("/c/0"):
                self.answer("application/octet-stream", gzip.compress(bytes(1 << 20)), Content_Encoding="gzip")
            else:
                super().do_GET()

    _write(tmp_path / "a.zarr")
    with pytest.raises(OSError, match="sends more than the 40 bytes"):
        repo.import_from(f"{serve(Compressing)}/a.zarr", concat=concat)
    assert repo.head() is None


@pytest.mark.parametrize("cache", ["simplecache", "filecache", "zip::simplecache"])
def test_a_cache_writes_no_more_than_its_server_has_told(
    repo: txstore.Repository, tmp_path: Path, serve: Serve, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk would be full."""

    class Compressing(Handler):
        def do_GET(self) -> None:
            if self.path.endswith("long.zip"):
                self.answer("application/octet-stream", gzip.compress(bytes(8 << 20)), Content_Encoding="gzip")
            else:
                super().do_GET()

    _write(tmp_path / "a")
    for name in ("long.zip", "short.zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as packed:
            for file in (each for each in (tmp_path / "a").rglob("*") if each.is_file()):
                packed.write(file, file.relative_to(tmp_path / "a"))
    url = f"{cache}::{serve(Compressing)}"
    monkeypatch.setattr(web_sources, "MOST_IN_MEMORY", 1 << 20)
    with pytest.raises(OSError, match="sends more than 1,048,576 bytes, and did not say so"):
        repo.import_from(f"{url}/long.zip")
    if cache.startswith("zip"):
        repo.import_from(f"{url}/short.zip")


def test_a_chunk_that_no_page_lists_is_none(repo: txstore.Repository, tmp_path: Path, serve: Serve) -> None:
    """Nobody would notice that it changes meanwhile, nor how long it is."""

    class Hiding(Handler):
        def answer(self, kind: str, content: bytes, **headers: str) -> None:
            super().answer(kind, content.replace(b'<a href="3">', b""), **headers)

    _write(tmp_path / "a.zarr")
    url = f"{serve(Hiding)}/a.zarr"
    repo.import_from(url, "copied")
    repo.import_from(url, "joined", concat="n")
    for path in ("copied/x", "joined/x"):
        assert zarr.open_array(repo.snapshot(), path=path, mode="r")[29:31].tolist() == [29, 0]


def test_a_server_that_leads_to_another(repo: txstore.Repository, tmp_path: Path, serve: Serve) -> None:
    leads_to = [""]

    class Leading(Handler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            if not self.path.endswith("/c/0"):
                super().do_GET() if self.command == "GET" else super().do_HEAD()
                return
            self.send_response(302)
            self.send_header("Location", f"{leads_to[0]}/secret")
            self.send_header("Content-Length", "0")
            self.end_headers()

    _write(tmp_path / "a.zarr")
    (tmp_path / "secret").write_bytes(bytes(40))
    leads_to[0] = serve()
    url = serve(Leading)
    with pytest.raises(txstore.SourceError, match="no public host"):
        repo.import_from(f"{url}/a.zarr")
    assert repo.head() is None
    leads_to[0] = url
    repo.import_from(f"{url}/a.zarr")
    assert zarr.open_group(repo.snapshot(), mode="r")["x"][:12].tolist() == [0] * 10 + [10, 11]


async def test_a_name_that_gets_another_address_after_it_was_looked_at(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_bytes(b"of-mine")
    port = serve().rpartition(":")[2]
    addresses, found = iter(["8.8.8.8"]), socket.getaddrinfo

    class Leading(Handler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"http://data.example:{port}/secret")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def changing(host: Any, *how: Any, **more: Any) -> Any:
        return found(next(addresses, "127.0.0.1") if host == "data.example" else host, *how, **more)

    monkeypatch.setattr(socket, "getaddrinfo", changing)
    async with await web_sources.client() as session:
        with pytest.raises(Refusal, match="not public"):
            await session.get(f"{serve(Leading)}/x")


@pytest.mark.parametrize(
    ("there", "is_followed"),
    [
        ("/other", True),
        ("https://data.example/x", True),
        ("https://8.8.8.8/x", True),
        ("http://169.254.169.254/latest/meta-data", False),
        ("http://[::1]:9200/x", False),
        ("http://10.0.0.1/x", False),
    ],
)
async def test_where_a_server_may_lead(there: str, is_followed: bool) -> None:
    response = SimpleNamespace(status=302, headers={"Location": there})
    request = SimpleNamespace(url=yarl.URL("http://data.example/y"), response=response)
    if is_followed:
        await web_sources._check_redirect(None, None, request)
        return
    with pytest.raises(txstore.SourceError, match="no public host"):
        await web_sources._check_redirect(None, None, request)


@pytest.mark.parametrize("kind", ["document", "chunk", "file"])
def test_a_file_of_an_archive_that_is_longer_than_memory(
    repo: txstore.Repository, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path / "a.zarr")
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for file in (each for each in (tmp_path / "a.zarr").rglob("*") if each.is_file()):
            name = str(file.relative_to(tmp_path / "a.zarr"))
            is_long = name == {"document": "x/zarr.json", "chunk": "x/c/0"}.get(kind)
            packed.writestr(name, file.read_bytes() + b" " * (100_000 if is_long else 0))
        packed.writestr("long.json", b"{" + b" " * 100_000 + b"}")
    monkeypatch.setattr(bounded_codecs, "MOST_IN_MEMORY", 50_000)
    with pytest.raises(txstore.SourceError, match=r"is unpacked to 100,\d\d\d bytes"):
        if kind == "file":
            repo.import_references(f"zip://long.json::{tmp_path}/a.zip")
        else:
            repo.import_from(f"zip::{tmp_path}/a.zip", exclude=["long.json"])


@pytest.mark.parametrize("kind", ["archive", "manifest"])
def test_documents_that_are_longer_than_memory_together(
    repo: txstore.Repository, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many may lie in few bytes: in an archive they are packed, and a manifest may name one range for all."""
    group = b'{"zarr_format": 3, "node_type": "group"}' + b" " * 20_000
    monkeypatch.setattr(bounded_codecs, "MOST_IN_MEMORY", 50_000)
    keys = ["zarr.json", "a/zarr.json", "b/zarr.json"]
    (tmp_path / "group.json").write_bytes(group)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for key in keys:
            packed.writestr(key, group)
    allowed = txstore.Repository(repo.url, sources=[tmp_path])
    with pytest.raises(txstore.SourceError, match="its documents have 60,1"):
        if kind == "archive":
            repo.import_from(f"zip::{tmp_path}/a.zip")
        else:
            allowed.import_references({key: [str(tmp_path / "group.json")] for key in keys})


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_file_of_an_archive_that_is_longer_than_it_says(
    repo: txstore.Repository, tmp_path: Path, method: int
) -> None:
    """A few kilobytes can be unpacked to as many gigabytes as there is memory."""
    _write(tmp_path / "a.zarr")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        for file in (each for each in (tmp_path / "a.zarr").rglob("*") if each.is_file() and each.name != "0"):
            packed.write(file, file.relative_to(tmp_path / "a.zarr"))
        packed.writestr("x/c/0", bytes(200 << 20), compress_type=method)
    content = (tmp_path / "a.zip").read_bytes()
    assert len(content) < 1 << 20
    (tmp_path / "a.zip").write_bytes(content.replace((200 << 20).to_bytes(4, "little"), (40).to_bytes(4, "little")))
    tracemalloc.start()
    try:
        with open(tmp_path / "a.zip", "rb") as file:
            stores = [zarr.storage.ZipStore(tmp_path / "a.zip")]
            with suppress(AssertionError):  # zarr 3.1.6 takes no files
                stores.append(zarr.storage.ZipStore(file))
            for source, concat in itertools.product((f"zip::{tmp_path}/a.zip", *stores), (None, "n")):
                with pytest.raises((txstore.SourceError, zipfile.BadZipFile)):
                    repo.import_from(source, concat=concat)
            assert not file.closed
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()
    assert repo.head() is None


@pytest.mark.parametrize("concat", [None, "n"])
def test_one_file_of_a_tar_archive_is_read_at_a_time(
    repo: txstore.Repository, tmp_path: Path, concat: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files have one position: of 2,000 chunks, 60 had the bytes of others, and no error told so."""
    cat_file, reading = TarFileSystem.cat_file, threading.Lock()

    def alone(*arguments: Any, **named: Any) -> Any:
        assert reading.acquire(blocking=False)
        time.sleep(0.01)  # here another one would come
        found = cat_file(*arguments, **named)
        reading.release()
        return found

    _write(tmp_path / "a.zarr")
    with tarfile.open(tmp_path / "a.tar", "w") as packed:
        for file in (each for each in (tmp_path / "a.zarr").rglob("*") if each.is_file()):
            packed.add(file, file.relative_to(tmp_path / "a.zarr"))
    monkeypatch.setattr(TarFileSystem, "cat_file", alone)
    repo.import_from(f"tar::{tmp_path}/a.tar", concat=concat)
    np.testing.assert_array_equal(zarr.open_array(repo.snapshot(), path="x", mode="r")[:], np.arange(40))


def test_an_archive_is_gone_through_once(
    repo: txstore.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 directories in 2 MB took an hour: each was looked for in all names."""
    _write(tmp_path / "a.zarr")
    with tarfile.open(tmp_path / "a.tar", "w") as packed:
        for file in (each for each in (tmp_path / "a.zarr").rglob("*") if each.is_file()):
            packed.add(file, file.relative_to(tmp_path))
    monkeypatch.setattr(AbstractArchiveFileSystem, "ls", None)
    repo.import_from(f"tar://a.zarr::{tmp_path}/a.tar")
    np.testing.assert_array_equal(zarr.open_array(repo.snapshot(), path="x", mode="r")[:], np.arange(40))


@pytest.mark.parametrize(
    ("chain", "pack"),
    [
        ("tar", {"mode": "w:gz", "name": "a.tar.gz"}),
        ("tar::simplecache", {"mode": "w:xz", "name": "a.tar.xz"}),
        ("zip::zip://a", {"mode": "w", "name": "a.zip"}),
        ("libarchive", {"mode": "w", "name": "a.tar"}),
    ],
)
def test_an_archive_that_says_without_bound_how_long_its_parts_are(
    repo: txstore.Repository, tmp_path: Path, chain: str, pack: dict[str, Any]
) -> None:
    """Where one layer unpacks another one, a head of a few bytes may claim any length."""
    _write(tmp_path / "a.zarr")
    with tarfile.open(tmp_path / pack["name"], pack["mode"]) as packed:
        packed.add(tmp_path / "a.zarr", "")
    with pytest.raises(txstore.SourceError, match="unpack others yourself"):
        repo.import_from(f"{chain}::{tmp_path / pack['name']}")


@pytest.mark.parametrize("chain", ["zip://", "tar://", "dir://x::zip://", "simplecache::tar://", "reference://"])
def test_an_archive_is_no_repository(tmp_path: Path, chain: str) -> None:
    """A few kilobytes were unpacked to gigabytes; and commits were not found in it, so that it seemed to be empty."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("format.json", bytes(50 << 20), compress_type=zipfile.ZIP_BZIP2)
    for opened, each in itertools.product((txstore.Repository, txstore.TxStore), (chain, chain.removesuffix("://"))):
        with pytest.raises(ValueError, match="unpack it first"):
            opened(f"{each}::{tmp_path}/a.zip")


@pytest.mark.parametrize("name", ["zip", "reference"])
def test_a_directory_may_have_the_name_of_a_protocol(
    repo: txstore.Repository, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _write(tmp_path / name)
    repo.import_from(name)
    assert not txstore.Repository("libarchive").exists


def test_a_link_of_another_user_among_the_matches(
    repo: txstore.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h5py = pytest.importorskip("h5py")
    (tmp_path / "inbox").mkdir()
    for name in ("inbox/a.h5", "secret.h5"):
        with h5py.File(tmp_path / name, "w") as file:
            file["x"] = np.arange(3)
    (tmp_path / "inbox" / "b.h5").symlink_to(tmp_path / "secret.h5")
    lstat = os.lstat

    def of_another_user(path: Any, **options: Any) -> Any:
        found = lstat(path, **options)
        return SimpleNamespace(st_uid=found.st_uid + 7, st_mode=found.st_mode) if str(path).endswith("b.h5") else found

    pattern = f"{tmp_path}/inbox/*.h5"
    with monkeypatch.context() as patch:
        patch.setattr("txstore.interchange.places.os.lstat", of_another_user)
        with pytest.raises(txstore.SourceError, match="another user's link"):
            repo.import_from(pattern, concat=0)
    repo.import_from(pattern, concat=0)  # one's own
