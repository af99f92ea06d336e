"""Repositories of a newer txstore: the message says what they have and to upgrade; nothing is written."""

import json
from pathlib import Path

import pytest

import txstore
from tests.tools.disk import tree
from txstore.format import commitfile, encoding, records


@pytest.fixture
def path(tmp_path) -> Path:
    with txstore.Repository(tmp_path / "data.tx").transaction() as store:
        store["a"] = b"1"
    return tmp_path / "data.tx"


def refused(path: Path, found: str, *, use) -> None:
    before = tree(path)
    with pytest.raises(txstore.UnsupportedFormatError, match=rf"has .*{found}.*supports.*: upgrade txstore") as caught:
        use()
    assert found in caught.value.found
    assert tree(path) == before


def rewrite_format(path: Path, **members: object) -> None:
    """Change members of format.json, with the right checksum."""
    document = json.loads((path / "format.json").read_bytes()) | members
    document.pop("checksum")
    document["checksum"] = records._json_checksum(document)
    (path / "format.json").write_text(json.dumps(document))


def rewrite_header(path: Path, at: int, new: bytes) -> None:
    """Change bytes of a commit's header, with the right checksums."""
    file = path / "commits/main/0000000000"
    content = file.read_bytes()
    footer = commitfile.Footer.decode(content[-commitfile.FOOTER_SIZE :])
    start, end = footer.header_offset, footer.header_offset + footer.header_length
    header = bytearray(content[start:end])
    header[at : at + len(new)] = new
    renewed = commitfile.Footer(len(header), start, len(content), footer.pack_id, encoding.crc32c(bytes(header)))
    file.write_bytes(content[:start] + bytes(header) + renewed.encode())


def write(path: Path) -> None:
    with txstore.Repository(path).transaction() as store:
        store["a"] = b"2"


USES = {
    "open": txstore.Repository,
    "session": txstore.TxStore,
    "snapshot": lambda path: txstore.Repository(path).snapshot()["a"],
    "write": write,
    "log": lambda path: list(txstore.Repository(path).log()),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("members", "found"),
    [
        ({"txstore": 2}, "format version 2"),
        ({"txstore": 2, "checksum_kind": "sha256", "checksum": "?"}, "format version 2"),
        ({"required": 4}, "required feature 2"),
        ({"required": 1 << 31 | 1 << 40}, "required feature 31"),
        ({"versions": "put-if-absent"}, "versions taken by 'put-if-absent'"),
    ],
)
def test_format_json(path, members, found, use):
    rewrite_format(path, **members)
    refused(path, found, use=lambda: USES[use](path))


def test_optional_features_and_unknown_members_are_ignored(path):
    rewrite_format(path, optional=1 << 40, comment="made by a newer version")
    write(path)
    assert txstore.Repository(path).snapshot()["a"] == b"2"


@pytest.mark.parametrize("use", ["snapshot", "write", "log", "session"])
@pytest.mark.parametrize(
    ("at", "new", "found"),
    [
        (8, b"\x04", "required feature 2"),
        (8, b"\x07", "required feature 1"),
        (11, b"\x80", "required feature 31"),
        (4, b"\x02", "a header of kind 2"),
        (6, b"\x02", "checksums of kind 2"),
    ],
)
def test_a_commit_header(path, at, new, found, use):
    rewrite_header(path, at, new)
    refused(path, found, use=lambda: USES[use](path))


FEATURE_OF_COMMITTERS = {
    "format.json": lambda path: rewrite_format(path, required=1 << 62),
    "commit": lambda path: rewrite_header(path, 15, b"\x40"),
}


@pytest.mark.parametrize("where", FEATURE_OF_COMMITTERS)
def test_a_feature_of_committers_keeps_out_these_only(path, where):
    FEATURE_OF_COMMITTERS[where](path)
    for read in ("open", "session", "snapshot", "log"):
        USES[read](path)
    found = "required feature 62, which whoever commits has to keep"
    refused(path, found, use=lambda: USES["write"](path))
    assert txstore.Repository(path).verify().ok


def test_a_newer_footer(path):
    file = path / "commits/main/0000000000"
    content = bytearray(file.read_bytes())
    content[-56] = 2  # the version
    content[-4:] = encoding.crc32c(bytes(content[-64:-4])).to_bytes(4, "little")
    file.write_bytes(content)
    refused(path, "format version 2", use=lambda: USES["snapshot"](path))
