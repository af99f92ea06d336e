"""Repositories and transactions for asyncio: `await aio.open(url)`."""

from txstore.aio.calls import call, each
from txstore.aio.faces import (
    AsyncBranches,
    AsyncMapping,
    AsyncRepository,
    AsyncTransaction,
    open,
)

__all__ = [
    "AsyncBranches",
    "AsyncMapping",
    "AsyncRepository",
    "AsyncTransaction",
    "call",
    "each",
    "open",
]
