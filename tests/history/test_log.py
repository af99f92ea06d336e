"""The log of a path, how it prints, bisecting, and all that a commit may be named by."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.faults import watch
from tests.tools.forged_headers import forge_header
from txstore.errors import CorruptionError
from txstore.format.commitfile import GroupCommit
from txstore.history import log as history_log


def messages(commits: Sequence[txstore.Commit]) -> list[str]:
    return [commit.message for commit in commits]


@pytest.fixture
def several(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction("create") as store:
        zarr.create_array(store, name="a/x", data=np.ones(6), chunks=(2,))
        zarr.create_array(store, name="b", data=np.ones(6), chunks=(2,))
    for at in range(4):
        with repo.transaction(f"x {at}") as store:
            zarr.open_array(store, path="a/x")[at] = 10 + at
        with repo.transaction(f"b {at}") as store:
            zarr.open_array(store, path="b").attrs["n"] = at
    repo.optimize()
    with repo.transaction("clear") as store:
        store.mapping.delete_dir("a")
    return repo


def test_only_what_has_changed_something_below_a_path(several: txstore.Repository) -> None:
    assert messages(several.log(path="a/x")) == ["clear", "x 3", "x 2", "x 1", "x 0", "create"]
    assert messages(several.log(path="a/x/c/0")) == ["clear", "x 1", "x 0", "create"][:0]  # a chunk is no directory
    assert messages(several.log(path="b", limit=2)) == ["b 3", "b 2"]
    assert messages(several.log(path="nothing")) == []
    assert messages(several.log(path="")) == [m for m in messages(several.log()) if m != "optimize"]


def test_the_oldest_that_is_kept_has_nothing_to_be_compared_with(several: txstore.Repository) -> None:
    several.vacuum(keep=4)
    kept = messages(several.log())
    assert "b 3" in kept
    assert messages(several.log(path="a")) == ["clear"]


def test_a_log_is_read_as_far_as_somebody_looks(several: txstore.Repository) -> None:
    repo = txstore.Repository(several.url)
    calls = watch(repo)
    log = repo.log()
    assert log[0].message == "clear"
    few = len(calls.named("read_tail", "read_range"))
    assert messages(log[1:3]) == ["optimize", "b 3"]
    assert log[-1].message == "create"
    assert len(calls.named("read_tail", "read_range")) > few + 5
    assert len(log) == 11
    assert messages(list(log)) == messages(log)  # again: what was read is kept
    assert several.head() in log
    assert not several.log(path="nothing")


def test_a_log_prints_as_a_table(several: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    with several.transaction("long " * 50 + "\x1b") as store:
        store["k"] = b"1"
    lines = repr(several.log()).splitlines()
    assert max(map(len, lines)) <= 80
    for line, commit in zip(lines[1:], several.log(), strict=True):
        assert line.startswith(str(commit))
        assert commit.id[:12] in line
        assert commit.time.astimezone().strftime("%Y-%m-%d %H:%M %Z") in line
    assert "<table>" in several.log()._repr_html_()
    monkeypatch.setattr(history_log, "_SHOWN", 2)
    assert repr(several.log()).splitlines()[3:] == ["..."]
    assert repr(several.log(path="nothing")) == "no commits"


def test_a_commit_is_shown_in_a_line(several: txstore.Repository) -> None:
    with several.transaction("<b>\nmore") as store:
        store["k"] = b"1"
    commit = several.head()
    assert repr(commit) == f"<Commit main@11 {commit.id[:12]} {commit.time.astimezone():%Y-%m-%d %H:%M %Z} '<b>'>"
    assert "&lt;b&gt;" in commit._repr_html_()


@pytest.mark.parametrize("seed", range(5))
def test_bisect(repo: txstore.Repository, seed: int) -> None:
    source = Random(seed)
    count = source.randrange(2, 30)
    wrong = source.randrange(1, count)
    for at in range(count):
        with repo.transaction(f"{at}") as store:
            store["value"] = b"bad" if at >= wrong else b"good"
            store["n"] = str(at).encode()
    asked: list[bytes] = []

    def test(store: txstore.TxStore) -> bool:
        asked.append(store["n"])
        return store["value"] == b"good"

    found = repo.bisect(0, -1, test)
    assert found.message == str(wrong)
    assert len(asked) <= 2 + count.bit_length()
    with pytest.raises(ValueError, match="bad, says the test"):
        repo.bisect(wrong, -1, test)
    with pytest.raises(ValueError, match="good, says the test"):
        repo.bisect(0, wrong - 1, test)
    with pytest.raises(ValueError, match="is not before"):
        repo.bisect(1, 0, test)


def test_all_that_a_commit_may_be_named_by(several: txstore.Repository) -> None:
    commit = several.commit(3)
    several.tags["three"] = commit
    moment = commit.time
    names = [
        3, np.int64(3), 3 - 11, commit, commit.id, commit.id[:8], "three", moment, moment.isoformat(),
        moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), np.datetime64(moment.astimezone(UTC).replace(tzinfo=None)),
        moment.astimezone().isoformat(),
    ]  # fmt: skip
    for name in names:
        assert several.commit(name) == commit
        assert several.snapshot(at=name).base == commit
    assert several.commit(-1) == several.head()
    assert several.diff(-2, -1).after == several.head()
    with pytest.raises(txstore.CommitNotFoundError):
        several.commit(-12)
    for naive in ("2026-01-01", "2026-01-01T00:00:00", datetime(2026, 1, 1)):
        with pytest.raises(ValueError, match="has no time zone"):
            several.commit(naive)
    with pytest.raises(ValueError, match="no date"):
        several.commit(np.datetime64("NaT", "s"))
    with pytest.raises(txstore.CommitNotFoundError):
        several.commit(np.datetime64("1990-01-01"))
    with pytest.raises(TypeError):
        several.commit(1.5)  # type: ignore[arg-type]
    assert several.commit(moment + timedelta(microseconds=1)) == commit


def test_a_member_of_a_group_commit_without_the_others_is_damage(tmp_path):
    """A stranger's header may say that its file decides another commit, which is not in it."""
    repo = txstore.Repository(tmp_path / "data.tx")
    with repo.transaction() as store:
        store.mapping["a"] = b"1"
    forge_header(tmp_path / "data.tx", 0, group_commit=GroupCommit(0, 2))
    for read in (txstore.Repository.log, txstore.Repository.head, txstore.Repository.snapshot):
        with pytest.raises(CorruptionError, match="not the leader's file"):
            read(txstore.Repository(tmp_path / "data.tx"))
    assert "not the leader's file" in str(txstore.Repository(tmp_path / "data.tx").verify().faults[0].reason)
