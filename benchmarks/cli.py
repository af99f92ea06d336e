"""The command lines of what is measured: `python -m benchmarks`, and `python -m benchmarks.peers`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

import txstore
from benchmarks.harness import Row, Setting
from benchmarks.own_process import NotOffered
from benchmarks.pages import publish, publish_peers
from benchmarks.peers import report
from benchmarks.peers.results import Results, load
from benchmarks.peers.rows import make_rows, take_rounds
from benchmarks.peers.targets import judge
from benchmarks.pictures import PANELS, draw_far_away
from txstore._native import index, local

RESULTS = Path("benchmark-results.json")
FAR_AWAY = RESULTS.with_name("benchmark-distance.svg")
RESULTS_OF_PEERS = Path("benchmark-peers.json")
ROUNDS, ROUNDS_QUICK = 3, 1
_PACKAGES = (
    "zarr", "numcodecs", "numpy", "fasteners", "filelock", "icechunk", "tensorstore", "h5py", "zarrs", "obstore",
    "s3fs",
)  # fmt: skip
_ERRORS = Console(stderr=True, highlight=False)


def main() -> int:
    """Run the benchmarks, print a table, write `benchmark-results.json`; exit status 1 if a promise is not kept."""
    from benchmarks.cases import commits, far, following, keys, labels, large, locks
    from benchmarks.serving import page, plain_zarr
    from benchmarks.simulated import commits as simulated_commits
    from benchmarks.simulated import scale

    modules: list[Any] = [labels, commits, far, large, keys, following, locks]
    by_name = [page, plain_zarr, simulated_commits, scale]  # what takes other programs, or is no measurement
    usual = [name for module in modules for name in module.CASES]
    cases = {name: case for module in modules + by_name for name, case in module.CASES.items()}
    parser = _parser("python -m benchmarks", main.__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help=f"one or part of {', '.join(cases)}")
    arguments = parser.parse_args()
    if arguments.publish:
        publish(json.loads(RESULTS.read_text(encoding="utf-8")))
        return 0
    directory, machine = _where(arguments.directory)
    setting = Setting(directory, quick=arguments.quick)
    rows: list[Row] = []
    for name in _chosen(arguments.only or usual, cases, "benchmark"):
        began = time.monotonic()
        try:
            found = list(cases[name](setting))
        except NotOffered as why:
            _ERRORS.print(f"{name}: {why}", markup=False)
            return 2
        rows += found
        for row in found:
            _ERRORS.print(
                f"{'pass' if row.ok else 'MISS'} {report.amount(row.measured, row.unit):>10}  {row.what}", markup=False
            )
        _ERRORS.print(f"[dim]{name}: {time.monotonic() - began:.0f} s[/]")
        results = _about(machine | {"load_after": os.getloadavg()}, quick=arguments.quick)
        results |= {"ok": all(row.ok for row in rows), "rows": [row.as_dict() for row in rows]}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")  # outlives an interrupt
    show("\n\n".join([*map(report.figures, rows), report.promises([row.as_dict() for row in rows])]))
    if any(row.name in PANELS for row in rows):
        _ERRORS.print(draw_far_away([row.as_dict() for row in rows], FAR_AWAY))
    return 0 if all(row.ok for row in rows) else 1


def show(text: str) -> None:
    """Show what a page would."""
    console = Console(highlight=False)
    console.width = max(console.width, 150)
    console.print(Markdown(text))


def peers() -> int:
    """TxStore beside its peers: measure, keep the results as JSON, say what they show; exit status 1 on a miss."""
    parser = _parser("python -m benchmarks.peers", peers.__doc__)
    parser.add_argument("--rows", action="append", metavar="PART", help="those whose names contain it; several times")
    parser.add_argument("--peers", action="append", metavar="PART", help="those whose names contain it; several times")
    parser.add_argument("--rounds", type=int, help=f"by default {ROUNDS}")
    parser.add_argument("--keys", type=int, default=10**5, metavar="N", help="up to so many; by default 100,000")
    parser.add_argument("--show", action="store_true", help="measure nothing: show what the results say")
    arguments = parser.parse_args()
    results = load(RESULTS_OF_PEERS) if arguments.show or arguments.publish else _measure(arguments)
    if arguments.publish:
        publish_peers(results)
    show(f"{report.page(results, {})}\n\n{report.tables(results)}")
    return 0 if all(verdict.ok for verdict in judge(results)) else 1


def _measure(arguments: argparse.Namespace) -> Results:
    """Return what was measured; the file has it after each row, for whoever can't wait."""
    offered = make_rows(quick=arguments.quick, keys=arguments.keys)
    chosen = _chosen(arguments.rows, offered, "row")
    directory, machine = _where(arguments.directory)
    rounds = arguments.rounds or (ROUNDS_QUICK if arguments.quick else ROUNDS)
    results = Results(_about(machine, quick=arguments.quick) | {"rounds": rounds})
    with TemporaryDirectory(prefix="benchmark-", dir=directory) as scratch:
        for name in chosen:
            began = time.monotonic()
            take_rounds(results, offered[name], Path(scratch), rounds=rounds, only=arguments.peers or ())
            results.save(RESULTS_OF_PEERS)
            _ERRORS.print(f"{name}: {time.monotonic() - began:.0f} s")
    return results


def _parser(program: str, description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller repositories: to see that it runs")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="where to write; by default here")
    parser.add_argument("--publish", action="store_true", help="put what the last run has found into the documents")
    return parser


def _where(directory: Path) -> tuple[Path, dict[str, Any]]:
    """Return the directory to write to, and what machine this is. Exits if the directory is in memory."""
    file_system = _file_system_of(directory.resolve())
    if file_system in ("tmpfs", "ramfs"):
        _ERRORS.print(f"{directory} is in memory ({file_system}), where being durable costs nothing: use --directory")
        raise SystemExit(2)
    return directory.resolve(), _describe_machine(file_system)


def _chosen(parts: Iterable[str] | None, offered: Mapping[str, object], what: str) -> list[str]:
    """Return those with these names, or, of what is no name, those that contain it. Exits if there is none."""
    if parts is None:
        return list(offered)
    chosen = [name for name in offered if any(name == part or (part in name and part not in offered) for part in parts)]
    if not chosen:
        _ERRORS.print(f"no such {what}; there are {'; '.join(offered)}", markup=False)
        raise SystemExit(2)
    return chosen


def _about(machine: dict[str, Any], *, quick: bool) -> dict[str, Any]:
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"date": date, "quick": quick, "machine": machine, "versions": _versions()}


# --- what a result is worth nothing without: the versions, and the machine


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "txstore": txstore.__version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found | {"index": index.IMPLEMENTATION, "local": local.IMPLEMENTATION}


def _describe_machine(file_system: str) -> dict[str, Any]:
    model, cpuinfo = platform.processor(), Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = (line.partition(":") for line in cpuinfo.read_text(encoding="utf-8").splitlines())
        model = next((value.strip() for name, _, value in lines if name.strip() == "model name"), model)
    return {
        "system": platform.platform(), "processor": model, "processors": os.cpu_count(),
        "file_system": file_system, "load_before": os.getloadavg(),
    }  # fmt: skip


def _file_system_of(directory: Path) -> str:
    """Return the type of the file system that a directory lies on."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return "unknown"
    found = [line.split()[1:3] for line in mounts.read_text(encoding="utf-8").splitlines()]
    above = [(len(place), kind) for place, kind in found if directory.is_relative_to(place)]
    return max(above, default=(0, "unknown"))[1]
