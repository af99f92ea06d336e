"""The demo: one process writes while another reads, first on zarr's LocalStore, then on TxStore.

This module runs the processes. `demo_scenes` has the scenes, `demo_picture` the display and the picture. The reader
opens the data again for every read, knows what they should be, and counts each read as

- whole: it shows the state before a write or after it;
- torn: it shows a state that the writer never made;
- failed: it raised.

No process is slowed down, and both stores use zarr's default codecs.
"""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import os
import platform
import shlex
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from multiprocessing.synchronize import Event
from pathlib import Path

import zarr
from rich.console import Console
from rich.markup import escape

import txstore
from txstore.cli.demo_picture import DATA, Board, DemoReport, SceneResult, check_picture, draw, summary
from txstore.cli.demo_scenes import (
    AppendScene,
    Overwrite,
    PlainSceneStore,
    Scene,
    SceneStore,
    Transactions,
    load_storms,
)

__all__ = ["DemoReport", "SceneResult", "run"]

START_SECONDS = 60.0  # two interpreters import zarr, on a slow disk
STOP_SECONDS = 20.0  # the write or read under way may finish


# -- the two processes -------------------------------------------------------------------------------------------------

WRITES, WHOLE, TORN, FAILED = range(4)
"""Indices of the counters. Only one of the two processes writes each, so they need no lock."""


@dataclass(frozen=True)
class Stage:
    """The state that the two processes of a scene share with their parent."""

    counters: ctypes.Array[ctypes.c_longlong]
    go: Event
    stop: Event

    def steps(self) -> Iterator[int]:
        """Yield 1, 2, ... from go to stop. Also ends if the parent died, so that no process stays behind."""
        parent = multiprocessing.parent_process()
        assert parent is not None
        step = 0
        while not self.stop.is_set() and parent.is_alive():
            if self.go.wait(1.0):
                step += 1
                yield step


@dataclass
class Notes:
    """The messages of a process beside its counters: the first of each kind."""

    torn: str | None = None
    failure: str | None = None
    error: str | None = None


def write(scene: Scene, place: SceneStore, stage: Stage, ready: Callable[[], None]) -> Notes:
    with place.writing(scene.message(0)) as store:
        scene.write(store, 0)
    ready()
    for step in stage.steps():
        with place.writing(scene.message(step)) as store:
            scene.write(store, step)
        stage.counters[WRITES] = step
    return Notes()


def read(scene: Scene, place: SceneStore, stage: Stage, ready: Callable[[], None]) -> Notes:
    notes = Notes()
    ready()
    for _ in stage.steps():
        try:
            with place.reading() as store:
                torn = scene.torn(store)
        except Exception as error:  # noqa: BLE001 - a failed read of any kind is counted; the first is reported
            stage.counters[FAILED] += 1
            notes.failure = notes.failure or describe(error)
            continue
        stage.counters[TORN if torn else WHOLE] += 1
        notes.torn = notes.torn or torn
    return notes


Role = Callable[[Scene, SceneStore, Stage, Callable[[], None]], Notes]


def perform(role: Role, scene: Scene, place: SceneStore, stage: Stage, pipe: Connection) -> None:
    """The main function of a child: it sends None when it is ready, and its notes at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process in order
    try:
        notes = role(scene, place, stage, lambda: pipe.send(None))
    except Exception as error:  # sent to the parent, and raised again for the traceback
        pipe.send(Notes(error=describe(error)))
        raise
    pipe.send(notes)


def describe(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 300 else text[:297] + "..."


class Child:
    """One of the two processes, seen from the parent."""

    def __init__(
        self, context: SpawnContext, title: str, role: Role, scene: Scene, place: SceneStore, stage: Stage
    ) -> None:
        self.title = title
        self.pipe, other = context.Pipe(duplex=False)
        self.process = context.Process(target=perform, args=(role, scene, place, stage, other), daemon=True)
        self.process.start()
        other.close()  # the child holds the only other end: if it dies, the pipe closes

    def next_word(self, seconds: float) -> Notes | None:
        """Return the next message of the child; if it died or sent nothing for `seconds`, notes that say so."""
        try:
            if self.pipe.poll(seconds):
                word: Notes | None = self.pipe.recv()
                return word
        except EOFError:
            self.process.join(STOP_SECONDS)
            return Notes(error=f"ended with exit status {self.process.exitcode}")
        return Notes(error=f"did not answer for {seconds:.0f} s")

    def end(self) -> None:
        self.process.join(STOP_SECONDS)
        for end in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                end()
                self.process.join(STOP_SECONDS)
        self.pipe.close()


# -- the parent --------------------------------------------------------------------------------------------------------


@contextmanager
def holding_interrupts() -> Iterator[None]:
    """Ctrl-C inside takes effect at the end, and processes started inside never see it.

    So the parent knows each child that runs, and no child prints a traceback while it imports.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    # The children inherit the mask. The handler is for a signal that another thread takes.
    handler = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if held:
        signal.raise_signal(signal.SIGINT)


def play(scene: Scene, place: SceneStore, seconds: float, show: Callable[[SceneResult], None]) -> SceneResult:
    """Play one scene on one store. Both processes have ended when this returns or raises."""
    context = multiprocessing.get_context("spawn")
    stage = Stage(context.RawArray(ctypes.c_longlong, 4), context.Event(), context.Event())
    children: list[Child] = []
    began = time.monotonic()

    def result(notes: Sequence[Notes | None] = ()) -> SceneResult:
        counters = stage.counters[:]
        told = [(child.title, note) for child, note in zip(children, notes, strict=False) if note]
        return SceneResult(
            scene=scene.name,
            store=place.store,
            torn=counters[TORN],
            failed=counters[FAILED],
            whole=counters[WHOLE],
            writes=counters[WRITES],
            seconds=round(time.monotonic() - began, 3) if stage.go.is_set() else 0.0,
            first_torn=next((note.torn for _, note in told if note.torn), None),
            first_failure=next((note.failure for _, note in told if note.failure), None),
            error="; ".join(f"{title}: {note.error}" for title, note in told if note.error) or None,
        )

    try:
        with holding_interrupts():
            for title, role in (("the writer", write), ("the reader", read)):
                children.append(Child(context, title, role, scene, place, stage))
        notes = [child.next_word(START_SECONDS) for child in children]
        if any(notes):
            return result(notes)
        began = time.monotonic()
        stage.go.set()
        while (left := began + seconds - time.monotonic()) > 0:
            show(result())
            if wait([child.process.sentinel for child in children], timeout=min(left, 0.1)):
                break  # one has died
        stage.stop.set()
        played = result()
        notes = [child.next_word(STOP_SECONDS) for child in children]
        return replace(result(notes), seconds=played.seconds)
    finally:
        stage.stop.set()
        for child in children:
            child.end()


def run(
    seconds: float = 4.0,
    directory: Path | None = None,
    picture: Path | None = Path("demo.png"),
    console: Console | None = None,
    keep: Path | None = None,
) -> DemoReport:
    """Play both scenes on both stores, each for `seconds`, in a temporary directory below `directory`.

    Shows the counters on `console` as they grow, then the result as a table, and draws it to `picture`. The repository
    that the first scene wrote stays at `keep`; anything that already exists there is left alone.

    Before the first scene it raises ModuleNotFoundError if the extra `demo` is not installed, FileNotFoundError if the
    directory of the picture or of the scratch data does not exist, and ValueError if the picture's suffix names no
    format.
    """
    console = console or Console()
    columns = load_storms()
    if picture is not None:
        check_picture(picture)
    rows = len(columns["time"])
    scenes: tuple[Scene, ...] = (AppendScene(columns), Overwrite(columns))
    stores: tuple[type[PlainSceneStore] | type[Transactions], ...] = (PlainSceneStore, Transactions)
    board = Board([(scene.name, store.store) for scene in scenes for store in stores], seconds)
    console.print(f"One process writes, another reads: {rows:,} {DATA}.", highlight=False)
    with tempfile.TemporaryDirectory(prefix="txstore-demo-", dir=directory) as scratch, board.live(console):
        for scene, store in itertools.product(scenes, stores):
            place = store(Path(scratch, f"{scene.name}-{store.store}"))
            result = play(scene, place, seconds, board.show)
            board.done(result)
            console.print(summary(result), highlight=False)
            if keep is not None and store is Transactions and not os.path.lexists(keep):
                shutil.move(place.path, keep)
    versions = {"txstore": txstore.__version__, "zarr": zarr.__version__, "python": platform.python_version()}
    report = DemoReport(board.results, rows, versions, picture)
    console.print(board.table())
    for problem in report.problems:
        console.print(f"[bold red]WRONG[/] {escape(problem)}", highlight=False)
    if picture is not None:
        draw(report.results, {scene.name: scene.title for scene in scenes}, report.small_print(), picture)
        console.print(f"Drawn: {escape(str(picture))}", highlight=False, soft_wrap=True)
    if keep is not None:
        shown = escape(shlex.quote(str(keep)))
        console.print(f"Look at the result: [bold]txstore serve {shown} --open[/]", highlight=False, soft_wrap=True)
    return report
