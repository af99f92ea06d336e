"""Verifying packs of 1 MiB values, side by side with `cat` of the same files; both from the page cache."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import txstore
from benchmarks.harness import OURS, Row, Setting, interleaved, medians, ratio, settle, timed

_VALUE = 1 << 20
_COMMITS, _VALUES = 4, 96  # 384 MiB


def build(path: Path, values: int) -> txstore.Repository:
    repo = txstore.Repository(path)
    for commit in range(_COMMITS):
        with repo.begin("fill") as transaction:
            for number in range(values):
                transaction[f"image/c/{commit}/{number}"] = os.urandom(_VALUE)
    return repo


def _cat(files: list[Path]) -> float:
    with timed() as seconds:
        subprocess.run(["cat", *map(str, files)], stdout=subprocess.DEVNULL, check=True)
    return seconds()


def _verify(repo: txstore.Repository) -> float:
    with timed() as seconds:
        report = repo.verify()
    if not report.ok:
        raise AssertionError(report.faults)
    return seconds()


def verify(setting: Setting) -> list[Row]:
    values = setting.rounds(_VALUES, _VALUES // 8)
    with setting.scratch() as scratch:
        repo = build(scratch / "data.tx", values)
        files = sorted((scratch / "data.tx" / "commits" / "main").iterdir())
        settle(scratch)
        takes = {OURS: lambda: _verify(repo), "cat": lambda: _cat(files)}
        samples = interleaved(takes, setting.rounds(15, 5))
    size = _COMMITS * values * _VALUE
    middle = medians(samples)
    speeds = " against ".join(f"{size / middle[who] / 1e9:.1f} GB/s" for who in (OURS, "cat"))
    what = f"verify {size >> 20} MiB in values of 1 MiB: speed of cat, page cache warm ({speeds})"
    return [Row("verify", what, ratio(samples, "cat", OURS), 0.5, at_least=True, medians=middle, samples=samples)]


BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {"verify": verify}
