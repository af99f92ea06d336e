"""Merges partly written chunks at a commit: those of several processes (I7), and those that other commits changed (I5).

Merged values are new frames after all staged frames. Staged values do not change, because the commit may fail and the
transaction continue.
"""

from __future__ import annotations

from collections.abc import Collection

from txstore.codecs.chunk_codec import NotMergeableError
from txstore.errors import ConflictError
from txstore.format.records import SERIALIZABLE
from txstore.format.regions import Region
from txstore.history.publisher import Publisher
from txstore.history.snapshot import Snapshot
from txstore.segments.pack_writer import Staged
from txstore.transactions.conflicts import Settled
from txstore.transactions.participants.chains import Link
from txstore.transactions.staging import Staging


class Merges:
    """The merged values of one attempt to commit."""

    def __init__(self, staging: Staging, publisher: Publisher) -> None:
        self._view = staging.view
        self._is_serializable = staging.record.isolation == SERIALIZABLE
        self._publisher = publisher
        #: Merged values, which replace the staged values of their keys. Length 0 deletes the key.
        self.values: dict[str, Staged] = {}
        self.settled: Settled | None = None  # for the last head
        self.derived: set[str] = set()  # documents and chunks that views have made, for the last head
        #: Values, and their end, before those that are for the last head alone.
        self._before: tuple[dict[str, Staged], tuple[int, int]] | None = None
        self._parts: dict[str, list[Link]] = {}  # the layers of chunks that may be merged with other commits

    @property
    def deleted(self) -> Collection[str]:
        """The keys of chunks that have only fill values after the merge."""
        return {key for key, merged in self.values.items() if not merged.length}

    @property
    def besides(self) -> frozenset[str]:
        """The keys whose values are not the staged ones, or that are not staged: for the last head."""
        return frozenset({*(self.settled or ()), *self.derived})

    @property
    def pack_id(self) -> bytes:
        """The id of the pack that the merged values lie in."""
        return self._publisher.writer.id

    def read(self, key: str) -> bytes | None:
        """Return a merged value; None if it deletes the key."""
        merged = self.values[key]
        return self._publisher.writer.read(merged) if merged.length else None

    def allow(self, key: str, link: Link) -> None:
        """Allow merging a partly written chunk with changes of other commits. `link` is a partial frame."""
        if not self._is_serializable and not self._view.staged.is_below_deleted(key):
            layers = self._view.staged.layers(key) or [link]
            if not any(layer.region.is_whole for layer in layers):
                self._parts[key] = layers

    def settle(self, settled: Settled) -> None:
        """Use these values for staged keys that other commits have changed, too."""
        self.settled = settled
        self._begin_for_head()
        for key, value in settled.items():
            self.values[key] = self._publisher.append_value(key.encode(), value or b"")

    def derive(self, key: str, value: bytes | None) -> None:
        """Set a key, too, or delete it, whether or not it is staged."""
        self._begin_for_head()
        self.derived.add(key)
        self.values[key] = self._publisher.append_value(key.encode(), value or b"")

    def _begin_for_head(self) -> None:
        if self._before is None:
            self._before = dict(self.values), self._publisher.place

    def leave_head(self) -> bool:
        """Drop what was settled or derived: it was for another head. Return whether there was anything."""
        if self._before is None:
            return False
        self.values, place = self._before
        self._publisher.go_back(place)
        self.settled, self.derived, self._before = None, set(), None
        return True

    def put_together(self) -> None:
        """Merge the parts of chunks that several processes wrote. Raises `ConflictError` if that is not possible."""
        for key in sorted(self._view.staged.layered):
            try:
                self._put(key, self._view.below(key), self._view.staged.layers(key))
            except NotMergeableError as error:
                raise ConflictError(
                    [key],
                    reason=f"several processes wrote parts of a chunk that can't be merged, since {error}",
                    advice="Roll back, and let no two processes write one chunk, or let them take turns: each within "
                    "`with store.lock(path, selection)`",
                ) from error

    def are_apart(self, key: str, base: Snapshot, head: Snapshot) -> bool:
        """Tell whether other commits changed only those elements of a chunk that this transaction did not write.

        After `settle`, this is true for every key.
        """
        if self.settled is not None:
            return True
        layers = self._parts.get(key)
        if layers is None or base.is_foreign(key) or head.is_foreign(key):
            return False
        written = Region.of_all(layer.region for layer in layers)
        try:
            return not self._view.merger(key).differ(base.get_view(key), head.get_view(key), written)
        except NotMergeableError:
            return False

    def merge(self, head: Snapshot, since: int) -> bool:
        """Merge the written elements of chunks into the head's chunks, where these are newer than seq `since`.

        `are_apart` was true for all of them. Return whether there are such chunks. Raises `ConflictError`.
        """
        if not self._parts:
            return False
        recent, found = head.runs_since(since), False
        for key, layers in self._parts.items():
            change = recent.lookup(key.encode()) if self.settled is None else None
            if change is not None and change.seq > since:
                try:
                    self._put(key, head.get_view(key), layers)
                except NotMergeableError as error:
                    reason = f"keys were also written by another commit, and can't be merged, since {error}"
                    base = self._view.base
                    raise ConflictError([key], reason=reason, base=base.commit, head=head.commit) from error
                found = True
        return found

    def _put(self, key: str, below: memoryview | None, layers: list[Link]) -> None:
        merged = self._view.merged(key, below, layers)
        self.values[key] = self._publisher.append_value(key.encode(), merged or b"")
