"""What the tests of maintenance share: commits of a few keys, a model of them, and what the directory holds."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import txstore
from tests.tools.inside import commits_of, storage_of
from txstore.storage.objects.interface import ObjectStore

#: Not data: a guard and two small files of fixed names, head caches, the log of operations, and what is only there
#: while somebody works.
_NOT_COUNTED = ("locks", ".staging", "operations")


def put(repo: txstore.Repository, values: Mapping[str, bytes | None], message: str = "put") -> txstore.Commit:
    """Commit values; None deletes a key, and below a key that ends in `/` all that is there."""
    with repo.begin(message) as mapping:
        for key, value in values.items():
            if value is not None:
                mapping[key] = value
            elif key.endswith("/"):
                mapping.delete_dir(key)
            else:
                mapping.delete(key)
    head = repo.head()
    assert head is not None
    return head


def rewrite(
    repo: txstore.Repository, commits: int, *, keys: int = 10, each: int = 3, size: int = 100
) -> dict[str, bytes]:
    """Make commits that write some of the same few keys again; return what the last leaves."""
    model: dict[str, bytes] = {}
    for number in range(commits):
        some = {f"a/c/{(number * each + i) % keys}": b"%08d" % number * (size // 8) for i in range(each)}
        put(repo, some, f"rewrite {number}")
        model |= some
    return model


def content(repo: txstore.Repository, at: int | None = None) -> dict[str, bytes]:
    snapshot = repo.mapping(at=at)
    return {key: bytes(snapshot[key]) for key in snapshot}


def seqs(repo: txstore.Repository) -> dict[str, int | None]:
    snapshot = repo.mapping()
    return {key: snapshot.seq_of(key) for key in snapshot}


def tree(repo: txstore.Repository) -> dict[str, int]:
    """Return the files of a repository and their lengths, but for locks and what is staged.

    On object stores head caches are left out, too: they are written in the background, a second after their commit.
    """
    objects = getattr(storage_of(repo), "objects", None)
    if objects is not None:
        return {path: size for path, size in below(objects) if path.partition("/")[0] not in (*_NOT_COUNTED, "heads")}
    root = Path(repo.url)
    found = {}
    for directory, _, files in os.walk(root):
        for file in files:
            path = Path(directory, file).relative_to(root)
            if path.parts[0] not in _NOT_COUNTED:
                found[path.as_posix()] = (root / path).stat().st_size
    return found


def bytes_of_head(repo: txstore.Repository) -> int:
    """Return the bytes of keys and values at the head."""
    snapshot = repo.mapping()
    return sum(len(key) + (snapshot.size_of(key) or 0) for key in snapshot)


def oldest_kept_of(repo: txstore.Repository) -> int:
    return commits_of(repo).oldest_kept.of("main")


def below(objects: ObjectStore, directory: str = "") -> Iterator[tuple[str, int]]:
    """Yield the paths and lengths of all objects below a directory."""
    for found in objects.list(directory):
        path = f"{directory}/{found.name}".lstrip("/")
        if found.modified is None:
            yield from below(objects, path)
        else:
            yield path, found.size
