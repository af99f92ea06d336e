"""Two commits with several best common ancestors: the base of the merge is the merge of these."""

from typing import Any

import pytest
import zarr
from typer.testing import CliRunner

import txstore
from tests.merging.test_repository import commit, values
from tests.merging.test_three_way import BASE, Step, append, attributes, create, delete, put, resize
from txstore.cli.main import app
from txstore.merging.merge_conflicts import Conflict


def move(source: str, to: str) -> Step:
    def step(store: txstore.TxStore) -> None:
        store.move(source, to)

    return step


@pytest.fixture
def repo(tmp_path: Any) -> txstore.Repository:
    repo = txstore.Repository(tmp_path / "data.tx", durability="none")
    commit(repo, BASE)
    return repo


def crossed(
    repo: txstore.Repository, ours: Step, theirs: Step, answers: tuple[str, str] | None = None, **options: Any
) -> None:
    """Let `main` and `dev` each merge what the other was: conflicts are answered by both."""
    repo.branches["dev"] = repo.head()
    commit(repo, ours)
    commit(repo, theirs, branch="dev")
    repo.branches["was"] = repo.head()
    for place, (source, into) in enumerate([("dev", "main"), ("was", "dev")]):
        repo.merge(source, into, resolve=answers and {"": answers[place]}, **options)


def content(repo: txstore.Repository, branch: str = "main") -> dict[str, bytes]:
    return dict(repo.mapping(branch=branch))


FIXES = {
    "element": put(0, 10),
    "chunk": put(slice(0, 4), 10),
    "attribute": attributes(units="K"),
    "new array": create(path="y"),
    "deleted array": delete("x"),
    "moved array": move("x", "z"),
    "appended": append([8, 9]),
    "shrunk": resize(4),
    "deleted chunk": put(slice(0, 4), 0),
}


@pytest.mark.parametrize("fix", FIXES)
def test_what_was_reverted_stays_away(repo: txstore.Repository, fix: str) -> None:
    """`dev` has merged the fix, and has never touched what it did: that `main` has reverted it counts."""
    later = attributes("", by="us")  # elsewhere
    commit(repo, attributes("", begun=True))
    repo.branches["fix"] = repo.head()
    commit(repo, FIXES[fix], branch="fix")
    commit(repo, later)
    repo.branches["dev"] = repo.head()  # which fix is no ancestor of, nor the other way round
    commit(repo, attributes("", dev=True), branch="dev")
    made = repo.merge("fix")
    repo.merge("fix", "dev")
    repo.revert(made)
    before = {key: value for key, value in content(repo).items() if key != "zarr.json"}
    repo.merge("dev")
    assert {key: value for key, value in content(repo).items() if key != "zarr.json"} == before
    assert dict(zarr.open_group(repo.snapshot(), mode="r").attrs) == {"begun": True, "by": "us", "dev": True}
    repo.merge("main", "dev")
    assert content(repo, "dev") == content(repo)
    assert repo.verify().faults == []


def kinds(repo: txstore.Repository, source: str = "dev", into: str = "main", **options: Any) -> list[tuple[str, str]]:
    with pytest.raises(txstore.MergeConflictError) as error:
        repo.merge(source, into, **options)
    assert not error.value.is_cut
    found = [each for each in error.value.conflicts if isinstance(each, Conflict)]
    return [(each.path, each.kind) for each in found]


def test_what_both_have_answered_otherwise_is_in_conflict(repo: txstore.Repository) -> None:
    crossed(repo, put(slice(0, 2), 10), put(slice(1, 3), 20), answers=("ours", "ours"))
    commit(repo, put(4, 14))
    commit(repo, put(5, 15), branch="dev")
    with pytest.raises(txstore.MergeConflictError) as error:
        repo.merge("dev")
    (conflict,) = error.value.conflicts
    assert isinstance(conflict, Conflict)
    assert (conflict.region, conflict.ours().tolist(), conflict.theirs().tolist()) == ((slice(1, 2),), [10], [20])
    repo.merge("dev", resolve={"x": lambda each: each.ours() + each.theirs()})
    assert values(repo) == [10, 30, 20, 3, 14, 15, 6, 7]
    repo.merge("main", "dev")
    assert values(repo, branch="dev") == values(repo)


def test_deleted_in_one_and_kept_in_the_other(repo: txstore.Repository) -> None:
    crossed(repo, delete(), put(0, 10), answers=("ours", "ours"))
    assert kinds(repo) == [("x", "deleted")]
    repo.merge("dev", resolve={"x": "theirs"})
    assert values(repo)[0] == 10
    repo.merge("main", "dev")


def test_moved_to_two_places(repo: txstore.Repository) -> None:
    crossed(repo, move("x", "a"), move("x", "b"), answers=("ours", "ours"))
    commit(repo, put(0, 10, "b"), branch="dev")
    assert kinds(repo)[0] == ("a", "moved")
    repo.merge("dev", resolve={"": "theirs"})
    assert (values(repo, "b")[0], "a" in zarr.open_group(repo.snapshot(), mode="r")) == (10, False)


@pytest.mark.parametrize("answer", ["ours", "theirs"])
def test_which_of_two_places_is_answered(repo: txstore.Repository, answer: str) -> None:
    crossed(repo, move("x", "a"), move("x", "b"), answers=("ours", "ours"))
    before = repo.head()
    repo.merge("dev", resolve={"": answer})
    assert sorted(zarr.open_group(repo.snapshot(), mode="r")) == ["a" if answer == "ours" else "b"]
    assert repo.head() != before
    repo.merge("main", "dev")
    assert content(repo) == content(repo, "dev")


def test_a_structure_that_both_have_chosen(repo: txstore.Repository) -> None:
    """Of the two, the one that the base shows is not the one that was chosen."""
    crossed(repo, create(path="y"), create(4, path="y"), answers=("theirs", "ours"))
    commit(repo, put(0, 10, "y"))
    assert kinds(repo) == [("y", "elements")]
    commit(repo, put(0, 10, "y"), branch="dev")
    repo.merge("dev")
    assert values(repo, "y") == [10, 1, 2, 3]


def test_dry_run_and_diff(repo: txstore.Repository) -> None:
    crossed(repo, put(0, 10), put(1, 11))
    commit(repo, put(1, 1))
    plan = repo.merge("dev", dry_run=True)
    assert str(plan) == "nothing"
    assert [node.path for node in repo.diff("main", "dev", three_dot=True)] == ["x"]


# --- what a vacuum has given up
def fixed(repo: txstore.Repository, *, optimized: bool = True) -> txstore.Commit:
    """Merge a fix into `main` and into `dev`, which has begun behind a later commit; return the merge into `main`.

    If it was optimized, no file of its first commits is needed, so that a vacuum leaves none.
    """
    repo.branches["fix"] = repo.head()
    commit(repo, put(2, 12), branch="fix")
    commit(repo, put(0, 10), branch="fix")
    if optimized:
        repo.optimize(branch="fix")
    commit(repo, put(7, 17))
    repo.branches["dev"] = repo.head()
    commit(repo, put(5, 15), branch="dev")
    made = repo.merge("fix")
    repo.merge("fix", "dev")
    return made


def vacuum(repo: txstore.Repository, *branches: str) -> None:
    for branch in 2 * branches:  # the first makes a commit, by which it gives up the others
        repo.vacuum(keep=1, branch=branch)


def test_a_branch_that_both_have_merged_is_gone(repo: txstore.Repository) -> None:
    made = fixed(repo)
    repo.revert(made)
    del repo.branches["fix"]
    vacuum(repo, "main", "dev")
    with pytest.raises(txstore.NoCommonAncestorError, match="cherry_pick"):
        repo.merge("dev")
    assert values(repo) == [*range(7), 17]


def test_a_tag_keeps_what_both_have_merged(repo: txstore.Repository) -> None:
    made = fixed(repo, optimized=False)
    repo.revert(made)
    head = repo.head("fix")
    assert head is not None
    repo.tags["last-of-fix"] = head
    del repo.branches["fix"]
    repo.vacuum()
    repo.merge("dev")
    assert values(repo) == [0, 1, 2, 3, 4, 15, 6, 17]


def test_where_the_base_of_the_bases_is_gone_nothing_is_guessed(repo: txstore.Repository) -> None:
    fixed(repo)
    commit(repo, put(0, 0))
    commit(repo, put(1, 11))
    vacuum(repo, "fix", "main", "dev")
    with pytest.raises(txstore.MergeConflictError, match="A vacuum has expired") as error:
        repo.merge("dev")
    assert error.value.is_cut
    (conflict,) = error.value.conflicts
    assert isinstance(conflict, Conflict)
    assert (conflict.region, conflict.ours().tolist(), conflict.theirs().tolist()) == ((slice(0, 1),), [0], [10])
    found = CliRunner().invoke(app, ["merge", repo.url, "dev"])
    assert (found.exit_code, "A vacuum has expired" in " ".join(found.output.split())) == (1, True)
    repo.merge("dev", resolve={"x": "ours"})
    assert values(repo) == [0, 11, 12, 3, 4, 15, 6, 17]
    assert repo.verify().faults == []


def test_rows_that_have_moved_where_a_base_is_in_doubt(repo: txstore.Repository) -> None:
    """Of two bases with other elements, the first has the element of before; a third one has moved it."""
    repo.branches["moved"] = repo.head()
    commit(repo, put(0, 1))
    for branch in ("a", "b", "dev"):
        repo.branches[branch] = repo.head()
    commit(repo, put(0, 0), branch="a")
    commit(repo, put(0, 2), branch="b")
    commit(repo, lambda store: store.shift("x", {0: 1}), branch="moved")
    for into, (a, b, moved) in {"main": (None, "ours", None), "dev": (None, "theirs", "theirs")}.items():
        for source, answer in (("a", a), ("b", b), ("moved", moved)):
            repo.merge(source, into, resolve=answer and {"": answer})
    commit(repo, put(1, 2), branch="dev")
    assert kinds(repo) == [("x", "elements")]
