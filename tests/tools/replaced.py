"""An opened repository whose storage is another one from now on: one that fails, or tells what it is asked."""

from typing import Any

from txstore.engine import Engine


def replace_storage(engine: Engine, storage: Any) -> None:
    """Give an engine and the parts of its history another storage. What makes it a repository keeps the one it has."""
    commits = engine.commits
    engine.storage = commits.storage = storage
    kept = (commits.identity, commits.branches)
    for part in (*vars(commits).values(), commits.store.head_caches):
        if hasattr(part, "_storage") and part not in kept:
            part._storage = storage
    commits.staged.name_rule._storage = storage
