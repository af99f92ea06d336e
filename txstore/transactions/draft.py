"""What a transaction will commit, on top of one head after another: values, runs, conflicts, rules, and the header.

`commit` publishes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from txstore.codecs.chunk_codec import ChunkDecoder, NotMergeableError
from txstore.deriving import declared as declared_views
from txstore.deriving.derivation import derive
from txstore.errors import ConflictError, CorruptionError, ErasedError, SnapshotExpiredError, TxStoreError
from txstore.format import commitfile, packfile
from txstore.format.commitfile import CommitName, DataPack, Declarations, RunName, Section, Statistics
from txstore.format.constraints import Outcome, as_text
from txstore.format.documents import (
    NODE_DOCUMENTS,
    Described,
    DocumentChange,
    compare_documents,
    describe,
    kind_of_node,
)
from txstore.format.keys import (
    DOCUMENT_NAMES,
    after_prefix,
    ancestors,
    directory_prefix,
    document_key,
    is_document,
    is_related,
)
from txstore.format.packfile import PackName
from txstore.format.records import SERIALIZABLE
from txstore.format.regions import Region
from txstore.history import declarations
from txstore.history.ancestry import Ancestry
from txstore.history.changes import Ref, changed, keys_changed_since, refs_of
from txstore.history.commits import Commits
from txstore.history.erasures import as_erasure
from txstore.history.group_commits import PROPOSED
from txstore.history.new_commit import Contents, NewCommit, syncing
from txstore.history.snapshot import Snapshot
from txstore.segments import compaction
from txstore.segments import runs as index
from txstore.segments.pack_writer import Staged
from txstore.segments.replaced import read_records
from txstore.transactions import conflicts
from txstore.transactions.conflicts import Settled, Writes
from txstore.transactions.lifecycle import Lifecycle
from txstore.transactions.participants.chains import Link
from txstore.transactions.reflinks import HeldSources
from txstore.transactions.staging import Staging
from txstore.transactions.view import Peek, View

if TYPE_CHECKING:
    import numpy.typing as npt

#: Keep a list of up to this many staged keys for the conflict checks, because each check walks through all keys.
FEW = 1024


class _Merged(NamedTuple):
    section: Section
    run: RunName
    inputs: tuple[RunName, ...]


class Draft:
    """One attempt to commit a transaction's staged changes."""

    def __init__(self, tx: Lifecycle, message: str) -> None:
        commits, staging, record = tx.commits, tx.staging, tx.staging.record
        self.commits = commits
        self.snapshots = tx.snapshots
        self.staging = staging
        self.view = staging.view
        self.head = self.view.base
        self.writes: Writes | None = None
        self.locks = tx.locks
        packs = [DataPack(PackName(part.pack_id), part.end) for part in staging.parts()]
        self.file = NewCommit(
            commits,
            staging.part.commit_writer(),
            [(pack, staging.path_of(pack.name.id)) for pack in packs],
            branch=record.branch,
            durable=record.durability == "fsync",
            message=message,
            properties=record.properties,
        )
        self.merges = Merges(staging, self.file)
        self.own_run = CommitRun(staging, self.file, packs, self.merges)
        self.may_queue = staging.other_parent is None  # a merge reads commits below the head
        self.merged: _Merged | None = None
        #: The head on which the outputs of views were derived, and what the commit hands on there.
        self._derived: tuple[Snapshot, Declarations] | None = None
        #: A head, what the commit declares on top of it, and what was checked there.
        self._kept: tuple[Snapshot, Declarations, declarations.CheckedOn] | None = None

    @property
    def changes_nothing(self) -> bool:
        """Whether the commit would change nothing. A merge always changes something: it records its second parent."""
        is_empty = self.own_run.section is None and self.staging.other_parent is None
        return is_empty and declarations.changes_nothing(self.staging.declared, self.base.declared)

    @property
    def base(self) -> Snapshot:
        return self.view.base

    @cached_property
    def _ancestry(self) -> Ancestry:
        return Ancestry(self.commits)

    def write(self) -> None:
        """Merge chunks that several processes wrote in part (I7), and write the commit's run after its values."""
        self.merges.put_together()
        self.own_run.append(self.head)

    def check(self) -> None:
        """Raise the conflicts and broken constraints that are known by now."""
        self._keep_constraints(self.catch_up())

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Raise, in the place of an error, its cause: an erasure, or the loss of the repository."""
        try:
            yield
        except (CorruptionError, ErasedError):
            self._check_erasures(self.head)  # it has read what was erased since, and needs no repair
            raise
        except (FileNotFoundError, NotADirectoryError):
            self.commits.identity.check_there()
            raise

    @contextlib.contextmanager
    def holding_sources(self) -> Iterator[None]:
        """Keep the commits of which copies are made, and a merge's second parent. They are durable before this one."""
        sources = [source.stored for source in self.view.reflinks.sources]
        found = [stored for stored in (*sources, self.staging.other_parent) if stored is not None]
        if not found:
            yield
            return
        self.staging.sources = held = HeldSources(self.commits, found)
        try:
            for stored in found:
                self.snapshots.check_kept(stored)
                if self.file.durable and stored.header.branch != self.file.branch:
                    with syncing():
                        self.commits.store.ensure(stored)  # on the commit's own branch, the parent ensures this
            yield
        except BaseException:
            if not self.file.proposed:  # else the commit may have been made, and may need them
                held.release()
            raise
        held.release()

    # --- runs

    def merge_runs(self, head: Snapshot) -> None:
        """Compact runs of the head, if they are small compared with the data of this commit."""
        self.merged = None
        brought = self.file.end + sum(pack.end for pack in self.own_run.packs)
        at_once = compaction.IN_OBJECTS if self.commits.staged.uploads else compaction.ON_DISK
        if chosen := compaction.merged_by_commit(head.run_names, at_once, brought):
            # An erasure far away does not wait for processes that have opened a run. It leaves no erased value live on
            # a branch, unless the branch begins at an older commit: then the run is not the branch's own.
            own = (name.pack is not None and name.pack.branch == self.file.branch for name in chosen)
            is_stale = self.snapshots.is_ranged and not all(own)
            runs = self.snapshots.as_stored(chosen) if is_stale else head.runs_named(chosen)
            content = runs.merge(len(chosen), self.commits.storage)
            section = self.file.append(content)
            run = index.name_run(content, 0, section.offset)
            self.merged = _Merged(section, run, tuple(chosen))

    # --- conflicts

    def _writes(self) -> Writes:
        more: list[str] = []
        documents: dict[str, bytes | None] = {}
        for key, link in self.view.staged.items():
            if key in self.own_run.unchanged:
                continue
            is_deleted = link.kind == packfile.FRAME_TOMBSTONE
            if link.kind == packfile.FRAME_PARTIAL:
                self.merges.allow(key, link)
            if is_document(key):
                documents[key] = None if is_deleted else self.view.read(link)
        for key in self.view.reflinks.taken:
            if key not in self.view.staged:
                more.append(key)
                if is_document(key) and (content := self.view.below(key)) is not None:
                    documents[key] = bytes(content)
        for reflink in self.view.reflinks:
            # Treat it like a deletion of the prefix and a creation of the node: no other commit may have made a key
            # below it.
            for name in DOCUMENT_NAMES:
                key = reflink.to + name
                if key not in documents and (content := self.view.below(key)) is not None:
                    more.append(key)
                    documents[key] = bytes(content)
        keys: Iterable[str] = _Keys(self.view, self.own_run.unchanged, more)
        deleted: Iterable[str] = _Keys(self.view, self.own_run.unchanged, are_deleted=True)
        if len(self.view.staged) <= FEW:
            keys, deleted = list(keys), list(deleted)
        return Writes(
            keys,
            deleted,
            [*self.view.staged.prefixes, *(reflink.to for reflink in self.view.reflinks)],
            [
                reflink.start
                for reflink in self.view.reflinks
                if reflink.source is self.base and reflink.start.startswith(tuple(self.view.staged.prefixes))
            ],
            documents,
            self.view.reads(self.own_run.unchanged),
            self.merges.are_apart,
        )

    def catch_up(self) -> Snapshot:
        """Move to the newest commit if its changes do not conflict."""
        checked = self.head
        if self.staging.other_parent is not None and checked.stored is not None:
            self._ancestry.reach(checked.stored)  # now, not when other committers wait for this one
        is_small, branch = self.file.end <= PROPOSED, self.file.branch
        found = self.commits.store.to_follow(branch) if is_small else self.commits.head(branch)
        if found is None or (checked.stored is not None and found.header.id == checked.stored.header.id):
            self._derive(checked)
            return checked
        return self.move_to(self.snapshots.newest(branch, found))

    def move_to(self, head: Snapshot) -> Snapshot:
        """Move to a head, if the changes below it do not conflict. Raises `ConflictError`, `SnapshotExpiredError`."""
        if head.oldest_kept > max(self.base.version, 0):
            # I10: tombstones of later deletions may be gone.
            raise SnapshotExpiredError(self.commits.branches.label(self.file.branch, self.base.version))
        self._check_erasures(head)
        self.writes = self.writes or self._writes()
        since = self.head.seq if self.merges.settled is None else self.base.seq
        was_made_for_another, self._derived = self.merges.leave_head(), None
        try:
            conflicts.check(self.writes, self.base, head, since)
        except ConflictError:
            if self.staging.settle_conflicts is None or self.view.reflinks.any:
                raise
            self._settle(head)
            since = self.base.seq
        self.head = head
        if self.merges.merge(head, since) or self.merges.settled is not None or was_made_for_another:
            self._append_runs(head)
        self._derive(head)
        return head

    def _check_erasures(self, head: Snapshot) -> None:
        """I12: raise `ConflictError` if this commit's file may hold values of erased ones: no erasure waits for it.

        A key or prefix that is deleted counts, too: the file keeps the frames of what was written there before.
        """
        staged = self.view.staged
        for record in () if self.commits.are_pins_seen else read_records(self.commits.storage):
            if record.until.get(self.file.branch, -1) > self.base.version:
                covers = as_erasure(record).covers
                keys = [key for key, _ in staged.items() if covers(key)]
                keys += [each for each in staged.prefixes if any(is_related(each, path) for path in record.paths)]
                if keys:
                    self.staging.has_erased = True
                    reason = "keys lie below what was erased after this transaction had begun"
                    raise ConflictError(keys, reason=reason, base=self.base.commit, head=head.commit)

    def _append_runs(self, head: Snapshot) -> None:
        """Write the runs anew, behind values that were added, or at their place. All are synced with the header."""
        self.file.go_back(self.file.place)
        self.own_run.append(head)
        if self.merged is not None:
            self.merge_runs(head)

    def _derive(self, head: Snapshot) -> Declarations:
        """Derive the outputs of views on top of `head`. Return what the commit hands on. Raises `ViewError`."""
        if self._derived is not None and self._derived[0] is head:
            return self._derived[1]
        there = head.declared
        written = declarations.changed(self.staging.declared, there)
        if written.views:
            views = declared_views.decode(head.url, written.views)
            declared_views.check_together(views, self.staging.declared.views)
            at_commit = {name: view for name, view in views.items() if view.when == "commit"}
            new = [
                name
                for name in at_commit
                if as_text(written.views[name]) != as_text(there.views.get(name)) and not self._is_derived(name, head)
            ]
            commit = CommitOutcome(self.commits, self.view, self.own_run.unchanged, head, self.merges)
            derive(at_commit, new, commit)
            if self.merges.derived:
                self._append_runs(head)
            parent = None if head.stored is None else head.stored.commit
            distrusted = declared_views.distrust(views, commit, self.staging.declared.views, parent)
            written = written._replace(views={**written.views, **distrusted})
        self._derived = head, written
        return written

    def _is_derived(self, name: str, head: Snapshot) -> bool:
        """Tell whether a view was derived later up to now, and its outputs fit its sources at `head`."""
        mine, there = self.staging.declared.views.get(name), head.declared.views.get(name)
        if mine is None or there is None or not declared_views.are_alike(mine, there):
            return False
        place = declared_views.as_of(head.url, name, there)
        stored = None if place is None else self.commits.files.at(self.file.branch, place.version)
        if stored is None or place is None or stored.commit.id != place.id:
            return False
        old, (view,) = self.snapshots.of(stored), declared_views.decode(head.url, {name: there}).values()
        return not any(True for path in view.sources for _ in changed(old, head, path))

    def _settle(self, head: Snapshot) -> None:
        """Merge the staged changes with those of other commits since the base. Raises `ConflictError`."""
        settle = self.staging.settle_conflicts
        assert self.writes is not None  # for mypy: `catch_up` asks about both
        assert settle is not None
        declarations.check_unmoved(self.staging.declared, self.base.declared, head.declared)
        staged = [key for key, _ in self.view.staged.items()]
        theirs = self.snapshots.own(head)
        try:
            self.merges.settle(settle(self.base, Peek(self.view), staged, self.view.key_changes(), theirs))
        except ConflictError:
            theirs.let_go()  # the error's `conflicts` refer to it
            raise
        # Everything else still conflicts: a deleted prefix, for example.
        conflicts.check(self.writes, self.base, head, self.base.seq)

    def _keep_constraints(self, head: Snapshot) -> Declarations:
        """I11: check the commit on top of `head` against all constraints. Return what its header declares."""
        if self._kept is None or self._kept[0] is not head:
            written, there = self._derive(head), head.declared
            declarations.check_unmoved(self.staging.declared, self.base.declared, there)
            if written.constraints:
                outcome = CommitOutcome(self.commits, self.view, self.own_run.unchanged, head, self.merges)
                before = None if self._kept is None else self._kept[2]
                declarations.check_constraints(head.url, written.constraints, there.constraints, outcome, before)
            name = None if head.stored is None else head.stored.name
            checked = declarations.CheckedOn(written.constraints, there.constraints, name)
            self._kept = head, written, checked
        return self._kept[1]

    # --- the header, for one version

    def contents(self, head: Snapshot) -> Contents:
        """Return the header's content. Raises if the transaction lost locks, or if the commit breaks a constraint."""
        if self.locks is not None:
            self.locks.fence()
        self.staging.members.check_held()
        if self.staging.sources is not None:
            self.staging.sources.check()
        own, merged, statistics = self.own_run.section, self.merged, self.own_run.statistics
        kept = self._keep_constraints(head)
        seq, other = head.seq + 1, self.staging.other_parent
        sections, runs = [], list(head.run_names)
        if merged is not None and (at := index.find_runs(merged.inputs, runs)) is not None:
            # Its inputs are still in the list, next to each other: no other process compacted them meanwhile.
            runs[at : at + len(merged.inputs)] = [merged.run]
            sections.append(merged.section)
        if own is not None:
            entries = statistics.keys_set + statistics.keys_deleted
            runs.insert(0, RunName(None, seq, own.offset, own.length, entries, seq))
            sections.insert(0, own)
        required = commitfile.FEATURE_FOREIGN if self.view.may_be_foreign else 0
        return Contents(
            tuple(sections),
            tuple(runs),
            statistics,
            required=required,
            declared=kept,
            merged=other,
            reach={} if other is None or head.stored is None else self._ancestry.joined(head.stored, other),
            joins=not (kept or self.commits.store.takes_turns) and self._only_sets(),
        )

    def _only_sets(self) -> bool:
        """Tell whether this commit only sets keys, so that it can only conflict with changes of the same nodes."""
        staging, own = self.staging, self.own_run.section
        if own is None or own.offset + own.length > PROPOSED:
            return False
        if self.merges.values:
            return False  # what it was merged of may be erased before the leader decides
        if self.own_run.packs and staging.members.is_shared:
            return False  # this process can't know that the packs of others will stay
        is_more = staging.other_parent is not None or staging.declared or self.view.reflinks.any or staging.sources
        if is_more or any(self.view.staged.prefixes):
            return False
        writes = self.writes or self._writes()
        # The leader of a group commit would not see a deleted key that did not exist.
        return not (any(True for _ in writes.deleted) or any(writes.reads))


class _Keys(Iterable[str]):
    """The keys that a transaction sets, or those that it deletes. It stores none, because there may be millions.

    It omits `unchanged`, which are staged. It adds `more`, which the transaction sets without staging them.
    """

    def __init__(
        self, view: View, unchanged: Collection[str], more: Iterable[str] = (), *, are_deleted: bool = False
    ) -> None:
        self._view = view
        self._unchanged = unchanged
        self._more = more
        self._are_deleted = are_deleted

    def __iter__(self) -> Iterator[str]:
        for key, link in self._view.staged.items():
            if (link.kind == packfile.FRAME_TOMBSTONE) == self._are_deleted and key not in self._unchanged:
                yield key
        yield from self._more


# --- merged values: of chunks that several processes wrote in part (I7), or that other commits changed (I5)
#
# They are new frames after all staged frames. Staged values do not change, because the commit may fail and the
# transaction continue.


class Merges:
    """The merged values of one attempt to commit."""

    def __init__(self, staging: Staging, file: NewCommit) -> None:
        self._view = staging.view
        self._is_serializable = staging.record.isolation == SERIALIZABLE
        self._file = file
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
        return self._file.writer.id

    def read(self, key: str) -> bytes | None:
        """Return a merged value; None if it deletes the key."""
        merged = self.values[key]
        return self._file.writer.read(merged) if merged.length else None

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
            self.values[key] = self._file.append_value(key.encode(), value or b"")

    def derive(self, key: str, value: bytes | None) -> None:
        """Set a key, too, or delete it, whether or not it is staged."""
        self._begin_for_head()
        self.derived.add(key)
        self.values[key] = self._file.append_value(key.encode(), value or b"")

    def _begin_for_head(self) -> None:
        if self._before is None:
            self._before = dict(self.values), self._file.place

    def leave_head(self) -> bool:
        """Drop what was settled or derived: it was for another head. Return whether there was anything."""
        if self._before is None:
            return False
        self.values, place = self._before
        self._file.go_back(place)
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
        self.values[key] = self._file.append_value(key.encode(), merged or b"")


# --- the repository as it will be after the commit, which constraints check


class CommitOutcome(Outcome):
    """The head with a transaction's writes over it: the newer commits do not conflict.

    The transaction's own view is its writes over its base. `unchanged` are staged keys that the commit omits.
    """

    def __init__(
        self, commits: Commits, view: View, unchanged: Collection[str], head: Snapshot, merges: Merges
    ) -> None:
        self._commits = commits
        self._view = view
        self._merges = merges
        self._settled = merges.settled or {}
        self._derived = merges.derived
        self._merged_away = merges.deleted
        self._unchanged = unchanged
        self._head = head
        self._seqs: dict[CommitName, int | None] = {}

    def document(self, key: str) -> bytes | memoryview | None:
        """Return a document, as it will be."""
        if key in self._derived:
            return self._merges.read(key)
        if key in self._settled:
            return self._settled[key]
        link = self._view.staged.get(key)
        if link is not None and key not in self._unchanged:
            return None if link.kind == packfile.FRAME_TOMBSTONE else self._view.read(link)
        under = self._under(key)
        return None if under is None else under[0].get_view(under[1])

    def _under(self, key: str) -> tuple[Snapshot, str] | None:
        """Return the snapshot that has the value of a key that is not staged, and the name of the key there."""
        if (found := self._view.reflinks.find(key)) is not None:
            return found
        return None if self._view.staged.is_below_deleted(key) else (self._head, key)

    def __contains__(self, key: str) -> bool:
        if key in self._derived:
            return self._merges.values[key].length > 0
        if key in self._settled:
            return self._settled[key] is not None
        link = self._view.staged.get(key)
        if link is not None and key not in self._unchanged:
            return link.kind != packfile.FRAME_TOMBSTONE and key not in self._merged_away
        under = self._under(key)
        return under is not None and under[1] in under[0]

    def after(self, path: str) -> Described | None:
        return describe(self.document, path)

    def before(self, path: str) -> Described | None:
        return describe(self._head.get_view, path)

    def rewrites(self, path: str) -> bool:
        documents = [document_key(path, name) for name in (*NODE_DOCUMENTS, ".zattrs")]
        return self.remakes(path) or any(
            key in self._derived
            or (key in self._view.staged and key not in self._unchanged)
            or self._view.reflinks.find(key) is not None
            for key in documents
        )

    def remakes(self, path: str) -> bool:
        documents = [document_key(path, name) for name in NODE_DOCUMENTS]
        is_cleared = any(map(self._view.staged.is_below_deleted, documents))
        return is_cleared or any(map(self._view.reflinks.covers, documents))

    def clears_below(self, path: str) -> bool:
        here = directory_prefix(path)
        prefixes = [*self._view.staged.prefixes, *(reflink.to for reflink in self._view.reflinks)]
        return any(prefix.startswith(here) or here.startswith(prefix) for prefix in prefixes)

    def restructures(self, path: str) -> bool:
        before, after = self.before(path), self.after(path)
        if before is None or after is None or before.key != after.key:
            return True
        return compare_documents(after.key, before.content, after.content) is DocumentChange.STRUCTURE

    def deleted_below(self, path: str) -> Iterator[str]:
        prefix = directory_prefix(path)
        for key in self._view.staged.between(prefix, after_prefix(prefix)):
            link = self._view.staged.get(key)
            if self._settled.get(key) is not None:
                continue
            if key in self._merged_away or (link is not None and link.kind == packfile.FRAME_TOMBSTONE):
                yield key

    def changed_below(self, path: str) -> Iterator[str]:
        prefix = directory_prefix(path)
        for key in self._view.staged.between(prefix, after_prefix(prefix)):
            if key not in self._unchanged and key not in self._derived:
                yield key
        yield from [key for key in self._derived if key.startswith(prefix)]
        yield from (key for key in self._view.reflinks.taken if key.startswith(prefix))

    def elements(self, array: Described, key: str) -> npt.NDArray[Any]:
        from txstore.format.labels import UnreadableLabelsError  # late: it imports numpy

        try:
            decoder = ChunkDecoder.of(array, key)
            return decoder.decode(self.value(key))
        except NotMergeableError as error:
            raise UnreadableLabelsError(str(error)) from error

    def value(self, key: str) -> bytes | memoryview | None:
        """Return what will be stored under a key."""
        if key in self._merges.values:
            return self._merges.read(key)
        link = self._view.staged.get(key)
        if link is not None and key not in self._unchanged:
            return self._view.value(link)
        under = self._under(key)
        return None if under is None else under[0].get_view(under[1])

    def value_before(self, key: str) -> bytes | memoryview | None:
        """Return what is stored under a key at the head."""
        return self._head.get_view(key)

    def identify(self, keys: Sequence[str]) -> Sequence[Hashable | None]:
        found: dict[str, Hashable] = {}
        rest = []
        for key in keys:
            link = self._view.staged.get(key)
            if (merged := self._merges.values.get(key)) is not None:
                if merged.length:
                    found[key] = self._merges.pack_id, merged.offset, merged.length, merged.checksum
            elif link is not None and key not in self._unchanged:
                if link.kind != packfile.FRAME_TOMBSTONE:
                    found[key] = _place(self._view.ref(link))
            else:
                rest.append(key)
        for snapshot, names in self._by_snapshot(rest):
            found.update((names[name], _place(ref)) for name, ref in refs_of(snapshot, names))
        return [found.get(key) for key in keys]

    def put(self, key: str, value: bytes | None) -> None:
        """Set a key besides what the commit changes, or delete it."""
        self._merges.derive(key, value)

    def fetch(self, keys: Sequence[str]) -> None:
        staged = self._view.staged
        for snapshot, names in self._by_snapshot([key for key in keys if key not in staged or key in self._unchanged]):
            snapshot.fetch([*names])

    def head(self) -> tuple[bytes, CommitName] | None:
        stored = self._head.stored
        return None if stored is None else (stored.header.repository_id, stored.name)

    def changed_since(self, commit: CommitName, path: str) -> Sequence[str] | None:
        seq = self._seq_of(commit)
        return None if seq is None else keys_changed_since(self._head, seq, path)

    def _seq_of(self, commit: CommitName) -> int | None:
        """Return the seq of a commit; None if it is not known to be the head or an ancestor of it."""
        if commit not in self._seqs:
            self._seqs[commit] = self._find_seq(commit)
        return self._seqs[commit]

    def _find_seq(self, commit: CommitName) -> int | None:
        stored = self._head.stored
        if stored is None:
            return None
        if commit.hash in (stored.hash, stored.header.parent_hash):
            return stored.header.seq - (commit.hash != stored.hash)
        if stored.header.branch != commit.branch or stored.header.version < commit.version:
            return None
        # In one branch, each version is an ancestor of every higher one.
        with contextlib.suppress(TxStoreError, OSError):
            known = self._commits.files.named(commit)
            return None if known is None else known.header.seq
        return None

    def _by_snapshot(self, keys: Sequence[str]) -> Iterator[tuple[Snapshot, dict[str, str]]]:
        """Yield the snapshots that have the values of keys that are not staged, each with names there and the keys."""
        found: dict[int, tuple[Snapshot, dict[str, str]]] = {}
        for key in keys:
            if (under := self._under(key)) is not None:
                found.setdefault(id(under[0]), (under[0], {}))[1][under[1]] = key
        yield from found.values()


def _place(ref: Ref) -> Hashable:
    """Return where a value lies, which names it: packs have random ids, and what lies in one never changes."""
    return ref.pack.id, ref.offset, ref.length, ref.checksum


# --- the sorted run of a commit: the refs of its writes, without values that equal the base

#: Number of paths without a node to remember.
_ABSENT = 4096


class CommitRun:
    """The run of one attempt to commit. It may be built anew, on top of another head."""

    def __init__(self, staging: Staging, file: NewCommit, packs: Sequence[DataPack], merges: Merges) -> None:
        self.packs = packs  # which participants have staged besides the commit's own file
        self.section: Section | None = None  # where it lies in the commit's own file. None: there is nothing to list
        self.statistics = Statistics()
        self.unchanged: set[str] = set()  # staged keys that it omits
        self._staging = staging
        self._view = staging.view
        self._file = file
        self._merges = merges
        self._together: dict[str, Staged] = {}  # documents copied next to each other in the commit's own file

    def append(self, head: Snapshot) -> None:
        """Write the run behind the values, for a commit on top of `head`. Raises `OSError`."""
        self.section = None
        prefixes = [prefix for prefix in self._view.staged.prefixes if self._view.base.has_keys_below(prefix)]
        counter, storage = _Counter(self._view), self._file.storage
        packs = [pack.name for pack in self.packs]
        entries = counter.counted(self._entries(head))
        if self._view.reflinks.any:
            # At one place, written values are newer than reflinks, and reflinks are newer than deletions.
            sections = [index.build(entries, (), packs, storage)]
            sections += self._view.reflinks.sections(storage)
            sections.append(index.build((), [prefix.encode() for prefix in prefixes]))
            content = index.merge_own(sections, storage)
            counter.count_refs(index.name_run(content, 1, 0).entries)
        else:
            content = index.build(entries, [prefix.encode() for prefix in prefixes], packs, storage)
        self.statistics = counter.statistics(len(prefixes))
        if self.statistics.keys_set or self.statistics.keys_deleted or prefixes:
            self.section = self._file.append(content)

    def _entries(self, head: Snapshot) -> Iterator[tuple[str, int, int, int, int, int]]:
        """Yield the entries of the run, ascending. Add keys that the run omits to `unchanged`."""
        base_is_empty = not len(self._view.base.runs)
        transaction = self._file.writer.id
        numbers = {packfile.number_of(transaction, pack.name.id): at for at, pack in enumerate(self.packs, 1)} | {0: 0}
        made = self._merges.values
        besides = iter(sorted(key for key in self._merges.besides if key not in self._view.staged))
        first = next(besides, None)
        for key, link in self._view.staged.items():
            while first is not None and first < key:
                yield from self._made(first, head)
                first = next(besides, None)
            if key in made:
                yield from self._made(key, head)
            elif link.kind == packfile.FRAME_TOMBSTONE:
                # A key that did not exist needs no tombstone, but it still counts as written (`_writes`).
                if self._view.reflinks.any and (there := self._view.reflinks.find(key)) is not None:
                    if there[1] in there[0]:
                        yield key, packfile.REF_TOMBSTONE, 0, 0, 0, 0
                elif not base_is_empty and not self._view.staged.is_below_deleted(key) and key in self._view.base:
                    yield key, packfile.REF_TOMBSTONE, 0, 0, 0, 0
            elif not base_is_empty and self._view.is_unchanged(key, link):
                self.unchanged.add(key)
            elif (copy := self._beside_others(key, link)) is not None:
                yield key, packfile.REF_PACK, copy.offset, copy.length, copy.checksum, 0
            else:
                pack, (_, offset) = numbers[self._staging.part.number_of(link)], packfile.split_offset(link.offset)
                yield key, packfile.REF_OF_FRAME[link.kind], offset, link.length, link.checksum, pack
        while first is not None:
            yield from self._made(first, head)
            first = next(besides, None)

    def _made(self, key: str, head: Snapshot) -> Iterator[tuple[str, int, int, int, int, int]]:
        """Yield the entry of a value that the commit itself has made."""
        made = self._merges.values[key]
        if made.length:
            yield key, packfile.REF_PACK, made.offset, made.length, made.checksum, 0
        elif key in head or (self._view.reflinks.any and self._view.reflinks.find(key) is not None):
            yield key, packfile.REF_TOMBSTONE, 0, 0, 0, 0

    def _beside_others(self, key: str, link: Link) -> Staged | None:
        """Return the location of a document's copy next to other documents: opening a group then reads them at once."""
        if key not in self._together and not link.participant and link.kind == packfile.FRAME_VALUE:
            document = self._file.writer.document(link.offset)
            if document is not None:
                self._together[key] = self._file.append_value(key.encode(), document)
        return self._together.get(key)


class _Counter:
    """Counts the entries of a run while it is built."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._set = self._deleted = self._bytes = 0
        self._arrays: set[str] = set()
        self._last_array = "\0"  # with a slash at the end: usually the next key is in the same array
        self._absent: set[str] = set()  # paths without a node, because each look-up may need requests
        self._elsewhere = "\0"  # a directory whose direct keys are in no array

    def counted(
        self, entries: Iterator[tuple[str, int, int, int, int, int]]
    ) -> Iterator[tuple[bytes, int, int, int, int, int]]:
        for key, kind, offset, length, checksum, pack in entries:
            if kind == packfile.REF_TOMBSTONE:
                self._deleted += 1
            else:
                self._set += 1
                self._bytes += length
            if not key.startswith(self._last_array):
                self._count_array(key)
            yield key.encode(), kind, offset, length, checksum, pack

    def _count_array(self, key: str) -> None:
        directory = key.rpartition("/")[0]
        if directory == self._elsewhere:
            return
        for path in ancestors(key):
            if path in self._absent:
                continue
            kind = kind_of_node(self._view, path)
            if kind == "array":
                self._arrays.add(path)
                self._last_array = directory_prefix(path)
                return
            if kind != "absent":
                break
            if len(self._absent) < _ABSENT:
                self._absent.add(path)
        self._elsewhere = directory

    def count_refs(self, entries: int) -> None:
        """Count keys that were set by reference, without an own value. `entries` is the number of all entries."""
        self._set = entries - self._deleted

    def statistics(self, prefixes: int) -> Statistics:
        return Statistics(self._set, self._deleted, prefixes, self._bytes, len(self._arrays))
