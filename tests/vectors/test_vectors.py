"""Each reader finds in each vector what the JSON beside it says; and the vectors do not change."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.reader_js.node import Node, Refused, node
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
    assert json.loads(json.dumps(expected.answer(path, said.get("erased", {})))) == said


def test_javascript(path: Path, said: dict[str, Any]) -> None:
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
    for name, content in said["content"].items():
        at = int(name[1:]) if name.startswith("@") else name
        found = _asked(reader, "content", path, at=at, prefix="")
        found = found if isinstance(found, str) else {key: _named(value) for key, value in found["values"].items()}
        if content == "corrupt" and isinstance(found, dict):
            assert "corrupt" in found.values(), name
        else:
            assert found == content, name
    for name, keys in said.get("erased", {}).items():
        assert {key: _asked(reader, "get", path, at=name, key=key) for key in keys} == dict.fromkeys(keys, "erased")


def _check_commit(told: dict[str, Any], said: dict[str, Any]) -> None:
    for member in ("version", "author", "message", "properties", "parent"):
        assert told.get(member) == said[member], member
    assert told.get("mergedParent") == said["merged"]


def _asked(reader: Node, what: str, path: Path, **question: Any) -> Any:
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
