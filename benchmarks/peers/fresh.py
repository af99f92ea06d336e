"""Samples in processes of their own, so that nobody profits from what an earlier sample has left in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.peer import NotOffered

ROOT = Path(__file__).parents[2]
DEADLINE = 600.0


class Failed(Exception):
    """The process has ended with an error, or not at all."""


def start(module: str = "benchmarks.peers.tasks") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", module], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[bytes], order: dict[str, Any]) -> dict[str, Any]:
    try:
        said, error = process.communicate(json.dumps(order).encode(), timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise Failed(f"no answer within {DEADLINE:.0f} s") from None
    if process.returncode:
        last = error.decode(errors="replace").strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
        raise Failed(last[0][:300])
    answer: dict[str, Any] = json.loads(said)
    if "not offered" in answer:
        raise NotOffered(answer["not offered"])
    return answer["values"]  # type: ignore[no-any-return]


def ask(task: str, **order: Any) -> dict[str, Any]:
    """Return what `tasks.TASKS[task]` returns in a new process."""
    return finish(start(), {"task": task, **order})
