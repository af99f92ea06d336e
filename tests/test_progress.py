"""`progress=`: a function is told the bytes that are done and in all, True shows a bar where somebody can see it."""

import builtins
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from txstore.progress import showing

CALLS: dict[str, Callable[[txstore.Repository, Path, Any], object]] = {
    "import": lambda repo, path, progress: repo.import_from(path / "old.zarr", "old", progress=progress),
    "export": lambda repo, path, progress: repo.export(path / "out", progress=progress),
    "backup": lambda repo, path, progress: repo.backup(path / "copy", progress=progress),
    "publish": lambda repo, path, progress: repo.publish(path / "plain", progress=progress),
    "verify": lambda repo, path, progress: repo.verify(progress),
    "optimize": lambda repo, path, progress: repo.optimize(progress=progress),
    "merge": lambda repo, path, progress: repo.merge("dev", progress=progress),
    "preview": lambda repo, path, progress: repo.merge("dev", dry_run=True, progress=progress),
}


@pytest.fixture
def forked(repo: txstore.Repository, tmp_path: Path) -> txstore.Repository:
    """Both branches have changed the same chunks; there are small packs to optimize, and plain Zarr to import."""
    zarr.create_array(tmp_path / "old.zarr", data=np.arange(1000), chunks=(100,))
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(8000), chunks=(4000,))
    repo.branches["dev"] = repo.head()
    for branch, at in (("main", 0), ("dev", 1)):
        with repo.transaction(branch=branch) as store:
            zarr.open_array(store, path="x")[at::4000] = 7
    return repo


@pytest.mark.parametrize("name", CALLS)
def test_a_function_is_told_to_the_end(name: str, forked: txstore.Repository, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    CALLS[name](forked, tmp_path, lambda done, total: told.append((done, total)))
    assert told
    assert all(0 <= done <= total for done, total in told)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1] > 0


@pytest.mark.parametrize("name", CALLS)
def test_true_shows_a_bar(name, forked, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the standard error for a terminal
    monkeypatch.setenv("TERM", "xterm")
    CALLS[name](forked, tmp_path, True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert name.replace("preview", "merge") in captured.err


def test_where_nobody_sees_it_there_is_none(forked: txstore.Repository, capsys: pytest.CaptureFixture[str]) -> None:
    forked.verify(progress=True)
    assert capsys.readouterr() == ("", "")


def test_a_bar_in_a_notebook(forked: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is HTML in the cell, without ipywidgets, and goes when the call ends, also by an exception."""
    shown: list[str] = []

    class Cell:
        def update(self, content: str) -> None:
            shown.append(content)

    def display(content: str, *, display_id: bool) -> Cell:
        assert display_id
        shown.append(content)
        return Cell()

    shell = type("ZMQInteractiveShell", (), {})
    monkeypatch.setattr(builtins, "get_ipython", shell, raising=False)
    module = types.ModuleType("IPython.display")
    module.HTML, module.display = str, display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr("txstore.progress._PAUSE", 0)
    forked.verify(progress=True)
    assert shown[0] == "verify"
    assert 'verify <progress max="' in shown[1]
    assert shown[-1] == ""
    with pytest.raises(KeyError), showing(True, "<&>") as told:
        assert told is not None
        told(5, 0)
        raise KeyError
    assert shown[-2:] == ['&lt;&amp;&gt; <progress max="1" value="5"></progress> 5 B of 0 B', ""]


@pytest.mark.parametrize("wanted", [None, False])
def test_off_it_is_nothing(wanted: bool | None) -> None:
    with showing(wanted, "verify") as told:
        assert told is None


@pytest.mark.parametrize("wrong", [1, "yes", [print]])
def test_what_is_no_progress(wrong: Any, forked: txstore.Repository) -> None:
    with pytest.raises(TypeError, match="progress="):
        forked.verify(progress=wrong)
