"""The reader in JavaScript finds in random repositories what the one in Python finds: all keys, and all bytes.

The repositories are those of `tests/model/test_history_model.py`: branches, merges, moves, restores, tags, upkeep.
`TXSTORE_MODEL_EXAMPLES` says how many.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import Phase, settings

import txstore
from tests.model.test_history_model import History, HistoryOfObjects
from tests.reader_js.node import content, node

pytestmark = pytest.mark.long

EXAMPLES = int(os.environ.get("TXSTORE_MODEL_EXAMPLES", "15"))


def compare(repo: txstore.Repository, directory: Path, tags: list[str]) -> None:
    """Ask for each branch, tag and version of `main`."""
    ask = node().ask
    names = sorted(repo.branches)
    assert sorted(ask("branches", directory)) == names
    assert ask("tags", directory) == sorted(tags)
    for name in names:
        assert ask("log", directory, branch=name) == [commit.id for commit in repo.log(name)], name
        agree(directory, name, repo.mapping(branch=name), prefix="")
        agree(directory, name, repo.mapping(branch=name), prefix="g/")
    for tag in tags:
        agree(directory, tag, repo.mapping(tag=tag), prefix="")
    for commit in repo.log():
        if commit.branch == "main":
            agree(directory, commit.version, repo.mapping(commit.version), prefix="")


def agree(directory: Path, at: str | int, there: Any, *, prefix: str) -> None:
    answer = node().ask("content", directory, at=at, prefix=prefix)
    assert answer["values"] == content(there, prefix), at
    assert list(answer["values"]) == sorted(answer["values"], key=str.encode)


class Read(History):
    def check(self) -> None:
        super().check()
        compare(self.repo, Path(self.url), list(self.tags))


class ReadFromObjects(HistoryOfObjects):
    def check(self) -> None:
        super().check()
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "copy.tx")
            fsspec.filesystem("memory").get(self.url.removeprefix("memory:/"), str(copy), recursive=True)
            compare(self.repo, copy, list(self.tags))


for machine in (Read, ReadFromObjects):
    machine.TestCase.settings = settings(
        max_examples=EXAMPLES, stateful_step_count=30, deadline=None, phases=[Phase.generate]
    )

TestRead = Read.TestCase
TestReadFromObjects = ReadFromObjects.TestCase
