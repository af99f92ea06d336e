"""Repositories and transactions for asyncio: `await aio.open(url)`."""

from txstore.aio.calls import call, each
from txstore.aio.faces import (
    AsyncBranches,
    AsyncConstraints,
    AsyncRepository,
    AsyncRepositoryViews,
    AsyncTags,
    AsyncTransaction,
    AsyncViews,
    open,
)

__all__ = [
    "AsyncBranches",
    "AsyncConstraints",
    "AsyncRepository",
    "AsyncRepositoryViews",
    "AsyncTags",
    "AsyncTransaction",
    "AsyncViews",
    "call",
    "each",
    "open",
]
