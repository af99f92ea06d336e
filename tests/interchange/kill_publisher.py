"""Kills a publisher at every step, and looks what a reader finds then, and what the next one makes of it.

    python -m tests.interchange.kill_publisher DIRECTORY

A process of its own: it forks, and has no threads.
"""

import json
import shutil
import sys
from pathlib import Path

import txstore
from tests.interchange.copies import Tree, Unsteady, check_copy, chunks_of, forked, killed
from txstore.format.consolidated import consolidate, documents_of
from txstore.interchange import publish as publishing
from txstore.interchange.publish import STATE

publishing._BATCH = 2
publishing._CHECKPOINT = 1  # after each batch


def document(shape: int, chunk: int = 2) -> bytes:
    return json.dumps({"zarr_format": 3, "node_type": "array", "shape": [shape], "chunk": chunk}).encode()


GROUP = b'{"zarr_format": 3, "node_type": "group"}'


def fill(repo: txstore.Repository) -> None:
    """Create; append and overwrite; create, delete and shrink; append, and create what was deleted; there and back."""
    with repo.begin() as t:
        t["zarr.json"] = GROUP
        t["a/zarr.json"], t["b/zarr.json"] = document(5), document(4)
        for i in range(3):
            t[f"a/c/{i}"] = b"a%d" % i
        for i in range(2):
            t[f"b/c/{i}"] = b"b%d" % i
    with repo.begin() as t:
        t["a/zarr.json"] = document(8)
        t["a/c/2"], t["a/c/3"] = b"a2+", b"a3"
        t["b/c/0"] = b"b0+"
    with repo.begin() as t:
        t["g/zarr.json"], t["g/d/zarr.json"] = GROUP, document(4)
        t["g/d/c/0"], t["g/d/c/1"] = b"d0", b"d1"
        t.delete_dir("b")
        t["a/zarr.json"] = document(3)
        del t["a/c/2"], t["a/c/3"]
    with repo.begin() as t:
        t["a/zarr.json"] = document(6)
        t["a/c/2"] = b"a2 anew"
        t["b/zarr.json"] = document(2)
        t["b/c/0"] = b"b0 anew"
        del t["g/d/c/1"]
        t["g/d/zarr.json"] = document(2)
    for shape in (7, 6):
        with repo.begin() as t:
            t["a/zarr.json"], t["a/c/3"] = document(shape), b"a%d" % shape


def check_reader(directory: Path, states: dict[bytes | None, Tree]) -> None:
    """What the root describes is there whole; chunks may be newer, as those that are overwritten are."""
    root = directory / "zarr.json"
    described = root.read_bytes() if root.exists() else None
    whole = states[described]  # KeyError: a root that no commit has
    for key, content in whole.items():
        if "/c/" in key:
            found = (directory / key).read_bytes()
            allowed = {tree[key] for tree in states.values() if key in tree}
            assert found in allowed, key
            if described == list(states)[-1]:
                assert found == content, key


def root_of(repo: txstore.Repository, version: int) -> bytes:
    return consolidate(documents_of(repo.mapping(at=version)))["zarr.json"]


def main(directory: Path) -> int:
    repo = txstore.Repository(directory / "data.tx", durability="none")
    fill(repo)
    tried = 0
    head = repo.head().version
    for version in range(-1, head):
        for resumed_at in sorted({version + 1, head}):
            for after in (False, True):
                tried += killed_at_every_step(directory, repo, version, resumed_at, after=after)
    print(tried)
    return 0


class At:
    """A repository whose head is an older commit: what a publisher found then."""

    def __init__(self, repo: txstore.Repository, version: int) -> None:
        self.repo, self._version = repo, version
        self.id, self.url, self.engine = repo.id, repo.url, repo.engine

    def mapping(self, branch: str = "main") -> txstore.Snapshot:
        return self.repo.mapping(at=self._version)

    def commit(self, version: int, *, branch: str) -> txstore.Commit:
        return self.repo.commit(version)


def killed_at_every_step(
    directory: Path, repo: txstore.Repository, version: int, resumed_at: int, *, after: bool
) -> int:
    """Kill a publisher of version + 1, over a copy of version, at each step; go on to `resumed_at`."""
    copy = directory / "copy"
    states: dict[bytes | None, Tree] = {None: {}}
    if version >= 0:
        states = {root_of(repo, version): chunks_of(repo, at=version)}
    states[root_of(repo, version + 1)] = chunks_of(repo, at=version + 1)
    step = 0
    while True:
        shutil.rmtree(copy, ignore_errors=True)
        if version >= 0:
            publishing.publish(At(repo, version), copy, durable=False)
            check_copy(copy, repo, at=version)
        died = forked(
            lambda step=step: publishing.publish(At(repo, version + 1), Unsteady(copy, step, killed, after=after))
        )
        if not died:
            check_copy(copy, repo, at=version + 1)
            return step
        if (copy / STATE).exists():
            check_reader(copy, states)
        publishing.publish(At(repo, resumed_at), copy, durable=False)
        check_copy(copy, repo, at=resumed_at)
        step += 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
