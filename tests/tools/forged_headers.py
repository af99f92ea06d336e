"""Writes a commit's file anew with another header: its checksums are right, whatever the header says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from txstore.format import names
from txstore.format.commitfile import FOOTER_SIZE, Footer
from txstore.format.encoding import crc32c
from txstore.history.opening import open_commits, open_storage


def forge_header(repository: Path, version: int, branch: str = "main", more: bytes = b"", **changes: Any) -> None:
    """`more` is put behind the sections."""
    path = repository / names.commit_path(branch, version)
    stored = open_commits(open_storage(repository)).files.read(branch, version)
    before = path.read_bytes()[: stored.footer.header_offset] + more
    encoded = replace(stored.header, **changes).encode()
    length = len(before) + len(encoded) + FOOTER_SIZE
    footer = Footer(len(encoded), len(before), length, stored.header.id, crc32c(encoded))
    path.unlink()
    path.write_bytes(before + encoded + footer.encode())
