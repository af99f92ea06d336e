"""Puts the results of a run, its tables and figures into the documents, between two marks of theirs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.figures import FIGURES, draw
from benchmarks.peers.report import page, summary
from benchmarks.peers.results import Results

BEGIN, END = "<!-- measured: make bench-peers -->", "<!-- measured: end -->"
FOLDER = "docs/understand/benchmarks"
#: What the front page shows.
_SUMMARY = [
    ("4096 × 16 KiB, raw", "write"),
    ("4096 × 16 KiB, raw", "read"),
    ("4096 × 16 KiB, zstd", "write"),
    ("4096 × 16 KiB, zstd", "read"),
    ("4096 × 16 KiB, zstd", "200 random chunks"),
    ("512 × 1 MiB, zstd", "write"),
    ("512 × 1 MiB, zstd", "read"),
    ("4096 × 16 KiB in 16 shards, zstd", "read"),
]


def documents(results: Results) -> dict[str, str]:
    """Return what a run makes of files: the figures whole, of pages what goes between the marks."""
    drawn = {figure: picture for figure in FIGURES if (picture := draw(results, figure)) is not None}
    titles = {f"benchmarks/{figure.name}.svg": figure.title for figure in drawn}
    first = [f"![{title}](docs/understand/{path})" for path, title in titles.items()][:1]
    return {
        **{f"{FOLDER}/{figure.name}.svg": picture for figure, picture in drawn.items()},
        "docs/understand/benchmarks.md": page(results, titles),
        "README.md": "\n\n".join([summary(results, _SUMMARY), *first]),
    }


def filled(text: str, between: str) -> str:
    """Return a page with something else between its marks."""
    head, found, rest = text.partition(BEGIN)
    _, ended, tail = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"there is no {BEGIN} with {END} after it")
    return f"{head}{BEGIN}\n\n{between}\n\n{END}{tail}"


def publish(results: Results, root: Path) -> None:
    (root / FOLDER).mkdir(exist_ok=True)
    results.save(root / FOLDER / "peers.json")
    for name, content in documents(results).items():
        path = root / name
        page = path.suffix == ".md"
        path.write_text(filled(path.read_text(encoding="utf-8"), content) if page else content, encoding="utf-8")
