"""The picture of `distance`: how many requests are under way while the same work is done by different stores."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

INK, FAINT = "#1f1f1f", "#6b6b6b"
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


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> str:
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
    figure.suptitle(TITLE, x=0.04, ha="left", size=17, weight="bold", color=INK)
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
        axes.set_title(title, loc="left", size=11.5, weight="bold", color=INK)
        axes.set_xlabel("seconds", size=9.5, color=FAINT)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.tick_params(length=0, labelsize=10, labelcolor=INK)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    figure.legend(labels.values(), labels, loc="upper right", ncols=len(labels), frameon=False, fontsize=11)
    figure.tight_layout(rect=(0.02, 0, 0.98, 0.97))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "txstore"}):  # small, and the same each time
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return f"drawn: {path}"
