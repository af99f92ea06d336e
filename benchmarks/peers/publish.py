"""Puts the results of a run, its tables and figures into the documents, between two marks of theirs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.pages import KEPT, filled
from benchmarks.peers.report import page, summary
from benchmarks.peers.results import Results
from benchmarks.pictures import FIGURES, draw

COMMAND = "make bench-peers"  # whose marks they are
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
        **{f"{KEPT}/{figure.name}.svg": picture for figure, picture in drawn.items()},
        "docs/understand/benchmarks.md": page(results, titles),
        "README.md": "\n\n".join([summary(results, _SUMMARY), *first]),
    }


def publish(results: Results, root: Path) -> None:
    (root / KEPT).mkdir(exist_ok=True)
    results.save(root / KEPT / "peers.json")
    for name, content in documents(results).items():
        path = root / name
        is_page = path.suffix == ".md"
        written = filled(path.read_text(encoding="utf-8"), content, COMMAND) if is_page else content
        path.write_text(written, encoding="utf-8")
