"""`txstore verify --repair`, `backup` and `protect`: what they print, and their status."""

import json
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.command_line import run
from tests.tools.disk import tree

FIRST = "commits/main/0000000000"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    repo = txstore.Repository(tmp_path / "data.tx")
    with repo.transaction("create") as store:
        zarr.create_array(store, name="position", data=np.arange(8.0), chunks=(4,), compressors=None)
    with repo.transaction("fill") as store:
        zarr.open_array(store, path="position")[:4] = 1.0
    return tmp_path / "data.tx"


def flip(file: Path, part: bytes, by: int = 0) -> None:
    content = bytearray(file.read_bytes())
    content[content.index(part) + by] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "part", "told"),
    [(FIRST, b"TXRN", f"REPAIR {FIRST}: own run rebuilt in its place"), ("format.json", b"checksum", "format.json")],
)
def test_what_can_be_repaired(path, file, part, told):
    before = tree(path)
    flip(path / file, part)
    result = run("verify", path)
    assert (result.exit_code, f"FAULT {file}" in result.stdout) == (1, True)
    result = run("verify", path, "--repair")
    assert (result.exit_code, result.stderr) == (0, "")
    assert told in result.stdout.splitlines()[0]
    assert "0 faults, 1 repaired, in 2 commits" in result.stdout
    assert {name: content for name, content in tree(path).items() if not name.startswith("quarantine")} == before
    assert run("verify", path).exit_code == 0


def test_what_can_not(path):
    flip(path / FIRST, np.arange(8.0)[4:].tobytes())
    result = run("verify", path, "--repair")
    assert result.exit_code == 1
    assert "FAULT" in result.stdout
    assert "position/c/1" in result.stdout
    assert "restore the file from a backup" in result.stdout
    shown = json.loads(run("verify", path, "--repair", "--json").stdout)
    assert (shown["ok"], shown["repairs"], shown["repaired"]) == (False, [], [])
    assert [(fault["part"], fault["key"]) for fault in shown["faults"]] == [("value", "position/c/1")]
    assert shown["faults"][0]["commit_count"] == 2


def test_a_repository_that_can_not_be_opened(path):
    whole = (path / "format.json").read_bytes()
    flip(path / "format.json", b"checksum")
    with pytest.raises(txstore.CorruptionError, match="Run txstore verify --repair"):
        txstore.Repository(path)
    result = run("verify", path)
    assert (result.exit_code, "FAULT format.json" in result.stdout) == (1, True)
    assert run("verify", path, "--repair").exit_code == 0
    assert (path / "format.json").read_bytes() == whole


def test_backup(path, tmp_path):
    result = run("backup", path, tmp_path / "copy")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "is new: commits up to version 1; 4 files" in result.stdout
    shown = json.loads(run("backup", path, tmp_path / "copy", "--json").stdout)
    assert shown["files"] == 0
    assert shown["commit"] == txstore.Repository(path).head().id
    assert "was up to date" in run("backup", path, tmp_path / "copy").stdout
    assert run("verify", tmp_path / "copy").exit_code == 0


def test_a_backup_that_can_not_be_made(path, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis").write_text("x")
    result = run("backup", path, tmp_path / "full")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "thesis" in result.stderr
    flip(path / FIRST, np.arange(8.0)[4:].tobytes())
    result = run("backup", path, tmp_path / "copy")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "position/c/1" in result.stderr
    assert run("backup", path, tmp_path / "copy", "--no-verify").exit_code == 0


def test_protect(path):
    before = tree(path)
    result = run("protect", path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{path} is a link to {path}.d: ")
    assert path.is_symlink()
    assert tree(Path(f"{path}.d")) == before
    again = run("protect", path, "--json")
    assert json.loads(again.stdout) == {"link": str(path), "directory": f"{path}.d", "aside": None}
    assert json.loads(run("protect", f"{path}.d", "--json").stdout) == json.loads(again.stdout)
    path.unlink()
    path.mkdir()
    _, aside = run("protect", path).stdout.splitlines()
    assert aside.startswith(f"the files that were in the place of the link are in {path}.aside-")
    assert aside.endswith(" now")
    for command in ("log", "verify", "du"):
        assert run(command, path).exit_code == 0
