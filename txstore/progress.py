"""Reports the progress of a long call: to the caller's function, or as the bar that `progress=True` shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from txstore.format.display import html_text, readable_size

if TYPE_CHECKING:
    from rich.console import Console

#: A long call calls this again and again with the bytes done and the total bytes.
Progress: TypeAlias = Callable[[int, int], None]
#: The values of `progress=`: a function, True for a bar, or False or None for no report.
Wanted: TypeAlias = bool | Progress | None

#: Seconds between two updates of a bar in a notebook: each update is a message to the browser.
_PAUSE = 0.1


@contextmanager
def showing(wanted: Wanted, what: str) -> Iterator[Progress | None]:
    """Yield the function that a long call reports its progress to. None if the caller wants no report.

    A bar appears in a notebook's cell, or on standard error if that is a terminal. It disappears when the block ends.
    """
    if wanted is None or wanted is False:
        yield None
    elif wanted is not True:
        if not callable(wanted):
            raise TypeError(f"progress= takes True or a function of two numbers, not {wanted!r}")
        yield wanted
    else:
        from rich.console import Console  # late: only a bar needs rich

        console = Console(stderr=True, highlight=False)
        if console.is_jupyter:
            with _bar_in_notebook(what) as told:
                yield told
        elif console.is_terminal:
            with _bar_in_terminal(what, console) as told:
                yield told
        else:
            yield None


@contextmanager
def _bar_in_terminal(what: str, console: Console) -> Iterator[Progress]:
    from rich import progress as bars

    columns = (
        bars.TextColumn("{task.description}"), bars.BarColumn(), bars.TaskProgressColumn(), bars.DownloadColumn(),
        bars.TransferSpeedColumn(), bars.TimeRemainingColumn(),
    )  # fmt: skip
    with bars.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _bar_in_notebook(what: str) -> Iterator[Progress]:
    """Show a bar in HTML. rich's own bar would need ipywidgets, in the kernel and in the browser."""
    from IPython.display import HTML, display

    cell: Any = display(HTML(html_text(what)), display_id=True)
    shown_at = time.monotonic()

    def told(done: int, total: int) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if now - shown_at < _PAUSE:
            return
        shown_at = now
        counts = f"{readable_size(done)} of {readable_size(total)}"
        cell.update(HTML(f'{html_text(what)} <progress max="{max(total, 1)}" value="{done}"></progress> {counts}'))

    try:
        yield told
    finally:
        cell.update(HTML(""))
