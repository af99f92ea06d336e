"""What the reader in Python finds in a repository, as the JSON beside a vector says it."""

import hashlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import txstore
from txstore import errors

#: Names of errors in the JSON.
NAMES = {
    errors.UnsupportedFormatError: "unsupported", errors.ErasedError: "erased", errors.SourceError: "foreign",
    errors.CorruptionError: "corrupt", errors.CommitNotFoundError: "missing", errors.SnapshotExpiredError: "missing",
    errors.RepositoryNotFoundError: "missing",
}  # fmt: skip


def name_of(error: errors.TxStoreError) -> str:
    return next(name for kind, name in NAMES.items() if isinstance(error, kind))


def asked(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except errors.TxStoreError as error:
        return name_of(error)


def answer(path: Path, erased: Collection[str] = ()) -> dict[str, Any]:
    """Return what is found. `erased`: keys that may be erased, and are in no list then."""
    try:
        repo = txstore.Repository(path)
        branches, tags = sorted(repo.branches), sorted(repo.tags)
    except errors.TxStoreError as error:
        return {"error": name_of(error)}
    logs = {name: asked(lambda name=name: [commit.id for commit in repo.log(name)]) for name in branches}  # type: ignore[misc]
    commits = {commit.id: _told(commit) for name in branches for commit in _log(repo, name)}
    heads: dict[str, Any] = {name: {"branch": name} for name in branches} | {name: {"tag": name} for name in tags}
    log = logs["main"]
    versions = sorted(commits[each]["version"] for each in log) if isinstance(log, list) else []
    heads |= {f"@{version}": {"at": version} for version in versions}
    values = {name: asked(lambda where=where: content(repo, where)) for name, where in heads.items()}  # type: ignore[misc]
    found = {
        "branches": {name: log[0] if isinstance(log, list) and log else None for name, log in logs.items()},
        "tags": {name: asked(lambda name=name: repo.tags[name].id) for name in tags},  # type: ignore[misc]
        "logs": logs, "commits": commits, "content": values,
    }  # fmt: skip
    there = {name: [key for key in erased if _is_erased(repo, where, key)] for name, where in heads.items()}
    return found | ({"erased": there} if erased else {})


def _log(repo: txstore.Repository, name: str) -> list[txstore.Commit]:
    found = asked(lambda: list(repo.log(name)))
    return found if isinstance(found, list) else []


def _told(commit: txstore.Commit) -> dict[str, Any]:
    return {
        "version": commit.version, "branch": commit.branch, "parent": commit.parent, "merged": commit.merged,
        "time": round(commit.time.timestamp() * 1e6), "author": commit.author, "message": commit.message,
        "properties": dict(commit.properties),
    }  # fmt: skip


def content(repo: txstore.Repository, where: dict[str, Any]) -> dict[str, Any]:
    snapshot = repo.mapping(**where)
    return {key: asked(lambda key=key: _value(snapshot, key)) for key in snapshot}  # type: ignore[misc]


def _value(snapshot: Mapping[str, Any], key: str) -> list[Any]:
    value = bytes(snapshot[key])
    return [len(value), hashlib.sha256(value).hexdigest()]


def _is_erased(repo: txstore.Repository, where: dict[str, Any], key: str) -> bool:
    return asked(lambda: repo.mapping(**where).get(key)) == "erased"
