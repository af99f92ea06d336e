"""The commit, read top to bottom: what is staged becomes a pack, the pack takes a version (`history.publisher`)."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import wait
from typing import Any, NamedTuple

from txstore.commit import Stored
from txstore.commit_queue.group_commits import PROPOSED
from txstore.errors import ConflictError, SnapshotExpiredError
from txstore.format import commitfile, packfile
from txstore.format.commitfile import DataPack, RunName, Section, Statistics
from txstore.format.documents import kind_of_node
from txstore.format.keys import DOCUMENT_NAMES, ancestors, directory_prefix, is_document
from txstore.format.packfile import PackName
from txstore.format.records import SERIALIZABLE
from txstore.history import declarations
from txstore.history.ancestry import Ancestry
from txstore.history.commits import Commits
from txstore.history.publisher import Contents, Publisher, SyncFailedError
from txstore.history.snapshot import Snapshot, Snapshots
from txstore.segments import runs as index
from txstore.segments.compaction_outputs import CompactionOutput
from txstore.segments.packs import Staged
from txstore.steps import step
from txstore.transactions import conflicts
from txstore.transactions.conflicts import Writes
from txstore.transactions.held_locks import TransactionLocks
from txstore.transactions.merges import Merges
from txstore.transactions.outcome import CommitOutcome
from txstore.transactions.participants.chains import Link
from txstore.transactions.participants.reclaim import look_by_the_way
from txstore.transactions.reflinks import HeldSources
from txstore.transactions.staging import Peek, Staging

#: Paths without a node that are remembered.
_ABSENT = 4096
#: Staged keys that are remembered while conflicts are looked for: each question goes through all of them.
_FEW = 1024
#: Seconds in which others commit little.
_MOMENT = 0.05


class _Merged(NamedTuple):
    section: Section
    run: RunName
    inputs: tuple[RunName, ...]


class Committer:
    """One attempt to commit what one transaction has staged. A `Plan` of `history.publisher`."""

    def __init__(
        self,
        commits: Commits,
        snapshots: Snapshots,
        staging: Staging,
        locks: TransactionLocks | None,
        message: str,
        is_wanted: bool,
        *,
        in_line: bool = True,
    ) -> None:
        """`is_wanted`: the commit is made even if it changes nothing.

        `in_line`: the commit may follow one that is on its way to its version, and be given up if that never has it.
        """
        record = staging.record
        self.commits = commits
        self.snapshots = snapshots
        self.staging = staging
        self.base = self.head = staging.base
        self.writes: Writes | None = None
        self.branch = record.branch
        self.locks = locks
        self.packs = [DataPack(PackName(part.pack_id), part.end) for part in staging.parts()]
        self.publisher = Publisher(
            commits,
            staging.commit_writer(),
            [(pack, staging.path_of(pack.name.id)) for pack in self.packs],
            branch=record.branch,
            durable=record.durability == "fsync",
            message=message,
            properties=record.properties,
        )
        self._is_wanted = is_wanted
        self.unchanged: set[str] = set()
        self.merges = Merges(staging, self.publisher)
        self.together: dict[str, Staged] = {}  # documents that lie beside one another in the commit's own file
        self.statistics = Statistics()
        self._in_line = in_line and staging.other_parent is None  # a merge looks for what is below the head
        self.own: Section | None = None
        self.merged: _Merged | None = None
        self.aside: CompactionOutput | None = None  # what a thread has merged meanwhile
        self._ancestry = Ancestry(commits)
        self._kept: tuple[Snapshot, Mapping[str, Any]] | None = None  # on which head, and what its header says then

    @property
    def proposed(self) -> bool:
        """Whether the file was proposed to a version, which may have taken it."""
        return self.publisher.proposed

    @property
    def changes_nothing(self) -> bool:
        """Whether what it writes is as it was. A merge says that all of the other is here, which is a change."""
        is_empty = self.own is None and self.staging.other_parent is None
        return is_empty and declarations.changes_nothing(self.staging.constraints, self.base.written_constraints)

    def run(self) -> Stored | None:
        """Return the new commit; None if all that is staged is as in the base, and the commit is not wanted anyway.

        Raises `ConflictError`, `ConstraintError`, and what `Publisher.prepare` and `publish` raise; then nothing was
        published (or, with `CommitUnknownError`, that is not known), and what is staged is still there.
        """
        sources = [source.stored for source in self.staging.reflinks.sources]
        found = [stored for stored in (*sources, self.staging.other_parent) if stored is not None]
        if not found:
            return self._run()
        self.staging.sources = held = HeldSources(self.commits, found)
        try:
            for stored in found:
                self.snapshots.check_kept(stored)
                if self.publisher.durable and stored.header.branch != self.branch:
                    self._make_durable(stored)  # of its own branch, the parent vouches for it
            made = self._run()
        except BaseException:
            if not self.proposed:  # else what may have been committed needs them as long as that is not known
                held.release()
            raise
        held.release()
        return made

    def _make_durable(self, stored: Stored) -> None:
        try:
            self.commits.durability.ensure(stored)
        except OSError as error:
            raise SyncFailedError(error) from error

    def _run(self) -> Stored | None:
        # 1. Chunks that several processes have written in part are put together (I7). The transaction's own run follows
        #    its values. What equals the base is left out.
        self.merges.put_together()
        self._append_own_run()
        if self.changes_nothing and not self._is_wanted:
            return None

        # 2. Conflicts with all that is known by now, and broken constraints, are found before others wait for
        #    this commit, unless there is so little to look at that they hardly wait.
        if not self._is_fresh():
            self.commits.versions.strategy.check_early(lambda: self._keep_constraints(self.catch_up()))

        # 3. Every now and then, runs of the head are merged: as much as is little beside what this commit brings.
        self._append_merged_run(self.head)

        look_by_the_way(self.commits, is_large=bool(self.packs))
        self.aside, made = self.commits.compaction_outputs.take(self.branch), None
        try:
            made = self._publish()
            return made
        finally:
            if self.aside is not None:
                self.commits.compaction_outputs.settle(self.branch, self.aside, made, may_be_made=self.proposed)

    @step("commit")
    def _publish(self) -> Stored | None:
        # 4. All that is large is made durable, and it is looked for the head meanwhile. Then this plan catches up and
        #    says what the header holds (`contents`), once for each version that is tried, until the file takes one.
        strategy = self.commits.versions.strategy
        looked = strategy.begin_look(lambda: self.commits.head(self.branch)) if self.packs else None
        self.publisher.prepare(self.head.stored)
        if looked is not None:
            wait([looked])  # of an error, `catch_up` says what is wrong
        if not self._in_line:
            return self.publisher.publish(self)
        return strategy.publish(lambda: self.publisher.publish(self), lambda: self.publisher.publish_in_line(self))

    def _is_fresh(self) -> bool:
        """Tell whether others can hardly have committed anything since the base, and little is asked of that."""
        staging = self.staging
        return (
            time.monotonic() - staging.began < _MOMENT
            and len(staging.staged) <= _FEW
            and self.publisher.end <= PROPOSED
            and not (staging.is_shared or staging.reflinks.any or staging.prefixes)
            and not (staging.constraints or self.base.written_constraints)
            and staging.record.isolation != SERIALIZABLE
            and staging.settle_conflicts is None
            and staging.other_parent is None
        )

    def withdraw_packs(self) -> None:
        """Take back the names in `packs/`: no commit refers to them."""
        self.publisher.withdraw_packs()

    # --- runs

    def _append_own_run(self) -> None:
        self.own = None
        prefixes = [prefix for prefix in self.staging.prefixes if self.base.has_keys_below(prefix)]
        counter, storage = _Counter(self.staging), self.commits.storage
        packs = [pack.name for pack in self.packs]
        entries = counter.counted(self._entries())
        if self.staging.reflinks.any:
            # What was written is newer than what was moved to the same place, and this than what was deleted there.
            sections = [index.build(entries, (), packs, storage)]
            sections += self.staging.reflinks.sections(storage)
            sections.append(index.build((), [prefix.encode() for prefix in prefixes]))
            content = index.merge_own(sections, storage)
            counter.count_refs(index.name_run(content, 1, 0).entries)
        else:
            content = index.build(entries, [prefix.encode() for prefix in prefixes], packs, storage)
        self.statistics = counter.statistics(len(prefixes))
        if self.statistics.keys_set or self.statistics.keys_deleted or prefixes:
            self.own = self.publisher.append(content)

    def _entries(self) -> Iterator[tuple[str, int, int, int, int, int]]:
        """Yield what the run will hold, ascending, and remember in `unchanged` what it will not."""
        base_is_empty = not len(self.base.runs)
        transaction = self.publisher.writer.id
        numbers = {packfile.number_of(transaction, pack.name.id): at for at, pack in enumerate(self.packs, 1)} | {0: 0}
        made = self.merges.values
        for key, link in self.staging.items_staged():
            if key in made:
                merged = made[key]
                if merged.length:
                    yield key, packfile.REF_PACK, merged.offset, merged.length, merged.checksum, 0
                elif key in self.head:
                    yield key, packfile.REF_TOMBSTONE, 0, 0, 0, 0
            elif link.kind == packfile.FRAME_TOMBSTONE:
                # A key that was not there needs no tombstone; it still counts as written (`_writes`).
                if self.staging.reflinks.any and (there := self.staging.reflinks.find(key)) is not None:
                    if there[1] in there[0]:
                        yield key, packfile.REF_TOMBSTONE, 0, 0, 0, 0
                elif not base_is_empty and not self.staging.is_below_deleted(key) and key in self.base:
                    yield key, packfile.REF_TOMBSTONE, 0, 0, 0, 0
            elif not base_is_empty and self.staging.is_unchanged(key, link):
                self.unchanged.add(key)
            elif (copy := self._beside_others(key, link)) is not None:
                yield key, packfile.REF_PACK, copy.offset, copy.length, copy.checksum, 0
            else:
                pack, (_, offset) = numbers[self.staging.number_of(link)], packfile.split_offset(link.offset)
                yield key, packfile.REF_OF_FRAME[link.kind], offset, link.length, link.checksum, pack

    def _beside_others(self, key: str, link: Link) -> Staged | None:
        """Return where a document lies once more, if it is better read from there: opening a group reads many."""
        if key not in self.together and not link.participant and link.kind == packfile.FRAME_VALUE:
            document = self.publisher.writer.document(link.offset)
            if document is not None:
                self.together[key] = self.publisher.append_value(key.encode(), document)
        return self.together.get(key)

    def _append_merged_run(self, head: Snapshot) -> None:
        self.merged = None
        brought = self.publisher.end + sum(pack.end for pack in self.packs)
        names = self.commits.compaction_outputs.left(self.branch, head.run_names)
        if chosen := index.plan_merge(names, self.commits.compaction_outputs.merged_at_once, brought):
            content = head.runs_named(chosen).merge(len(chosen), self.commits.storage)
            section = self.publisher.append(content)
            run = index.name_run(content, 0, section.offset)
            self.merged = _Merged(section, run, tuple(chosen))

    # --- conflicts

    def _writes(self) -> Writes:
        more: list[str] = []
        documents: dict[str, bytes | None] = {}
        for key, link in self.staging.items_staged():
            if key in self.unchanged:
                continue
            is_deleted = link.kind == packfile.FRAME_TOMBSTONE
            if link.kind == packfile.FRAME_PARTIAL:
                self.merges.allow(key, link)
            if is_document(key):
                documents[key] = None if is_deleted else self.staging.read(link)
        for key in self.staging.reflinks.taken:
            if key not in self.staging.staged:
                more.append(key)
                if is_document(key) and (content := self.staging.below(key)) is not None:
                    documents[key] = bytes(content)
        for reflink in self.staging.reflinks:
            # As if all below had been deleted, and the node been made: no other commit may have made a key below it.
            for name in DOCUMENT_NAMES:
                key = reflink.to + name
                if key not in documents and (content := self.staging.below(key)) is not None:
                    more.append(key)
                    documents[key] = bytes(content)
        keys: Iterable[str] = _Keys(self.staging, self.unchanged, more)
        deleted: Iterable[str] = _Keys(self.staging, self.unchanged, are_deleted=True)
        if len(self.staging.staged) <= _FEW:
            keys, deleted = list(keys), list(deleted)
        return Writes(
            keys,
            deleted,
            [*self.staging.prefixes, *(reflink.to for reflink in self.staging.reflinks)],
            documents,
            self.staging.reads(self.unchanged),
            self.merges.are_apart,
        )

    def catch_up(self) -> Snapshot:
        """Move on to the newest commit, if there is no conflict with what is new in it."""
        checked = self.head
        if self.staging.other_parent is not None and checked.stored is not None:
            self._ancestry.reach(checked.stored)  # here, and not when others wait for us
        is_small = self.publisher.end <= PROPOSED
        found = self.commits.heads.to_follow(self.branch) if is_small else self.commits.head(self.branch)
        if found is None or (checked.stored is not None and found.header.id == checked.stored.header.id):
            return checked
        return self._move_to(self.snapshots.newest(self.branch, found))

    def follow(self, ahead: Stored) -> Snapshot:
        return self._move_to(self.snapshots.ahead(ahead))

    def _move_to(self, head: Snapshot) -> Snapshot:
        if head.oldest_kept > max(self.base.version, 0):
            # I10: what was deleted since may no longer be known to have been.
            raise SnapshotExpiredError(self.commits.branches.label(self.branch, self.base.version))
        self.writes = self.writes or self._writes()
        since = self.head.seq
        if was_settled := self.merges.settled is not None:
            self.merges.unsettle()
            since = self.base.seq
        try:
            conflicts.check(self.writes, self.base, head, since)
        except ConflictError:
            if self.staging.settle_conflicts is None or self.staging.reflinks.any:
                raise
            self._settle(head)
            since = self.base.seq
        self.head = head
        if self.merges.merge(head, since) or self.merges.settled is not None or was_settled:
            # What was written behind the values is overwritten by theirs. All of it is synced with the header.
            self.publisher.go_back(self.publisher.place)
            self._append_own_run()
            if self.merged is not None:
                self._append_merged_run(head)
        return head

    def _settle(self, head: Snapshot) -> None:
        """Put together what is staged and what others have committed since the base. Raises `ConflictError`."""
        settle, staging = self.staging.settle_conflicts, self.staging
        assert self.writes is not None  # for mypy: `catch_up` asks about both
        assert settle is not None
        declarations.check_unmoved(self.staging.constraints, self.base.written_constraints, head.written_constraints)
        staged = [key for key, _ in staging.items_staged()]
        theirs = self.snapshots.own(head)
        try:
            self.merges.settle(settle(self.base, Peek(staging), staged, staging.key_changes(), theirs))
        except ConflictError:
            theirs.let_go()  # which the error's `conflicts` hold
            raise
        # All else is a conflict as ever: what was deleted as a whole, say.
        conflicts.check(self.writes, self.base, head, self.base.seq)

    def _keep_constraints(self, head: Snapshot) -> Mapping[str, Any]:
        """I11: return the constraints that the commit carries on top of `head`, all of which it keeps."""
        if self._kept is None or self._kept[0] is not head:
            changes, there = self.staging.constraints, head.written_constraints
            declarations.check_unmoved(changes, self.base.written_constraints, there)
            written = declarations.changed(changes, there)
            if written:
                declarations.check(
                    head.url,
                    written,
                    there,
                    CommitOutcome(self.staging, self.unchanged, head, self.merges.deleted, self.merges.settled or {}),
                )
            self._kept = head, written
        return self._kept[1]

    # --- the header, for one version

    def contents(self, head: Snapshot) -> Contents:
        """Raises if what was locked no longer is, or a constraint would be broken."""
        if self.locks is not None:
            self.locks.fence()
        self.staging.check_held()
        if self.staging.sources is not None:
            self.staging.sources.check()
        own, merged, statistics = self.own, self.merged, self.statistics
        kept = self._keep_constraints(head)
        seq, other = head.seq + 1, self.staging.other_parent
        sections, runs, packs = [], list(head.run_names), list[DataPack]()
        if merged is not None and (at := index.find_runs(merged.inputs, runs)) is not None:
            # Its inputs still stand side by side: no other process has merged them meanwhile.
            runs[at : at + len(merged.inputs)] = [merged.run]
            sections.append(merged.section)
        aside = self.aside
        if aside is not None and aside.may_be_installed and (at := index.find_runs(aside.inputs, runs)) is not None:
            runs[at : at + len(aside.inputs)] = [aside.run]
            packs.append(aside.data)
        if own is not None:
            entries = statistics.keys_set + statistics.keys_deleted
            runs.insert(0, RunName(None, seq, own.offset, own.length, entries, seq))
            sections.insert(0, own)
        required = commitfile.FEATURE_FOREIGN if self.staging.may_be_foreign else 0
        return Contents(
            tuple(sections),
            tuple(runs),
            statistics,
            tuple(packs),
            required=required,
            constraints=kept,
            merged=other,
            reach={} if other is None or head.stored is None else self._ancestry.joined(head.stored, other),
            joins=not kept and self.commits.versions.strategy.may_join(self._only_sets),
        )

    def _only_sets(self) -> bool:
        """Tell whether all that this is about are keys that are set, so that only others near them matter."""
        staging, own = self.staging, self.own
        if own is None or own.offset + own.length > PROPOSED:
            return False
        if self.packs and staging.is_shared:  # not all of them are of this process, which knows that they will stay
            return False
        is_more = staging.other_parent is not None or staging.constraints or staging.reflinks.any or staging.sources
        if is_more or any(staging.prefixes):
            return False
        writes = self.writes or self._writes()
        # The leader of a group commit would not see a deleted key that did not exist.
        return not (any(True for _ in writes.deleted) or any(writes.reads))


class _Keys(Iterable[str]):
    """The keys that a transaction sets, or the ones that it deletes. They are looked for each time: there may be
    millions.

    `unchanged` are staged, and left out; `more` are not staged, and set all the same.
    """

    def __init__(
        self, staging: Staging, unchanged: Collection[str], more: Iterable[str] = (), *, are_deleted: bool = False
    ) -> None:
        self._staging = staging
        self._unchanged = unchanged
        self._more = more
        self._are_deleted = are_deleted

    def __iter__(self) -> Iterator[str]:
        for key, link in self._staging.items_staged():
            if (link.kind == packfile.FRAME_TOMBSTONE) == self._are_deleted and key not in self._unchanged:
                yield key
        yield from self._more


class _Counter:
    """Counts what goes into a run while it is built."""

    def __init__(self, view: Staging) -> None:
        self._view = view
        self._set = self._deleted = self._bytes = 0
        self._arrays: set[str] = set()
        self._last_array = "\0"  # with a slash: the next key lies there too, as a rule
        self._absent: set[str] = set()  # paths at which there is no node: to find that out may take requests
        self._elsewhere = "\0"  # what lies right there is in no array

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
        """Count the keys that were set without a value of their own, given how many entries there are in all."""
        self._set = entries - self._deleted

    def statistics(self, prefixes: int) -> Statistics:
        return Statistics(self._set, self._deleted, prefixes, self._bytes, len(self._arrays))
