"""Paths of the file system `txstore` name repository and commit: in lists of URLs, in caches, in dask's names."""

import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

import txstore
from txstore.fsspec_filesystem import TxStoreFileSystem

FORMS = pytest.mark.parametrize("prefix", ["txstore::", "txstore://"])
QUERIES = pytest.mark.parametrize(("query", "found"), [("", "1"), ("?tag=v0", "0")])
CACHES = pytest.mark.parametrize("cache", ["simplecache", "filecache", "blockcache"])


@pytest.fixture(autouse=True)
def known() -> None:
    """The entry point does this where txstore is installed."""
    fsspec.register_implementation("txstore", TxStoreFileSystem, clobber=True)


@pytest.fixture
def made(repo: txstore.Repository) -> txstore.Repository:
    """Three files, at the tags v0 and v1. Each says its name and its version."""
    return fill(repo)


def fill(repo: txstore.Repository, mark: str = "") -> txstore.Repository:
    for version in range(2):
        with repo.transaction() as store:
            for name in "abc":
                store[f"csv/{name}.csv"] = f"{mark}{name}{version}".encode()
        repo.tags[f"v{version}"] = repo.head()
    return repo


def another(repo: txstore.Repository) -> txstore.Repository:
    return fill(txstore.Repository(f"{posixpath.dirname(repo.url)}/another.tx"), "another ")


def read(urls: list[str] | str, **options: Any) -> list[str]:
    with fsspec.open_files(urls, **options) as files:
        return [file.read().decode() for file in files]


@FORMS
@QUERIES
def test_urls_of_one_commit_are_files_of_it(made: txstore.Repository, prefix: str, query: str, found: str) -> None:
    for urls in (
        [f"{prefix}{made.url}{query}/csv/{name}.csv" for name in "abc"],
        [f"{prefix}{made.url}/csv/{name}.csv{query}" for name in "abc"],
        [f"{prefix}{made.url}{query}/csv/*.csv"],
        [f"{prefix}{made.url}{query}/csv/?.csv"],
        f"{prefix}{made.url}{query}/csv/*.csv",
    ):
        assert read(urls) == [f"a{found}", f"b{found}", f"c{found}"]


@FORMS
def test_urls_of_two_repositories_or_commits_are_an_error(made: txstore.Repository, prefix: str) -> None:
    ours, other = f"{prefix}{made.url}", f"{prefix}{another(made).url}"
    for urls in (
        [f"{ours}/csv/a.csv", f"{other}/csv/a.csv"],
        [f"{ours}/csv/*.csv", f"{other}/csv/*.csv"],
        [f"{ours}/csv/a.csv?tag=v0", f"{ours}/csv/a.csv?tag=v1"],
        [f"{ours}?tag=v0/csv/a.csv", f"{ours}/csv/a.csv"],
        [f"{ours}/csv/a.csv", f"{ours}?tag=v0/csv/a.csv"],
    ):
        with pytest.raises(ValueError, match="a list of URLs names one commit"):
            read(urls)


@FORMS
@QUERIES
def test_a_missing_file_of_a_list_is_an_error(made: txstore.Repository, prefix: str, query: str, found: str) -> None:
    urls = [f"{prefix}{made.url}{query}/csv/{name}.csv" for name in ("a", "none")]
    with pytest.raises(FileNotFoundError):
        read(urls)
    assert read([urls[0], f"{prefix}{made.url}{query}/csv/none*"]) == [f"a{found}"]


@FORMS
def test_each_file_of_a_list_is_written(made: txstore.Repository, prefix: str) -> None:
    others = f"{prefix}{another(made).url}"
    with made.transaction() as store:
        url, query = store.share().replace("txstore://", prefix).split("?")
        with fsspec.open_files([f"{url}/out/{name}?{query}" for name in "abc"], "w") as files:
            for file, name in zip(files, "abc", strict=True):
                file.write(name)
        several = fsspec.open_files([f"{url}/out/d?{query}", f"{others}/out/d?{query}"], "w")
        with pytest.raises(ValueError, match="a list of URLs names one commit"):
            several[1].open()
    assert {key: bytes(made.snapshot()[key]) for key in made.mapping() if key.startswith("out")} == {
        "out/a": b"a",
        "out/b": b"b",
        "out/c": b"c",
    }


def test_a_key_before_the_place_is_refused(made: txstore.Repository) -> None:
    """fsspec would take the place of the first for a whole list."""
    with pytest.raises(ValueError, match="paths of this file system begin with"):
        read([f"txstore://csv/a.csv::{made.url}", f"txstore://csv/a.csv::{another(made).url}"])


def test_a_chain_that_hides_the_server_is_refused() -> None:
    """fsspec takes the server off such a URL, so two servers of a list would be one."""
    with pytest.raises(ValueError, match="txstore://sftp://HOST/PATH"):
        fsspec.url_to_fs("txstore::sftp://somebody@host/srv/data.tx")


def test_a_bucket_is_a_part_of_a_path() -> None:
    for name in ("one.tx", "two.tx"):
        fill(txstore.Repository(f"memory://bucket/{name}"), name)
    for prefix in ("txstore::memory://", "txstore://memory://"):
        assert read([f"{prefix}bucket/one.tx/csv/{name}.csv" for name in "ab"]) == ["one.txa1", "one.txb1"]
        with pytest.raises(ValueError, match="a list of URLs names one commit"):
            read([f"{prefix}bucket/one.tx/csv/a.csv", f"{prefix}bucket/two.tx/csv/a.csv"])


# --- names
@QUERIES
def test_names_begin_as_the_path_does(made: txstore.Repository, query: str, found: str) -> None:
    fs, root = fsspec.url_to_fs(f"txstore::{made.url}{query}")
    files = [f"{root}/csv/{name}.csv" for name in "abc"]
    assert root == f"{made.url}{query}"
    assert fs.ls(f"{root}/csv", detail=False) == fs.find(root) == fs.glob(f"{root}/**/*.csv") == files
    assert fs.find(root, maxdepth=2) == fs.expand_path(f"{root}/csv/*") == files
    assert fs.glob(f"{root}/*/") == [f"{root}/csv"]
    assert list(fs.walk(root)) == [(root, ["csv"], []), (f"{root}/csv", [], ["a.csv", "b.csv", "c.csv"])]
    assert list(fs.du(root, total=False)) == files
    assert fs.cat(files) == {name: f"{name[-5]}{found}".encode() for name in files}
    assert fs.cat(files[0]) == f"a{found}".encode()
    assert fs.info(files[0])["name"] == files[0]


def test_a_directory_whose_name_has_wildcards(tmp_path: Path) -> None:
    repo = fill(txstore.Repository(tmp_path / "[x]*" / "data.tx"))
    fs, root = fsspec.url_to_fs(f"txstore::{repo.url}")
    assert fs.glob(f"{root}/csv/*") == [f"{root}/csv/{name}.csv" for name in "abc"]


def test_a_full_name_is_a_url_of_its_commit(made: txstore.Repository) -> None:
    fs, root = fsspec.url_to_fs(f"txstore::{made.url}")
    url = fs.unstrip_protocol(f"{root}/csv/a.csv")
    with made.transaction() as store:
        store["csv/a.csv"] = b"later"
    with fsspec.open(url) as file:
        assert file.read() == b"a1"


@pytest.mark.parametrize("query", ["", "?tag=v0"])
def test_a_file_and_a_directory_are_copied_out(made: txstore.Repository, tmp_path: Path, query: str) -> None:
    fs, root = fsspec.url_to_fs(f"txstore::{made.url}{query}")
    fs.get(f"{root}/csv/a.csv", f"{tmp_path}/file.csv")
    fs.get(f"{root}/csv/", f"{tmp_path}/inside", recursive=True)
    (tmp_path / "into").mkdir()
    fs.get(f"{root}/csv", f"{tmp_path}/into", recursive=True)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.csv")}
    assert found == {"file.csv", *(f"{into}/{name}.csv" for into in ("inside", "into/csv") for name in "abc")}


def test_files_of_two_commits_have_two_tokens(made: txstore.Repository) -> None:
    """dask names what it reads after the token, and computes equal names once."""
    tokens = set()
    for url in (f"{made.url}?tag=v0", f"{made.url}?tag=v1", another(made).url):
        fs, root = fsspec.url_to_fs(f"txstore::{url}")
        tokens |= {fs.ukey(f"{root}/csv/a.csv"), fs.ukey(f"{root}/csv/b.csv"), fs.checksum(f"{root}/csv/a.csv")}
    assert len(tokens) == 9


# --- fsspec's caches, with a folder of the user: each process opens it anew
CACHED = """
import sys, fsspec
cache, folder, *urls = sys.argv[1:]
for url in urls:
    with fsspec.open(f"{cache}::{url}", **{cache: {"cache_storage": folder}}) as file:
        print(file.read().decode())
"""


@FORMS
@CACHES
def test_a_cache_tells_files_apart(made, tmp_path, run_installed, prefix, cache):
    places = {
        f"{made.url}/csv/a.csv": "a1",
        f"{made.url}/csv/b.csv": "b1",
        f"{made.url}?tag=v0/csv/a.csv": "a0",
        f"{another(made).url}/csv/a.csv": "another a1",
    }
    for _ in range(2):
        told = run_installed(CACHED, cache, tmp_path / "cache", *(prefix + place for place in places))
        assert told.splitlines() == list(places.values())
    with made.transaction() as store:
        store["csv/b.csv"] = b"later"
    assert run_installed(CACHED, cache, tmp_path / "cache", f"{prefix}{made.url}/csv/b.csv") == "later\n"


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
def test_files_that_a_cache_gets_together_are_of_a_named_commit(made, tmp_path, cache):
    """The cache names these after their paths as they were given, and would mix commits."""
    options = {cache: {"cache_storage": str(tmp_path / "cache")}}
    with pytest.raises(ValueError, match="name the commit"):
        read([f"{cache}::txstore::{made.url}/csv/*.csv"], **options)
    for at in ("HEAD", "-1"):
        with pytest.raises(ValueError, match="name the commit"):
            read([f"{cache}::txstore::{made.url}?at={at}/csv/*.csv"], **options)
    for version in "01":
        found = read([f"{cache}::txstore::{made.url}?tag=v{version}/csv/*.csv"], **options)
        assert found == [f"a{version}", f"b{version}", f"c{version}"]


def test_what_is_staged_is_not_cached_as_the_commit(made: txstore.Repository, tmp_path: Path) -> None:
    def cached(fs: Any) -> Any:
        return fsspec.filesystem("simplecache", fs=fs, cache_storage=str(tmp_path / "cache"))

    fs = fsspec.filesystem("txstore", fo=made.url)
    with pytest.raises(ZeroDivisionError), fs.transaction:
        fs.pipe_file("csv/a.csv", b"staged")
        assert cached(fs).cat_file("csv/a.csv") == b"staged"
        _ = 1 / 0
    assert cached(fsspec.filesystem("txstore", fo=made.url)).cat_file("csv/a.csv") == b"a1"


def test_zarr_reads_one_commit_through_a_cache(repo, tmp_path, run_installed):
    code = """
import sys, zarr
url, folder, stop = sys.argv[1:]
options = {"simplecache": {"cache_storage": folder}}
print(zarr.open_array(f"simplecache::txstore::{url}/x", mode="r", storage_options=options)[:int(stop)].tolist())
"""
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.zeros(10, "i1"), chunks=(2,))
    run_installed(code, repo.url, tmp_path / "cache", 4)
    with repo.transaction() as store:
        zarr.open_array(store, path="x")[:] = 1
    assert run_installed(code, repo.url, tmp_path / "cache", 10) == f"{[1] * 10}\n"


# --- the same as other file systems
@pytest.fixture
def systems(made: txstore.Repository, tmp_path: Path) -> Iterator[list[tuple[Any, str]]]:
    """The same files in a transaction of ours, in memory and in a directory: each with its root."""
    files = {"a.txt": b"0123456789\nabc\n", "d/b.txt": b"b", "d/e/c.txt": b"", "d/e/f.bin": bytes(range(256))}
    fs, root = fsspec.url_to_fs(f"txstore::{made.url}/root")
    with fs.transaction:
        found = [(fs, root), (fsspec.filesystem("memory"), f"/{tmp_path.name}")]
        found.append((fsspec.filesystem("file"), str(tmp_path / "plain")))
        for each, at in found:
            each.makedirs(f"{at}/d/e", exist_ok=True)
            each.pipe({f"{at}/{name}": content for name, content in files.items()})
        yield found


SAME: dict[str, Callable[[Any, str], Any]] = {
    "ls": lambda fs, root: sorted(fs.ls(root, detail=False)),
    "ls file": lambda fs, root: fs.ls(f"{root}/a.txt", detail=False),
    "ls missing": lambda fs, root: fs.ls(f"{root}/none"),
    "ls slash": lambda fs, root: sorted(fs.ls(f"{root}/d/", detail=False)),
    "info size": lambda fs, root: [fs.info(f"{root}/{name}")["size"] for name in ("a.txt", "d/e/c.txt")],
    "info type": lambda fs, root: [fs.info(f"{root}/{name}")["type"] for name in ("a.txt", "d")],
    "info missing": lambda fs, root: fs.info(f"{root}/none"),
    "exists": lambda fs, root: [fs.exists(f"{root}/{name}") for name in ("", "a.txt", "d", "none", "a.txt/b")],
    "isfile": lambda fs, root: [fs.isfile(f"{root}/{name}") for name in ("", "a.txt", "d", "none")],
    "isdir": lambda fs, root: [fs.isdir(f"{root}/{name}") for name in ("", "a.txt", "d", "none")],
    "size": lambda fs, root: fs.sizes([f"{root}/a.txt", f"{root}/d/b.txt"]),
    "size missing": lambda fs, root: fs.size(f"{root}/none"),
    "find": lambda fs, root: fs.find(root),
    "find dirs": lambda fs, root: fs.find(f"{root}/d", withdirs=True),
    "find depth": lambda fs, root: fs.find(root, maxdepth=2),
    "find file": lambda fs, root: fs.find(f"{root}/a.txt"),
    "find missing": lambda fs, root: fs.find(f"{root}/none"),
    "find detail": lambda fs, root: {name: info["size"] for name, info in fs.find(root, detail=True).items()},
    "walk": lambda fs, root: [(at, sorted(dirs), sorted(names)) for at, dirs, names in fs.walk(root)],
    "walk detail": lambda fs, root: [
        sorted(info["name"] for info in names.values()) for _, _, names in fs.walk(root, detail=True)
    ],
    "walk up": lambda fs, root: [at for at, _, _ in fs.walk(root, topdown=False)],
    "walk missing": lambda fs, root: list(fs.walk(f"{root}/none")),
    "glob": lambda fs, root: fs.glob(f"{root}/*"),
    "glob deep": lambda fs, root: fs.glob(f"{root}/**/*.txt"),
    "glob one": lambda fs, root: fs.glob(f"{root}/d/?.txt"),
    "glob set": lambda fs, root: fs.glob(f"{root}/d/[a-b].*"),
    "glob dirs": lambda fs, root: fs.glob(f"{root}/*/"),
    "glob literal": lambda fs, root: [fs.glob(f"{root}/a.txt"), fs.glob(f"{root}/none")],
    "glob detail": lambda fs, root: sorted(fs.glob(f"{root}/d/*", detail=True)),
    "du": lambda fs, root: [fs.du(root), fs.du(f"{root}/a.txt"), fs.du(f"{root}/none")],
    "du each": lambda fs, root: fs.du(f"{root}/d", total=False),
    "disk_usage": lambda fs, root: fs.disk_usage(f"{root}/d"),
    "cat": lambda fs, root: fs.cat(f"{root}/a.txt"),
    "cat many": lambda fs, root: fs.cat([f"{root}/a.txt", f"{root}/d/b.txt"]),
    "cat glob": lambda fs, root: fs.cat(f"{root}/d/*.txt"),
    "cat recursive": lambda fs, root: fs.cat(f"{root}/d/b.txt", recursive=True),
    "cat missing": lambda fs, root: fs.cat(f"{root}/none"),
    "cat omit": lambda fs, root: fs.cat([f"{root}/a.txt", f"{root}/none"], on_error="omit"),
    "cat directory": lambda fs, root: fs.cat_file(f"{root}/d"),
    "cat part": lambda fs, root: [fs.cat_file(f"{root}/a.txt", *part) for part in ((2, 5), (-3, None), (None, -2))],
    "cat_ranges": lambda fs, root: fs.cat_ranges([f"{root}/a.txt"] * 2, [0, 1], [2, 3]),
    "head": lambda fs, root: [fs.head(f"{root}/a.txt", 3), fs.tail(f"{root}/a.txt", 3)],
    "read_block": lambda fs, root: fs.read_block(f"{root}/a.txt", 3, 5),
    "read_block end": lambda fs, root: fs.read_block(f"{root}/a.txt", 3, None),
    "read_block line": lambda fs, root: fs.read_block(f"{root}/a.txt", 0, 3, b"\n"),
    "read_text": lambda fs, root: fs.read_text(f"{root}/a.txt"),
    "read_bytes": lambda fs, root: fs.read_bytes(f"{root}/a.txt", 1, 4),
    "open missing": lambda fs, root: fs.open(f"{root}/none"),
    "open directory": lambda fs, root: fs.open(f"{root}/d").read(),
    "open seek": lambda fs, root: seeks(fs.open(f"{root}/a.txt")),
    "open lines": lambda fs, root: lines(fs.open(f"{root}/a.txt", "r")),
    "open closed": lambda fs, root: closed(fs.open(f"{root}/a.txt")),
    "append": lambda fs, root: written(fs, f"{root}/a.txt", "ab"),
    "append new": lambda fs, root: written(fs, f"{root}/new", "ab"),
    "write": lambda fs, root: written(fs, f"{root}/a.txt", "wb"),
    "write text": lambda fs, root: [fs.write_text(f"{root}/t", "é"), fs.cat_file(f"{root}/t")],
    "write new": lambda fs, root: [fs.open(f"{root}/new", "xb").close(), fs.cat_file(f"{root}/new")],
    "write existing": lambda fs, root: fs.open(f"{root}/a.txt", "xb"),
    "pipe create": lambda fs, root: fs.pipe_file(f"{root}/a.txt", b"", mode="create"),
    "rm": lambda fs, root: [fs.rm(f"{root}/a.txt"), fs.find(root)],
    "rm missing": lambda fs, root: fs.rm(f"{root}/none"),
    "rm recursive": lambda fs, root: [fs.rm(f"{root}/d", recursive=True), fs.find(root)],
    "rm glob": lambda fs, root: [fs.rm(f"{root}/d/*.txt"), fs.find(root)],
    "rm list": lambda fs, root: [fs.rm([f"{root}/a.txt", f"{root}/d/b.txt"]), fs.find(root)],
    "rm list missing": lambda fs, root: fs.rm([f"{root}/a.txt", f"{root}/none"]),
    "rm_file": lambda fs, root: [fs.rm_file(f"{root}/a.txt"), fs.find(root)],
    "rm_file missing": lambda fs, root: fs.rm_file(f"{root}/none"),
    "delete": lambda fs, root: [fs.delete(f"{root}/a.txt"), fs.find(root)],
    "rmdir full": lambda fs, root: fs.rmdir(f"{root}/d"),
    "rmdir missing": lambda fs, root: fs.rmdir(f"{root}/none"),
    "cp": lambda fs, root: [fs.copy(f"{root}/a.txt", f"{root}/z.txt"), fs.find(root)],
    "cp tree": lambda fs, root: [fs.copy(f"{root}/d", f"{root}/z", recursive=True), fs.find(root)],
    "cp into": lambda fs, root: [fs.copy(f"{root}/a.txt", f"{root}/d/"), fs.find(root)],
    "cp missing": lambda fs, root: fs.copy(f"{root}/none", f"{root}/z"),
    "cp_file missing": lambda fs, root: fs.cp_file(f"{root}/none", f"{root}/z"),
    "mv": lambda fs, root: [fs.mv(f"{root}/a.txt", f"{root}/z.txt"), fs.find(root)],
    "mv tree": lambda fs, root: [fs.mv(f"{root}/d", f"{root}/z", recursive=True), fs.find(root)],
    "mv missing": lambda fs, root: fs.mv(f"{root}/none", f"{root}/z"),
    "touch": lambda fs, root: [fs.touch(f"{root}/a.txt"), fs.size(f"{root}/a.txt")],
    "touch kept": lambda fs, root: [fs.touch(f"{root}/a.txt", truncate=False), fs.size(f"{root}/a.txt")],
    "touch new": lambda fs, root: [fs.touch(f"{root}/new"), fs.size(f"{root}/new")],
    "mkdir existing": lambda fs, root: fs.mkdir(f"{root}/d"),
    "makedirs existing": lambda fs, root: fs.makedirs(f"{root}/d"),
    "makedirs known": lambda fs, root: fs.makedirs(f"{root}/d", exist_ok=True),
    "mapper": lambda fs, root: mapped(fs.get_mapper(root)),
    "mapper missing": lambda fs, root: fs.get_mapper(root)["none"],
    "mapper delete": lambda fs, root: delete(fs.get_mapper(root), "none"),
    "expand_path": lambda fs, root: fs.expand_path(f"{root}/d", recursive=True),
    "expand missing": lambda fs, root: fs.expand_path(f"{root}/none*"),
    "tree": lambda fs, root: fs.tree(f"{root}/d"),
}


def seeks(file: Any) -> list[Any]:
    with file:
        found = [file.size, file.read(3), file.tell(), file.seek(-4, 2), file.read(), file.seek(0), file.readline()]
        return [*found, file.readable(), file.writable(), file.seekable()]


def lines(file: Any) -> list[str]:
    with file:
        return list(file)


def closed(file: Any) -> Any:
    file.close()
    return file.read()


def written(fs: Any, path: str, mode: str) -> Any:
    with fs.open(path, mode) as file:
        file.write(b"more")
    return fs.cat_file(path)


def mapped(mapper: Any) -> list[Any]:
    mapper["d/new"] = b"1"
    del mapper["a.txt"]
    return [
        sorted(mapper),
        mapper["d/new"],
        len(mapper),
        "d" in mapper,
        mapper.getitems(["d/b.txt"]),
        mapper.pop("d/new"),
    ]


def delete(mapper: Any, key: str) -> None:
    del mapper[key]


def answer(work: Callable[[Any, str], Any], fs: Any, root: str) -> Any:
    """What a file system answers, without its root, or the kind of its error."""
    try:
        return repr(work(fs, root)).replace(root, "ROOT")
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        return type(error).__name__


@pytest.mark.parametrize("name", SAME)
def test_it_answers_as_another_file_system_does(systems: list[tuple[Any, str]], name: str) -> None:
    ours, *others = (answer(SAME[name], fs, root) for fs, root in systems)
    assert ours in others
