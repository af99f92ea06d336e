"""The picture of `processes`: writes a second, writes lost, and what the reader meets, by the number of writers."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.processes.crew import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "Many processes write one Zarr array, another reads it"
INK, FAINT, BAD = "#1f1f1f", "#6b6b6b", "#c0432a"


class _Look(NamedTuple):
    """Told apart by lightness and marker as well as by hue."""

    colour: str
    marker: str
    durable: bool


_LOOKS = {
    "TxStore": _Look("#12476b", "o", durable=True),
    "TensorStore OCDBT": _Look("#4c9bc4", "s", durable=True),
    "Icechunk": _Look("#d9822b", "D", durable=False),
    "LocalStore + filelock": _Look("#8a8a8a", "^", durable=False),
    "LocalStore + fasteners": _Look("#b9a3c9", "v", durable=False),
}
_OTHER = _Look("#3a3a3a", "x", durable=False)


def draw(cells: Sequence[Cell], path: Path) -> str:
    """Draw the cells; return what became of it, in a sentence."""
    if importlib.util.find_spec("matplotlib") is None:
        return "no picture: matplotlib is not installed (pip install 'txstore\\[bench]')"
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8.6), facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(0.04, 0.955, TITLE, size=19, weight="bold", color=INK)
    figure.text(0.04, 0.932, _headline(cells), size=11.5, color=INK, va="top", linespacing=1.6)
    ((writes, lost), (torn, latency)) = figure.subplots(2, 2)
    figure.subplots_adjust(left=0.06, right=0.97, top=0.785, bottom=0.12, hspace=0.42, wspace=0.16)
    _draw_rates(writes, cells)
    _draw_shares(lost, cells, "Acknowledged writes that were lost", lambda cell: (cell.lost, cell.acknowledged))
    _draw_shares(torn, cells, "Reads that were torn", lambda cell: (cell.torn, len(cell.latencies)))
    _draw_latencies(latency, cells)
    handles, labels = writes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(0.033, 0.872), ncols=len(labels), frameon=False, fontsize=11,
        labelcolor=INK, handlelength=2.2,
    )  # fmt: skip
    figure.text(0.04, 0.025, _small_print(cells), size=9, color=FAINT, linespacing=1.5)
    figure.savefig(path, dpi=150)
    return f"drawn: {path}"


def _headline(cells: Sequence[Cell]) -> str:
    """Two lines: who lost and tore nothing, and what became of the others' writes and reads."""
    clean, others = [], []
    for store, group in groupby(cells, key=lambda cell: cell.store):
        of_store = list(group)
        lost, torn = sum(cell.lost for cell in of_store), sum(cell.torn for cell in of_store)
        writes, reads = sum(cell.acknowledged for cell in of_store), sum(len(cell.latencies) for cell in of_store)
        bad = [f"lost {lost:,} of {writes:,} writes"] * bool(lost) + [f"tore {torn:,} of {reads:,} reads"] * bool(torn)
        if bad:
            others.append(f"{store} {' and '.join(bad)}.")
        else:
            clean.append(store)
    return f"Nothing lost, nothing torn: {', '.join(clean) or 'none'}.\n{'   '.join(others)}"


def _small_print(cells: Sequence[Cell]) -> str:
    seconds = max(cell.seconds for cell in cells)
    return (
        "A write is a transaction of one 16 KiB chunk that no other process touches; the first writer adds two chunks, "
        "always equal, which the reader reads from the newest state.\n"
        f"{seconds:.1g} s each, all in one run on one machine. Solid lines: durable before it is acknowledged. "
        "Dashed: never synced to the disk."
    )


def _look(store: str) -> _Look:
    return _LOOKS.get(store, _OTHER)


def _prepare(axes: Axes, title: str, cells: Sequence[Cell]) -> list[int]:
    counts = sorted({cell.processes for cell in cells})
    axes.set_title(title, loc="left", size=12.5, weight="bold", color=INK)
    axes.set_xticks(range(len(counts)), [f"{count}" for count in counts], color=INK)
    axes.set_xlim(-0.5, len(counts) - 0.5)
    axes.set_xlabel("writer processes", size=10, color=FAINT)
    axes.tick_params(length=0, labelsize=10.5, labelcolor=INK)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    return counts


def _draw_rates(axes: Axes, cells: Sequence[Cell]) -> None:
    counts = _prepare(axes, "Writes acknowledged in a second", cells)
    for store, group in groupby(cells, key=lambda cell: cell.store):
        look, of_store = _look(store), list(group)
        axes.plot(
            [counts.index(cell.processes) for cell in of_store],
            [cell.rate for cell in of_store],
            color=look.colour,
            marker=look.marker,
            linestyle="-" if look.durable else "--",
            linewidth=2.4,
            markersize=7,
            label=store,
        )
    axes.set_ylim(bottom=0)


def _draw_shares(axes: Axes, cells: Sequence[Cell], title: str, share_of: Callable[[Cell], tuple[int, int]]) -> None:
    """Draw a bar for each store and number of writers; where it is nothing, a 0 stands in its place."""
    from matplotlib.ticker import MaxNLocator

    counts = _prepare(axes, title, cells)
    stores = list(dict.fromkeys(cell.store for cell in cells))
    width = 0.84 / len(stores)
    shares = [bad / max(of, 1) for bad, of in map(share_of, cells)]
    top = max([*shares, 0.05])
    for cell, share in zip(cells, shares, strict=True):
        x = counts.index(cell.processes) + (stores.index(cell.store) - (len(stores) - 1) / 2) * width
        axes.bar(x, share, width=width * 0.92, color=_look(cell.store).colour)
        label, ink = ("0", FAINT) if not share else (_percent(share), BAD)
        axes.text(x, share + top * 0.015, label, size=9, color=ink, ha="center", va="bottom")
    axes.set_ylim(0, top * 1.15)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "<1%"


def _draw_latencies(axes: Axes, cells: Sequence[Cell]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    counts = _prepare(axes, "Reading the newest state: median to 99th percentile", cells)
    stores = list(dict.fromkeys(cell.store for cell in cells))
    width = 0.84 / len(stores)
    for cell in cells:
        median, tail = cell.latency(50), cell.latency(99)
        if math.isnan(median):
            continue
        look = _look(cell.store)
        x = counts.index(cell.processes) + (stores.index(cell.store) - (len(stores) - 1) / 2) * width
        axes.plot([x, x], [median, tail], color=look.colour, linewidth=2.4, solid_capstyle="butt")
        axes.plot([x], [tail], color=look.colour, marker="_", markersize=9, markeredgewidth=2.4)
        axes.plot([x], [median], color=look.colour, marker=look.marker, markersize=7)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} ms")
