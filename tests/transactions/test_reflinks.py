"""Moving, copying and restoring without copying values: against dicts, and what becomes of the refs later."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import txstore
from tests.tools.commits import commit, set_keys, write_array
from tests.tools.killed import killed_after
from txstore.format.chunk_moves import ChunkMoves
from txstore.history.changes import changed
from txstore.segments.packs import OpenPack

GROUP = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()
PATHS = ["a", "b", "a/x", "b/x", "a/x/y", "c"]


def below(content: dict[str, bytes], path: str) -> dict[str, bytes]:
    prefix = path + "/" if path else ""
    return {key: value for key, value in content.items() if key.startswith(prefix)}


class Model:
    """What one transaction does, on a dict beside it."""

    def __init__(self, source: Random, contents: dict[int, dict[str, bytes]]) -> None:
        self.source = source
        self.contents = contents

    def step(self, repo: txstore.Repository, tx: txstore.Transaction, now: dict[str, bytes]) -> None:
        source = self.source
        one, other = source.choice(PATHS), source.choice(PATHS)
        what = source.choice(
            ["group", "set", "set", "delete", "clear", "move", "move", "copy", "restore", "old", "number", "number"]
        )
        if what == "group":
            tx[f"{one}/zarr.json"] = now[f"{one}/zarr.json"] = GROUP
        elif what == "set":
            key = f"{one}/c/{source.randrange(12)}"
            tx[key] = now[key] = bytes([source.randrange(9)]) * source.choice([1, 1500])
        elif what == "delete":
            key = f"{one}/c/{source.randrange(3)}"
            tx.delete(key)
            now.pop(key, None)
        elif what == "clear":
            tx.delete_dir(one)
            for key in below(now, one):
                del now[key]
        elif what == "number":
            self.number(tx, now, one)
        elif what == "restore" and self.contents:
            version = source.choice([*self.contents])
            path = source.choice([*PATHS, ""])
            was = below(self.contents[version], path)
            if not was and not below(now, path):
                with pytest.raises(txstore.NodeNotFoundError):
                    tx.nodes.restore(path, repo.mapping(version))
                return
            tx.nodes.restore(path, repo.mapping(version))
            for key in below(now, path):
                del now[key]
            now.update(was)
        elif what in ("move", "copy", "old"):
            version = source.choice([*self.contents]) if what == "old" and self.contents else None
            content = now if version is None else self.contents[version]
            at = None if version is None else repo.mapping(version)
            error = self.expected_error(content, now, one, other, is_old=at is not None)
            if error is not None:
                with pytest.raises(error):
                    tx.nodes.move(one, other) if what == "move" else tx.nodes.copy(one, other, at)
                return
            tx.nodes.move(one, other) if what == "move" else tx.nodes.copy(one, other, at)
            moved = {other + key[len(one) :]: value for key, value in below(content, one).items()}
            if what == "move":
                for key in below(now, one):
                    del now[key]
            now.update(moved)

    def number(self, tx: txstore.Transaction, now: dict[str, bytes], path: str) -> None:
        """Give chunks other numbers."""
        sources = np.full(14, -1)
        olds = self.source.sample(range(14), 9)
        sources[self.source.sample(range(14), 9)] = olds
        start = f"{path}/c" if self.source.random() < 0.5 else path
        try:
            tx.nodes.move_chunks({start: ChunkMoves("" if start.endswith("/c") else "c/", "/", [sources])})
        except txstore.TransactionStateError:  # there are changes below the path already
            return
        was = {key: now.pop(key) for key in below(now, start) if key.startswith(f"{path}/c/")}
        for new, old in enumerate(sources):
            if (value := was.get(f"{path}/c/{old}")) is not None:
                now[f"{path}/c/{new}"] = value

    @staticmethod
    def expected_error(
        content: dict[str, bytes], now: dict[str, bytes], one: str, other: str, *, is_old: bool
    ) -> type[Exception] | None:
        if ((other + "/").startswith(one + "/") and not is_old) or below(now, other):
            return ValueError
        above = other.rpartition("/")[0]
        if above and f"{above}/zarr.json" not in now:
            return txstore.NodeNotFoundError
        return None if f"{one}/zarr.json" in content else txstore.NodeNotFoundError


@pytest.mark.long
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_as_with_dicts(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    source = Random(seed)
    repo = txstore.Repository(tmp_path_factory.mktemp("reflinks") / "data.tx", durability="none")
    contents: dict[int, dict[str, bytes]] = {}
    now: dict[str, bytes] = {}
    model = Model(source, contents)
    for _ in range(source.randrange(1, 6)):
        tx = repo.begin()
        before = dict(now)
        for _ in range(source.randrange(1, 9)):
            model.step(repo, tx, now)
            assert list(tx) == sorted(now)
        assert dict(tx) == now
        changes = [change.key for change in tx.key_changes()]
        assert changes == sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        if source.random() < 0.15:
            tx.rollback()
            now = before
            continue
        base = tx.base.version
        tx.commit()
        head = repo.head()
        if head is not None:
            contents[head.version] = dict(now)
            if head.version != base:
                assert dict(repo.mapping()) == now
        if head is not None and source.random() < 0.2 and (made := repo.optimize()) is not None:
            contents[made.version] = dict(now)
    for version, content in contents.items():
        assert dict(repo.mapping(version)) == content
    if contents:
        assert repo.verify().faults == []
        repo.vacuum(keep=1)
        assert dict(repo.mapping()) == now
        assert repo.verify().faults == []


@pytest.fixture
def filled(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction("first") as store:
        zarr.create_array(store, name="g/x", data=np.arange(1, 9), chunks=(2,), attributes={"units": "K"})
        zarr.create_group(store, path="h")
    return repo


def read(repo: txstore.Repository, path: str, at: int | None = None) -> list[int]:
    return list(zarr.open_array(repo.snapshot(at=at), path=path, mode="r")[:])  # type: ignore[arg-type]


def test_an_array_moves_and_no_value_is_read(filled: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        read_keys: list[str | None] = []
        view = OpenPack.view

        def noting(self: OpenPack, offset: int, length: int, checksum: int, key: str | None = None) -> memoryview:
            read_keys.append(key)
            return view(self, offset, length, checksum, key)

        patch.setattr(OpenPack, "view", noting)
        with filled.begin("moved") as tx:
            tx.nodes.move("g/x", "h/y")
        assert not [key for key in read_keys if key is None or "/c/" in key]
    assert read(filled, "h/y") == list(range(1, 9))
    assert read(filled, "g/x", at=0) == list(range(1, 9))
    assert "g/x/zarr.json" not in filled.mapping()
    head = filled.head()
    assert (head.statistics["keys_set"], head.statistics["bytes_set"]) == (5, 0)
    diff = filled.diff(-1)
    assert [(node.path, node.change, node.moved_from) for node in diff] == [("h/y", "moved", "g/x")]
    assert "> g/x -> h/y" in str(diff)
    assert diff.bytes_added == 0


def test_objects_of_what_was_moved_are_stale(filled: txstore.Repository) -> None:
    store = filled.transaction()
    old = zarr.open_array(store, path="g/x")
    store.move("g/x", "h/y")
    new = zarr.open_array(store, path="h/y")
    new[0] = 100
    for use in (lambda: old[:], lambda: old.__setitem__(0, 5)):
        with pytest.raises(txstore.StaleArrayError, match="moved in this transaction"):
            use()
    store.rollback()
    store.move("g/x", "h/y")
    store.commit()
    assert read(filled, "h/y") == list(range(1, 9))
    with pytest.raises(txstore.StaleArrayError):
        old[0] = 5


def test_what_can_not_be_done(filled: txstore.Repository) -> None:
    store = filled.transaction()
    for source, destination in (("g/x", "g/x"), ("g", "g/x"), ("g", "g/z"), ("g/x", "h"), ("", "z"), ("g", "")):
        with pytest.raises(ValueError, match=r"root|inside|something"):
            store.move(source, destination)
    for source, destination in (("nothing", "z"), ("g/x/c", "z"), ("g", "no/group"), ("h", "g/x/inside")):
        with pytest.raises(txstore.NodeNotFoundError):
            store.copy(source, destination)
    with pytest.raises(txstore.NodeNotFoundError):
        store.restore("never", at=0)
    with pytest.raises(txstore.CommitNotFoundError):
        store.restore("g", at=7)
    assert store.staged_count == 0
    with pytest.raises(txstore.KeyFormatError):
        store.move("g", "z" * 4090)
        store.commit()
    store.rollback()


def test_several_processes_and_names(filled: txstore.Repository) -> None:
    with filled.transaction(name="shared") as store, pytest.raises(txstore.TransactionStateError, match="name"):
        store.move("g", "z")
    store = filled.transaction()
    store["k"] = b"1"
    pickle.dumps(store)  # others may join
    with pytest.raises(txstore.TransactionStateError, match="several processes"):
        store.move("g", "z")
    store.rollback()
    store = filled.transaction()
    store.move("g", "z")
    with pytest.raises(txstore.TransactionStateError, match="moved"):
        pickle.dumps(store)
    store.commit()
    assert read(filled, "z/x") == list(range(1, 9))


def _write(path: str, value: int = 7) -> Callable[[txstore.TxStore], None]:
    def write(store: txstore.TxStore) -> None:
        zarr.open_array(store, path=path)[0] = value

    return write


def _empty(store: txstore.TxStore, path: str) -> None:
    """Set the elements of a chunk to the fill value, which deletes it."""
    zarr.open_array(store, path=path)[2:4] = 0


@pytest.mark.parametrize(
    ("mine", "theirs", "is_conflict"),
    [
        (lambda store: store.move("g/x", "h/y"), _write("g/x"), True),
        (lambda store: store.move("g/x", "h/y"), _write("g/x", 0), True),
        (lambda store: store.move("g/x", "h/y"), lambda store: _empty(store, "g/x"), True),
        (lambda store: store.move("g", "i"), lambda store: _empty(store, "g/x"), True),
        (lambda store: store.move("g", "i"), lambda store: store.mapping.delete_dir("g/x"), True),
        (lambda store: store.move("g/x", "h/y"), lambda store: store.mapping.delete_dir("g/x"), True),
        (lambda store: store.move("g/x", "h/y"), lambda store: store.mapping.delete_dir("g"), True),
        (lambda store: store.move("g/x", "h/y"), lambda store: store.move("g", "i"), True),
        (lambda store: store.move("g", "i"), lambda store: store.move("g/x", "h/y"), True),
        (lambda store: store.mapping.delete_dir("g/x"), lambda store: store.move("g/x", "h/y"), True),
        (lambda store: store.mapping.delete_dir("g"), lambda store: store.move("g/x", "h/y"), True),
        (lambda store: store.mapping.delete_dir("g/x"), lambda store: store.move("g", "i"), True),
        (lambda store: store.shift("g/x", {0: 2}), lambda store: _empty(store, "g/x"), True),
        (lambda store: store.shift("g/x", {0: -6}), _write("g/x", 3), True),
        (lambda store: store.copy("g/x", "h/y"), lambda store: _empty(store, "g/x"), False),
        (lambda store: store.move("g/x", "h/y"), lambda store: zarr.create_group(store, path="h/y"), True),
        (lambda store: store.move("g/x", "h/y"), lambda store: store.move("g/x", "h/y"), True),
        (lambda store: store.move("g/x", "h/y"), lambda store: store.move("g/x", "h/z"), True),
        (lambda store: store.move("g/x", "h/y"), lambda store: store.mapping.delete_dir("h"), True),
        (lambda store: store.copy("g/x", "h/y"), _write("g/x"), False),
        (lambda store: store.move("g/x", "h/y"), lambda store: zarr.create_group(store, path="h/z"), False),
        (lambda store: store.restore("g", at=0), _write("g/x"), True),
    ],
)
def test_conflicts(
    filled: txstore.Repository, mine: Callable[[txstore.TxStore], None], theirs: Callable[[txstore.TxStore], None],
    is_conflict: bool,
) -> None:  # fmt: skip
    store = filled.transaction()
    mine(store)
    commit(filled, theirs)
    if is_conflict:
        with pytest.raises(txstore.ConflictError):
            store.commit()
        store.rollback()
    else:
        store.commit()
        assert read(filled, "h/y") == list(range(1, 9))


def test_maintenance_treats_the_refs_as_any_other(filled: txstore.Repository, tmp_path: Path) -> None:
    commit(filled, lambda store: store.move("g/x", "h/y"))
    filled.vacuum(keep=1)
    assert read(filled, "h/y") == list(range(1, 9))
    filled.backup(tmp_path / "copy.tx")
    copy = txstore.Repository(tmp_path / "copy.tx")
    assert read(copy, "h/y") == list(range(1, 9))
    assert copy.verify().faults == []
    filled.optimize()
    filled.vacuum(keep=1)
    assert read(filled, "h/y") == list(range(1, 9))
    assert filled.usage()


def test_where_packs_are_read_by_ranges() -> None:
    repo = txstore.Repository("memory://reflinks/data.tx", single_writer=True)
    with repo.begin() as tx:
        tx["a/zarr.json"] = GROUP
        for number in range(3000):
            tx[f"a/c/{number}"] = b"%d" % number
    set_keys(repo, {"a/c/7": b"other"})
    with txstore.Repository("memory://reflinks/data.tx", single_writer=True).begin() as tx:
        tx.nodes.move("a", "b")
        tx.nodes.take({"b/c/0": "a/c/1"}, repo.mapping(0))
        tx["b/c/2"] = b"mine"
    repo = txstore.Repository("memory://reflinks/data.tx", single_writer=True)
    wanted = {f"b/c/{number}": b"%d" % number for number in range(3000)}
    wanted |= {"b/zarr.json": GROUP, "b/c/7": b"other", "b/c/0": b"1", "b/c/2": b"mine"}
    assert dict(repo.mapping()) == wanted
    assert [change.key for change in changed(repo.mapping(1), repo.mapping())] == sorted(
        [*wanted, *(key.replace("b/", "a/", 1) for key in wanted)]
    )
    assert repo.verify().faults == []


_MOVING = """
import sys, txstore
repo = txstore.Repository(sys.argv[1])
while True:
    for source, destination in (("g/x", "h/y"), ("h/y", "g/x")):
        with repo.begin() as tx:
            tx.nodes.move(source, destination)
"""


@pytest.mark.long
@pytest.mark.parametrize("commits", [1, 4, 9])
def test_killed_while_it_moves(filled: txstore.Repository, commits: int) -> None:
    """The array is in one of the two places, whole."""
    killed_after(commits, filled, _MOVING)
    there = [path for path in ("g/x", "h/y") if filled.mapping().has_keys_below(path)]
    assert len(there) == 1
    assert read(filled, there[0]) == list(range(1, 9))
    with filled.begin() as tx:
        tx.nodes.move(there[0], "after")
    assert read(filled, "after") == list(range(1, 9))


def test_the_groups_above_what_is_restored_are_there_again(repo: txstore.Repository) -> None:
    with repo.transaction("there") as store:
        root = zarr.open_group(store, attributes={"title": "all"})
        root.create_group("g", attributes={"title": "some"}).create_array("x", data=np.arange(3))
        root.create_array("g/y", data=np.arange(4))
    commit(repo, lambda store: store.delete_dir_sync(""), message="gone")
    commit(repo, lambda store: store.restore("g/x", at=0), message="back")
    root = zarr.open_group(repo.snapshot(), mode="r")
    assert root.attrs["title"] == "all"
    assert root["g"].attrs["title"] == "some"
    assert [path for path, _ in root.members(max_depth=None)] == ["g", "g/x"]


def test_a_tagged_commit_below_the_oldest_kept_is_restored_from(filled: txstore.Repository) -> None:
    filled.tags["v1"] = 0
    commit(filled, lambda store: store.mapping.delete_dir("g"))
    filled.vacuum(keep=1)
    commit(filled, lambda store: store.restore("g", at="v1"))
    del filled.tags["v1"]
    filled.vacuum(keep=1)
    assert read(filled, "g/x") == list(range(1, 9))


def test_constraints_see_what_was_moved(filled: txstore.Repository) -> None:
    filled.constraints["there"] = txstore.constraints.OnlyGrows("g/x")
    store = filled.transaction()
    store.move("g/x", "h/y")
    with pytest.raises(txstore.ConstraintError):
        store.commit()
    store.move("h/y", "g/x")
    store.rollback()


@pytest.mark.parametrize("seed", range(25))
def test_single_keys_that_are_taken(repo: txstore.Repository, seed: int) -> None:
    source = Random(seed)
    keys = [f"g/c/{n}" for n in range(6)]
    with repo.begin() as tx:
        tx["g/zarr.json"] = GROUP
        for key in keys[:4]:
            tx[key] = key.encode()
    first = repo.mapping()
    with repo.begin() as tx:
        tx[keys[0]] = b"changed"
        del tx[keys[1]]
    now = dict(repo.mapping())
    tx = repo.begin()
    for _ in range(source.randrange(1, 8)):
        what, key, name = source.random(), source.choice(keys), source.choice(keys[:4])
        if what < 0.5:
            tx.nodes.take({key: name}, first)
            now[key] = first[name]
        elif what < 0.7:
            tx[key] = now[key] = b"written"
        elif what < 0.8:
            tx.delete(key)
            now.pop(key, None)
        elif what < 0.9 and not below(now, "h"):
            tx.nodes.move("g", "h")
            now = {"h" + key[1:]: value for key, value in now.items()}
            break
        else:
            tx.delete_dir("g/c")
            now = {key: value for key, value in now.items() if "/c/" not in key}
        assert dict(tx) == now
        assert list(tx) == sorted(now)
    assert dict(tx) == now
    tx.commit()
    assert dict(repo.mapping()) == now


def test_a_key_that_is_taken_conflicts_as_one_that_is_written(repo: txstore.Repository) -> None:
    with repo.begin() as tx:
        tx["a"] = tx["b"] = b"1"
    first = repo.mapping()
    mine, other = repo.begin(), repo.begin()
    mine.nodes.take({"a": "b", "new": "b"}, first)
    other["a"] = b"2"
    other.commit()
    with pytest.raises(txstore.ConflictError) as caught:
        mine.commit()
    assert caught.value.keys == ("a",)
    mine.rollback()


def test_serializable(filled: txstore.Repository) -> None:
    store = filled.transaction(isolation="serializable")
    store.copy("g/x", "h/y")
    write_array(filled, "g/x", 0, 7)
    with pytest.raises(txstore.ConflictError):
        store.commit()
    store.rollback()
