"""Makes the vectors: small repositories with ids and times that are always the same.

python -m tests.vectors.make [--check]
"""

import argparse
import filecmp
import json
import math
import os
import pickle
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import filelock
import fsspec
import zarr  # noqa: F401 -- now: when it is imported, it draws a number, which `fixed` gives

import txstore
from tests.tools.compaction_outputs import listed
from tests.vectors import expected
from txstore import repository
from txstore.constraints import OnlyGrows, RequiredAttributes, Sorted, Unique
from txstore.format import commitfile, encoding, names, records
from txstore.history import group_commits, object_head_caches, operations
from txstore.maintenance import erase
from txstore.storage.local import LocalStorage
from txstore.storage.remote import RemoteStorage
from txstore.transactions import own_part
from txstore.transactions.participants import shared
from txstore.views import Coarsen, Reduce, ViewDefinition

HERE = Path(__file__).parent
REPOSITORIES = HERE / "repositories"
#: Not written: what is in these is no part of the data.
LEFT = ("locks", ".staging", "quarantine")

Build = Callable[[Path], Any]
VECTORS: dict[str, tuple[str, Build]] = {}


def vector(about: str) -> Callable[[Build], Build]:
    def note(build: Build) -> Build:
        VECTORS[build.__name__.replace("_", "-")] = about, build
        return build

    return note


@contextmanager
def fixed(seed: str) -> Iterator[None]:
    """Let ids, times and names be the same each time."""
    numbers = random.Random(seed)
    now = [1_767_225_600_000_000_000]  # 2026-01-01

    def time_ns() -> int:
        now[0] += 1_000_000_000
        return now[0]

    with (
        mock.patch.object(os, "urandom", numbers.randbytes),
        mock.patch.object(time, "time_ns", time_ns),
        mock.patch.object(platform, "node", return_value="lab"),
        # Their names are random, and no reader needs them.
        mock.patch.object(operations, "recorded", return_value=nullcontext({})),
        mock.patch.object(repository, "recorded", return_value=nullcontext({})),
        mock.patch("getpass.getuser", return_value="ana"),
        # Neither do they need the turn of erasures, nor what an erasure asks before it begins.
        mock.patch.object(LocalStorage, "alone", return_value=nullcontext(lambda: None)),
        mock.patch.object(erase._Erasing, "_ask"),
        mock.patch.object(LocalStorage, "place", return_value=2),
        mock.patch.object(LocalStorage, "boot", return_value=1),
        mock.patch.object(RemoteStorage, "place", return_value=2),
        # Head caches of object stores are written at once: a thread would write one or another, as it comes to run.
        mock.patch.object(object_head_caches, "HEAD_CACHE_PERIOD", 0),
        mock.patch.object(object_head_caches._HeadCacheWriter, "start", object_head_caches._HeadCacheWriter._run),
    ):
        yield


# --- what repositories are made of
def document(shape: int, chunk: int, **more: Any) -> bytes:
    codecs = more.pop("codecs", [{"name": "bytes", "configuration": {"endian": "little"}}])
    return json.dumps(
        {
            "zarr_format": 3, "node_type": "array", "shape": [shape], "data_type": "uint8", "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk]}}, "codecs": codecs,
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "attributes": more,
        }
    ).encode()  # fmt: skip


GROUP = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()


def commit(repo: txstore.Repository, message: str, _branch: str = "main", **content: bytes | None) -> None:
    """Set keys, or delete those of None; `__` in a name is a slash."""
    with repo.begin(message, branch=_branch) as transaction:
        for name, value in content.items():
            key = name.replace("__", "/")
            if value is None:
                transaction.delete(key)
            else:
                transaction[key] = value


def array(repo: txstore.Repository, message: str = "array", path: str = "a", chunks: int = 4) -> None:
    with repo.begin(message) as transaction:
        transaction[f"{path}/zarr.json"] = document(4 * chunks, 4)
        for number in range(chunks):
            transaction[f"{path}/c/{number}"] = bytes([number] * 4)


# --- valid ones
@vector("One commit of one key: the worked example of format.md, with another id")
def one_commit(path: Path) -> None:
    commit(txstore.Repository(path), "first", a__c__0=b"hello")


@vector("A repository without commits")
def no_commit(path: Path) -> None:
    txstore.Repository(path).engine.commits.identity.create(durable=True)


@vector("Several commits: keys set, overwritten and deleted; an empty value; messages that are no ASCII; properties")
def several_commits(path: Path) -> None:
    repo = txstore.Repository(path)
    commit(repo, "größer 数", a=b"1", b=b"", c=b"3", d=b"4")
    commit(repo, "second", a=b"11", c=None)
    with repo.begin("third", properties={"run": 7, "who": "ß"}) as transaction:
        transaction["c"] = b"again"
        transaction["größe/ñ"] = b"key"


@vector("A transaction of three processes: the packs of participants, one key that two of them have written")
def participants(path: Path) -> None:
    def about(writer: Any, **more: Any) -> Any:  # without the owner word of its locks, which is random
        with mock.patch.object(os, "getpid", return_value=7):
            return shared.append_about(writer)

    repo = txstore.Repository(path)
    commit(repo, "first", a=b"0", gone=b"1")
    with mock.patch.object(own_part, "append_about", about), repo.transaction("together") as store:
        store["a"] = b"parent"
        for number in (1, 2):
            child = os.fork()
            if not child:
                with mock.patch.object(os, "getpid", return_value=number):
                    pickle.loads(pickle.dumps(store))[f"of{number}"] = b"child %d" % number
                    store["both"] = b"%d" % number
                    store["large"] = bytes([number]) * 20_000
                os._exit(0)
            if os.waitpid(child, 0)[1]:
                raise RuntimeError(f"child {number} failed")
        del store["gone"]


@vector("Values of 1,023 to 70,000 bytes: from 1,024 on they begin at multiples of 64")
def large_values(path: Path) -> None:
    sizes = {f"v{size}": bytes(number % 251 for number in range(size)) for size in (1023, 1024, 4096, 70_000)}
    commit(txstore.Repository(path), "large", **sizes)


@vector("A run of many blocks, and keys that share prefixes")
def many_keys(path: Path) -> None:
    repo = txstore.Repository(path, durability="none")
    with repo.begin("many") as transaction:
        for number in range(700):
            transaction[f"array/with/a/long/path/c/{number}"] = number.to_bytes(2, "little")


@vector("Prefixes are deleted, and keys below them set again, in the same commit and later")
def deleted_prefixes(path: Path) -> None:
    repo = txstore.Repository(path)
    commit(repo, "first", a__x=b"1", a__y=b"2", ab=b"3", b__x=b"4")
    with repo.begin("delete") as transaction:
        transaction.delete_dir("a")
        transaction["a/y"] = b"new"
    commit(repo, "later", a__z=b"5")
    with repo.begin("all") as transaction:
        transaction.delete_dir("")
        transaction["last"] = b"6"


@vector("Arrays of Zarr format 2 and 3, one with shards")
def formats(path: Path) -> None:
    repo = txstore.Repository(path)
    shards = [
        {"name": "sharding_indexed", "configuration": {
            "chunk_shape": [2], "codecs": [{"name": "bytes"}], "index_codecs": [{"name": "bytes"}, {"name": "crc32c"}],
        }},
    ]  # fmt: skip
    two = {
        "zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "compressor": None, "fill_value": 0,
        "order": "C", "filters": None,
    }  # fmt: skip
    with repo.begin("both") as transaction:
        transaction["zarr.json"] = GROUP
        transaction["three/zarr.json"] = document(8, 4, codecs=shards)
        transaction["three/c/0"] = bytes(range(40))
        transaction["two/.zarray"] = json.dumps(two).encode()
        transaction["two/0"] = b"ab"


@vector(
    "Branches: one without commits of its own, one that another begins on, one that was renamed, one that was deleted"
)
def branches(path: Path) -> None:
    repo = txstore.Repository(path)
    commit(repo, "first", a=b"1")
    repo.branches["Dev"] = repo.head()
    commit(repo, "on dev", "Dev", b=b"2")
    repo.branches["deep"] = repo.head("Dev")
    commit(repo, "deeper", "deep", a=None, c=b"3")
    repo.branches["bare"] = repo.head()
    repo.branches["gone"] = repo.head()
    commit(repo, "lost", "gone", d=b"4")
    del repo.branches["gone"]
    repo.branches.rename("Dev", "renamed")
    commit(repo, "second", a=b"5")


@vector("Tags, of a commit that is not the head, and of one on a branch")
def tags(path: Path) -> None:
    repo = txstore.Repository(path)
    commit(repo, "first", a=b"1")
    repo.tags["v1"] = repo.head()
    commit(repo, "second", a=b"2")
    repo.branches["dev"] = repo.head()
    commit(repo, "on dev", "dev", a=b"3")
    repo.tags["v2.0-rc"] = repo.head("dev")


@vector("A merge of two branches")
def merge(path: Path) -> None:
    repo = txstore.Repository(path)
    array(repo)
    repo.branches["dev"] = repo.head()
    commit(repo, "on dev", "dev", a__c__1=b"dddd")
    commit(repo, "on main", a__c__2=b"mmmm")
    repo.merge("dev")


@vector("Arrays that were moved and copied without their values being written again")
def moves(path: Path) -> None:
    repo = txstore.Repository(path)
    array(repo)
    array(repo, "other", "b")
    with repo.begin("move and copy") as transaction:
        transaction.nodes.move("a", "moved")
        transaction.nodes.copy("b", "copied")
        transaction["copied/c/0"] = b"late"


@vector("Constraints: a required feature of those who commit, which a reader passes over")
def constraints(path: Path) -> None:
    repo = txstore.Repository(path)
    array(repo)
    repo.constraints["grows"] = OnlyGrows("a")
    commit(repo, "after", a__c__0=b"abcd")


@vector("A header whose JSON has NaN and an infinity, as Python writes them: here those of attributes that stay")
def not_a_number(path: Path) -> None:
    repo = txstore.Repository(path)
    with repo.begin("first") as transaction:
        transaction["a/zarr.json"] = document(4, 4, least=-math.inf, missing=math.nan)
    repo.constraints["missing"] = RequiredAttributes("a", {"least": -math.inf, "missing": math.nan})


@vector("Constraints of labels, which need a writer that decodes chunks, and nothing of a reader")
def constraints_of_labels(path: Path) -> None:
    repo = txstore.Repository(path)
    with repo.begin("labels") as transaction:
        transaction["a/zarr.json"] = document(4, 4)
        transaction["a/c/0"] = bytes([1, 2, 3, 4])
    repo.constraints["once"] = Unique("a")
    repo.constraints["upwards"] = Sorted("a", strict=False)
    commit(repo, "after", a__c__0=bytes([1, 2, 3, 9]))


IMAGE = json.dumps(
    {
        "zarr_format": 3, "node_type": "array", "shape": [4, 4], "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}}, "dimension_names": ["y", "x"],
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "attributes": {},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    }
).encode()  # fmt: skip


def derived(path: Path, name: str, view: ViewDefinition) -> txstore.Repository:
    """Make an image, and a view of it."""
    repo = txstore.Repository(path)
    with repo.transaction("image") as store:
        store["zarr.json"] = store["image/zarr.json"] = GROUP
        store["image/0/zarr.json"] = IMAGE
        for y, x in ((0, 0), (0, 1), (1, 0), (1, 1)):
            store[f"image/0/c/{y}/{x}"] = bytes([y, x, 2 * y + 1, 9])
        store.views[name] = view
    return repo


@vector("A pyramid that each commit derives: a required feature of those who commit, which a reader passes over")
def views(path: Path) -> None:
    repo = derived(path, "pyramid", Coarsen("image/0", "image/{level}", (2, 2), 2))
    commit(repo, "after", image__0__c__0__0=bytes([200, 201, 202, 203]))


@vector(
    "A view that follows: `as_of` names the commit that it is of, and null, since another commit wrote to its output"
)
def views_that_follow(path: Path) -> None:
    repo = derived(path, "row", Reduce("image/0", "y", "max", "row", when="follow"))
    repo.views["row"].update()
    commit(repo, "after", image__0__c__0__0=bytes([200, 201, 202, 203]))
    repo.views["row"].update()
    commit(repo, "into the output", row__c__0=bytes([1, 2]))


@vector("Cursors of feeds, which each commit hands on: one moves, one is shared, with a mark of a share that is done")
def cursors(path: Path) -> None:
    repo = txstore.Repository(path)
    array(repo)
    feed, shared = repo.feeds.create("all", since=-1), repo.feeds.create("shared", paths="a", since=-1, keep=7)
    commit(repo, "output", b=b"1")
    feed.advance(to=next(iter(feed)))
    share = next(shared.claim(2))
    with repo.transaction() as store:
        share.done(store)
    commit(repo, "after", a__c__0=b"abcd")


@vector("Commits that were made without a sync: an optional feature")
def not_synced(path: Path) -> None:
    repo = txstore.Repository(path, durability="none")
    commit(repo, "first", a=b"1")
    commit(repo, "second", a=b"2")


@vector("An unknown optional feature, and a header field of a later version: both are passed over")
def unknown_optional(path: Path) -> None:
    commit(txstore.Repository(path), "first", a=b"1")
    rewrite_header(
        path, lambda header: header[:16] + b"\x00\x00\x00\x80" + header[20:] + commitfile.FIELD.pack(99, 3) + b"abc"
    )


@vector("optimize: values and runs were copied into packs of their own")
def optimized(path: Path) -> None:
    repo = txstore.Repository(path)
    array(repo)
    for number in range(4):
        commit(repo, f"{number}", **{f"a__c__{number}": bytes([9] * 4)})
    repo.optimize()
    commit(repo, "after", b=b"1")


@vector("A compacted run in a pack of its own, which a commit lists beside its own run: no commit of TxStore makes one")
def compaction_output(path: Path) -> None:
    repo = txstore.Repository(path)
    array(repo)
    commit(repo, "second", a__c__1=b"2222", long=b"2")
    commit(repo, "third", a__c__3=None)
    with listed():
        commit(repo, "fourth", b=b"3")
    commit(repo, "after", a__c__0=b"4444", a__c__2=None)


@vector("A vacuum has deleted the oldest commits; one of them is kept by a tag, one by a branch")
def vacuumed(path: Path) -> None:
    repo = txstore.Repository(path)
    for number in range(6):
        commit(repo, f"{number}", a=b"%d" % number, **{f"k{number}": b"1"})
        if number == 1:
            repo.tags["kept"] = repo.head()
        if number == 2:
            repo.branches["dev"] = repo.head()
    txstore.Repository(path).vacuum(keep=2)


@vector(
    "A vacuum that died behind its commit: that ends the history of its branch, and not that of one that begins below"
)
def vacuum_cut_off(path: Path) -> None:
    vacuumed(path)
    shutil.rmtree(path / "oldest_kept")


@vector("Values that were erased from all commits")
def erased(path: Path) -> list[str]:
    repo = txstore.Repository(path)
    array(repo)
    array(repo, "other", "b")
    repo.tags["v1"] = repo.head()
    del repo
    txstore.Repository(path).erase("a")
    return ["a/zarr.json", *(f"a/c/{number}" for number in range(4)), "b/c/0"]


@vector("As `erased`, with a damaged record: the entries say that the values were erased")
def erased_damaged_record(path: Path) -> list[str]:
    keys = erased(path)
    flip(next((path / "erased").iterdir()), 20)
    return keys


@vector("Rows that were erased twice: a value of the first table stays in the second one, whose `k/` ends no search")
def erased_rows(path: Path) -> None:
    repo = txstore.Repository(path)
    with repo.transaction("image") as store:
        store["image/zarr.json"] = IMAGE
        for y, x in ((0, 0), (0, 1), (1, 0), (1, 1)):
            store[f"image/c/{y}/{x}"] = bytes([1 + y, 1 + x, 3, 4])
    commit(repo, "after", image__c__0__0=bytes([5, 6, 7, 8]))
    del repo, store
    for row in (0, 3):
        txstore.Repository(path).erase("image", {"y": [row]}, positions=True)


@vector("An array that was erased, and rows of another one in its place: the record of the first says nothing of these")
def erased_rows_of_another_array(path: Path) -> list[str]:
    for which in ({}, {"y": [0]}):
        repo = txstore.Repository(path)
        with repo.transaction("image") as store:
            store["image/zarr.json"], store["image/c/0/0"] = IMAGE, bytes([1, 2, 3, 4])
        del repo, store
        txstore.Repository(path).erase("image", *([which] if which else []), positions=bool(which))
    return ["image/zarr.json", "image/c/0/0"]


@vector("A value that lies in a file outside of the repository: required feature 0")
def foreign(path: Path) -> None:
    source = Path("/tmp/txstore-vectors/source.bin")  # the same on each machine, and gone when it is read
    source.parent.mkdir(exist_ok=True)
    source.write_bytes(b"0123456789")
    os.utime(source, (1_700_000_000, 1_700_000_000))
    repo = txstore.Repository(path, sources=[source.parent])
    with repo.transaction("reference") as store:
        store.set_reference("a", source, 2, 4)
        store["b"] = b"here"
    shutil.rmtree(source.parent)


@vector("The head cache is old: the head is three commits above")
def old_head_cache(path: Path) -> None:
    repo = txstore.Repository(path)
    commit(repo, "first", a=b"1")
    head = (path / "heads/main").read_bytes()
    for number in range(3):
        commit(repo, f"{number}", a=b"%d" % number)
    (path / "heads/main").write_bytes(head)


@vector("There is no head cache")
def no_head_cache(path: Path) -> None:
    several_commits(path)
    (path / "heads/main").unlink()


@vector("A head cache with a wrong checksum is passed over")
def damaged_head_cache(path: Path) -> None:
    several_commits(path)
    flip(path / "heads/main", 20)


@vector("An orphan: a commit above the head that has another parent")
def orphan(path: Path) -> None:
    repo = txstore.Repository(path)
    commit(repo, "first", a=b"1")
    commit(repo, "orphan", a=b"2")
    late = (path / "commits/main/0000000001").read_bytes()
    (path / "commits/main/0000000001").unlink()
    (path / "heads/main").unlink()
    commit(txstore.Repository(path), "second", a=b"3")
    (path / "commits/main/0000000002").write_bytes(late.replace(b"", b""))
    move_version(path / "commits/main/0000000002", 2)


@vector("As `orphan`, without a head cache: the commit in the highest version is not whole, and is not the head")
def orphan_without_head_cache(path: Path) -> None:
    orphan(path)
    (path / "heads/main").unlink()


@vector("A head cache that was written late: the tagged commit that it names is below the oldest kept version")
def late_head_cache(path: Path) -> None:
    repo = txstore.Repository(path)
    commit(repo, "0", a=b"0")
    repo.tags["kept"] = repo.head()
    head = (path / "heads/main").read_bytes()
    for number in range(1, 4):
        commit(repo, f"{number}", a=b"%d" % number)
    txstore.Repository(path).vacuum(keep=1)
    (path / "heads/main").write_bytes(head)


@vector("A copy without the newest commit, which its head cache names: the newest one is the commit below")
def copy_without_newest(path: Path) -> None:
    several_commits(path)
    (path / "commits/main/0000000002").unlink()


@vector("A damaged file above the head, which the search for the head meets")
def damaged_above_head(path: Path) -> None:
    several_commits(path)
    (path / "commits/main/0000000003").write_bytes(bytes(80))


@vector("A damaged commit below the head: its run and its values are read all the same, its number and the log are not")
def damaged_below_head(path: Path) -> None:
    several_commits(path)
    flip(path / "commits/main/0000000000", -100)


@vector("A copy without the commit of a vacuum: what that has given up is no gap below the newest commit")
def copy_without_vacuum(path: Path) -> None:
    late_head_cache(path)
    (path / "commits/main/0000000004").unlink()


@vector("As `copy-without-vacuum`, with a damaged commit among those that are given up, which no search has to read")
def damaged_below_kept(path: Path) -> None:
    copy_without_vacuum(path)
    flip(path / "commits/main/0000000002", -1)


@vector("As `vacuumed`, with a damaged tag: a branch that begins below the oldest kept version is read all the same")
def vacuumed_damaged_tag(path: Path) -> None:
    vacuumed(path)
    flip(path / "tags/kept", 20)


@vector("The commit that two branches begin at is missing: their history is damaged, and what lies above it is there")
def missing_fork_point(path: Path) -> None:
    branches(path)
    (path / "commits/main/0000000000").unlink()


# --- object stores
def on_objects(path: Path, fill: Callable[[txstore.Repository], Any]) -> None:
    """Fill a repository in memory, whose layout is that of an object store, and write its files."""
    memory, place = fsspec.filesystem("memory"), f"/vectors-{os.getpid()}-{path.name}/data.tx"
    repo = txstore.Repository(f"memory:/{place}", durability="none")
    fill(repo)
    memory.get(place, str(path), recursive=True)
    memory.rm(place, recursive=True)


@vector("An object store: each commit carries the headers of those before it, down to a multiple of 16")
def carried_headers(path: Path) -> None:
    on_objects(path, lambda repo: [commit(repo, f"{number}", **{f"k{number}": b"%d" % number}) for number in range(20)])


@vector("As `carried-headers`, but those that the head carries are damaged: the commits are in their own files")
def damaged_carried_headers(path: Path) -> None:
    carried_headers(path)
    file = path / names.commit_path("main", 19)
    flip(file, file.read_bytes().index(b"TXCH") + 50)


@vector("A group commit: two commits that one file has decided")
def group_commit(path: Path) -> None:
    _grouped(path, whole=True)


@vector("A group commit whose leader died: the file of the second commit is missing, and follows from the first one's")
def group_commit_cut_off(path: Path) -> None:
    _grouped(path, whole=False)


def _grouped(path: Path, *, whole: bool) -> None:
    on_objects(path, lambda repo: commit(repo, "first", a=b"0"))
    made = {}
    for key in ("led", "follows"):
        memory, place = fsspec.filesystem("memory"), f"/vectors-{os.getpid()}-{path.name}-{key}/data.tx"
        memory.put(str(path), place, recursive=True)
        repo = txstore.Repository(f"memory:/{place}", durability="none")
        commit(repo, key, **{key: key.encode()})
        stored = repo.engine.commits.head("main")
        made[key] = memory.cat(f"{place}/{stored.path}"), stored
        memory.rm(place, recursive=True)
    content, leader = group_commits.join(*made["led"], [group_commits.proposal_of(*made["follows"])])
    files = group_commits.members(content, leader)
    for version, each in enumerate(files[: 2 if whole else 1], 1):
        (path / names.commit_path("main", version)).write_bytes(each.content)


# --- damage, and what is newer
def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def rewrite_header(path: Path, change: Callable[[bytes], bytes], version: int = 0) -> None:
    """Change a commit's header, with the right checksums."""
    file = path / names.commit_path("main", version)
    whole = file.read_bytes()
    footer = commitfile.Footer.decode(whole[-commitfile.FOOTER_SIZE :])
    begin = footer.header_offset
    header = change(whole[begin : begin + footer.header_length])
    length = begin + len(header) + commitfile.FOOTER_SIZE
    renewed = commitfile.Footer(len(header), begin, length, footer.pack_id, encoding.crc32c(header))
    file.write_bytes(whole[:begin] + header + renewed.encode())


def move_version(file: Path, version: int) -> None:
    """Let a commit file say that it is of another version."""
    numbers = version.to_bytes(8, "little") + (version + 1).to_bytes(8, "little")
    rewrite_header(file.parents[2], lambda header: header[:88] + numbers + header[104:], version)


@vector("An unknown required feature of readers in a header: it is refused")
def unknown_required(path: Path) -> None:
    commit(txstore.Repository(path), "first", a=b"1")
    rewrite_header(path, lambda header: header[:8] + b"\x04" + header[9:])


@vector("The fields of a header in another order than that of their types: damaged")
def fields_out_of_order(path: Path) -> None:
    one_commit(path)

    def swapped(header: bytes) -> bytes:
        at, message, end = (
            header.index(each) - commitfile.FIELD.size for each in (b"ana@lab", b"first", b"\1\0\0\5\0")
        )
        return header[:at] + header[message:end] + header[at:message] + header[end:]

    rewrite_header(path, swapped)


@vector("A required feature in a damaged header: the checksum is compared first")
def unknown_required_damaged(path: Path) -> None:
    one_commit(path)
    flip(path / "commits/main/0000000000", file_offset(path, b"TXHD") + 10)


@vector("A commit file of a later format version, by its footer")
def newer_commit(path: Path) -> None:
    one_commit(path)
    _newer_footer(path, is_damaged=False)


@vector("A footer of a later format version with a wrong checksum: that is compared first")
def newer_damaged_commit(path: Path) -> None:
    one_commit(path)
    _newer_footer(path, is_damaged=True)


def _newer_footer(path: Path, *, is_damaged: bool) -> None:
    file = path / "commits/main/0000000000"
    whole, footer = file.read_bytes()[:-64], bytearray(file.read_bytes()[-64:-4])
    footer[8] = 2
    file.write_bytes(whole + encoding.with_checksum(bytes(footer)))
    if is_damaged:
        flip(file, -1)


@vector("A run of an unknown kind, whose trailer has another checksum: the kind is read first")
def unknown_run(path: Path) -> None:
    one_commit(path)
    flip(path / "commits/main/0000000000", file_offset(path, b"TXRN") + 5)


def file_offset(path: Path, magic: bytes) -> int:
    return (path / "commits/main/0000000000").read_bytes().index(magic)


@vector("An unknown required feature of those who commit: readers pass over it")
def unknown_of_committers(path: Path) -> None:
    commit(txstore.Repository(path), "first", a=b"1")
    rewrite_header(path, lambda header: header[:15] + b"\x40" + header[16:])


@vector("format.json names a required feature that is not known")
def unknown_in_format_json(path: Path) -> None:
    commit(txstore.Repository(path), "first", a=b"1")
    _rewrite_format(path, required=4)


@vector("format.json is of a later version")
def newer_format_json(path: Path) -> None:
    commit(txstore.Repository(path), "first", a=b"1")
    _rewrite_format(path, txstore=2)


@vector("format.json is of a later version, and its checksum is another one: the version is read first")
def newer_damaged_format_json(path: Path) -> None:
    newer_format_json(path)
    flip(path / "format.json", -5)


@vector("format.json has a required feature above 63, of which there are none")
def impossible_features_in_format_json(path: Path) -> None:
    commit(txstore.Repository(path), "first", a=b"1")
    _rewrite_format(path, required=1 << 64)


@vector("format.json says that versions are taken in a way that is not known")
def unknown_versions_in_format_json(path: Path) -> None:
    commit(txstore.Repository(path), "first", a=b"1")
    _rewrite_format(path, versions="other")


@vector("format.json has members that are not known, and optional features: they are passed over")
def more_in_format_json(path: Path) -> None:
    commit(txstore.Repository(path), "first", a=b"1")
    _rewrite_format(path, optional=1 << 40, comment="größer")


@vector("Numbers and names in format.json that the text under the checksum has in one form only; required feature 63")
def numbers_in_format_json(path: Path) -> None:
    commit(txstore.Repository(path), "first", a=b"1")
    numbers = [2**60 + 1, -(2**54) - 1, 1.0, -0.0, 1e-7, 1e-4, 1.5e16, 123456789012345680.0, 5e-324]
    names = {"\U0001f600": 1, "\ue000": 2, "10": 3, "9": 4, "\x7f": '\n"/'}
    _rewrite_format(path, required=1 << 63, comment=numbers, names=names)


def _rewrite_format(path: Path, **members: Any) -> None:
    document = json.loads((path / "format.json").read_bytes()) | members
    del document["checksum"]
    document["checksum"] = records._json_checksum(document)
    (path / "format.json").write_text(json.dumps(document))


@vector("format.json has a wrong checksum")
def damaged_format_json(path: Path) -> None:
    commit(txstore.Repository(path), "first", a=b"1")
    text = (path / "format.json").read_text()
    (path / "format.json").write_text(text.replace('"optional": 0', '"optional": 1'))


@vector("A bit of a value was flipped: reading it is an error, and reading others is not")
def damaged_value(path: Path) -> None:
    several_commits(path)
    file = path / "commits/main/0000000002"
    flip(file, file.read_bytes().index(b"again"))


@vector("A value is zeros, and no record of an erasure says why: it is damaged")
def zeros(path: Path) -> None:
    several_commits(path)
    file = path / "commits/main/0000000002"
    file.write_bytes(file.read_bytes().replace(b"again", bytes(5)))


@vector("A commit file of another copy, which went on by itself: a pack with another id than the one that is named")
def pack_of_another_copy(path: Path) -> None:
    no_commit(path)
    other = Path(shutil.copytree(path, path.with_name("other.tx")))
    for copy, value in (path, b"1"), (other, b"2"):
        commit(txstore.Repository(copy), "first", a=value, b=value, c=value)
    for number in (1, 2):  # the last one vouches for the first, whose run is too large to be merged yet
        commit(txstore.Repository(path), f"{number}", d=b"%d" % number)
    (other / "commits/main/0000000000").replace(path / "commits/main/0000000000")
    shutil.rmtree(other)


@vector("A bit of a block was flipped")
def damaged_block(path: Path) -> None:
    one_commit(path)
    flip(path / "commits/main/0000000000", 115)


@vector("A bit of the trailer of a run was flipped")
def damaged_trailer(path: Path) -> None:
    one_commit(path)
    flip(path / "commits/main/0000000000", 196)


@vector("A bit of the header was flipped")
def damaged_header(path: Path) -> None:
    one_commit(path)
    flip(path / "commits/main/0000000000", 300)


@vector("A bit of the footer was flipped")
def damaged_footer(path: Path) -> None:
    one_commit(path)
    flip(path / "commits/main/0000000000", -30)


@vector("A tag with a wrong checksum")
def damaged_tag(path: Path) -> None:
    tags(path)
    flip(path / "tags/v1", 10)


@vector("A pack that values lie in is missing: they are not missing keys")
def missing_pack(path: Path) -> None:
    optimized(path)
    for pack in (path / "packs").rglob("*"):
        if pack.is_file() and b"TXRN" not in pack.read_bytes():
            pack.unlink()


@vector("A copy without the first commit, which the others vouch for: no empty repository")
def missing_commit(path: Path) -> None:
    several_commits(path)
    (path / "commits/main/0000000000").unlink()


@vector("A commit in the middle is missing, and there is no head cache: the one above vouches for it")
def missing_in_the_middle(path: Path) -> None:
    several_commits(path)
    (path / "commits/main/0000000001").unlink()
    (path / "heads/main").unlink()


# --- writing
def write(name: str, folder: Path) -> None:
    """Write a vector and the JSON beside it."""
    about, build = VECTORS[name]
    path = folder / f"{name}.tx"
    with fixed(name):
        asked = build(path) or ()
    for left in LEFT:
        shutil.rmtree(path / left, ignore_errors=True)
    with tempfile.TemporaryDirectory() as copies:  # a reader may write what is missing
        copy = Path(shutil.copytree(path, Path(copies, "data.tx")))
        found = {"about": about, **expected.answer(copy, asked)}
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def differences(one: Path, other: Path) -> list[str]:
    """Return the files that are not the same in two directories."""
    files = {str(each.relative_to(root)) for root in (one, other) for each in root.rglob("*") if each.is_file()}
    return sorted(
        name
        for name in files
        if not ((one / name).exists() and (other / name).exists() and filecmp.cmp(one / name, other / name, False))
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    given = parser.parse_args(arguments)
    # One run at a time, as `foreign` has a file of a fixed name.
    with filelock.FileLock("/tmp/txstore-vectors.lock"), tempfile.TemporaryDirectory() as folder:
        for name in VECTORS:
            write(name, Path(folder))
        if given.check:
            found = differences(Path(folder), REPOSITORIES)
            print("\n".join(found) or f"{len(VECTORS)} vectors are the same")
            return 1 if found else 0
        shutil.rmtree(REPOSITORIES, ignore_errors=True)
        shutil.copytree(folder, REPOSITORIES)
    print(f"{len(VECTORS)} vectors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
