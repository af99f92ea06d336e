"""What a run shows, as Markdown: made from its JSON alone, so that no figure is typed by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.harness import Row
from benchmarks.peers.results import OURS, Cell, Results, least, ratio
from benchmarks.peers.targets import NOT_MEASURED, is_meant, judge

_QUICK = "**One quick run, on a machine that may have been busy: too little to judge by.**"
_ALL = ("LocalStore", "LocalStore, zarrs", "ObjectStore", "MemoryStore", "TensorStore", "HDF5", "Icechunk")


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
    offered = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")) if unit == "s" else ((1.0, unit),)
    return next((each for each in offered if value >= each[0]), offered[-1])


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.3g}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right_from: int = 1) -> str:
    rule = ["---" if number < right_from else "---:" for number in range(len(columns))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [columns, rule, *rows])


def verdicts(results: Results) -> str:
    """Return how many aims were reached, and those that were missed."""
    found = [each for each in judge(results) if each.ok or each.measured != NOT_MEASURED]
    missed = [(each.row, each.task, each.wanted, each.measured) for each in found if not each.ok]
    said = f"{len(found) - len(missed)} targets were reached, {len(judge(results)) - len(found)} not measured."
    shown = table(("not reached", "", "must reach", "measured"), missed, right_from=4) if missed else ""
    return f"{said}\n\n{shown}".rstrip()


def promises(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what each row of a run of `make bench` has measured: a line for those that differ behind a colon alone."""
    lines: list[list[str]] = []
    for row in rows:
        ((kind, target),) = row["must_reach"].items()
        wanted = f"{'≥' if kind == 'at_least' else '≤'} {target:,g} {row['unit']}".rstrip()
        found = amount(row["measured"], row["unit"])
        subject, colon, what = row["what"].replace("|", "/").rpartition(": ")
        found = f"{what if colon else ''}{colon}{found if row['ok'] else f'**{found}**, must be {wanted}'}"
        if lines and lines[-1][0] == subject:
            lines[-1][1] += f"; {found}"
        else:
            lines.append([subject or what, found])
    return (
        f"{table(('what', 'measured'), lines)}\n\n{sum(row['ok'] for row in rows)} of {len(rows)} targets were reached."
    )


def figures(row: Row) -> str:
    """Return what else was counted, as far as it is one figure each."""
    lines = [{name: each for name, each in one.items() if isinstance(each, str | int | float)} for one in row.figures]
    columns = list(dict.fromkeys(name for line in lines for name in line))
    shown = [[amount(each, "") if not isinstance(each, str) else each for each in line.values()] for line in lines]
    return table(columns, shown) if columns else ""


def tables(results: Results) -> str:
    """Return a table for each row: a line for each peer, the one that is best at the first task above."""
    parts = []
    for row in dict.fromkeys(row for row, _ in results.tasks()):
        tasks = [task for name, task in results.tasks() if name == row]
        peers = dict.fromkeys(cell.peer for task in tasks for cell in results.of(row, task))
        cells = {peer: [results.find(row, task, peer) for task in tasks] for peer in peers}
        lines = [[peer, *(measured(cell) if cell else "–" for cell in found)] for peer, found in cells.items()]
        parts.append(f"### {row}\n\n{table(('', *tasks), lines)}")
    return "\n\n".join(parts)


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
    """Return what each task takes, the verdicts, the figures (path to title), and who was left out."""
    drawn = [f"![{title}]({path})" for path, title in figures.items()]
    left = ["### Left out", left_out(results)] if results.skipped else []
    return "\n\n".join([summary(results), "### What it has to show", verdicts(results), *drawn, *left])


def summary(results: Results, rows: Sequence[tuple[str, str]] = (), than: Sequence[str] = _ALL) -> str:
    """Return how many times as much others need as TxStore, a line for each task; by default for all, with versions."""
    lines = []
    for row, task in rows or results.tasks():
        if (ours := results.find(row, task, OURS)) is not None and not task.endswith((", resident", "stored")):
            others = [least(cell for cell in results.of(row, task) if is_meant(peer, cell)) for peer in than]
            lines.append([f"{task} {row}", measured(ours), *(_times(other, ours) for other in others)])
    shown = table(("", OURS, *(f"than {name}" for name in than)), lines)
    return "\n\n".join([machine(results.about, versions=not rows), *[_QUICK] * results.about["quick"], shown])


def _times(other: Cell | None, ours: Cell) -> str:
    found = ratio(other, ours) if other and ours.median else 0  # of no chunks that are lost there is no multiple
    if not found:
        return amount(other.median, other.unit) if other else "–"
    return f"{found:.0f}x" if found >= 10 else f"{found:.2g}x"
