"""What one side has moved and the other has changed: the changes follow."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import txstore
from tests.merging.sides import Merged, merged
from tests.merging.test_repository import commit, values
from tests.merging.test_three_way import BASE, Step, all_of, append, attributes, create, delete, put, root
from txstore.format.keys import is_document, node_of_document
from txstore.history.changes import ref_of

Merge = Callable[..., Merged]


def move(source: str, to: str) -> Step:
    return lambda store: store.move(source, to)


def group(path: str) -> Step:
    return lambda store: zarr.create_group(store, path=path)


def tree(store: txstore.TxStore) -> None:
    all_of(root, group("g"), create(path="g/x"), create(path="g/y"), group("h"))(store)


@pytest.fixture(params=["ours", "theirs"])
def merge(request: Any, tmp_path: Any) -> Merge:
    """Return what merges what the mover has made and what the other has, one of them being ours."""

    def found(base: Step, mover: Step, other: Step, resolve: Any = None, **options: Any) -> Merged:
        sides = (mover, other) if request.param == "ours" else (other, mover)
        answers = None
        if resolve is not None:
            answer = {"mover": request.param, "other": "theirs" if request.param == "ours" else "ours"}
            answers = {path: answer[who] for path, who in resolve.items()}
        return merged(tmp_path, base, *sides, answers, **options)

    return found


def orphans(found: Merged) -> list[str]:
    """Return keys without the group, or array, that they belong to."""
    nodes = {
        node_of_document(key): json.loads(found.content[key])["node_type"] for key in found.content if is_document(key)
    }
    above = {path: path.rpartition("/")[0] for path in nodes if path}
    return [path for path, parent in above.items() if nodes.get(parent) != "group"] + [
        key for key in found.content if not is_document(key) and key.partition("/c/")[0] not in nodes
    ]


def conflicts(found: Merged) -> list[tuple[str, str]]:
    return [(each.kind, each.path) for each in found.plan.conflicts]


def test_chunks_follow(merge: Merge) -> None:
    found = merge(BASE, move("x", "y"), put(0, 10))
    assert conflicts(found) == []
    assert found.values("y") == [10, *range(1, 8)]
    assert not [key for key in found.content if key.startswith("x/")]
    assert found.plan.values == {}  # by reference


def test_a_group_with_what_is_new_and_deleted_below(merge: Merge) -> None:
    other = all_of(create(path="g/new"), delete("g/y"), put(0, 10, "g/x"), attributes("g", title="t"))
    found = merge(tree, move("g", "h/g"), other)
    assert conflicts(found) == []
    assert found.values("h/g/x") == [10, *range(1, 8)]
    assert found.values("h/g/new") == [*range(8)]
    assert not [key for key in found.content if key.startswith(("g/", "h/g/y"))]
    assert b'"title"' in found.content["h/g/zarr.json"]


def test_both_have_changed_what_one_has_moved(merge: Merge) -> None:
    found = merge(BASE, all_of(put(1, 11), move("x", "y")), put(0, 10))
    assert found.values("y") == [10, 11, *range(2, 8)]
    found = merge(BASE, all_of(put(0, 11), move("x", "y")), put(0, 10))
    assert conflicts(found) == [("elements", "y")]


def test_the_document_was_changed_too(merge: Merge) -> None:
    """Then the chunks say that it was moved."""
    found = merge(BASE, all_of(attributes(units="K"), move("x", "y")), all_of(put(0, 10), attributes(title="t")))
    assert conflicts(found) == []
    assert found.values("y") == [10, *range(1, 8)]
    assert dict(found.array("y").attrs) == {"units": "K", "title": "t"}


def test_everything_was_changed_too(merge: Merge) -> None:
    """Nothing says that it was moved."""
    found = merge(BASE, all_of(attributes(units="K"), put(slice(None), 1), move("x", "y")), put(0, 10))
    assert conflicts(found) == [("deleted", "x")]


def test_both_have_moved_it_to_different_places(merge: Merge) -> None:
    sides = all_of(move("x", "y"), put(0, 10, "y")), all_of(move("x", "z"), put(1, 11, "z"))
    found = merge(BASE, *sides)
    (conflict,) = found.plan.conflicts
    assert (conflict.kind, conflict.path, set(conflict.fields)) == ("moved", "x", {"y", "z"})
    assert "y" in str(conflict)
    assert conflict.ours() == conflict.theirs() == conflict.base()
    for answer, path in (("mover", "y"), ("other", "z")):
        answered = merge(BASE, *sides, {"x": answer})
        assert answered.values(path) == [10, 11, *range(2, 8)]
        assert {key.partition("/")[0] for key in answered.content} == {"zarr.json", path}


def test_moved_and_deleted(merge: Merge) -> None:
    sides = all_of(move("x", "y")), delete()
    assert conflicts(merge(BASE, *sides)) == [("deleted", "y")]
    assert merge(BASE, *sides, {"y": "mover"}).values("y") == [*range(8)]
    assert list(merge(BASE, *sides, {"y": "other"}).content) == ["zarr.json"]


def test_moved_onto_what_the_other_has_made(merge: Merge) -> None:
    sides = move("x", "y"), create(4, "y")
    assert conflicts(merge(BASE, *sides)) == [("moved", "y")]
    assert merge(BASE, *sides, {"y": "mover"}).values("y") == [*range(8)]
    assert merge(BASE, *sides, {"y": "other"}).values("y") == [*range(4)]
    assert ("deleted", "x") in conflicts(merge(BASE, move("x", "y"), all_of(create(4, "y"), put(0, 1))))


def test_moved_into_a_group_that_was_deleted(merge: Merge) -> None:
    assert ("deleted", "h") in conflicts(merge(tree, move("g", "h/g"), delete("h")))


def test_a_group_whose_attributes_were_changed_too(merge: Merge) -> None:
    """Then the nodes below it say that it was moved."""
    found = merge(tree, all_of(attributes("g", title="t"), move("g", "k")), create(path="g/new"))
    assert conflicts(found) == []
    assert found.values("k/new") == [*range(8)]


def test_something_is_again_where_it_was(merge: Merge) -> None:
    """Then it is what lies there that the other has changed."""
    again = all_of(move("x", "y"), create(4))
    found = merge(BASE, again, put(0, 10))
    assert (conflicts(found), found.values(), found.values("y")) == ([], [10, 1, 2, 3], [*range(8)])
    found = merge(tree, all_of(move("g", "k"), group("g")), put(0, 10, "g/x"))
    assert (conflicts(found), found.values("k/x")[0]) == ([], 10)  # of what was below, each by itself


def test_many_that_are_moved_one_by_one(tmp_path: Any) -> None:
    """What follows is found in about linear time."""
    names = [f"a{number}" for number in range(40)]
    base = all_of(root, group("g"), *(group(name) for name in names))
    moves = all_of(*(move(name, f"g/{name}") for name in names))
    found = merged(tmp_path, base, moves, all_of(*(attributes(name, a=1) for name in names)))
    assert (conflicts(found), len(found.plan.taken), orphans(found)) == ([], 40, [])


def test_what_was_copied_is_not_moved(merge: Merge) -> None:
    def copied(store: txstore.TxStore) -> None:
        store.copy("x", "y")

    found = merge(BASE, copied, put(0, 10))
    assert (found.values("x")[0], found.values("y")[0]) == (10, 0)
    twice = all_of(copied, move("x", "z"))
    assert conflicts(merge(BASE, twice, put(0, 10))) == [("deleted", "x")]


def test_format_2(merge: Merge) -> None:
    base = all_of(lambda store: zarr.create_group(store, zarr_format=2), create(zarr_format=2))
    found = merge(base, move("x", "y"), all_of(put(0, 10), attributes(a=1)))
    assert found.values("y")[0] == 10
    assert dict(found.array("y").attrs) == {"a": 1}


# --- in repositories
@pytest.fixture
def repo(tmp_path: Any) -> txstore.Repository:
    repo = txstore.Repository(tmp_path / "data.tx", durability="none")
    commit(repo, tree)
    repo.branches["dev"] = repo.head()
    return repo


@pytest.mark.parametrize("mover", ["main", "dev"])
def test_merge(repo: txstore.Repository, mover: str) -> None:
    other = "dev" if mover == "main" else "main"
    commit(repo, group("new"), branch=mover)
    commit(repo, move("g", "new/g"), branch=mover)
    commit(repo, put(0, 10, "g/x"), append([8], "g/y"), create(path="g/z"), branch=other)
    repo.merge("dev")
    assert (values(repo, "new/g/x")[0], len(values(repo, "new/g/y")), len(values(repo, "new/g/z"))) == (10, 9, 8)
    assert not repo.mapping().has_keys_below("g")
    assert repo.verify().faults == []
    commit(repo, put(1, 11, "g/x" if mover == "main" else "new/g/x"), branch="dev")
    repo.merge("dev")
    assert values(repo, "new/g/x")[:2] == [10, 11]
    repo.merge("main", branch="dev")
    assert dict(repo.mapping()) == dict(repo.mapping(branch="dev"))
    repo.vacuum(keep=1)
    assert values(repo, "new/g/y") == [*range(9)]
    assert repo.verify().faults == []


def test_cherry_pick_and_revert(repo: txstore.Repository) -> None:
    moved = commit(repo, move("g", "h/g"), branch="dev")
    commit(repo, put(0, 10, "g/x"))
    repo.cherry_pick(moved)
    assert values(repo, "h/g/x")[0] == 10
    commit(repo, put(1, 11, "h/g/x"))
    repo.revert(moved)
    assert values(repo, "g/x")[:2] == [10, 11]
    assert not repo.mapping().has_keys_below("h/g")
    assert repo.verify().faults == []


def test_no_value_is_copied(repo: txstore.Repository) -> None:
    commit(repo, move("g", "h/g"), branch="dev")
    commit(repo, put(0, 10, "g/x"))
    plan = repo.merge("dev", dry_run=True)
    assert (plan.moved, plan.taken, plan.values) == ({"g": "h/g"}, {}, {})
    assert plan.as_dict()["moved"] == {"g": "h/g"}
    assert str(plan) == "1 moved"
    repo.merge("dev")
    was, is_now = ref_of(repo.mapping(at=0), "g/y/c/0"), ref_of(repo.mapping(), "h/g/y/c/0")
    assert (was.pack, was.offset) == (is_now.pack, is_now.offset)


@pytest.mark.parametrize("mover", ["main", "dev"])
def test_what_was_erased_is_not_brought_back(repo: txstore.Repository, mover: str) -> None:
    commit(repo, move("g", "h/g"), branch=mover)
    commit(repo, put(0, 10, "g/x"), put(0, 20, "g/y"), branch="dev" if mover == "main" else "main")
    repo.erase("g/x", "h/g/x")
    repo.merge("dev")
    assert values(repo, "h/g/y")[0] == 20
    assert [*repo.mapping().keys_below("h/g/x"), *repo.mapping().keys_below("g")] == []
    assert repo.verify().ok


def test_a_commit_that_merges_does_not_follow(repo: txstore.Repository) -> None:
    """To it, a move is a deletion and a creation: it is told, and nothing is lost."""
    for mine, others in ((put(0, 10, "g/x"), move("g", "h/g")), (move("h/g", "g"), put(0, 11, "h/g/x"))):
        transaction = repo.transaction(on_conflict="merge")
        mine(transaction)
        commit(repo, others)
        with pytest.raises(txstore.ConflictError):
            transaction.commit()
        transaction.rollback()
    assert values(repo, "h/g/x")[0] == 11


NAMES = ("g", "k", "h/g", "h/k")


@settings(max_examples=12)
@given(
    to=st.sampled_from(NAMES),
    child=st.sampled_from(("x", "z")),
    writes=st.lists(st.tuples(st.sampled_from("xy"), st.integers(0, 7), st.integers(1, 99)), max_size=4),
    own=st.lists(st.tuples(st.sampled_from("xy"), st.integers(0, 7), st.integers(1, 99)), max_size=4),
    is_ours=st.booleans(),
)
def test_a_merge_with_a_move_is_the_merge_without_and_the_move(tmp_path_factory, to, child, writes, own, is_ours):
    def changes(prefix: str, made: Any) -> Step:
        return all_of(*(put(at, value, f"{prefix}/{name}") for name, at, value in made))

    def moves(store: txstore.TxStore) -> None:
        if child != "x":
            store.move("g/x", f"g/{child}")
        if to != "g":
            store.move("g", to)

    there = changes("g", writes)
    directory = tmp_path_factory.mktemp("moves")
    results = []
    for here in (all_of(changes("g", own), moves), changes("g", own)):
        sides = (here, there) if is_ours else (there, here)
        results.append(merged(directory, tree, *sides))
    with_move, without = results
    assert bool(with_move.plan.conflicts) == bool(without.plan.conflicts)
    if not without.plan.conflicts:
        for was, name in (("x", child), ("y", "y")):
            assert with_move.values(f"{to}/{name}") == without.values(f"g/{was}")
