"""Moves, copies and restores arrays and groups by reference: the commit writes refs, and no value is read or copied."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from txstore.errors import NodeNotFoundError, TransactionStateError
from txstore.format import packfile
from txstore.format.chunk_moves import ChunkMoves
from txstore.format.documents import kind_of_node
from txstore.format.keys import DOCUMENT_NAMES, after_prefix, ancestors, directory_prefix, document_key, encode_key
from txstore.format.mapping import Hierarchy
from txstore.format.records import SERIALIZABLE
from txstore.history.snapshot import Snapshot, Snapshots
from txstore.transactions.lifecycle import Lifecycle
from txstore.transactions.staging import Staging


class NodeCopies:
    """The copies by reference of one transaction. Only the process that began it can make them.

    `view` is what the user sees of the transaction; in a serializable one, it notes what is read. Safe in threads.
    """

    def __init__(self, snapshots: Snapshots, staging: Staging, lifecycle: Lifecycle, view: Hierarchy) -> None:
        self._snapshots = snapshots
        self._staging = staging
        self._lifecycle = lifecycle
        self._view = view
        self._is_serializable = staging.record.isolation == SERIALIZABLE
        self._sources: dict[bytes | None, Snapshot] = {}  # sources of copies, by commit id

    def move(self, source: str, destination: str) -> None:
        """Move an array or group with everything below it. The commit writes refs; no value is read or copied.

        For other transactions, a move is a deletion and a creation: one that writes below either path conflicts.

        Raises `NodeNotFoundError` if the source, or the group of the destination, does not exist; `ValueError` for the
        root, and for a destination that exists or lies inside the source; `TransactionStateError` in a transaction of
        several processes.
        """
        start, to = self._places(source, destination)
        self._check_node(self._view, source)
        self._reflink(start, to, None, drops=start)

    def copy(self, source: str, destination: str, at: Snapshot | None = None) -> None:
        """Copy an array or group by reference, from here or from a snapshot. Raises the errors of `move`."""
        start, to = self._places(source, destination, may_be_inside=at is not None)
        self._snapshots.heed_erasures()
        if at is not None:
            at = self._snapshots.of(at.stored)  # anew: what it had read may have been replaced since
        if at is not None or self._snapshots.is_ranged:  # else an erasure waits for whoever is based on what it erases
            (at or self._staging.view.base).check_not_erased(source)
        self._check_node(self._view if at is None else at, source)
        if at is None and self._is_serializable:
            for key in self._view.keys_below(source):
                self._staging.view.note_read(packfile.FRAME_READ, key)
        self._reflink(start, to, at)

    def restore(self, path: str, at: Snapshot) -> None:
        """Restore everything below a path from a snapshot, by reference. If it did not exist there, delete it.

        The path may be the root. The groups that were above it are restored, too, without what else is below them,
        where they are gone. Raises `NodeNotFoundError` if the path exists neither here nor in the snapshot, and
        the errors of `move`.
        """
        prefix = directory_prefix(path)
        self._snapshots.heed_erasures()
        at = self._snapshots.of(at.stored)  # as in `copy`
        at.check_not_erased(path)
        is_here, was_there = self._view.has_keys_below(path), at.has_keys_below(path)
        if not is_here and not was_there:
            raise NodeNotFoundError(path)
        self._reflink(
            prefix, prefix, at if was_there else None, drops=prefix if is_here else None, only_drops=not was_there
        )
        if was_there:
            self._restore_groups_above(path.strip("/"), at)

    def _restore_groups_above(self, path: str, at: Snapshot) -> None:
        """Restore the documents of the groups that a node had above it, where there is none any more."""
        gone = [
            group
            for group in ancestors(path)
            if kind_of_node(self._view, group) == "absent" and kind_of_node(at, group) == "group"
        ]
        keys = [document_key(group, name) for group in gone for name in DOCUMENT_NAMES]
        self.take({key: key for key in keys if key in at}, at)

    def take(self, keys: Mapping[str, str], source: Snapshot) -> None:
        """Set keys by reference: each key gets the value that the named key has in a snapshot."""
        if not keys:
            return
        for key in keys:
            encode_key(key)
        self._check_may_reflink()
        own = self._own(source)
        with self._staging.turns.at_all(keys):
            self._lifecycle.write(lambda: self._staging.take(keys, own))

    def move_chunks(self, moves: Mapping[str, ChunkMoves]) -> None:
        """Move the chunks below paths by reference, from where the base has them.

        Other transactions see a deletion of what was below the paths: a concurrent write there conflicts. Raises
        `TransactionStateError`, and changes nothing, if there are staged changes below them, and in a transaction of
        several processes.
        """
        self._check_may_reflink()
        prefixes = {directory_prefix(path): each for path, each in moves.items()}
        with self._staging.turns.at_all():
            for prefix in prefixes:
                self._check_unchanged(prefix)
            for prefix, each in prefixes.items():
                self._lifecycle.write(partial(self._staging.move_chunks, prefix, each))

    def _check_unchanged(self, prefix: str) -> None:
        staged = self._staging.staged
        is_staged = next(staged.between(prefix, after_prefix(prefix)), None) is not None
        is_deleted = staged.is_below_deleted(prefix) or any(each.startswith(prefix) for each in staged.prefixes)
        if is_staged or is_deleted or self._staging.view.reflinks.any_below(prefix):
            raise TransactionStateError(
                f"this transaction has changed {prefix.rstrip('/')!r} already, and can't move its values by reference "
                "any more: commit first, or move them before other changes",
                state="open",
            )

    def move_all(self, moves: Mapping[str, str]) -> None:
        """Move several nodes of the base at once, with everything below them.

        The groups of the destinations may be created later. If one path lies inside another, the inner node goes to its
        own destination.
        """
        for source in moves:
            self._delete_dir(source)
        for source, destination in sorted(moves.items(), key=lambda move: move[1]):
            start, to = directory_prefix(source), directory_prefix(destination)
            self._reflink(start, to, self._staging.view.base)
            for inner in moves:
                if inner.startswith(start):
                    self._delete_dir(to + inner[len(start) :])

    def _delete_dir(self, path: str) -> None:
        prefix = directory_prefix(path)
        self._lifecycle.stage(packfile.FRAME_PREFIX, prefix, prefix.encode(), b"")

    def _places(self, source: str, destination: str, *, may_be_inside: bool = False) -> tuple[str, str]:
        start, to = directory_prefix(source), directory_prefix(destination)
        if not start or not to:
            raise ValueError(
                "the root is neither moved nor copied, and nothing takes its place: name an array or group"
            )
        if to.startswith(start) and not may_be_inside:
            raise ValueError(f"{destination!r} is {source!r}, or inside of it: choose another destination")
        if self._view.has_keys_below(to) or to[:-1] in self._view:
            raise ValueError(f"there is something at {destination!r}: delete it first, or choose another destination")
        above = to[:-1].rpartition("/")[0]
        kind = kind_of_node(self._view, above)
        if kind != "group" and (above or kind == "array"):
            raise NodeNotFoundError(above, "group", kind)
        self._snapshots.check_not_being_erased(to[:-1])  # the erasure would come upon the values of the source there
        return start, to

    @staticmethod
    def _check_node(view: Hierarchy, path: str) -> None:
        if kind_of_node(view, path.strip("/")) == "absent":
            raise NodeNotFoundError(path)

    def _reflink(
        self, start: str, to: str, at: Snapshot | None, *, drops: str | None = None, only_drops: bool = False
    ) -> None:
        """Stage the keys below one prefix as those below another; then delete everything below `drops`."""
        self._check_may_reflink()
        at = None if at is None else self._own(at)
        with self._staging.turns.at_all():
            self._lifecycle.write(lambda: self._staging.reflink(start, to, at, drops=drops, only_drops=only_drops))

    def _own(self, source: Snapshot) -> Snapshot:
        """Return the transaction's own snapshot of a commit, to copy from."""
        name = None if source.stored is None else source.stored.header.id
        found = self._sources.get(name)
        if found is None:  # another thread may open it at the same time
            base = self._staging.view.base
            found = self._sources.setdefault(name, base if source is base else self._snapshots.own(source))
        return found

    def _check_may_reflink(self) -> None:
        if self._staging.members.is_named or self._staging.members.is_participant:
            raise TransactionStateError(
                "move, copy and restore need a transaction without a name, by the process that began it: make one of "
                "its own, with repo.transaction()",
                state="foreign",
            )
