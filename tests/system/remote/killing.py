"""Killing processes that tell in files of their own what was acknowledged, one after the other, at any step."""

import time
from collections.abc import Sequence
from pathlib import Path

from tests.tools.waiting import wait_until
from tests.tools.workers import Worker


def acknowledged(files: Sequence[Path]) -> list[str]:
    return [line for file in files if file.exists() for line in file.read_text(encoding="utf-8").splitlines()]


def kill_in_turn(workers: Sequence[Worker], files: Sequence[Path], each: int) -> None:
    """Kill processes, each when so many more lines were acknowledged, by all of them together."""
    for nth, worker in enumerate(workers):
        enough = (nth + 1) * each
        wait_until(lambda enough=enough: len(acknowledged(files)) >= enough)
        time.sleep(0.013 * nth)  # not always at the same step
        worker.process.kill()
        worker.process.join()
