"""Commits a transaction, in steps from top to bottom: its staged file becomes a pack, and takes a version."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import NamedTuple

from txstore.commit import Stored
from txstore.commit_queue.group_commits import PROPOSED
from txstore.deriving import declared as declared_views
from txstore.deriving.derivation import derive
from txstore.errors import ConflictError, CorruptionError, ErasedError, SnapshotExpiredError
from txstore.format import commitfile, packfile
from txstore.format.commitfile import DataPack, RunName, Section, Statistics
from txstore.format.constraints import as_text
from txstore.format.declarations import Declarations
from txstore.format.documents import kind_of_node
from txstore.format.keys import DOCUMENT_NAMES, ancestors, directory_prefix, is_document, is_related
from txstore.format.packfile import PackName
from txstore.format.records import SERIALIZABLE
from txstore.history import declarations
from txstore.history.ancestry import Ancestry
from txstore.history.changes import changed
from txstore.history.commits import Commits
from txstore.history.erasures import as_erasure
from txstore.history.publisher import Contents, Publisher, SyncFailedError
from txstore.history.snapshot import Snapshot, Snapshots
from txstore.observing import carried
from txstore.segments import compaction
from txstore.segments import runs as index
from txstore.segments.pack_writer import Staged
from txstore.segments.replaced import read_records
from txstore.steps import step
from txstore.storage.request_threads import executor
from txstore.transactions import conflicts
from txstore.transactions.conflicts import Writes
from txstore.transactions.held_locks import TransactionLocks
from txstore.transactions.merges import Merges
from txstore.transactions.participants.chains import Link
from txstore.transactions.participants.reclaim import look_by_the_way
from txstore.transactions.reflinks import HeldSources
from txstore.transactions.staging import Staging
from txstore.transactions.view import Peek, View
from txstore.transactions.view_after_commit import CommitOutcome

#: Keep a list of up to this many staged keys for the conflict checks, because each check walks through all keys.
_FEW = 1024
#: Number of committers in one process that look for the head at the same time, each during its uploads.
_LOOKS = 8
#: Seconds in which other processes can hardly commit anything.
_MOMENT = 0.05


class _Merged(NamedTuple):
    section: Section
    run: RunName
    inputs: tuple[RunName, ...]


class Committer:
    """One attempt to commit a transaction's staged changes. A `Plan` of `history.publisher`."""

    def __init__(
        self,
        commits: Commits,
        snapshots: Snapshots,
        staging: Staging,
        locks: TransactionLocks | None,
        message: str,
        *,
        may_queue: bool = True,
    ) -> None:
        """`may_queue`: it may follow a commit that has no version yet. If that is never made, this attempt fails."""
        record = staging.record
        self.commits = commits
        self.snapshots = snapshots
        self.staging = staging
        self.view = staging.view
        self.head = self.view.base
        self.writes: Writes | None = None
        self.locks = locks
        packs = [DataPack(PackName(part.pack_id), part.end) for part in staging.parts()]
        self.publisher = Publisher(
            commits,
            staging.part.commit_writer(),
            [(pack, staging.path_of(pack.name.id)) for pack in packs],
            branch=record.branch,
            durable=record.durability == "fsync",
            message=message,
            properties=record.properties,
        )
        self.merges = Merges(staging, self.publisher)
        self.own_run = CommitRun(staging, self.publisher, packs, self.merges)
        self._may_queue = may_queue and staging.other_parent is None  # a merge reads commits below the head
        self.merged: _Merged | None = None
        self._ancestry = Ancestry(commits)
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

    def run(self, *, is_wanted: bool) -> Stored | None:
        """Return the new commit. None if all staged values equal the base's, unless a commit `is_wanted` even so.

        Raises `ConflictError`, `ConstraintError`, and the errors of `Publisher.prepare` and `publish`. After
        `CommitUnknownError` it is unknown whether the commit was published; after any other error it was not. The
        staged changes remain.
        """
        sources = [source.stored for source in self.view.reflinks.sources]
        found = [stored for stored in (*sources, self.staging.other_parent) if stored is not None]
        if not found:
            return self._run_or_tell(is_wanted)
        self.staging.sources = held = HeldSources(self.commits, found)
        try:
            for stored in found:
                self.snapshots.check_kept(stored)
                if self.publisher.durable and stored.header.branch != self.publisher.branch:
                    self._make_durable(stored)  # on the commit's own branch, the parent ensures this
            made = self._run_or_tell(is_wanted)
        except BaseException:
            if not self.publisher.proposed:  # else the commit may have been made, and may need them
                held.release()
            raise
        held.release()
        return made

    def _make_durable(self, stored: Stored) -> None:
        try:
            self.commits.store.ensure(stored)
        except OSError as error:
            raise SyncFailedError(error) from error

    def check(self) -> None:
        """Do the steps 1 and 2 of `run`: raise the conflicts and broken constraints that are known by now."""
        self.merges.put_together()
        self.own_run.append(self.head)
        self._keep_constraints(self.catch_up())

    def _run_or_tell(self, is_wanted: bool) -> Stored | None:
        try:
            return self._run(is_wanted)
        except (CorruptionError, ErasedError):
            self._check_erasures(self.head)  # it has read what was erased since, and needs no repair
            raise
        except (FileNotFoundError, NotADirectoryError):
            self.commits.identity.check_there()
            raise

    def _run(self, is_wanted: bool) -> Stored | None:
        # 1. Merge chunks that several processes wrote in part (I7). Write the commit's run after its values, without
        #    values that equal the base.
        self.merges.put_together()
        self.own_run.append(self.head)
        if self.changes_nothing and not is_wanted:
            return None

        # 2. Look for conflicts with known commits, and for broken constraints, before other committers wait for this
        #    one. Skip this if the check is so short that they hardly wait.
        if self.commits.store.takes_turns and not self._is_fresh():
            self._keep_constraints(self.catch_up())

        # 3. Sometimes compact runs of the head, if they are small compared with the data of this commit.
        self._append_merged_run(self.head)

        look_by_the_way(self.commits, is_large=bool(self.own_run.packs))
        return self._publish()

    @step("commit")
    def _publish(self) -> Stored | None:
        # 4. Make large files durable, and look for the head meanwhile. Then, for each version that the publisher tries,
        #    `catch_up` moves to the head and `contents` gives the header's content, until the file takes a version.
        takes_turns = self.commits.store.takes_turns
        looked = self._begin_look() if self.own_run.packs and not takes_turns else None
        self.publisher.prepare(self.head.stored)
        if looked is not None:
            wait([looked])  # on an error, `catch_up` meets and raises it again
        return self.publisher.publish(self, self.follow if self._may_queue and takes_turns else None)

    def _begin_look(self) -> Future[Stored | None] | None:
        # These threads are separate from those for single requests: a look may wait for such requests.
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no more threads
            return executor("look for the head", _LOOKS).submit(carried(self.commits.head), self.publisher.branch)
        return None

    def _is_fresh(self) -> bool:
        """Tell whether other processes can hardly have committed since the base, and the conflict check is short."""
        staging = self.staging
        return (
            time.monotonic() - staging.began < _MOMENT
            and len(self.view.staged) <= _FEW
            and self.publisher.end <= PROPOSED
            and not (staging.members.is_shared or self.view.reflinks.any or self.view.staged.prefixes)
            and not (staging.declared or self.base.declared)
            and staging.record.isolation != SERIALIZABLE
            and staging.settle_conflicts is None
            and staging.other_parent is None
        )

    # --- runs

    def _append_merged_run(self, head: Snapshot) -> None:
        self.merged = None
        brought = self.publisher.end + sum(pack.end for pack in self.own_run.packs)
        at_once = compaction.IN_OBJECTS if self.commits.staged.uploads else compaction.ON_DISK
        if chosen := compaction.merged_by_commit(head.run_names, at_once, brought):
            # An erasure far away does not wait for processes that have opened a run. It leaves no erased value live on
            # a branch, unless the branch begins at an older commit: then the run is not the branch's own.
            own = (name.pack is not None and name.pack.branch == self.publisher.branch for name in chosen)
            is_stale = self.snapshots.is_ranged and not all(own)
            runs = self.snapshots.as_stored(chosen) if is_stale else head.runs_named(chosen)
            content = runs.merge(len(chosen), self.commits.storage)
            section = self.publisher.append(content)
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
        if len(self.view.staged) <= _FEW:
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
        is_small, branch = self.publisher.end <= PROPOSED, self.publisher.branch
        found = self.commits.store.to_follow(branch) if is_small else self.commits.head(branch)
        if found is None or (checked.stored is not None and found.header.id == checked.stored.header.id):
            self._derive(checked)
            return checked
        return self._move_to(self.snapshots.newest(branch, found))

    def follow(self, ahead: Stored) -> Snapshot:
        return self._move_to(self.snapshots.ahead(ahead))

    def _move_to(self, head: Snapshot) -> Snapshot:
        if head.oldest_kept > max(self.base.version, 0):
            # I10: tombstones of later deletions may be gone.
            raise SnapshotExpiredError(self.commits.branches.label(self.publisher.branch, self.base.version))
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
            if record.until.get(self.publisher.branch, -1) > self.base.version:
                covers = as_erasure(record).covers
                keys = [key for key, _ in staged.items() if covers(key)]
                keys += [each for each in staged.prefixes if any(is_related(each, path) for path in record.paths)]
                if keys:
                    reason = "keys lie below what was erased after this transaction had begun"
                    raise ConflictError(keys, reason=reason, base=self.base.commit, head=head.commit)

    def _append_runs(self, head: Snapshot) -> None:
        """Write the runs anew, behind values that were added, or at their place. All are synced with the header."""
        self.publisher.go_back(self.publisher.place)
        self.own_run.append(head)
        if self.merged is not None:
            self._append_merged_run(head)

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
        stored = None if place is None else self.commits.files.at(self.publisher.branch, place.version)
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


# --- the sorted run of a commit: the refs of its writes, without values that equal the base

#: Number of paths without a node to remember.
_ABSENT = 4096


class CommitRun:
    """The run of one attempt to commit. It may be built anew, on top of another head."""

    def __init__(self, staging: Staging, publisher: Publisher, packs: Sequence[DataPack], merges: Merges) -> None:
        self.packs = packs  # which participants have staged besides the commit's own file
        self.section: Section | None = None  # where it lies in the commit's own file. None: there is nothing to list
        self.statistics = Statistics()
        self.unchanged: set[str] = set()  # staged keys that it omits
        self._staging = staging
        self._view = staging.view
        self._publisher = publisher
        self._merges = merges
        self._together: dict[str, Staged] = {}  # documents copied next to each other in the commit's own file

    def append(self, head: Snapshot) -> None:
        """Write the run behind the values, for a commit on top of `head`. Raises `OSError`."""
        self.section = None
        prefixes = [prefix for prefix in self._view.staged.prefixes if self._view.base.has_keys_below(prefix)]
        counter, storage = _Counter(self._view), self._publisher.storage
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
            self.section = self._publisher.append(content)

    def _entries(self, head: Snapshot) -> Iterator[tuple[str, int, int, int, int, int]]:
        """Yield the entries of the run, ascending. Add keys that the run omits to `unchanged`."""
        base_is_empty = not len(self._view.base.runs)
        transaction = self._publisher.writer.id
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
            document = self._publisher.writer.document(link.offset)
            if document is not None:
                self._together[key] = self._publisher.append_value(key.encode(), document)
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
