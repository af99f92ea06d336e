"""Repositories that no writer of ours would make: as somebody writes them who is out for mischief."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from txstore.format import keys
from txstore.history import snapshot
from txstore.segments import runs
from txstore.transactions import conflicts, reads, transaction
from txstore.transactions.participants import siblings

#: They would lead out of the place where keys become file names.
DOTS = ["..", ".", "../../etc/passwd", "a/../b", "a/./b", "a/..", "./a", ".zarray/..", "a/.zarray/./b"]


@contextmanager
def unchecked_keys() -> Iterator[None]:
    """Let any key pass while the block runs, as if another program had written it."""
    pretended = {
        "encode_key": lambda key: key.encode(),
        "decode_key": lambda encoded: encoded.decode(),
        "stored_key": lambda encoded, path: encoded.decode(),
        "stored_prefix": lambda encoded, path: encoded.decode(),
    }
    with ExitStack() as patches:
        for module in (conflicts, runs, keys, reads, siblings, snapshot, transaction):
            for name, function in pretended.items():
                if hasattr(module, name):
                    patches.enter_context(patch.object(module, name, function))
        yield
