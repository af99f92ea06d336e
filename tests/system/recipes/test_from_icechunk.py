"""docs/how-to/from-icechunk.md: one commit, and the whole history; later, again, at once, and while it is killed."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.recipes import Recipe

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("icechunk") is None, reason="icechunk is not installed"),
]

#: The blocks of the page: what it has made before, one commit, all of the history.
SETUP, ONE, HISTORY = range(3)
#: Prints each snapshot's message and what is in it, oldest first, branch by branch; then the tags.
TOLD = """
import hashlib, icechunk
from zarr.core.sync import sync
from zarr.buffer import default_buffer_prototype
old = icechunk.Repository.open(icechunk.local_filesystem_storage("old.icechunk"))
async def digest(store):
    keys = sorted([key async for key in store.list()])
    values = [(await store.get(key, default_buffer_prototype())).to_bytes() for key in keys]
    return hashlib.sha256(repr(list(zip(keys, values))).encode()).hexdigest()
for branch in sorted(old.list_branches()):
    for each in [*old.ancestry(branch=branch)][-2::-1]:
        there = sync(digest(old.readonly_session(snapshot_id=each.id).store))
        print(branch, each.id, each.written_at.isoformat(), there, each.message, flush=True)
import os
os._exit(0)  # Icechunk 2.3 sometimes crashes when Python ends
"""
ONE_MORE = """
import icechunk, numpy, zarr
old = icechunk.Repository.open(icechunk.local_filesystem_storage("old.icechunk"))
for branch in ("dev", "main"):
    session = old.writable_session(branch)
    zarr.open_array(session.store, path="t1")[:] = 7
    session.commit("late")
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    recipe = Recipe("docs/how-to/from-icechunk.md", tmp_path)
    recipe.run(recipe.code(SETUP))
    return recipe


def history(recipe: Recipe) -> str:
    imports, _, rest = recipe.code(ONE).partition("repo = ")
    assert "import_from" in rest
    return imports + recipe.code(HISTORY)


def assert_same_history(recipe: Recipe) -> None:
    import hashlib

    repo = txstore.Repository(recipe.directory / "history.tx")
    assert repo.verify().faults == []
    lines = []
    for branch in sorted(repo.branches):
        for commit in [*repo.log(branch=branch)][::-1]:
            mapping = repo.mapping(at=commit.id)
            values = [(key, mapping[key]) for key in sorted(mapping)]
            there = hashlib.sha256(repr(values).encode()).hexdigest()
            about = commit.properties
            lines.append(f"{branch} {about['icechunk']} {about['date']} {there} {commit.message}")
    assert lines == recipe.run(TOLD).splitlines()


def test_one_commit(recipe: Recipe) -> None:
    recipe.run(recipe.code(ONE))
    repo = txstore.Repository(recipe.directory / "data.tx")
    group = zarr.open_group(repo.snapshot(), mode="r")
    assert dict(group.attrs) == {"title": "third"}
    assert sorted(group) == ["height", "t1", "t2"]
    assert group["height"][()] == 4  # type: ignore[index]
    np.testing.assert_array_equal(group["t2"][:], np.arange(1000.0) + 2)  # type: ignore[index]
    with pytest.raises(AssertionError, match=r"FileExistsError.*free"):
        recipe.run(recipe.code(ONE))
    assert len(repo.log()) == 1


def test_the_history_again_and_later(recipe: Recipe) -> None:
    recipe.run(history(recipe))
    assert_same_history(recipe)
    newest = txstore.Repository(recipe.directory / "history.tx").head()
    recipe.run(history(recipe))
    assert txstore.Repository(recipe.directory / "history.tx").head() == newest
    recipe.run(ONE_MORE)
    recipe.run(history(recipe))
    assert_same_history(recipe)
