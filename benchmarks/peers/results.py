"""What a run has measured, and what can be said of it: medians, spreads, ratios of pairs. Kept as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

OURS = "TxStore"


@dataclass
class Cell:
    """One task of one row, by one peer: a sample for each round."""

    row: str
    task: str
    peer: str
    unit: str
    samples: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.samples), max(self.samples)


@dataclass(frozen=True)
class Skipped:
    """Who has not taken part in a row, and why."""

    row: str
    peer: str
    why: str


@dataclass
class Results:
    about: dict[str, Any]  # date, versions, machine, rounds
    cells: list[Cell] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    #: Of each row, of each peer: whether it is durable, and what several processes may do.
    peers: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)

    def add(self, row: str, peer: str, values: dict[str, float], units: Mapping[str, str]) -> None:
        for task, value in values.items():
            cell = self.find(row, task, peer)
            if cell is None:
                cell = Cell(row, task, peer, units.get(task, "s"))
                self.cells.append(cell)
            cell.samples.append(value)

    def skip(self, row: str, peer: str, why: str) -> None:
        """Leave a peer out of a row: what was measured before does not count."""
        self.cells = [cell for cell in self.cells if (cell.row, cell.peer) != (row, peer)]
        self.skipped.append(Skipped(row, peer, why))

    def describe(self, row: str, peer: str, *, durable: bool, processes: str) -> None:
        self.peers.setdefault(row, {})[peer] = {"durable": durable, "processes": processes}

    def find(self, row: str, task: str, peer: str) -> Cell | None:
        return next((cell for cell in self.cells if (cell.row, cell.task, cell.peer) == (row, task, peer)), None)

    def of(self, row: str, task: str) -> list[Cell]:
        """Return the cells of all peers, the lowest median first."""
        found = [cell for cell in self.cells if (cell.row, cell.task) == (row, task)]
        return sorted(found, key=lambda cell: cell.median)

    def tasks(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys((cell.row, cell.task) for cell in self.cells))

    def save(self, path: Path) -> None:
        """Write one cell a line."""
        found = asdict(self)
        parts = []
        for name, value in found.items():
            if isinstance(value, list):
                lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in value)
                parts.append(f'"{name}": [\n{lines}\n]')
            else:
                parts.append(f'"{name}": {json.dumps(value, ensure_ascii=False, indent=1)}')
        path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def load(path: Path) -> Results:
    found = json.loads(path.read_text(encoding="utf-8"))
    return Results(
        found["about"],
        [Cell(**cell) for cell in found["cells"]],
        [Skipped(**skipped) for skipped in found["skipped"]],
        found["peers"],
    )


def ratio(above: Cell, below: Cell) -> float:
    """Return the median of the ratios of the rounds."""
    return statistics.median(a / b for a, b in zip(above.samples, below.samples, strict=True))


def least(cells: Iterable[Cell]) -> Cell | None:
    return min(cells, key=lambda cell: cell.median, default=None)
