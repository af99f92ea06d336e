"""What snapshots of successive commits share: runs are opened once, and no run is taken for another."""

from collections.abc import Callable

import pytest

import txstore
from txstore.format.packfile import PackName
from txstore.history.snapshot import Snapshot
from txstore.segments import runs
from txstore.segments.packs import Packs
from txstore.segments.runs import OpenRun, Runs

OpenRepo = Callable[..., txstore.Repository]


def put(repo: txstore.Repository, *keys: str) -> None:
    for key in keys:
        with repo.begin() as mapping:
            mapping[key] = key.encode()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[PackName | None]:
    """The files in which runs were opened."""
    found: list[PackName | None] = []

    class Recorded(OpenRun):
        def __init__(self, name: runs.RunName, packs: Packs) -> None:
            found.append(name.pack)
            super().__init__(name, packs)

    monkeypatch.setattr(runs, "OpenRun", Recorded)
    return found


def test_the_runs_of_the_commit_before_are_not_opened_again(open_repo: OpenRepo, opened: list[PackName | None]) -> None:
    writer, reader = open_repo(durability="none"), open_repo()
    put(writer, *map(str, range(10)))
    for number in range(10, 30):
        before = set(reader.mapping().runs.names)
        opened.clear()
        put(writer, str(number))
        here, there = reader.mapping(), writer.mapping()
        opened.clear()
        assert sorted(here) == sorted(map(str, range(number + 1)))
        assert len(opened) == len(set(here.runs.names) - before) <= 2  # its own, and a merged one
        assert here.runs.names == there.runs.names


def test_to_see_what_is_new_only_new_runs_are_opened(open_repo: OpenRepo, opened: list[PackName | None]) -> None:
    writer = open_repo(durability="none")
    put(writer, *map(str, range(13)))
    head = open_repo().mapping()
    since = head.seq - 1
    opened.clear()
    assert [change.key for change in head.runs_since(since).changes(b"", None, since)] == [b"12"]
    newer = [name for name in head.run_names if name.max_seq > since]
    assert len(opened) == len(newer) < len(head.run_names)
    assert dict(head)["12"] == b"12"
    assert len(opened) == len(head.run_names)  # and those not again


def test_only_the_runs_of_the_last_commit_are_kept(open_repo: OpenRepo) -> None:
    writer, reader = open_repo(durability="none"), open_repo()
    put(writer, "first")
    for number in range(40):
        put(writer, str(number))
        head = reader.mapping()
        head.runs_since(head.seq - 1)
    assert set(head.opened) <= set(head.run_names)


@pytest.mark.parametrize("field", ["seq", "offset", "length", "entries", "max_seq", "pack"])
def test_a_run_is_only_known_by_its_whole_name(repo: txstore.Repository, field: str) -> None:
    put(repo, "key", "other")
    head = repo.mapping()
    own, *_ = head.runs.names
    packs = Packs(repo.engine.storage)
    value = own.pack._replace(id=bytes(16)) if field == "pack" else getattr(own, field) + (1 if field == "seq" else -1)
    with pytest.raises(txstore.CorruptionError):
        Runs([own._replace(**{field: value})], None, packs, head.runs.opened())
    assert len(Runs([own], None, packs, head.runs.opened())) == 1


def test_a_snapshot_without_a_commit_has_no_runs(repo: txstore.Repository) -> None:
    empty = Snapshot(None, Packs(repo.engine.storage), repo.url)
    assert empty.run_names == ()
    assert len(empty.runs_since(0)) == len(empty.runs) == 0


def test_what_was_opened_of_a_commit_on_its_way_is_known_to_who_has_followed_it(open_repo, opened):
    writer, reader = open_repo(durability="none"), open_repo()
    put(writer, *map(str, range(10)))
    commits, snapshots = reader.engine.commits, reader.engine.snapshots
    parent = commits.head()
    assert parent is not None
    ahead = snapshots.ahead(parent)
    assert ahead["0"] == b"0"
    put(writer, "next")
    child = commits.head()
    assert child is not None
    made = snapshots.made(child, ahead)
    assert set(made.opened) == set(made.run_names) & set(ahead.run_names) != set()
    del made  # nobody reads any more
    opened.clear()
    head = snapshots.newest("main")
    assert {key: bytes(value) for key, value in head.items()} == {key: key.encode() for key in head}
    assert len(opened) == len(set(head.run_names) - set(ahead.run_names))
