"""Erases rows of arrays: what `maintenance.erase` has to be told of them, and the commits that overwrite them.

In every commit the rows are those that have the labels by that commit's own coordinate. The chunks with rows get fill
values there, and are encoded anew by the codecs of the array, as that commit describes it. All other elements stay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from txstore.codecs.chunk_codec import NotMergeableError
from txstore.codecs.chunk_filling import ChunkFiller
from txstore.engine import Engine
from txstore.errors import CorruptionError, ErasureError, NodeNotFoundError
from txstore.format import packfile
from txstore.format.keys import directory_prefix
from txstore.format.records import ErasureRecord
from txstore.history.snapshot import Snapshot
from txstore.labels.choosing import Choice
from txstore.labels.rows_in_history import Address, RowsInHistory, StoredValue
from txstore.labels.rows_of_array import ArrayAt, ArrayRows, Boxes
from txstore.maintenance.erase import is_below
from txstore.maintenance.reachable import living_branches
from txstore.maintenance.replacement_packs import ValueAfter
from txstore.segments.ranged_packs import open_packs


class ErasedRows:
    """The rows of arrays, or of all arrays of groups that have the dimensions: a `maintenance.erase.RowsToErase`.

    `paths` are those of the arrays.
    """

    def __init__(
        self,
        engine: Engine,
        paths: Sequence[str],
        rows: Mapping[str, Any],
        *,
        labels: bool = False,
        positions: bool = False,
    ) -> None:
        """Look through all commits for them. `Repository.erase` documents the parameters and errors."""
        if not rows:
            raise ValueError("name the rows: {dimension: labels}")
        if labels and (len(rows) > 1 or positions):
            raise ValueError("labels=True erases the labels of whole rows: give one dimension, and its labels")
        self.dimensions = tuple(rows)
        self._engine = engine
        self._given = tuple(dict.fromkeys(directory_prefix(path)[:-1] for path in paths))
        self._choices = [Choice(name, chosen, by_position=positions) for name, chosen in rows.items()]
        self._rows = ArrayRows(self._choices)
        self._packs = open_packs(engine.storage)
        self._prefixes, self._keeps_labels = self._given, not labels
        #: By where a value lies: its rows by the coordinates of all commits that have it.
        self._boxes: dict[Address, Collection[Boxes]] = {}
        self._found: RowsInHistory | None = self._look()
        for path in self._given:
            if not self._found.is_below(path):
                raise NodeNotFoundError(path)
        if not self._found.paths:
            shown = ", ".join(map(repr, self.dimensions))
            raise ErasureError(self._given, f"no commit has an array there with the dimensions {shown}")
        if labels:
            self._prefixes = tuple(dict.fromkeys((*self._given, *sorted(self._rows.coordinates))))
            self._found = self._look()
        if "" in self._found.paths:
            raise ValueError("rows of an array at the root can't be erased: erase it as a whole")
        self.paths = tuple(sorted(self._found.paths))

    def _look(self) -> RowsInHistory:
        """Look through all commits, again if a vacuum has deleted what this was about to read."""
        commits = self._engine.commits
        while True:
            kept = {branch: commits.oldest_kept.of(branch) for branch in living_branches(commits)}
            try:
                return RowsInHistory(commits, self._prefixes, self._rows, leaves_labels=self._keeps_labels)
            except (CorruptionError, FileNotFoundError):
                if {branch: commits.oldest_kept.of(branch) for branch in living_branches(commits)} == kept:
                    raise

    # --- what an erasure asks

    def check(self) -> bool:
        found, self._found = self._found, None
        if found is not None:
            with contextlib.suppress(CorruptionError, FileNotFoundError):  # a vacuum may have come since
                return self._check(found)
        return self._check(self._look())

    def _check(self, found: RowsInHistory) -> bool:
        found.check()
        self._boxes = {place: value.boxes.values() for value in found.values.values() for place in value.places}
        # Each is encoded, though one would answer: what can't be is to be known before anything is changed.
        return sum(after.value is not None for after in self._values(found)) > 0

    def shown_unmet(self, *, is_begun: bool) -> str:
        if is_begun and not self._keeps_labels:
            return ""
        return "; ".join(f"{choice.dimension!r}: {choice.shown_unmet}" for choice in self._choices if choice.unmet)

    def covers(self, record: ErasureRecord) -> bool:
        return record.dimensions == self.dimensions and all(is_below(path, self._prefixes) for path in record.paths)

    def are_in(self, snapshot: Snapshot) -> bool:
        return next(self._new_values(snapshot), None) is not None

    def values(self) -> Iterator[ValueAfter]:
        return self._values(self._look())

    def _values(self, found: RowsInHistory) -> Iterator[ValueAfter]:
        for value in found.values.values():
            if value.path in self.paths:
                yield ValueAfter(value.key, value.places, self._filled(value, value.shown or {}))

    def _filled(self, value: StoredValue, shown: Mapping[int, int]) -> bytes | None:
        array = value.array
        if array is None or not (value.boxes or shown) or not value.length or value.kind != packfile.REF_PACK:
            return None
        stored = self._packs.get(value.pack).view(value.offset, value.length, value.checksum, value.key)
        return _filled(array, value.key, stored, value.boxes.values(), shown)

    # --- the heads

    def overwrite(self, head: Snapshot, branch: str, *, asks: bool) -> None:
        """Commit fill values for the rows on top of the head of a branch, or only ask whether that can be."""
        shown = ", ".join(map(repr, self.paths[:5])) + (", ..." if len(self.paths) > 5 else "")
        along = ", ".join(map(repr, self.dimensions))
        message = f"overwrite rows of {shown} along {along}, to be erased"
        with self._engine.begin(head, branch=branch, message=message) as mapping:
            for key, value in self._new_values(head):
                mapping[key] = value
            if asks:
                mapping.check()
                mapping.rollback()

    def _new_values(self, snapshot: Snapshot) -> Iterator[tuple[str, bytes]]:
        """Yield the chunks of a commit that have values of the rows, each with fill values in their place."""
        for path in self.paths:
            array = self._rows.at(snapshot, path)
            if array is None:
                continue
            for key, boxes in array.boxes.items():
                found = snapshot.lookup(key)
                stored = None if found is None else snapshot.get_view(key)
                if found is None or stored is None:
                    continue
                place = snapshot.runs.pack_name(found.run, found.pack), found.offset
                if (new := _filled(array, key, stored, [boxes, *self._boxes.get(place, ())])) is not None:
                    yield key, new


def _filled(
    array: ArrayAt, key: str, stored: memoryview, boxes: Iterable[Boxes], shown: Mapping[int, int] | None = None
) -> bytes | None:
    described = array.described
    try:
        filler = ChunkFiller(array.document, described.content, key[len(directory_prefix(described.path)) :])
        return filler.filled(stored, [box for each in boxes for box in each], array.missing, shown=shown)
    except NotMergeableError as error:
        raise ErasureError(
            [described.path], f"{key!r} can't be encoded anew: {error}. Erase the array as a whole"
        ) from error
