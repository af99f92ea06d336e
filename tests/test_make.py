"""The environments of the Makefile: one that was interrupted is made anew, a whole one is kept. Lock files name all."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: Stands for Python: says its version, makes environments, and installs if it has pip; all is noted in `calls`.
STUB = """#!/bin/sh
case "$*" in
  -c*) echo 3.13;;
  "-m venv --clear "*) rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; touch "$4/bin/pip"; echo venv >> calls;;
  "-m pip --version") test -e "$(dirname "$0")/pip";;
  "-m pip install "*) test -e "$(dirname "$0")/pip" || exit 1; test ! -e offline || exit 1; echo install >> calls;;
esac
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "setup.py"):
        (tmp_path / name).touch()
    stub = tmp_path / "stub"
    stub.write_text(STUB)
    stub.chmod(0o755)
    return tmp_path


def make(place: Path) -> tuple[int, list[str]]:
    """Make the environment of the documents; return the status, and what was called."""
    (place / "calls").write_text("")
    stub = place / "stub"
    command = ["make", "environment", "WHAT=docs", f"PYTHON={stub}", f"TXSTORE_PYTHONS={stub}"]
    ran = subprocess.run(command, cwd=place, capture_output=True, text=True)
    return ran.returncode, (place / "calls").read_text().split()


def test_an_environment_is_made_once(place: Path) -> None:
    status, calls = make(place)
    assert (status, calls[0], set(calls[1:])) == (0, "venv", {"install"})
    assert make(place) == (0, [])


def test_one_that_is_whole_is_brought_up_to_date(place: Path) -> None:
    make(place)
    (place / "pyproject.toml").touch()
    newer = (place / ".venv/3.13-docs/stamp").stat().st_mtime + 10
    os.utime(place / "pyproject.toml", (newer, newer))
    status, calls = make(place)
    assert (status, set(calls)) == (0, {"install"})


def test_one_without_pip_is_made_anew(place: Path) -> None:
    """As `python -m venv` leaves it when it is interrupted."""
    folder = place / ".venv/3.13-docs/bin"
    folder.mkdir(parents=True)
    shutil.copy(place / "stub", folder / "python")
    status, calls = make(place)
    assert (status, calls[0]) == (0, "venv")


def test_one_that_was_not_finished_is_made_anew(place: Path) -> None:
    (place / "offline").touch()
    status, calls = make(place)
    assert (status != 0, calls) == (True, ["venv"])
    (place / "offline").unlink()
    (place / ".venv/3.13-docs/lib").mkdir()  # half of a package
    status, calls = make(place)
    assert (status, calls[0]) == (0, "venv")
    assert not (place / ".venv/3.13-docs/lib").exists()


def test_one_that_can_not_be_brought_up_to_date_is_kept(place: Path) -> None:
    make(place)
    newer = (place / ".venv/3.13-docs/stamp").stat().st_mtime + 10
    os.utime(place / "pyproject.toml", (newer, newer))
    (place / "offline").touch()
    for _ in range(2):
        status, calls = make(place)
        assert (status != 0, calls) == (True, [])
    (place / "offline").unlink()
    assert set(make(place)[1]) == {"install"}


def test_few_doors() -> None:
    """`make help` names each target, on one screen; and what a group has, when it is asked for what it has not."""
    doors = re.search(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.M)[1].split()
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True).stdout
    assert len(doors) <= 20
    assert len(shown.splitlines()) <= 24
    assert [door for door in doors if door != "help" and f"make {door}" not in shown] == []
    asked = subprocess.run(["make", "-n", "histories", "WHAT=nothing"], cwd=ROOT, capture_output=True, text=True)
    assert "one of: ceph crash erasures" in asked.stderr


@pytest.mark.parametrize(
    "lock", sorted(ROOT.glob("tests/clients/*/requirements.lock")), ids=lambda lock: lock.parent.name
)
def test_lock_files_name_what_txstore_and_its_server_need(lock: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = project["dependencies"] + project["optional-dependencies"]["serve"]
    locked = {line.partition("==")[0].lower() for line in lock.read_text().splitlines()}
    assert {re.match(r"[\w-]+", requirement)[0] for requirement in needed} <= locked, "run: make clients WHAT=lock"
