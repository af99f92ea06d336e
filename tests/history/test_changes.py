"""Which keys differ between two commits: against dicts, whatever was deleted, merged, optimized or given up between."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import txstore
from tests.tools.commits import set_keys
from txstore.history.changes import changed, ref_of
from txstore.history.snapshot import Snapshot
from txstore.segments import runs

KEYS = [f"{a}/{b}/c/{n}" for a in "ab" for b in ("x", "y", "x!") for n in range(4)] + ["a", "a/x", "b/zarr.json"]
PATHS = ["", "a", "a/x", "a/x/c", "b", "b/y", "nothing"]


def differing(before: Mapping[str, bytes], after: Mapping[str, bytes], below: str = "") -> list[str]:
    """Compare two dicts by hand."""
    prefix = below + "/" if below else ""
    keys = before.keys() | after.keys()
    return sorted(key for key in keys if key.startswith(prefix) and before.get(key) != after.get(key))


def check(before: Snapshot, after: Snapshot, old: dict[str, bytes], new: dict[str, bytes], below: str = "") -> None:
    found = [*changed(before, after, below)]
    assert [change.key for change in found] == differing(old, new, below)
    for key, was, now in found:
        assert (was, now) == (ref_of(before, key), ref_of(after, key))
        assert (was is None, now is None) == (key not in old, key not in new)


def _change(source: Random, store: txstore.Transaction, content: dict[str, bytes]) -> None:
    for _ in range(source.randrange(1, 5)):
        what, key, path = source.random(), source.choice(KEYS), source.choice(PATHS)
        if what < 0.6:
            store[key] = content[key] = bytes([source.randrange(4)]) * source.choice([1, 1, 2000])
        elif what < 0.8:
            store.delete(key)
            content.pop(key, None)
        else:
            store.delete_dir(path)
            prefix = path + "/" if path else ""
            for gone in [each for each in content if each.startswith(prefix)]:
                del content[gone]


@pytest.mark.long
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), pages=st.booleans())
def test_as_two_dicts_differ(tmp_path_factory: pytest.TempPathFactory, seed: int, pages: bool) -> None:
    source = Random(seed)
    repo = txstore.Repository(tmp_path_factory.mktemp("changes") / "data.tx", durability="none")
    contents: dict[int, dict[str, bytes]] = {}
    content: dict[str, bytes] = {}
    with pytest.MonkeyPatch.context() as patch:
        if pages:
            patch.setattr(runs, "_CHANGES_WINDOW", 1)
        for _ in range(source.randrange(2, 12)):
            with repo.begin() as store:
                _change(source, store, content)
            head = repo.head()
            if head is None:
                continue
            contents[head.version] = dict(content)
            if source.random() < 0.2:
                repo.tags.setdefault(f"t{head.version}", head)
            if source.random() < 0.2 and (made := repo.optimize()) is not None:
                contents[made.version] = dict(content)
            if source.random() < 0.15:
                repo.vacuum(keep=source.randrange(1, 4))
                made = repo.head()
                contents[made.version] = dict(content)
        kept = dict(_kept(repo, contents))
        for _ in range(8):
            one, other = source.choice([*kept]), source.choice([*kept])
            check(kept[one], kept[other], contents[one], contents[other], source.choice(PATHS))


def _kept(repo: txstore.Repository, versions: dict[int, dict[str, bytes]]) -> Iterator[tuple[int, Snapshot]]:
    for version in versions:
        try:
            yield version, repo.mapping(version)
        except (txstore.CommitNotFoundError, txstore.SnapshotExpiredError):
            continue


def test_a_value_that_maintenance_moves_has_not_changed(repo: txstore.Repository) -> None:
    set_keys(repo, {"a": b"1"})
    set_keys(repo, {"b": b"2"})
    set_keys(repo, {"a": b"3"})
    with repo.begin() as store:
        store["a"] = b"1"  # as it was, in another place
    before, after = repo.mapping(0), repo.mapping()
    assert [change.key for change in changed(before, after)] == ["b"]
    repo.optimize()
    assert ref_of(repo.mapping(), "b").pack != ref_of(after, "b").pack  # type: ignore[union-attr]
    assert [*changed(after, repo.mapping())] == []


def test_what_was_deleted_before_the_oldest_kept_is_found(repo: txstore.Repository) -> None:
    """`optimize` forgets tombstones of before the oldest kept version: only a tag leads there still."""
    with repo.begin() as store:
        store["a"] = store["b"] = b"1"
    repo.tags["first"] = 0
    with repo.begin() as store:
        del store["a"]
    set_keys(repo, {"c": b"1"})
    repo.vacuum(keep=1)
    repo.optimize()
    assert [change.key for change in changed(repo.mapping(tag="first"), repo.mapping())] == ["a", "c"]


def test_before_the_first_commit(repo: txstore.Repository) -> None:
    repo.transaction(name="job").rollback()
    nothing = repo.mapping()
    set_keys(repo, {"a": b"1"})
    assert [(key, was) for key, was, _ in changed(nothing, repo.mapping())] == [("a", None)]
    assert [(key, now) for key, _, now in changed(repo.mapping(), nothing)] == [("a", None)]


def test_neither_is_an_ancestor(open_repo: Callable[..., txstore.Repository], tmp_path: Path) -> None:
    """Two copies of one repository that have gone apart stand for two branches: their seqs overlap."""
    one = open_repo("one.tx")
    with one.begin() as store:
        store["a"] = store["b"] = store["c"] = b"1"
    shutil.copytree(tmp_path / "one.tx", tmp_path / "other.tx")
    other = open_repo("other.tx")
    base = one.mapping()
    set_keys(one, {"a": b"2"})
    with one.begin() as store:
        del store["b"]
    set_keys(other, {"c": b"3", "d": b"3"})
    found = {change.key for change in changed(one.mapping(), other.mapping(), base=base)}
    assert found == {"a", "b", "c", "d"}
