"""Puts what was measured into the pages of the documents, between two marks of theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.peers.report import machine, page, promises, summary
from benchmarks.peers.results import Results
from benchmarks.pictures import FIGURES, draw, draw_far_away

ROOT = Path(__file__).parents[1]
#: Where the results lie that the pages show.
KEPT = "docs/understand/benchmarks"
END = "<!-- measured: end -->"
#: Whose marks they are.
BENCH, FAR_AWAY, PEERS = "make bench", "make bench WHAT=remote", "make bench WHAT=peers"
#: What the front page shows of the peers.
_BESIDE = ("LocalStore", "TensorStore", "HDF5", "Icechunk")
_SUMMARY = [
    *((f"4096 × 16 KiB, {codec}", task) for codec in ("raw", "zstd") for task in ("write", "read")),
    ("4096 × 16 KiB, zstd", "200 random chunks"),
    *(("512 × 1 MiB, zstd", task) for task in ("write", "read")),
    ("4096 × 16 KiB in 16 shards, zstd", "read"),
]


def filled(text: str, between: str, command: str) -> str:
    """Return a page with something else between the marks of what a command has measured."""
    begin = f"<!-- measured: {command} -->"
    head, found, rest = text.partition(begin)
    _, ended, tail = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"there is no {begin} with {END} after it")
    return f"{head}{begin}\n\n{between}\n\n{END}{tail}"


def publish(results: dict[str, Any]) -> None:
    """Put a run into the page: one of what is far away has a table, and a picture, of its own."""
    kept = "bench.json"
    if _is_far_away(results):
        draw_far_away(results["rows"], ROOT / KEPT / "far-away.svg")
        rows = [{**row, "figures": []} for row in results["rows"]]  # hundreds of samples, which the picture shows
        kept, results = "bench-remote.json", {**results, "rows": rows}
    (ROOT / KEPT / kept).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    path = ROOT / "docs/understand/performance.md"
    path.write_text(with_results(path.read_text(encoding="utf-8"), results), encoding="utf-8")


def with_results(text: str, results: dict[str, Any]) -> str:
    """Return the page with what a run has found in place of what an earlier one has."""
    if not _is_far_away(results):
        return filled(text, _run(results), BENCH)
    picture = "![How many requests each store has under way, in the course of time](benchmarks/far-away.svg)"
    return filled(text, f"{_run(results)}\n\n{picture}", FAR_AWAY)


def _run(results: dict[str, Any]) -> str:
    return f"{machine(results, versions=False)}\n\n{promises(results['rows'])}"


def _is_far_away(results: dict[str, Any]) -> bool:
    return all(row["name"].startswith(("remote ", "distance ")) for row in results["rows"])


# --- of the peers


def documents(results: Results) -> dict[str, str]:
    """Return what a run makes of files: the figures whole, of pages what goes between the marks."""
    drawn = {figure: picture for figure in FIGURES if (picture := draw(results, figure)) is not None}
    titles = {f"benchmarks/{figure.name}.svg": figure.title for figure in drawn}
    first = [f"![{title}](docs/understand/{path})" for path, title in titles.items()][:1]
    return {
        **{f"{KEPT}/{figure.name}.svg": picture for figure, picture in drawn.items()},
        "docs/understand/benchmarks.md": page(results, titles),
        "README.md": "\n\n".join([summary(results, _SUMMARY, _BESIDE), *first]),
    }


def publish_peers(results: Results) -> None:
    results.save(ROOT / KEPT / "peers.json")
    for name, content in documents(results).items():
        path = ROOT / name
        is_page = path.suffix == ".md"
        written = filled(path.read_text(encoding="utf-8"), content, PEERS) if is_page else content
        path.write_text(written, encoding="utf-8")
