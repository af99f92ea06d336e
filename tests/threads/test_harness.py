"""Eight threads over one store for some seconds; `make histories WHAT=threads` does the same for an hour."""

import gc
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import txstore
from tests.threads.harness import PIPELINES, Round, Settings
from txstore.sessions.gate import Gate

ROOT = Path(__file__).parents[2]
SECONDS = 5


@pytest.mark.long
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_eight_threads_over_one_store(pipeline: str, tmp_path: Path) -> None:
    """In a process of its own, which may hang, and whose main thread gets signals."""
    program = [
        sys.executable,
        "-m",
        "tests.threads",
        "--seconds",
        str(SECONDS),
        "--pipeline",
        pipeline,
        "--limit",
        "60",
    ]
    run = subprocess.run(
        [*program, "--limit", "60", "--directory", tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=270
    )
    assert run.returncode == 0, run.stdout + run.stderr


def leave_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations enter while the gate is shut, and who shuts it waits for nobody."""
    monkeypatch.setattr(Gate, "may_enter", lambda _: True)
    monkeypatch.setattr(Gate, "close", lambda *_: True)


@pytest.fixture
def let_go() -> Iterator[None]:
    """What such a round leaves uncommitted is nothing for the tests that follow."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", txstore.UncommittedChangesWarning)
        gc.collect()


@pytest.mark.long
@pytest.mark.usefixtures("let_go")
@pytest.mark.filterwarnings("ignore::txstore.UncommittedChangesWarning")
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_it_finds_a_gate_that_is_left_open(pipeline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_it_open(monkeypatch)
    settings = Settings(interrupts=False, limit=60)
    for seed in range(20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        outcome = Round(str(folder), pipeline, seed, settings).run(2)
        if {"torn commit", "mixed read", "half done", "read of two commits"} & {fault.name for fault in outcome.faults}:
            return
    raise AssertionError("nothing was found")
