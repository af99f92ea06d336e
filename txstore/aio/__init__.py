"""Repositories and transactions for asyncio: `await aio.open(url)`."""

from txstore.aio.calls import call, each
from txstore.aio.faces import (
    AsyncBranches,
    AsyncConstraints,
    AsyncRepository,
    AsyncTags,
    AsyncTransaction,
    open,
)

__all__ = [
    "AsyncBranches",
    "AsyncConstraints",
    "AsyncRepository",
    "AsyncTags",
    "AsyncTransaction",
    "call",
    "each",
    "open",
]
