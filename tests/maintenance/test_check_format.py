"""`txstore check-format`: what is as the document says passes, and each departure is found where it is."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import txstore
from tests.tools.command_line import run
from tests.tools.forged_headers import forge_header
from tests.vectors.make import REPOSITORIES
from txstore.format import names, packfile
from txstore.format.commitfile import FOOTER_SIZE, NOTHING_DECLARED, Footer
from txstore.format.encoding import crc32c
from txstore.format.packfile import Frame, Predecessor
from txstore.format.records import HeadCache
from txstore.history.opening import Access, open_commits, open_storage
from txstore.maintenance import check_format
from txstore.maintenance.verify import verify

#: Of these vectors, what departs.
DEPARTING = {
    "copy-without-newest": "heads/main", "copy-without-vacuum": "commits/main/0000000001",
    "damaged-carried-headers": "commits/main/0000000019", "missing-fork-point": "commits/main/0000000000",
    "damaged-below-kept": "commits/main/0000000002", "vacuumed-damaged-tag": "tags/kept",
    "damaged-above-head": "commits/main/0000000003", "damaged-below-head": "commits/main/0000000000",
    "damaged-block": "commits/main/0000000000", "damaged-footer": "commits/main/0000000000",
    "damaged-format-json": "format.json", "impossible-features-in-format-json": "format.json",
    "fields-out-of-order": "commits/main/0000000000",
    "newer-commit": "commits/main/0000000000", "newer-damaged-commit": "commits/main/0000000000",
    "unknown-required-damaged": "commits/main/0000000000", "unknown-run": "commits/main/0000000000",
    "damaged-head-cache": "heads/main", "damaged-header": "commits/main/0000000000", "damaged-tag": "tags/v1",
    "damaged-trailer": "commits/main/0000000000", "erased-damaged-record": "erased/e8055c6e636bfea61c347542c9099bf6",
    "damaged-value": "commits/main/0000000002",
    "missing-commit": "commits/main/0000000000", "missing-pack": "packs/8b/8b2df175ac8862af1d9e6aa8a1ed8e58",
    "missing-in-the-middle": "commits/main/0000000001",
    "orphan": "commits/main/0000000002", "orphan-without-head-cache": "commits/main/0000000002",
    "pack-of-another-copy": "commits/main/0000000000", "unknown-required": "commits/main/0000000000",
    "zeros": "commits/main/0000000002",
}  # fmt: skip
#: Of these, `format.json` says that nothing can be said.
REFUSED = {
    "newer-damaged-format-json", "newer-format-json", "unknown-in-format-json", "unknown-versions-in-format-json",
}  # fmt: skip


def departures(path: Path) -> list[check_format.Departure]:
    return check_format.check_format(open_commits(open_storage(str(path), Access({}))))


@pytest.mark.parametrize("name", sorted({path.stem for path in REPOSITORIES.glob("*.json")} - REFUSED))
def test_vectors(name: str, tmp_path: Path) -> None:
    path = Path(shutil.copytree(REPOSITORIES / f"{name}.tx", tmp_path / "data.tx"))
    found = {each.path for each in departures(path)}
    assert DEPARTING[name] in found if name in DEPARTING else not found, found


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_vectors_that_are_refused(name: str, tmp_path: Path) -> None:
    path = shutil.copytree(REPOSITORIES / f"{name}.tx", tmp_path / "data.tx")
    assert run("check-format", path).exit_code == 2


@pytest.mark.parametrize("command", ["check-format", "verify"])
def test_json_says_what_is_wrong_with_format_json(command: str, path: Path) -> None:
    (path / names.FORMAT).write_text("{")
    done = run(command, path, "--json")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["ok"]) == (1, False)
    assert {each["path"] for each in told.get("departures", told.get("faults"))} == {names.FORMAT}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data.tx"
    repo = txstore.Repository(path)
    with repo.begin("first", properties={"run": 7}) as transaction:
        transaction["a"] = b"1"
        transaction["b"] = b"2"
    repo.branches["Trial"] = repo.head()
    return path


def test_the_command_says_where(path: Path) -> None:
    assert "as the document says" in run("check-format", path).stdout
    (path / "branches" / "trial").rename(path / "branches" / "other")
    done = run("check-format", path)
    assert done.exit_code == 1
    assert "branches/other: this is the record of branch 'Trial'" in done.stdout
    told = json.loads(run("check-format", path, "--json").stdout)
    assert not told["ok"]
    assert [each["section"] for each in told["departures"]] == ["Files"]


def test_a_header_in_another_form(path: Path) -> None:
    """Its JSON is the same object, in other bytes."""
    file = path / names.commit_path("main", 0)
    content = file.read_bytes()
    footer = Footer.decode(content[-FOOTER_SIZE:])
    header = content[footer.header_offset : -FOOTER_SIZE].replace(b'{"run": 7}', b'{"run" :7}')
    footer = replace(footer, header_checksum=crc32c(header))
    file.write_bytes(content[: footer.header_offset] + header + footer.encode())
    assert [(each.path, each.offset) for each in departures(path) if "another form" in each.reason] == [
        (names.commit_path("main", 0), footer.header_offset)
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seq": 9}, "its seq is 9"),
        ({"time": 5}, "its time is not above its parent's"),
        ({"oldest_kept": 0}, "its oldest kept version is below its parent's"),
        ({"required": 1 << 32}, "required feature 32 is set, and nothing needs it"),
        ({"required": 1 << 40}, None),
    ],
)
def test_numbers_of_a_commit_and_its_parent(changes: dict[str, int], reason: str | None, tmp_path: Path) -> None:
    path = Path(shutil.copytree(REPOSITORIES / "vacuumed.tx", tmp_path / "data.tx"))
    version = max(int(file.name) for file in (path / "commits/main").iterdir())
    forge_header(path, version - 1, oldest_kept=1)
    parent = open_commits(open_storage(path)).files.read("main", version - 1)
    assert parent is not None
    forge_header(path, version, **{"parent_hash": parent.hash, **changes})
    (path / "heads/main").unlink()
    found = [(each.path, each.reason, each.section) for each in departures(path)]
    told = [each for each in found if reason is not None and reason in each[1]]
    assert found == told
    assert [each[0] for each in told] == ([] if reason is None else [names.commit_path("main", version)])
    assert verify(open_commits(open_storage(path))).ok is ("required" in changes)


def test_the_first_commit_of_a_branch_counts_on_too(path: Path) -> None:
    with txstore.Repository(path).begin("on it", branch="Trial") as transaction:
        transaction["c"] = b"3"
    (branch,) = {each.name for each in (path / "commits").iterdir()} - {"main"}
    forge_header(path, 1, branch, time=5)
    (path / "heads" / branch).unlink()
    assert [each.reason for each in departures(path)] == ["its time is not above its parent's"]


def test_a_required_feature_that_the_parent_has(path: Path) -> None:
    repo = txstore.Repository(path)
    repo.feeds.create("all")
    with repo.begin("after") as transaction:
        transaction["c"] = b"3"
    forge_header(path, 2, required=0, declared=NOTHING_DECLARED)
    (path / "heads/main").unlink()
    assert [each.reason for each in departures(path)] == ["its parent has required feature 34, and it has not"]


def test_frames_before_the_first_pack(path: Path) -> None:
    file = path / names.commit_path("main", 0)
    content = file.read_bytes()
    pack_id, repository_id, number = packfile.decode_head(content[: packfile.HEAD_SIZE])
    file.write_bytes(packfile.encode_head(pack_id, repository_id, number, 3) + content[packfile.HEAD_SIZE :])
    assert [(each.path, each.offset) for each in departures(path) if "counts frames" in each.reason] == [
        (names.commit_path("main", 0), 0)
    ]


def test_a_head_cache_of_what_is_not_there(path: Path) -> None:
    cache = HeadCache.decode((path / "heads/main").read_bytes())
    (path / "heads/main").write_bytes(replace(cache, commit_id=bytes(16), durable=False, boot=0).encode())
    found = departures(path)
    assert [(each.path, each.section) for each in found] == [("heads/main", "Finding the head")]
    assert "is not there" in found[0].reason


def frame(kind: int, **changed: object) -> Frame:
    made = Frame(kind, packfile.SEEN_NOTHING, 0, b"a", 97, 97, 0, 0, 104)
    return replace(made, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (frame(20), "in no registry"),
        (frame(packfile.FRAME_TOMBSTONE | packfile.FRAME_ERASED), "marked as erased"),
        (frame(packfile.FRAME_TOMBSTONE, length=1), "has a value"),
        (frame(packfile.FRAME_SEAL), "has a key"),
        (frame(packfile.FRAME_VALUE, key=b"a//b"), "is no key"),
        (frame(packfile.FRAME_PREFIX), "does not end in a slash"),
        (frame(packfile.FRAME_MERGED, seen=Predecessor(0, 1)), "had seen something"),
        (frame(packfile.FRAME_RUN, key=b"", checksum=1), "has a checksum"),
    ],
)
def test_frames_that_the_document_excludes(made: Frame, reason: str) -> None:
    found = list(check_format.reasons(made))
    assert len(found) == 1
    assert reason in found[0]


def test_frames_that_it_allows() -> None:
    for kind in (packfile.FRAME_VALUE, packfile.FRAME_TOMBSTONE, packfile.FRAME_MERGED, packfile.FRAME_READ):
        assert not list(check_format.reasons(frame(kind)))
