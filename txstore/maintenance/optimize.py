"""Merges small packs and runs into large ones: a commit that changes no content.

It copies the values of the chosen packs into new ones. A new run says where the values are now, each with its old seq,
so no reader takes it for a change. Merged with the runs that listed these values, it replaces them.
Other committers commit meanwhile, and merge the newest runs as usual: values of such runs stay where they were until
the next time. The oldest runs, which list almost everything, change rarely. If they do change often, the repository has
few keys, and the optimizer can merge the runs while no process commits. So it makes progress under any stream of
commits.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import tee

from txstore._native import index as native_index
from txstore.commit import Stored
from txstore.errors import raise_if_full, warn
from txstore.format import packfile
from txstore.format.commitfile import DataPack, RunName, Section
from txstore.format.packfile import PackName
from txstore.history.commits import Commits
from txstore.history.new_commit import Contents, NewCommit, SyncFailedError, align
from txstore.history.snapshot import Snapshot, Snapshots
from txstore.maintenance.reachable import Reachable
from txstore.progress import Progress
from txstore.segments import runs as index
from txstore.segments.object_writer import LONG
from txstore.segments.pack_writer import Writer
from txstore.steps import step
from txstore.storage.interface import Mapped, Storage, spooled

#: A new pack is closed at this length, in bytes.
PACK_LENGTH = 256 << 20
#: `optimize` copies packs shorter than this, in bytes, and those with a live share below `LIVE_SHARE`.
SMALL_PACK = 32 << 20
LIVE_SHARE = 0.8
#: The former on an object store, where packs end at `OBJECT_SIZE`, and at each long value.
SMALL_OBJECT = LONG
#: Values, and bytes, that are fetched at once from an object store.
FETCHED_AT_ONCE, BYTES_AT_ONCE = 64, 16 << 20
_PAGE = 4096  # keys
_FRAME_OVERHEAD = packfile.FRAME_SIZE + 16  # bytes; the padding is an estimate

#: Bytes left free on a disk that is nearly full.
_RESERVE = 64 << 10

_ATTEMPTS = 5
#: With at most this many keys (about 50 ms), runs are merged under the commit lock after two lost races: if commits
#: write much of the repository, each may replace all runs.
MERGED_UNDER_LOCK = 20_000


@dataclass(slots=True)
class PackUse:
    """The live bytes of one pack: its values, `values` in number and of these groups, and the runs in it."""

    name: PackName
    length: int = 0
    live: int = 0
    runs: int = 0
    values: int = 0
    groups: set[int] = field(default_factory=set)

    @property
    def is_wasteful(self) -> bool:
        return self.live + self.runs < LIVE_SHARE * (self.length - packfile.HEAD_SIZE)


#: Chooses the packs to copy, from the packs in use at a commit.
Choice = Callable[[Mapping[PackName, PackUse]], set[PackName]]


def small_or_wasteful(uses: Mapping[PackName, PackUse], small: int) -> set[PackName]:
    """Choose the packs shorter than `small`, and wasteful ones, as an explicit `optimize` does."""
    chosen = [use for use in uses.values() if use.values and (use.length < small or use.is_wasteful)]
    writers = {packfile.writer_of(use.name.id) for use in chosen}
    groups = {group for use in chosen for group in use.groups}  # each gets a writer of its own
    if len(writers) <= len(groups) and not any(use.is_wasteful for use in chosen):
        return set()  # copying them would change nothing
    return {use.name for use in chosen}


def below(branch: str, oldest_kept: int) -> Choice:
    """Choose the branch's commit files below a version, which will be deleted, and comparatively small data packs.

    A data pack is chosen if it has at most twice the live bytes of all those chosen before it. So a value is copied a
    number of times that is logarithmic in the size of the repository.
    """

    def choose(uses: Mapping[PackName, PackUse]) -> set[PackName]:
        used = sorted((use for use in uses.values() if use.values), key=lambda use: use.live)
        chosen = {use.name for use in used if use.name.branch == branch and use.name.version < oldest_kept}
        total = sum(uses[name].live for name in chosen)
        for use in used:
            if chosen and use.name.branch is None and use.live <= 2 * total:
                chosen.add(use.name)
                total += use.live
        return chosen

    return choose


@step("optimize")
def optimize(
    commits: Commits,
    snapshots: Snapshots,
    *,
    branch: str,
    durable: bool,
    choose: Choice | None = None,
    progress: Progress | None = None,
) -> Stored | None:
    """Return the commit that was made; None if nothing was to be done, or other committers won each race.

    `progress` is called with the bytes copied so far and in all. Raises what a commit raises.
    """
    stored = commits.head(branch)
    if stored is None:
        return None
    commits.identity.create(durable=durable)  # a copied repository may lack empty directories
    snapshots.heed_erasures()
    head = snapshots.of_head(stored)
    uses = uses_of(head, commits.staged.group)
    for name in _shared(commits, branch, uses):
        del uses[name]
    choose = choose or partial(small_or_wasteful, small=SMALL_OBJECT if commits.staged.uploads else SMALL_PACK)
    chosen = choose(uses)
    if not chosen and len(head.run_names) < 2:
        return None
    for use in uses.values():
        use.runs = 0  # the runs are about to be merged: the rest of their files may then not be worth keeping
    wanted = choose(uses)
    chosen = _fitting(commits.storage, head, uses, wanted)
    total = sum(uses[name].live for name in chosen)
    try:
        copies = _Copies(commits, head, chosen, progress=lambda done: progress and progress(done, total))
        optimizer = _Optimizer(commits, snapshots, head, copies, branch=branch, durable=durable)
        try:
            made = optimizer.run()
        finally:
            copies.close(published=optimizer.new.proposed)
    except SyncFailedError as error:
        raise_if_full(error.cause)
        raise error.cause from None
    except OSError as error:
        raise_if_full(error)
        raise
    if made is not None and len(chosen) < len(wanted):
        told = f"there was room to copy {len(chosen):,} of {len(wanted):,} packs: vacuum(keep=1), then optimize again"
        warn(told, RuntimeWarning)
    return made


def _fitting(
    storage: Storage, head: Snapshot, uses: Mapping[PackName, PackUse], wanted: set[PackName]
) -> set[PackName]:
    """Return the packs that fit on the disk when copied, the most wasteful first. Raises `OSError` if none fits.

    Only the next vacuum frees the old packs: on a disk that is nearly full, each call copies a little.
    """
    free = storage.free()
    if free is None:
        return wanted
    left = free - _RESERVE - 2 * sum(name.length for name in head.run_names)
    fitting = set()
    for name in sorted(wanted, key=lambda name: uses[name].live / max(1, uses[name].length)):
        if uses[name].live <= left:
            fitting.add(name)
            left -= uses[name].live
    if wanted and not fitting:
        least = min(uses[name].live for name in wanted) + free - left
        every = sum(uses[name].live for name in wanted) + free - left
        told = f"{os.strerror(errno.ENOSPC)}: to begin takes {least:,} bytes, to copy all of it {every:,}, and {free:,}"
        raise OSError(errno.ENOSPC, f"{told} are free; nothing was published. Make room, then try again", storage.url)
    return fitting


def _shared(commits: Commits, branch: str, uses: Mapping[PackName, PackUse]) -> set[PackName]:
    """Return the packs that a branch has from the commit where it starts: copying them would free nothing."""
    fork = commits.files.fork_point(branch)
    if fork is None:
        return set()
    begun = Reachable(commits)
    begun.add(fork)
    return {name for name in uses if name.path in begun.paths}


def uses_of(snapshot: Snapshot, group: Callable[[str], int] = lambda _: 0) -> dict[PackName, PackUse]:
    """Return the live bytes, and the groups of the values, of each pack that a commit reaches."""
    uses: dict[PackName, PackUse] = {}
    runs = snapshot.runs
    for key, name, length in live_values(snapshot):
        use = uses.get(name) or uses.setdefault(name, PackUse(name))
        use.live += length + len(key) + _FRAME_OVERHEAD
        use.values += 1
        use.groups.add(group(key.decode(errors="replace")))
    for run in runs.names:
        if run.pack is not None:
            use = uses.get(run.pack) or uses.setdefault(run.pack, PackUse(run.pack))
            use.runs += run.length
    for name, use in uses.items():
        use.length = runs.pack(name).size
    return uses


def live_values(snapshot: Snapshot) -> Iterator[tuple[bytes, PackName, int]]:
    """Yield key, pack and length in bytes of each value, ascending by key."""
    runs = snapshot.runs
    for found in runs.scan_all():
        yield found.key, runs.pack_name(found.run, found.pack), found.length


def _batches(found: Iterable[index.Listed]) -> Iterator[list[index.Listed]]:
    batch: list[index.Listed] = []
    for each in found:
        batch.append(each)
        if len(batch) == FETCHED_AT_ONCE or sum(one.length for one in batch) >= BYTES_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


class _Copies:
    """Values copied into new packs, each with the snapshot's run that listed it.

    The new places are kept in a run, since there may be millions. In place of its pack, the entry of a key has the run
    that listed it, and the upper bits of its offset say which of the new packs holds it.
    """

    def __init__(
        self, commits: Commits, head: Snapshot, chosen: set[PackName], *, progress: Callable[[int], object]
    ) -> None:
        self.id = os.urandom(16)
        self.writers: list[Writer] = []
        self._commits = commits
        self._progress = progress
        self._numbers: list[
            int
        ] = []  # of the new packs, in the transaction that `id` stands for, as offsets count them
        try:
            self._run = self._copy(head, chosen)
        except BaseException:
            self.close(published=False)
            raise

    def _copy(self, head: Snapshot, chosen: set[PackName]) -> native_index.Run:
        runs = [number.to_bytes(4, "little") for number in range(len(head.run_names))]
        entries = self._copied(head, chosen) if chosen else ()
        content = spooled(self._commits.storage, lambda sink: native_index.build(entries, (), runs, sink))
        for each in self.writers:
            each.finish(each.size)
        return native_index.Run(content, 1)

    def _copied(self, head: Snapshot, chosen: set[PackName]) -> Iterator[tuple[bytes, int, int, int, int, int, int]]:
        """Copy the values, and yield their new places, ascending by key."""
        done = 0
        writers: dict[int, int] = {}  # by the group of their values
        places: dict[int, int] = {}  # the packs by their numbers in the transaction
        for found, value in self._values(head, chosen):
            group = self._commits.staged.group(found.key.decode(errors="replace"))
            number = writers.get(group)
            if number is None or self.writers[number - 1].size >= PACK_LENGTH:
                self.new_writer()
                number = writers[group] = len(self.writers)
            writer = self.writers[number - 1]
            staged = writer.append(packfile.FRAME_OF_REF[found.kind], found.key, value, seen=packfile.SEEN_NOTHING)
            nth, offset = packfile.split_offset(staged.offset)
            pack = packfile.pack_number(number, nth)
            if pack not in places:
                places[pack] = len(self._numbers)
                self._numbers.append(pack)
            place = packfile.join_offset(places[pack], offset)
            yield found.key, found.kind, place, staged.length, staged.checksum, found.run + 1, found.seq
            done += found.length + len(found.key) + _FRAME_OVERHEAD
            self._progress(done)

    def _values(self, head: Snapshot, chosen: set[PackName]) -> Iterator[tuple[index.Listed, memoryview]]:
        """Yield the values in the chosen packs, ascending by key."""

        def view(found: index.Listed) -> memoryview:
            return head.view_of(found.key.decode(errors="replace"), found)

        runs = head.runs
        wanted = (found for found in runs.scan_all() if runs.pack_name(found.run, found.pack) in chosen)
        dispatch = self._commits.storage.dispatch
        batches, again = tee(_batches(wanted))
        for batch, values in zip(
            batches, dispatch.in_advance(lambda each: list(dispatch.each(view, each)), again, 2), strict=True
        ):
            yield from zip(batch, values, strict=True)

    def new_writer(self) -> Writer:
        number = len(self.writers) + 1
        self.writers.append(self._commits.staged.new(self.id, number))
        self.writers[-1].create()
        return self.writers[-1]

    def packs(self) -> list[tuple[DataPack, str]]:
        """Return the new packs, each with the path of its file until the commit."""
        return [
            (
                DataPack(PackName(packfile.participants_pack(self.id, number)), end),
                self._commits.staged.path(self.id, number),
            )
            for number, end in self._ends().items()
        ]

    def _ends(self) -> dict[int, int]:
        return {number: end for writer in self.writers for number, end in writer.ends().items()}

    def run_of(self, oldest: int, count: int) -> Mapped:
        """Build a run of the values that were listed in the `oldest` last of `count` runs."""
        return self._build(entry for entry in self._entries() if entry[3] > count - oldest)

    def run_for(self, head: Snapshot) -> Mapped:
        """Build a run of the values that a later snapshot still has with the same seq, in whichever run."""
        kept = {each.key: each.seq for each in head.runs.scan_all()}
        return self._build(entry for entry in self._entries() if kept.get(entry[0]) == entry[2])

    def _entries(self) -> Iterator[tuple[bytes, int, int, int, int, int, int]]:
        """Yield all copied values, ascending by key: key, kind, seq, run, place, length and checksum."""
        start = b""
        while page := self._run.scan(start, None, _PAGE):
            yield from page
            start = page[-1][0] + b"\0"

    def _build(self, entries: Iterable[tuple[bytes, int, int, int, int, int, int]]) -> Mapped:
        packs = {number: at for at, number in enumerate(self._ends(), 1)}
        at = [packs[number] for number in self._numbers]
        moved = (
            (key, kind, (place := packfile.split_offset(where))[1], length, checksum, at[place[0]], seq)
            for key, kind, seq, _, where, length, checksum in entries
        )
        return index.build(moved, (), [pack.name for pack, _ in self.packs()], self._commits.storage)

    def close(self, *, published: bool) -> None:
        """Delete the staged files, and all copies unless they were, or may have been, published."""
        for writer in self.writers:
            if published:
                writer.release()
            else:
                writer.drop()


class _Optimizer:
    """The commit that publishes the new places, tried a few times."""

    def __init__(
        self, commits: Commits, snapshots: Snapshots, head: Snapshot, copies: _Copies, *, branch: str, durable: bool
    ) -> None:
        self.commits = commits
        self.snapshots = snapshots
        self.head = head
        self.copies = copies
        self.branch = branch
        self.writer = commits.staged.new(copies.id, 0)
        self.new = NewCommit(commits, self.writer, copies.packs(), branch=branch, durable=durable, message="optimize")
        # Of one attempt:
        self.inputs: tuple[RunName, ...] = ()
        self.merged: tuple[Section, RunName] | None = None  # replaces `inputs`
        self.may_wait = True

    def run(self) -> Stored | None:
        stored = None
        try:
            for attempt in range(_ATTEMPTS):
                self.inputs, self.may_wait = self._inputs(self.catch_up()), attempt < 2
                if (stored := self._attempt()) is not None:
                    break
        finally:
            if stored is None and not self.new.proposed:
                self.new.withdraw_packs()
            if self.writer.close() and stored is None and not self.new.proposed:
                self.commits.storage.delete(self.writer.path)
        return stored

    def _inputs(self, now: Snapshot) -> tuple[RunName, ...]:
        """Return the oldest runs of the snapshot that are still the oldest of the head."""
        count = 0
        for before, after in zip(reversed(self.head.run_names), reversed(now.run_names), strict=False):
            if before != after:
                break
            count += 1
        return self.head.run_names[len(self.head.run_names) - count :]

    def _attempt(self) -> Stored | None:
        if not self.inputs and self.may_wait:
            return None
        self.merged = self._append(self.head, len(self.inputs), self.copies.run_of) if self.inputs else None
        self.new.prepare(self.head.stored)
        return self.new.publish(self.catch_up, self.contents)

    def catch_up(self) -> Snapshot:
        return self.snapshots.newest(self.branch)

    def contents(self, head: Snapshot) -> Contents | None:
        if head is not self.head and not self.commits.are_pins_seen and not self.snapshots.heeds_all_erasures:
            return None  # I12: the copies may have what was erased since
        runs = list(head.run_names)
        if self.merged is not None and (at := index.find_runs(self.inputs, runs)) is not None:
            section, merged = self.merged
            runs[at : at + len(self.inputs)] = [merged]
            return Contents((section,), tuple(runs))
        if self.may_wait or sum(name.entries for name in runs) > MERGED_UNDER_LOCK:
            return None
        section, merged = self._append(head, len(runs), lambda *_: self.copies.run_for(head))
        return Contents((section,), (merged,))

    def _append(self, head: Snapshot, oldest: int, relocated: Callable[[int, int], Mapped]) -> tuple[Section, RunName]:
        content = self._merge(head, oldest, relocated(oldest, len(head.run_names)))
        self.new.end = align(self.writer.size)
        section = self.new.append(content)
        return section, index.name_run(content, 0, section.offset)

    def _merge(self, head: Snapshot, oldest: int, relocated: Mapped) -> Mapped:
        """Merge the oldest runs of a snapshot, with the new places of their copied values on top.

        Tombstones up to the oldest kept version are dropped: no transaction is based on an older version.
        """
        assert head.stored is not None
        header = head.stored.header
        forgotten = header.seq - (header.version - header.oldest_kept) if header.oldest_kept else 0
        above = [native_index.Run(relocated, header.seq)] if self.copies.writers else []
        tables = [[b"", *(pack.name.encode() for pack, _ in self.copies.packs())]] if above else []
        return head.runs.merge_oldest(oldest, above, tables, forgotten=forgotten, storage=self.commits.storage)
