"""The pictures of the documents: bars of the peers, and requests under way far from a server.

The bars are SVG by hand: small files that differ only where a run does.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.peers.report import amount
from benchmarks.peers.results import OURS, Cell, Results, least

_INK, _FAINT = "#1f1f1f", "#6b6b6b"
_OURS, _DURABLE, _NOT_DURABLE = "#12476b", "#6aaed6", "#c9cdd2"
_PANEL, _LABEL, _BAR, _GAP, _HEAD, _COLUMNS = 330, 118, 15, 5, 34, 3
#: A bar that would be longer than so many times TxStore's is cut.
_LONGEST = 6


@dataclass(frozen=True)
class Figure:
    name: str
    title: str
    panels: tuple[tuple[str, str, str], ...]  # row, task, title


_CODECS = ("raw", "zstd", "blosc")
_CROWD = "4096 × 16 KiB, zstd: written by several processes"
_SHARDED = "4096 × 16 KiB in 16 shards, zstd"


def _whole(row: str) -> tuple[tuple[str, str, str], ...]:
    return tuple((f"{row}, {codec}", task, f"{task}, {codec}") for task in ("write", "read") for codec in _CODECS)


FIGURES = [
    Figure("small-chunks", "4096 chunks of 16 KiB", _whole("4096 × 16 KiB")),
    Figure("large-chunks", "512 chunks of 1 MiB", _whole("512 × 1 MiB")),
    Figure(
        "parts",
        "Parts of 4096 chunks of 16 KiB",
        (
            ("4096 × 16 KiB, raw", "200 random chunks", "200 random chunks, raw"),
            ("4096 × 16 KiB, zstd", "200 random chunks", "200 random chunks, zstd"),
            (_SHARDED, "200 random chunks", "200 random chunks of 16 shards"),
            ("4096 × 16 KiB, zstd", "one line across all chunks", "one line across all chunks, zstd"),
            ("4096 × 16 KiB, zstd", "strided", "strided, zstd"),
            ("2,000 × 16 KiB on S3, 30 ms a request", "read", "2,000 chunks from S3, 30 ms a request"),
        ),
    ),
    Figure(
        "many",
        "Many processes, commits and keys",
        (
            (_CROWD, "1 process", "64 MiB written by 1 process"),
            (_CROWD, "4 processes", "64 MiB written by 4 processes"),
            (_CROWD, "8 processes", "64 MiB written by 8 processes"),
            ("append 1,000 × 16 KiB, each committed", "median", "append 16 KiB and commit"),
            ("10,000 keys", "open, read one chunk", "open 10,000 chunks, read one"),
            ("100,000 keys", "open, read one chunk", "open 100,000 chunks, read one"),
        ),
    ),
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


def draw(results: Results, figure: Figure) -> str | None:
    """Return the figure, or None if nothing of it was measured."""
    panels = [(row, title, best_of_each(results.of(row, task))) for row, task, title in figure.panels]
    panels = [panel for panel in panels if panel[2]]
    if not panels:
        return None
    parts, top = [], 44
    for first in range(0, len(panels), _COLUMNS):
        line = panels[first : first + _COLUMNS]
        for column, (row, title, cells) in enumerate(line):
            parts += _panel(results, row, title, cells, 16 + column * _PANEL, top)
        top += _HEAD + max(len(cells) for _, _, cells in line) * (_BAR + _GAP) + 14
    width, height = 16 + _COLUMNS * _PANEL, top + 22
    parts += _legend(top + 6)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="system-ui, sans-serif" font-size="11">',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            f'<text x="16" y="26" font-size="16" font-weight="600" fill="{_INK}">{escape(figure.title)}</text>',
            *parts,
            "</svg>\n",
        ]
    )


def _panel(results: Results, row: str, title: str, cells: Sequence[Cell], x: int, y: int) -> list[str]:
    ours = next((cell.median for cell in cells if cell.peer == OURS), cells[0].median)
    longest = min(max(cell.spread[1] for cell in cells), _LONGEST * ours)
    scale = (_PANEL - _LABEL - 74) / max(longest, cells[0].median)
    parts = [f'<text x="{x}" y="{y + 14}" font-weight="600" fill="{_INK}">{escape(title)}</text>']
    for number, cell in enumerate(cells):
        parts += _bar(results, row, cell, x, y + _HEAD - 8 + number * (_BAR + _GAP), scale, longest)
    return parts


def _bar(results: Results, row: str, cell: Cell, x: int, y: int, scale: float, longest: float) -> list[str]:
    is_ours = cell.peer == OURS
    durable = results.peers.get(row, {}).get(cell.peer, {}).get("durable", False)
    colour = _OURS if is_ours else _DURABLE if durable else _NOT_DURABLE
    left, middle = x + _LABEL, y + _BAR / 2
    length = min(cell.median, longest) * scale
    low, high = (left + min(end, longest) * scale for end in cell.spread)
    weight = ' font-weight="600"' if is_ours else ""
    name = cell.peer.replace("TensorStore ocdbt, transaction", "ocdbt, transaction")
    parts = [
        f'<text x="{left - 6}" y="{middle + 4:g}" text-anchor="end" fill="{_INK}"{weight}>{escape(name)}</text>',
        f'<rect x="{left}" y="{y}" width="{max(length, 1):.1f}" height="{_BAR}" fill="{colour}"/>',
    ]
    if cell.median > longest:  # cut: a gap says so
        parts.append(f'<rect x="{left + length - 10:.1f}" y="{y}" width="3" height="{_BAR}" fill="#ffffff"/>')
    elif high - low > 1:
        parts.append(f'<path d="M{low:.1f} {middle:g}H{high:.1f}" stroke="{_FAINT}"/>')
    end = max(left + length, high if cell.median <= longest else 0) + 5
    shown = amount(cell.median, cell.unit)
    parts.append(f'<text x="{end:.1f}" y="{middle + 4:g}" fill="{_INK}"{weight}>{shown}</text>')
    return parts


def _legend(y: int) -> list[str]:
    kinds = ((_OURS, "TxStore, durable"), (_DURABLE, "durable when the call returns"), (_NOT_DURABLE, "not durable"))
    parts, x = [], 16
    for colour, text in kinds:
        parts.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 15}" y="{y + 9}" fill="{_FAINT}">{text}</text>')
        x += 40 + 6 * len(text)
    text = "Medians; lines: lowest to highest round. Shorter is better."
    parts.append(f'<text x="{x}" y="{y + 9}" fill="{_FAINT}">{text}</text>')
    return parts


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
_LOOKS = {
    "TxStore": ("#12476b", "-", 2.4),
    "Icechunk": ("#d9822b", "--", 1.8),
    "obstore": ("#4c9bc4", "-.", 1.8),
}


def draw_far_away(rows: Sequence[Mapping[str, Any]], path: Path) -> str:
    """Draw what rows of a run's results say; return what became of it, in a sentence."""
    panels = [(PANELS[row["name"]], row["figures"]) for row in rows if row["name"] in PANELS and row["figures"]]
    if not panels:
        return "no picture: nothing was measured that it would show"
    if importlib.util.find_spec("matplotlib") is None:
        return "no picture: matplotlib is not installed (pip install 'txstore\\[bench]')"
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    lines = -(-len(panels) // 3)
    figure = Figure(figsize=(12, 0.9 + 3.1 * lines), facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(TITLE, x=0.04, ha="left", size=17, weight="bold", color=_INK)
    all_axes = list(figure.subplots(lines, 3, squeeze=False).flat)
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    labels: dict[str, Any] = {}
    for axes, (title, figures) in zip(all_axes, panels, strict=False):
        for each in figures:
            who, seconds, counts = each["who"], each["seconds"], each["under way"]
            if who not in _LOOKS:
                continue
            colour, style, width = _LOOKS[who]
            times = [seconds * (number + 0.5) / len(counts) for number in range(len(counts))]
            [labels[who]] = axes.plot(times, counts, color=colour, linestyle=style, linewidth=width)
        axes.set_title(title, loc="left", size=11.5, weight="bold", color=_INK)
        axes.set_xlabel("seconds", size=9.5, color=_FAINT)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.tick_params(length=0, labelsize=10, labelcolor=_INK)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    figure.legend(labels.values(), labels, loc="upper right", ncols=len(labels), frameon=False, fontsize=11)
    figure.tight_layout(rect=(0.02, 0, 0.98, 0.97))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "txstore"}):  # small, and the same each time
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return f"drawn: {path}"
