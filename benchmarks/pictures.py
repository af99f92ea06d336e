"""The pictures of the documents: bars of the peers, and requests under way far from a server."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers.report import amount
from benchmarks.peers.results import OURS, Cell, Results, least

_INK, _FAINT = "#1f1f1f", "#6b6b6b"
_OURS, _DURABLE, _NOT_DURABLE = "#12476b", "#6aaed6", "#c9cdd2"
#: A bar that would be longer than so many times TxStore's is cut.
_LONGEST = 6


class Picture(NamedTuple):
    name: str
    title: str
    panels: tuple[tuple[str, str, str], ...]  # row, task, title


_CODECS, _RAW, _ZSTD = ("raw", "zstd", "blosc"), "4096 × 16 KiB, raw", "4096 × 16 KiB, zstd"
_CROWD, _RANDOM, _ONE = f"{_ZSTD}: written by several processes", "200 random chunks", "open, read one chunk"


def _whole(row: str) -> tuple[tuple[str, str, str], ...]:
    return tuple((f"{row}, {codec}", task, f"{task}, {codec}") for task in ("write", "read") for codec in _CODECS)


_PARTS = (
    (_RAW, _RANDOM, f"{_RANDOM}, raw"),
    (_ZSTD, _RANDOM, f"{_RANDOM}, zstd"),
    ("4096 × 16 KiB in 16 shards, zstd", _RANDOM, f"{_RANDOM} of 16 shards"),
    (_ZSTD, "one line across all chunks", "one line across all chunks, zstd"),
    (_ZSTD, "strided", "strided, zstd"),
    ("2,000 × 16 KiB on S3, 30 ms a request", "read", "2,000 chunks from S3, 30 ms a request"),
)
_MANY = (
    (_CROWD, "1 process", "64 MiB written by 1 process"),
    (_CROWD, "4 processes", "64 MiB written by 4 processes"),
    (_CROWD, "8 processes", "64 MiB written by 8 processes"),
    ("append 1,000 × 16 KiB, each committed", "median", "append 16 KiB and commit"),
    ("10,000 keys", _ONE, "open 10,000 chunks, read one"),
    ("100,000 keys", _ONE, "open 100,000 chunks, read one"),
)
FIGURES = [
    Picture("small-chunks", "4096 chunks of 16 KiB", _whole("4096 × 16 KiB")),
    Picture("large-chunks", "512 chunks of 1 MiB", _whole("512 × 1 MiB")),
    Picture("parts", "Parts of 4096 chunks of 16 KiB", _PARTS),
    Picture("many", "Many processes, commits and keys", _MANY),
]


def best_of_each(cells: Sequence[Cell]) -> list[Cell]:
    """Return one cell for each store, that of its best pipeline; for TxStore the one that it has by itself."""
    stores: dict[str, list[Cell]] = {}
    for cell in cells:
        name = cell.peer.partition(",")[0]
        if name != OURS or cell.peer == OURS:
            stores.setdefault(name, []).append(cell)
    found = [best for group in stores.values() if (best := least(group)) is not None]
    return sorted(found, key=lambda cell: cell.median)


def draw(results: Results, figure: Picture) -> str | None:
    """Return the figure as SVG, or None if nothing of it was measured."""
    panels = [(row, title, best_of_each(results.of(row, task))) for row, task, title in figure.panels]
    panels = [panel for panel in panels if panel[2]]
    if not panels:
        return None
    drawn, all_axes = _panels(figure.title, [title for _, title, _ in panels], height=2.7)
    for axes, (row, _, cells) in zip(all_axes, panels, strict=False):
        _bars(axes, cells, results.peers.get(row, {}))
    kinds = {"TxStore, durable": _OURS, "durable when the call returns": _DURABLE, "not durable": _NOT_DURABLE}
    handles = [all_axes[0].bar(0, 0, color=colour) for colour in kinds.values()]
    drawn.legend(handles, kinds, loc="upper right", ncols=3, frameon=False, fontsize=11)
    drawn.text(0.04, 0.01, "Medians; lines: lowest to highest round. Shorter is better.", size=10, color=_FAINT)
    return _svg(drawn)


def _bars(axes: Any, cells: Sequence[Cell], about: Mapping[str, Mapping[str, Any]]) -> None:
    ours = next((cell.median for cell in cells if cell.peer == OURS), cells[0].median)
    longest = max(min(max(cell.spread[1] for cell in cells), _LONGEST * ours), cells[0].median)
    for at, cell in enumerate(cells):
        weight = "bold" if cell.peer == OURS else "normal"
        durable = about.get(cell.peer, {}).get("durable", False)
        colour = _OURS if cell.peer == OURS else _DURABLE if durable else _NOT_DURABLE
        end = min(cell.median, longest)
        axes.barh(at, end, height=0.75, color=colour)
        if cell.median > longest:  # cut: a gap says so
            axes.barh(at, 0.02 * longest, left=0.95 * longest, height=0.8, color="white")
        elif len(cell.samples) > 1:
            axes.plot([min(each, longest) for each in cell.spread], [at, at], color=_FAINT, linewidth=1)
            end = max(end, min(cell.spread[1], longest))
        axes.text(end + 0.02 * longest, at, amount(cell.median, cell.unit), va="center", size=9, weight=weight)
        name = cell.peer.replace("TensorStore ocdbt, transaction", "ocdbt, transaction")
        axes.text(-0.02 * longest, at, name, va="center", ha="right", size=9, weight=weight)
    axes.set_xlim(0, 1.35 * longest)
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.set_axis_off()


# --- how many requests are under way while the same work is done by different stores

TITLE = "Requests under way, 30 ms from the server"
#: Which rows are drawn, in the order of the panels.
PANELS = {
    "distance open": "xr.open_zarr of 500 variables",
    "distance large write": "8 chunks of 64 MiB, written",
    "distance large read": "8 chunks of 64 MiB, read",
    "distance many": "2,000 chunks of 128 KiB, read",
    "distance random": "200 chunks of 16 KiB, read by 64 threads",
    "distance verify": "verify of 300 commits",
}
#: Told apart by lightness and kind of line as well as by hue. Others take so long that nothing else would be seen.
_LOOKS = {"TxStore": ("#12476b", "-", 2.4), "Icechunk": ("#d9822b", "--", 1.8), "obstore": ("#4c9bc4", "-.", 1.8)}


def draw_far_away(rows: Sequence[Mapping[str, Any]], path: Path) -> str:
    """Draw what rows of a run's results say; return what became of it, in a sentence."""
    panels = [(PANELS[row["name"]], row["figures"]) for row in rows if row["name"] in PANELS and row["figures"]]
    if not panels:
        return "no picture: nothing was measured that it would show"
    if importlib.util.find_spec("matplotlib") is None:
        return "no picture: matplotlib is not installed (pip install 'txstore\\[bench]')"
    figure, all_axes = _panels(TITLE, [title for title, _ in panels], height=3.1)
    labels: dict[str, Any] = {}
    for axes, (_, figures) in zip(all_axes, panels, strict=False):
        for each in figures:
            who, seconds, counts = each["who"], each["seconds"], each["under way"]
            if who not in _LOOKS:
                continue
            colour, style, width = _LOOKS[who]
            times = [seconds * (number + 0.5) / len(counts) for number in range(len(counts))]
            [labels[who]] = axes.plot(times, counts, color=colour, linestyle=style, linewidth=width)
        axes.set_xlabel("seconds", size=9.5, color=_FAINT)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.locator_params(axis="y", nbins=5, integer=True)
        axes.tick_params(length=0, labelsize=10, labelcolor=_INK)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    figure.legend(labels.values(), labels, loc="upper right", ncols=len(labels), frameon=False, fontsize=11)
    path.write_text(_svg(figure), encoding="utf-8")
    return f"drawn: {path}"


# --- both


def _panels(title: str, titles: Sequence[str], height: float) -> tuple[Any, list[Any]]:
    """Return a figure with three panels in a line, and their axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = -(-len(titles) // 3)
    figure = Figure(figsize=(12, 0.9 + height * lines), facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.04, ha="left", size=17, weight="bold", color=_INK)
    all_axes = list(figure.subplots(lines, 3, squeeze=False).flat)
    for axes, each in zip(all_axes, titles, strict=False):
        axes.set_title(each, loc="left", size=10.5, weight="bold", color=_INK)
    for axes in all_axes[len(titles) :]:
        axes.set_visible(False)
    return figure, all_axes


def _svg(figure: Any) -> str:
    from matplotlib import rc_context

    figure.tight_layout(rect=(0.02, 0.02, 0.96, 0.97))
    written = StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "txstore"}):  # small, and the same each time
        figure.savefig(written, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"
