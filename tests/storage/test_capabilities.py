"""What each storage can do, side by side: printed here, and the same in the documentation."""

import dataclasses
import re
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from txstore.history import opening
from txstore.history.opening import open_storage
from txstore.storage.capabilities import Capabilities

DOCUMENT = Path(__file__).parents[2] / "docs" / "understand" / "remote-design.md"

#: Where a repository lies, and whether other machines see that, too.
PLACES = {
    "local": ("{}", False),
    "NFS": ("{}", True),
    "sshfs": ("{}", True),
    "memory://": ("memory://capabilities/data.tx", False),
    "S3": ("s3://bucket/data.tx", False),
    "GCS": ("gs://bucket/data.tx", False),
    "Azure": ("az://container/data.tx", False),
    "SFTP": ("sftp://host/data.tx", False),
    "SMB": ("smb://host/share/data.tx", False),
}


def capabilities_of(place: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Capabilities:
    url, is_on_network = PLACES[place]
    monkeypatch.setattr(opening, "is_on_network", lambda path: is_on_network)
    return open_storage(url.format(directory / "data.tx")).capabilities


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value.value if isinstance(value, Enum) else f"{value:g}" if isinstance(value, float) else str(value)


def table_of(found: dict[str, Capabilities]) -> list[list[str]]:
    head = ["", *(f"`{field.name}`" for field in dataclasses.fields(Capabilities))]
    rows = [[place, *map(_shown, dataclasses.astuple(each))] for place, each in found.items()]
    return [head, *rows]


def test_the_document_shows_what_storages_can_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of({place: capabilities_of(place, tmp_path, monkeypatch) for place in PLACES})
    print(*(f"| {' | '.join(row)} |" for row in table), sep="\n")
    section = DOCUMENT.read_text(encoding="utf-8").partition("\n## What each storage can do\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    shown = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))] for line in lines]
    assert [row for row in shown if not set(row[1]) <= set("-: ")] == table


@pytest.mark.parametrize("field", [each.name for each in dataclasses.fields(Capabilities)])
def test_in_memory_is_an_object_store_without_requests(field, tmp_path, monkeypatch):
    memory, s3 = (getattr(capabilities_of(place, tmp_path, monkeypatch), field) for place in ("memory://", "S3"))
    assert (memory == s3) is (field not in ("versions", "makes_requests"))
