"""What a commit makes of chunks that were written in part: by several processes (I7), and beside other commits (I5).

The values that it makes are frames of its own, behind all that was staged: staged values stay what they are, since the
commit may fail, and the transaction go on.
"""

from __future__ import annotations

from collections.abc import Collection

from txstore.codecs.chunk_codec import NotMergeableError
from txstore.errors import ConflictError
from txstore.format.records import SERIALIZABLE
from txstore.format.regions import Region
from txstore.history.publisher import Publisher
from txstore.history.snapshot import Snapshot
from txstore.segments.packs import Staged
from txstore.transactions.conflicts import Settled
from txstore.transactions.participants.chains import Link
from txstore.transactions.staging import Staging


class Merges:
    """The merged values of one attempt to commit."""

    def __init__(self, staging: Staging, publisher: Publisher) -> None:
        self._view = staging.view
        self._is_serializable = staging.record.isolation == SERIALIZABLE
        self._publisher = publisher
        #: What stands for a key instead of what was staged; without a length if the key is to be deleted.
        self.values: dict[str, Staged] = {}
        self.settled: Settled | None = None  # on the head that was met last
        self._before: tuple[dict[str, Staged], tuple[int, int]] = {}, (0, 0)  # the values, and where they ended, then
        self._parts: dict[str, list[Link]] = {}  # what chunks consist of that may be merged with what others commit

    @property
    def deleted(self) -> Collection[str]:
        """The keys of chunks that have become all fill value."""
        return {key for key, merged in self.values.items() if not merged.length}

    def allow(self, key: str, link: Link) -> None:
        """Let what was written of a chunk be merged with what others commit. `link` is a partial frame."""
        if not self._is_serializable and not self._view.staged.is_below_deleted(key):
            layers = self._view.staged.layers(key) or [link]
            if not any(layer.region.is_whole for layer in layers):
                self._parts[key] = layers

    def settle(self, settled: Settled) -> None:
        """Let values stand for keys that others have changed, too."""
        self.settled = settled
        self._before = dict(self.values), self._publisher.place
        for key, value in settled.items():
            self.values[key] = self._publisher.append_value(key.encode(), value or b"")

    def unsettle(self) -> None:
        """Forget what was settled: it was so on another head."""
        if self.settled is not None:
            self.values, place = self._before
            self._publisher.go_back(place)
            self.settled = None

    def put_together(self) -> None:
        """Merge what several processes have written of one chunk. Raises `ConflictError` where that can't be."""
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
        """Tell whether of a chunk that was written in part others have changed only what was not written.

        Of any key, too, once all was settled.
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
        """Lay what was written of chunks over what they are at the head, if that is newer than seq `since`.

        It was found that they are apart. Return whether there are such chunks. Raises `ConflictError`.
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
