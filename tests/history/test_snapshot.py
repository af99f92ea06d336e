"""What snapshots of successive commits share: runs are opened once, and no run is taken for another."""

from collections.abc import Callable

import pytest

import txstore
from txstore.format.packfile import PackName
from txstore.segments import runs
from txstore.segments.packs import Packs
from txstore.segments.runs import OpenRun

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
