"""Each reader finds in each vector what the JSON beside it says; and the vectors do not change."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.reader_js.node import Node, Refused, node, served
from tests.vectors import expected
from tests.vectors.make import REPOSITORIES, VECTORS

NAMES = sorted(path.stem for path in REPOSITORIES.glob("*.json"))
ERRORS = {
    "CorruptionError": "corrupt", "UnsupportedError": "unsupported", "ErasedError": "erased", "ForeignError": "foreign",
    "NotFoundError": "missing",
}  # fmt: skip


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(name: str, tmp_path: Path) -> Path:
    """A copy: a reader may make directories that git has not kept."""
    return Path(shutil.copytree(REPOSITORIES / f"{name}.tx", tmp_path / "data.tx"))


@pytest.fixture
def said(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((REPOSITORIES / f"{name}.json").read_text())
    return found


def test_python(path: Path, said: dict[str, Any]) -> None:
    """With the C, or without: `make test` runs it with both."""
    del said["about"]
    keys = dict.fromkeys(key for keys in said.get("erased", {}).values() for key in keys)
    assert json.loads(json.dumps(expected.answer(path, keys))) == said


def test_javascript(name: str, path: Path, said: dict[str, Any]) -> None:
    reader = node()
    if "error" in said:
        assert _asked(reader, "branches", path) == said["error"]
        return
    assert sorted(_asked(reader, "branches", path)) == sorted(said["branches"])
    assert _asked(reader, "tags", path) == sorted(said["tags"])
    for branch, log in said["logs"].items():
        assert _asked(reader, "log", path, branch=branch) == log, branch
        if isinstance(log, list):
            for told in _asked(reader, "commits", path, branch=branch):
                _check_commit(told, said["commits"][told["id"]])
    for where, content in said["content"].items():
        found = _asked(reader, "content", path, at=_at(where), prefix="")
        found = found if isinstance(found, str) else {key: _named(value) for key, value in found["values"].items()}
        if name.startswith("erased-rows"):  # it does not find the values that replace others
            found = {key: content[key] if value == "unsupported" else value for key, value in found.items()}
        if content == "corrupt" and isinstance(found, dict):
            assert "corrupt" in found.values(), where
        else:
            assert found == content, where
    for where, keys in said.get("erased", {}).items():
        there = {key: _asked(reader, "get", path, at=_at(where), key=key) for key in keys}
        assert there == dict.fromkeys(keys, "erased"), where


@pytest.mark.parametrize("name", ["branches", "tags", "vacuumed"], indirect=True)
def test_without_lists(name: str, path: Path, said: dict[str, Any]) -> None:
    """What a server that lists no names can be asked for is the same."""
    reader = node()
    with served(path.parent) as base:
        url = f"{base}/{path.name}"
        repo = txstore.Repository(url)
        for branch, log in said["logs"].items():
            assert [commit.id for commit in repo.log(branch)] == _asked(reader, "log", url, branch=branch) == log
        for where, content in said["content"].items():
            place = {"branch": where} if where in said["branches"] else {"tag": where}
            place = {"at": int(where[1:])} if where.startswith("@") else place
            assert json.loads(json.dumps(expected.content(repo, place))) == content
            assert _asked(reader, "content", url, at=_at(where), prefix="")["values"] == content


def _at(name: str) -> str | int:
    return int(name[1:]) if name.startswith("@") else name


def _check_commit(told: dict[str, Any], said: dict[str, Any]) -> None:
    for member in ("version", "author", "message", "properties", "parent"):
        assert told.get(member) == said[member], member
    assert told.get("mergedParent") == said["merged"]


def _asked(reader: Node, what: str, path: Path | str, **question: Any) -> Any:
    try:
        return reader.ask(what, path, **question)
    except Refused as error:
        return ERRORS[error.name]


def _named(value: Any) -> Any:
    return ERRORS.get(value, value) if isinstance(value, str) else value


@pytest.mark.long
def test_they_are_made_as_ever() -> None:
    assert len(NAMES) == len(VECTORS) >= 20
    ran = subprocess.run(
        [sys.executable, "-m", "tests.vectors.make", "--check"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
