"""Repositories that no writer of ours would make: as somebody writes them who is out for mischief."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from txstore.format import commitfile, encoding, keys
from txstore.history import snapshot
from txstore.segments import runs
from txstore.transactions import conflicts, reads, transaction
from txstore.transactions.participants import membership

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
        for module in (conflicts, runs, keys, reads, membership, snapshot, transaction):
            for name, function in pretended.items():
                if hasattr(module, name):
                    patches.enter_context(patch.object(module, name, function))
        yield


def declare_unchecked(url: Path, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Change what the newest commit of a repository says of views, as if another program had written it."""
    file = max((url / "commits/main").iterdir())
    content = file.read_bytes()
    footer = commitfile.Footer.decode(content[-commitfile.FOOTER_SIZE :])
    header = commitfile.Header.decode(content[footer.header_offset :][: footer.header_length])
    declared = header.declared._replace(views=change(header.declared.views))
    encoded = replace(header, declared=declared).encode()
    length = footer.header_offset + len(encoded) + commitfile.FOOTER_SIZE
    footer = replace(footer, header_length=len(encoded), file_length=length, header_checksum=encoding.crc32c(encoded))
    file.write_bytes(content[: footer.header_offset] + encoded + footer.encode())
