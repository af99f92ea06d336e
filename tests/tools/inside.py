"""What tests need of a repository and its public interface does not have: here, and in no test, is said where it is."""

from typing import Any

import txstore
from tests.tools.waiting import TIMEOUT


def existing(repo: txstore.Repository, name: str) -> Any:
    """Join the transaction of that name, which must be there."""
    return repo.engine.existing(name)


def open_named(repo: txstore.Repository, name: str) -> Any:
    """Begin or join the transaction of that name, as a mapping."""
    return repo.engine.named(name)


def join_shared(repo: txstore.Repository, shared: bytes) -> Any:
    """Join the transaction with that id, as a mapping."""
    return repo.engine.join(shared, commits_of(repo).identity.id)


def storage_of(repo: txstore.Repository) -> Any:
    return repo.engine.storage


def commits_of(repo: txstore.Repository) -> Any:
    return repo.engine.commits


def objects_of(repo: txstore.Repository) -> Any:
    """The object store, or file server, that a repository lies on."""
    return storage_of(repo).objects


def options_of(repo: txstore.Repository) -> dict[str, Any]:
    return dict(repo.engine.access.storage_options)


def stored_commit(repo: txstore.Repository, version: int, branch: str = "main") -> Any:
    return commits_of(repo).files.read(branch, version)


def branch_id(repo: txstore.Repository, name: str) -> str:
    return repo.engine.branch(name)


def finish_head_cache(repo: txstore.Repository) -> None:
    """Wait until the head cache is written, which is done in the background."""
    commits_of(repo).store.head_caches._writer.finish(TIMEOUT)


def html(shown: Any) -> str:
    """What a notebook shows of it."""
    found: str = shown._repr_html_()
    return found


def staged(repo: txstore.Repository) -> list[str]:
    return sorted(storage_of(repo).list(".staging"))
