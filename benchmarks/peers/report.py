"""What a run shows, as Markdown: made from its JSON alone, so that no figure is typed by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from benchmarks.harness import Row
from benchmarks.peers.results import OURS, Cell, Results, least, ratio
from benchmarks.peers.targets import is_meant, judge

_QUICK = "**One quick run, on a machine that may have been busy: too little to judge by.**"
_OVERVIEW = ("LocalStore", "LocalStore, zarrs", "ObjectStore", "MemoryStore", "TensorStore", "HDF5", "Icechunk")
_SUMMARY = ("LocalStore", "TensorStore", "HDF5", "Icechunk")


def amount(value: float, unit: str) -> str:
    """Return three digits and a unit that suits: seconds down to microseconds, or what was counted."""
    size, name = _scale(value, unit)
    return f"{_digits(value / size)} {name}".rstrip()


def measured(cell: Cell) -> str:
    """Return the median, and the spread where there is one, in the unit of the median."""
    size, name = _scale(cell.median, cell.unit)
    middle, low, high = (_digits(value / size) for value in (cell.median, *cell.spread))
    return f"{middle} {name}".rstrip() if low == high else f"{middle} ({low}–{high}) {name}".rstrip()


def _scale(value: float, unit: str) -> tuple[float, str]:
    if unit != "s":
        return 1.0, unit
    return next((size, name) for size, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")) if value >= size or size < 1e-3)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.3g}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right_from: int = 1) -> str:
    rule = ["---" if number < right_from else "---:" for number in range(len(columns))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [columns, rule, *rows])


def verdicts(results: Results) -> str:
    """Return how many aims were reached, and the others."""
    found = judge(results)
    missed = [(each.row, each.task, each.wanted, each.measured) for each in found if not each.ok]
    said = f"{len(found) - len(missed)} of {len(found)} targets were reached"
    if not missed:
        return f"{said}."
    return f"{said}; these were not:\n\n{table(('row', '', 'must reach', 'measured'), missed, right_from=4)}"


def promises(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what each row of a run of `make bench` has measured; beside what it must reach if it does not.

    Rows that follow one another and are of the same until their last colon are one line.
    """
    lines = []
    for subject, group in groupby(rows, lambda row: row["what"].rpartition(": ")[0] or row["what"]):
        parts = [(row["what"].removeprefix(subject).removeprefix(": "), _reached(row)) for row in group]
        lines.append(
            [subject.replace("|", "/"), "; ".join(f"{what}: {found}" if what else found for what, found in parts)]
        )
    reached = sum(row["ok"] for row in rows)
    return f"{table(('what', 'measured'), lines, right_from=2)}\n\n{reached} of {len(rows)} targets were reached."


def _reached(row: Mapping[str, Any]) -> str:
    found = amount(row["measured"], row["unit"])
    if row["ok"]:
        return found
    ((kind, target),) = row["must_reach"].items()
    return f"**{found}**, must be {'≥' if kind == 'at_least' else '≤'} {target:,g} {row['unit']}".rstrip()


def figures(row: Row) -> str:
    """Return what else was counted, as far as it is one figure each."""
    lines = [{name: each for name, each in one.items() if isinstance(each, str | int | float)} for one in row.figures]
    columns = list(dict.fromkeys(name for line in lines for name in line))
    shown = [[amount(each, "") if not isinstance(each, str) else each for each in line.values()] for line in lines]
    return table(columns, shown) if columns else ""


def row_of(results: Results, row: str) -> str:
    """Return the table of one row: a line for each peer, the one that is best at the first task above."""
    tasks = [task for name, task in results.tasks() if name == row]
    lines = []
    for peer in dict.fromkeys(cell.peer for task in tasks for cell in results.of(row, task)):
        cells = (results.find(row, task, peer) for task in tasks)
        name = f"**{peer}**" if peer == OURS else peer
        lines.append([name, *("–" if cell is None else measured(cell) for cell in cells)])
    return table(("", *tasks), lines)


def tables(results: Results) -> str:
    """Return all that was measured."""
    return "\n\n".join(
        f"### {row}\n\n{row_of(results, row)}" for row in dict.fromkeys(row for row, _ in results.tasks())
    )


def overview(results: Results) -> str:
    """Return a line for each task, with the median of TxStore and that of the fastest kind of each other store."""
    lines = []
    for row, task in results.tasks():
        if (ours := results.find(row, task, OURS)) is not None and not task.endswith((", resident", "stored")):
            others = (least(cell for cell in results.of(row, task) if is_meant(peer, cell)) for peer in _OVERVIEW)
            medians = ("–" if cell is None else amount(cell.median, cell.unit) for cell in (ours, *others))
            lines.append([f"{row}: {task}", *medians])
    return table(("", OURS, *_OVERVIEW), lines)


def left_out(results: Results) -> str:
    """Return who has not taken part, each with the reason, once for all rows of the same."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for skipped in results.skipped:
        reasons.setdefault((skipped.peer, skipped.why), []).append(skipped.row)
    return "\n".join(f"- {peer}: {why} ({'; '.join(rows)})" for (peer, why), rows in reasons.items())


def machine(about: Mapping[str, Any], *, versions: bool = True) -> str:
    hardware, rounds = about["machine"], about.get("rounds")
    found = ", ".join(f"{name} {version}" for name, version in about["versions"].items()) if versions else ""
    return (
        f"{about['date'][:10]}, {hardware['processors']} processors ({hardware['processor']}), "
        f"{hardware['file_system']}, {hardware['system']}."
        + (f" Rounds: {rounds}, and fewer of what takes long." if rounds else "")
        + (f" {found}." if found else "")
    )


def page(results: Results, figures: Mapping[str, str]) -> str:
    """Return the verdicts, the figures (path to title), what each store needs for each task, and who was left out."""
    parts = [machine(results.about)]
    if results.about["quick"]:
        parts.append(_QUICK)
    parts += ["### What it has to show", verdicts(results), "### Each task", overview(results)]
    parts += [f"![{title}]({path})" for path, title in figures.items()]
    if results.skipped:
        parts += ["### Left out", left_out(results)]
    return "\n\n".join(parts)


def summary(results: Results, rows: Sequence[tuple[str, str]]) -> str:
    """Return how many times as fast as others TxStore is, in a table that has a line for each of these tasks."""
    lines = []
    for row, task in rows:
        ours = results.find(row, task, OURS)
        if ours is None:
            continue
        others = [least(cell for cell in results.of(row, task) if is_meant(peer, cell)) for peer in _SUMMARY]
        ratios = ("–" if other is None else f"{ratio(other, ours):.2g}x" for other in others)
        lines.append([f"{task} {row}", measured(ours), *ratios])
    head = ("", OURS, *(f"than {name}" for name in _SUMMARY))
    quick = [_QUICK] if results.about["quick"] else []
    return "\n\n".join([machine(results.about, versions=False), *quick, table(head, lines)])
