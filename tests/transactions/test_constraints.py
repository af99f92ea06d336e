"""I11: a commit that would break a constraint is refused, whoever makes it, and on whatever head."""

import pickle
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.arrays import (
    HAS_RECTILINEAR,
    Step,
    append,
    array,
    attributes,
    both,
    commit,
    commit_often,
    create,
    delete,
    edit_document,
    group,
    put,
    resize,
    values,
)
from tests.tools.steps import forked, status_of
from txstore import ConflictError, ConstraintError, TransactionStateError
from txstore.constraints import Complete, Constraint, EqualLength, Fixed, Frozen, OnlyGrows, RequiredAttributes
from txstore.errors import NodeNotFoundError, UnsupportedFormatError
from txstore.format import commitfile
from txstore.history.new_commit import NewCommit

ALIGNED = EqualLength(["x", "y"])
XY = both(create("x"), create("y"))


class Case(NamedTuple):
    name: str
    before: Step
    constraint: Constraint
    step: Step
    broken: tuple[str, str] | None = None  # where, and what the reason says


def full(path: str = "x", n: int = 8, **options: Any) -> Step:
    return create(path, n, config={"write_empty_chunks": True}, **options)


def without(key: str) -> Step:
    return lambda store: store.__delitem__(key)


def clear(path: str) -> Step:
    return lambda store: store.mapping.delete_dir(path)


#: One for each reason that an error tells, and what the model has no steps for: `test_constraint_model.py`.
CASES = (
    Case("lengths: one grows", XY, ALIGNED, append(1), ("y", "first dimension is 8, and that of 'x' 9")),
    Case("lengths: one goes", XY, ALIGNED, delete("y"), ("y", "there is no array")),
    Case("lengths: a group above goes", both(create("g/x"), create("g/y")), EqualLength(["g/x", "g/y"]), delete("g"),
         ("g/x", "there is no array")),
    Case("lengths: a group in its place", XY, ALIGNED, both(delete("x"), group("x")), ("x", "it is no array: group")),
    Case("lengths: a scalar in its place", XY, ALIGNED,
         both(delete("x"), lambda store: zarr.create_array(store, name="x", shape=(), dtype="i4")),
         ("x", "the array is a scalar")),
    Case("fixed: dtype", create(), Fixed("x"),
         lambda store: zarr.create_array(store, name="x", shape=8, chunks=4, dtype="f8", overwrite=True),
         ("x", "its dtype would be")),
    Case("fixed: chunks", create(), Fixed("x"), create(chunks=3, overwrite=True), ("x", "its chunks would be")),
    Case("fixed: codecs", create(), Fixed("x"), create(compressors=None, overwrite=True), ("x", "its codecs would be")),
    Case("fixed: codecs, but not these", create(), Fixed("x", ["dtype", "chunks"]),
         create(compressors=None, overwrite=True)),
    Case("attributes: another value", both(create(), attributes(units="m")), RequiredAttributes("x", ["units"]),
         attributes(units="km")),
    Case("attributes: another value than must be", both(create(), attributes(units="m")),
         RequiredAttributes("x", {"units": "m"}), attributes(units="km"),
         ("x", "attribute 'units' would be \"km\", and must be \"m\"")),
    Case("attributes: one goes", both(create(), attributes(units="m")), RequiredAttributes("x", ["units"]),
         lambda store: array(store).attrs.__delitem__("units"), ("x", "attribute 'units' is missing")),
    Case("attributes: of a group", group("", source="here"), RequiredAttributes("", ["source"]),
         lambda store: zarr.open_group(store).attrs.clear(), ("", "attribute 'source' is missing")),
    Case("attributes: its group goes", group("g", source="here"), RequiredAttributes("g", ["source"]), delete("g"),
         ("g", "there is no array or group")),
    Case("grows: it shrinks", create(), OnlyGrows("x"), resize(4), ("x", "its shape would go from (8,) to (4,)")),
    Case("grows: made anew", create(), OnlyGrows("x"), create(n=20, overwrite=True), ("x", "deleted and made anew")),
    Case("grows: another number of dimensions", create(), OnlyGrows("x"), edit_document("x/zarr.json", shape=[9, 9]),
         ("x", "its shape would go from (8,) to (9, 9)")),
    Case("complete: grown, not written", full(), Complete("x"), resize(13), ("x/c/2", "the chunk is not stored")),
    Case("complete: another grid", full(), Complete("x"),
         edit_document("x/zarr.json", chunk_grid={"name": "regular", "configuration": {"chunk_shape": [2]}}),
         ("x/c/2", "the chunk is not stored")),
    Case("complete: a scalar",
         lambda store: zarr.create_array(store, name="x", data=np.int32(3)), Complete("x"), without("x/c"),
         ("x/c", "the chunk is not stored")),
    Case("complete: what is no chunk goes", both(full(), lambda store: store.__setitem__("x/0", b"1")), Complete("x"),
         without("x/0")),
    Case("complete: so many that only the first is looked for", full(), Complete("x"), resize(4 << 40),
         ("x/c/2", "the chunk is not stored")),
    Case("grows: in the other format", create(zarr_format=2), OnlyGrows("x"),
         both(without("x/.zarray"), without("x/.zattrs"), create()), ("x", "deleted and made anew")),
    Case("attributes: NaN", both(create(), attributes(missing=float("nan"))),
         RequiredAttributes("x", {"missing": float("nan")}), append(1)),
    Case("fixed: a document in other words than zarr's",
         both(create(), edit_document("x/zarr.json", codecs=[{"name": "bytes", "configuration": {"endian": "little"}},
                                                             {"name": "zstd", "configuration": {"level": 3}}])),
         Fixed("x"), append(1)),
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@pytest.mark.parametrize("others", ["nobody", "somebody"])
def test_what_is_broken_is_refused_and_what_is_not_is_not(repo, case, others):
    commit(repo, case.before)
    repo.constraints["it"] = case.constraint
    before = repo.head()
    store = repo.transaction("a step")
    case.step(store)
    staged = store.changes()
    if others == "somebody":  # so that the head is not the base
        commit(repo, lambda store: store.__setitem__("elsewhere/c/0", b"1"))
        before = repo.head()
    if case.broken is None:
        store.commit()
        assert repo.head().message == "a step"
        return
    with pytest.raises(ConstraintError) as caught:
        store.commit()
    where, reason = case.broken
    assert caught.value.violations[0].constraint == "it"
    assert caught.value.violations[0].where == where
    assert reason in caught.value.violations[0].reason
    assert repo.head() == before, "something was published"
    assert store.changes() == staged, "something that was staged is gone"
    store.rollback()


#: What a frozen part refuses, and what it does not; the group `g` has the array `x`, and `y` lies beside it.
FROZEN = {
    "a value": (put(0, 5, path="g/x"), "g/x/c/0"),
    "an attribute": (attributes(path="g/x", a=1), "g/x/zarr.json"),
    "an array more": (create("g/z"), "g/z/c/0"),
    "an array less": (delete("g/x"), "g"),
    "the group goes": (delete("g"), "g"),
    "all goes": (clear(""), "g"),
    "moved away": (lambda store: store.move("g/x", "x"), "g"),
    "moved into it": (lambda store: store.move("y", "g/y"), "g"),
    "the value that is there": (put(0, 1, path="g/x"), None),
    "beside it": (both(put(0, 5, path="y"), create("h")), None),
}


@pytest.mark.parametrize("what", FROZEN)
@pytest.mark.parametrize("others", ["nobody", "somebody"])
def test_what_is_frozen(repo, what, others):
    step, where = FROZEN[what]
    with repo.transaction() as store:
        zarr.open_group(store)
        both(full("g/x"), create("y"))(store)
        store.constraints["g"] = Frozen("published", "g")
    before = repo.head()
    store = repo.transaction("a step")
    step(store)
    if others == "somebody" and what != "all goes":  # which is a conflict
        commit(repo, create("theirs"))
        before = repo.head()
    if where is None:
        store.commit()
        return
    with pytest.raises(txstore.ConstraintError, match="it is frozen: published") as caught:
        store.commit()
    assert [(name, found) for name, found, _ in caught.value.violations] == [("g", where)]
    assert repo.head() == before
    store.rollback()


def test_a_frozen_repository(repo, tmp_path):
    for n in range(8):
        commit(repo, create(f"x{n}"))
    repo.branches["dev"] = 5
    commit(repo, create("y"))
    repo.freeze("doi:10.5281/zenodo.1234")
    repo.freeze("doi:10.5281/zenodo.1234")  # again is no commit
    assert [repo.log(branch)[0].message for branch in ("main", "dev")] == ["constraint 'frozen' declared"] * 2
    assert [repo.log(branch)[1].message for branch in ("main", "dev")] != ["constraint 'frozen' declared"] * 2
    repo.branches["later"], repo.branches["earlier"] = repo.head(), repo.head().version - 1
    for branch in ("main", "dev", "later"):
        with pytest.raises(txstore.ConstraintError, match=r"doi:10\.5281"):
            commit(repo, create("z"), branch=branch)
    commit(repo, create("z"), branch="earlier")
    with pytest.raises(txstore.ConstraintError):
        repo.merge("earlier")
    with pytest.raises(txstore.ConstraintError):
        repo.revert(repo.head().version - 1)
    with pytest.raises(txstore.ConstraintError):
        repo.erase("y")
    assert "y" in dict(zarr.open_group(repo.snapshot(), mode="r").members())
    repo.optimize()
    repo.vacuum()
    repo.backup(tmp_path / "copy.tx")
    repo.tags["v1"] = -1
    repo.unfreeze(branch="dev")
    commit(repo, create("z"), branch="dev")
    repo.unfreeze()
    commit(repo, create("z"))
    for wrong in ("", None, 7):
        with pytest.raises(TypeError, match="say why"):
            repo.freeze(wrong)


@pytest.mark.skipif(not HAS_RECTILINEAR, reason="this zarr has no rectilinear grids")
def test_chunks_of_different_sizes(repo):
    with zarr.config.set({"array.rectilinear_chunks": True}), repo.transaction() as store:
        options = {"chunks": ((1, 4, 3),), "config": {"write_empty_chunks": True}}
        zarr.create_array(store, name="x", shape=(8,), dtype="i4", **options)[:] = 0
        store.constraints["whole"] = Complete("x")
    with zarr.config.set({"array.rectilinear_chunks": True}):
        commit(repo, put(0, 3), attributes(a=1))
        with pytest.raises(ConstraintError, match="x/c/1"):
            commit(repo, without("x/c/1"))
        with pytest.raises(ConstraintError, match="x/c/3"):
            commit(repo, resize(12))


# --- declared and dropped
def test_declared_with_the_arrays_dropped_and_declared_anew(repo):
    with repo.transaction() as store:
        XY(store)
        store.constraints["aligned"] = ALIGNED
        assert dict(store.constraints) == {"aligned": ALIGNED}
        assert store.changes()["constraints"] == ["aligned"]
    assert dict(repo.constraints) == dict(repo.snapshot().constraints) == {"aligned": ALIGNED}
    del repo.constraints["aligned"]
    assert not repo.constraints
    assert repo.head().message == "constraint 'aligned' dropped"
    assert dict(repo.snapshot(at=0).constraints) == {"aligned": ALIGNED}
    commit(repo, append(1))
    with pytest.raises(ConstraintError):
        repo.constraints["aligned"] = ALIGNED
    commit(repo, append(1, path="y"))
    repo.constraints["aligned"] = ALIGNED
    with pytest.raises(ConstraintError):
        commit(repo, append(1))


def test_what_holds_in_one_commit_need_not_hold_within_it(repo):
    with repo.transaction() as store:
        store.constraints["aligned"] = ALIGNED
        create("x", 3)(store)
        create("y", 3)(store)
        store.constraints["whole"] = Complete("x")
    assert sorted(repo.constraints) == ["aligned", "whole"]


def test_a_refused_commit_can_be_mended(repo):
    commit(repo, XY)
    repo.constraints["aligned"] = ALIGNED
    with repo.transaction() as store:
        append(1)(store)
        with pytest.raises(ConstraintError):
            store.commit()
        append(1, path="y")(store)
    assert values(repo, "x") == values(repo, "y") == [1] * 9


def test_all_that_is_broken_is_named(repo):
    commit(repo, both(full("x", 40), create("y", 40)))
    repo.constraints["aligned"] = ALIGNED
    repo.constraints["whole"] = Complete("x")
    with pytest.raises(ConstraintError) as caught:
        commit(repo, clear("x/c"), append(1, path="y"))
    assert [name for name, *_ in caught.value.violations] == ["aligned"] + ["whole"] * 10
    assert "aligned: 'y': its first dimension is 41" in str(caught.value)
    assert "and 6 more" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_what_is_handed_out_is_a_copy(repo):
    commit(repo, create(), attributes(units=["K"]))
    repo.constraints["units"] = RequiredAttributes("x", {"units": ["K"]})
    kept = repo.snapshot()
    store = repo.transaction()
    for handle in (store, kept, repo):
        handle.constraints["units"].attributes["units"][0] = "m"
    attributes(units=["m"])(store)
    with pytest.raises(ConstraintError):
        store.commit()
    store.rollback()
    edited = repo.constraints["units"]
    edited.attributes["units"][0] = "m"
    with pytest.raises(ConstraintError):
        repo.constraints["units"] = edited
    assert repo.constraints["units"] == RequiredAttributes("x", {"units": ["K"]})


def test_what_every_writer_can_not_check_is_not_declared(repo):
    class Mine(OnlyGrows):
        kind = "mine"

    class Same(OnlyGrows):
        """Would be another one when it is read."""

    commit(repo, create())
    for wrong in (Mine("x"), Same("x")):
        with pytest.raises(TypeError, match="every writer"):
            repo.constraints["a"] = wrong
    for values_ in ({}, {"foo": 1}, {"dtype": "int32"}):
        with pytest.raises(ValueError, match="values is a dict"):
            Fixed("x", values=values_)
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises((ValueError, RecursionError)):
        repo.constraints["a"] = RequiredAttributes("x", {"a": nested})
    assert not repo.constraints


def test_what_changes_nothing_is_no_commit(repo):
    commit(repo, XY)
    repo.constraints["aligned"] = ALIGNED
    repo.constraints["aligned"] = EqualLength(["x", "y"])
    with repo.transaction() as store:
        store.constraints["a"] = OnlyGrows("x")
        del store.constraints["a"]
    assert repo.head().version == 1


def test_dropped_and_broken_in_one_commit(repo):
    commit(repo, XY)
    repo.constraints["aligned"] = ALIGNED
    with repo.transaction() as store:
        append(1)(store)
        del store.constraints["aligned"]
    assert values(repo) == [1] * 9


def test_rolled_back_it_is_not_declared(repo):
    commit(repo, XY)
    with pytest.raises(RuntimeError), repo.transaction() as store:
        store.constraints["aligned"] = ALIGNED
        raise RuntimeError
    assert not repo.constraints
    store = repo.transaction()
    store.constraints["aligned"] = ALIGNED
    with pytest.warns(txstore.UncommittedChangesWarning, match="1 staged"):
        del store


@pytest.mark.parametrize("name", ["", "a/b", ".a", 3])
def test_names_that_are_none(repo, name):
    commit(repo, XY)
    with pytest.raises(ValueError, match="constraint"):
        repo.constraints[name] = ALIGNED


def test_bad_declarations(repo):
    commit(repo, XY)
    for wrong in (
        lambda: EqualLength("xy"), lambda: EqualLength(["x", 3]), lambda: EqualLength(3), lambda: OnlyGrows(3),
        lambda: RequiredAttributes("x", "units"), lambda: repo.constraints.__setitem__("a", "x"),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            wrong()
    for wrong in (
        lambda: EqualLength(["x"]), lambda: EqualLength(["x", "/x/"]), lambda: Fixed("x", ["shape"]),
        lambda: Fixed("x", []), lambda: RequiredAttributes("x", []), lambda: OnlyGrows("a//b"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"give|can't be fixed|empty segment"):
            wrong()
    with pytest.raises(NodeNotFoundError):
        repo.constraints["a"] = Fixed("nothing")
    with pytest.raises(ConstraintError, match="there is no array"):
        repo.constraints["a"] = OnlyGrows("nothing")
    with pytest.raises(KeyError):
        del repo.constraints["a"]
    with pytest.raises(ValueError, match="read-only"):
        repo.snapshot().constraints["a"] = ALIGNED
    with pytest.raises(ValueError, match="every commit stores them"):
        repo.constraints["a"] = RequiredAttributes("x", {"a": "a" * (1 << 16)})
    with pytest.raises(TypeError):
        repo.constraints["a"] = RequiredAttributes("x", {"a": object()})
    assert not repo.constraints
    commit(repo, append(1))


def test_no_repository(repo):
    with pytest.raises(txstore.RepositoryNotFoundError):
        len(repo.constraints)
    with pytest.raises(txstore.RepositoryNotFoundError):
        repo.constraints["a"] = ALIGNED


# --- several writers
@pytest.mark.parametrize("first", ["the constraint", "the growth"])
def test_one_declares_it_while_another_breaks_it(repo, first):
    commit(repo, XY)
    declaring, growing = repo.transaction(), repo.transaction()
    declaring.constraints["aligned"] = ALIGNED
    append(1)(growing)
    one, other = (declaring, growing) if first == "the constraint" else (growing, declaring)
    one.commit()
    with pytest.raises(ConstraintError):
        other.commit()
    other.rollback()


def test_another_commits_between_the_look_and_the_version(repo, monkeypatch):
    commit(repo, XY)
    prepare = NewCommit.prepare

    def overtaken(new: NewCommit, head: Any) -> None:
        monkeypatch.undo()
        commit(repo, append(1))
        prepare(new, head)

    monkeypatch.setattr(NewCommit, "prepare", overtaken)
    with pytest.raises(ConstraintError):
        repo.constraints["aligned"] = ALIGNED
    assert values(repo) == [1] * 9
    assert not repo.constraints


def test_two_declare_the_same_name(repo):
    commit(repo, XY)
    one, other, third = repo.transaction(), repo.transaction(), repo.transaction()
    one.constraints["a"] = ALIGNED
    other.constraints["a"] = OnlyGrows("x")
    third.constraints["b"] = OnlyGrows("x")
    one.commit()
    with pytest.raises(ConflictError, match="'a'"):
        other.commit()
    third.commit()
    assert dict(repo.constraints) == {"a": ALIGNED, "b": OnlyGrows("x")}
    other.rollback()


def test_a_key_that_is_staged_as_it_was_is_the_heads(repo):
    """Its staged document is the base's, and left out: what counts is what another has made of it since."""
    commit(repo, XY)
    repo.constraints["aligned"] = ALIGNED
    store = repo.transaction()
    store["x/zarr.json"] = store["x/zarr.json"]
    commit(repo, append(1), append(1, path="y"))
    store["other/c/0"] = b"1"
    store.commit()
    assert len(values(repo, "x")) == len(values(repo, "y")) == 9


def test_participants_and_names(repo):
    commit(repo, XY)
    repo.constraints["aligned"] = ALIGNED
    with repo.transaction(name="job") as store:
        append(1)(store)
        with pytest.raises(TransactionStateError, match="without a name"):
            store.constraints["a"] = OnlyGrows("x")
        with pytest.raises(ConstraintError):
            store.commit()
        store.rollback()


def test_a_child_declares_nothing_and_breaks_nothing(repo):
    commit(repo, XY)
    repo.constraints["aligned"] = ALIGNED
    with repo.transaction() as store:
        append(1)(store)

        def work() -> None:
            with pytest.raises(TransactionStateError, match="began it"):
                store.constraints["a"] = OnlyGrows("x")
            append(1, path="y")(store)
            store.mapping.lifecycle.seal()

        with forked(work) as child:
            assert status_of(child) == 0
    assert len(values(repo, "y")) == 9


def test_arrays_whose_every_write_is_a_commit(repo):
    commit(repo, XY)
    repo.constraints["aligned"] = ALIGNED
    z = txstore.synchronized(repo, "x")
    z[0] = 5
    with pytest.raises(ConstraintError):
        z.append(np.array([1], "i4"))
    assert values(repo) == [5] + [1] * 7


# --- what is done to repositories
def test_maintenance_keeps_them(repo, tmp_path):
    commit(repo, XY)
    repo.constraints["aligned"] = ALIGNED
    commit_often(repo)
    repo.optimize()
    repo.vacuum(keep=1)
    repo.backup(tmp_path / "copy.tx")
    for where in (repo, txstore.Repository(tmp_path / "copy.tx"), pickle.loads(pickle.dumps(repo))):
        assert dict(where.constraints) == {"aligned": ALIGNED}
        with pytest.raises(ConstraintError):
            commit(where, append(1))
    assert not repo.verify().faults


def test_who_does_not_know_constraints_can_read_and_not_write(repo, monkeypatch):
    commit(repo, XY)
    repo.constraints["aligned"] = ALIGNED
    with monkeypatch.context() as older:
        older.setattr(commitfile, "REQUIRED_FEATURES_KNOWN", commitfile.FEATURE_FOREIGN)
        other = txstore.Repository(repo.url)
        assert values(other) == [1] * 8
        with pytest.raises(UnsupportedFormatError, match="required feature 32, which whoever commits has to keep"):
            commit(other, put(0, 2))
    assert values(repo) == [1] * 8


def test_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs/how-to/constraints.md").read_text(encoding="utf-8")
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)), {})
    assert capsys.readouterr().out == "aligned label its first dimension is 0, and that of 'image' 5\n"
