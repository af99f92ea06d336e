"""Walking everything that can be reached: so far `verify`, which reports and changes nothing."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from txstore import encoding, format, names, records
from txstore._native import index, local
from txstore.commits import MAIN, Commits, Stored
from txstore.errors import CorruptionError, TxStoreError
from txstore.format import DataPack, PackName, RunName
from txstore.index import Runs
from txstore.keys import decode_key
from txstore.pack import Packs
from txstore.records import Hint


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong. `commits` are the ids of those that it was found through."""

    path: str
    reason: str
    offset: int | None = None
    key: str | None = None
    commits: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = self.path + (f" at byte {self.offset}" if self.offset is not None else "")
        return where + (f" (key {self.key!r})" if self.key is not None else "") + f": {self.reason}"


@dataclass(slots=True)
class Report:
    """What `verify` found."""

    commits: int = 0
    values: int = 0
    refs: int = 0
    bytes: int = 0
    faults: list[Fault] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.faults


@dataclass(slots=True)
class _Values:
    """The frames of one pack, ascending by offset: what a ref into it must match."""

    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("Q"))
    checksums: array[int] = field(default_factory=lambda: array("I"))

    def has(self, offset: int, length: int, checksum: int) -> bool:
        i = bisect_left(self.offsets, offset)
        while i < len(self.offsets) and self.offsets[i] == offset:  # empty values may share an offset
            if (self.lengths[i], self.checksums[i]) == (length, checksum):
                return True
            i += 1
        return False


def verify(commits: Commits, progress: Callable[[int, int], None] | None = None) -> Report:
    """Check every commit of every branch, every frame of its pack, every run and every ref. See `Repository.verify`."""
    return _Verifier(commits, progress).run()


class _Verifier:
    def __init__(self, commits: Commits, progress: Callable[[int, int], None] | None) -> None:
        self.commits = commits
        self.storage = commits.storage
        self.progress = progress
        self.report = Report()
        self.packs = Packs(commits.storage)
        self.values: dict[bytes, _Values] = {}
        self.floor = 0

    def run(self) -> Report:
        chain = self._chain()
        total = sum(stored.footer.file_length + sum(pack.end for pack in stored.header.packs) for stored in chain)
        for stored in reversed(chain):  # oldest first: refs point back
            self._check_pack(stored)
            if self.progress is not None:
                self.progress(self.report.bytes, total)
        for name in self.storage.list("tags"):
            self._guarded(lambda name=name: self.commits.by_tag(name), ())  # type: ignore[misc]
        return self.report

    def _chain(self) -> list[Stored]:
        """Return the commits that can be read, newest first. Reports other slots, and links that do not hold."""
        slots = self.commits.slots(MAIN)  # before the head is looked for: others may be committing
        floor, top = min(slots, default=0), max(slots, default=-1)
        try:
            head = self.commits.head(MAIN)
            floor, top = (0, -1) if head is None else (head.header.floor, head.header.slot)
        except (TxStoreError, OSError) as error:
            self._fault_of(error)
        for slot in sorted(slots):
            if slot > top:
                self._fault(names.commit_path(MAIN, slot), "this commit does not follow the one in the slot before it")
        self._check_hint()
        chain: list[Stored] = []
        child: Stored | None = None
        self.floor = floor
        for slot in range(top, floor - 1, -1):
            path = names.commit_path(MAIN, slot)
            stored: Stored | None = None
            try:
                stored = self.commits.read(MAIN, slot)
                if stored is None:
                    self._fault(path, "the file is missing")
            except (TxStoreError, OSError) as error:
                self._fault_of(error, path=path)
            if stored is not None:
                chain.append(stored)
                named = None if child is None else (child.header.parent_id, child.header.parent_hash)
                if named not in (None, (stored.header.id, stored.hash)):
                    self._fault(path, f"this is not the parent that slot {slot + 1} names")
            child = stored
        return chain

    def _check_hint(self) -> None:
        """Report the loss of the newest commits: a durable one that the hint names and that is not there."""
        try:
            hint = Hint.decode(self.storage.read(names.hint_path(MAIN))[: records.HINT_SIZE])
            stored = self.commits.read(MAIN, hint.slot)
        except (OSError, TxStoreError, encoding.MalformedError):
            return  # it is only a hint; a damaged commit is reported where its slot is read
        if hint.durable and (stored is None or stored.header.id != hint.commit_id):
            path = names.commit_path(MAIN, hint.slot)
            self._fault(path, f"commit {hint.commit_id.hex()} was durable in this slot and is not there")

    def _check_pack(self, stored: Stored) -> None:
        self.report.commits += 1
        self.report.bytes += stored.footer.file_length
        commit_id = stored.header.id.hex()
        try:
            data = memoryview(self.storage.map(stored.path))
        except OSError as error:
            self._fault_of(error, (commit_id,), path=stored.path)
            return
        for pack in stored.header.packs:
            self._guarded(lambda pack=pack: self._check_data_pack(stored, pack), (commit_id,))  # type: ignore[misc]
        self._guarded(lambda: self._check_frames(stored, data), (commit_id,))
        self._guarded(lambda: Runs(stored.header.runs, stored.header.name, self.packs), (commit_id,))
        for run in stored.header.runs:
            if run.pack is None:
                self._guarded(lambda run=run: self._check_run(stored, run, data), (commit_id,))  # type: ignore[misc]
            elif run.pack.id not in self.values and not self._is_below_floor(run.pack):
                self._fault(
                    stored.path, f"it lists a run in {run.pack.path}, which is missing or damaged", (commit_id,)
                )

    def _check_frames(self, stored: Stored, data: memoryview) -> None:
        end = min((section.offset for section in stored.header.sections), default=stored.footer.header_offset)
        position = self._check_pack_of_frames(stored.header.name, stored.header.repository_id, data, end)
        self._check_sections(stored, data, position)

    def _check_data_pack(self, stored: Stored, pack: DataPack) -> None:
        self.report.bytes += pack.end
        try:
            data = memoryview(self.storage.map(pack.name.path))
        except OSError as error:
            self._fault_of(error, (stored.header.id.hex(),), path=pack.name.path)
            return
        if len(data) < pack.end:
            reason = f"the file has {len(data)} bytes, and frames are listed up to byte {pack.end}"
            raise CorruptionError(pack.name.path, reason=reason)
        self._check_pack_of_frames(pack.name, stored.header.repository_id, data, pack.end)

    def _check_pack_of_frames(self, name: PackName, repository_id: bytes, data: memoryview, end: int) -> int:
        """Check the frames of a pack, up to `end`; return where the last one ends."""
        values = self.values[name.id] = _Values()
        path = name.path
        try:
            found = format.decode_head(bytes(data[: format.HEAD_SIZE]))
        except encoding.MalformedError as error:
            raise CorruptionError(path, offset=0, reason=error.reason) from error
        if found[:2] != (name.id, repository_id):
            raise CorruptionError(path, offset=0, reason="the pack's head names another pack or repository")
        position, sequence = format.HEAD_SIZE, 0
        while position < end:
            try:
                frame = format.decode_frame(data, position)
                if frame.kind == format.FRAME_VALUE:
                    local.view(data, frame.offset, frame.length, frame.checksum)
            except ValueError as error:
                raise CorruptionError(path, offset=position, reason=str(error)) from error
            if frame.sequence != sequence or frame.end > end:
                raise CorruptionError(path, offset=position, reason="the frames do not follow one another")
            if any(data[frame.head_end : frame.offset]) or any(data[frame.offset + frame.length : frame.end]):
                raise CorruptionError(path, offset=position, reason="the padding of a frame is not zero")
            values.offsets.append(frame.offset)
            values.lengths.append(frame.length)
            values.checksums.append(frame.checksum)
            self.report.values += 1
            position, sequence = frame.end, sequence + 1
        return position

    def _check_sections(self, stored: Stored, data: memoryview, position: int) -> None:
        """Check that sections and header follow one another with nothing between them, from `position` on."""
        runs = {(run.offset, run.length) for run in stored.header.runs if run.pack is None}
        parts = sorted((section.offset, section.length) for section in stored.header.sections)
        for offset, length in [*parts, (stored.footer.header_offset, stored.footer.header_length)]:
            if offset < position or any(data[position:offset]):
                raise CorruptionError(stored.path, offset=position, reason="there is something between the sections")
            position = offset + length
        for section in stored.header.sections:
            if section.kind == format.SECTION_RUN and (section.offset, section.length) not in runs:
                raise CorruptionError(stored.path, offset=section.offset, reason="the header does not list this run")

    def _check_run(self, stored: Stored, name: RunName, data: memoryview) -> None:
        try:
            run = index.Run(data[name.offset : name.offset + name.length], name.seq)
            run.verify()
            packs = [stored.header.name, *map(PackName.decode, run.packs)]
        except ValueError as error:
            raise CorruptionError(stored.path, offset=name.offset, reason=f"damaged run: {error}") from error
        start = b""
        while entries := run.scan(start, None, 4096):
            for key, kind, _, pack, offset, length, checksum in entries:
                self.report.refs += 1
                if decode_key(key) is None:
                    raise CorruptionError(stored.path, offset=name.offset, reason=f"key {key!r} is not UTF-8")
                if kind != format.REF_PACK:
                    continue
                values = self.values.get(packs[pack].id)
                if values is None and self._is_below_floor(packs[pack]):
                    self.packs.get(packs[pack]).view(offset, length, checksum, key.decode())
                    continue
                if values is None or not values.has(offset, length, checksum):
                    raise CorruptionError(
                        stored.path, offset=name.offset, key=key.decode(),
                        reason=f"a ref points at byte {offset} of {packs[pack].path}, where no such value is",
                    )  # fmt: skip
            start = entries[-1][0] + b"\0"

    def _is_below_floor(self, pack: PackName) -> bool:
        """Tell whether a pack was named by a commit that a vacuum has removed, so that it was not met on the way."""
        return self.floor > 0 and (pack.branch is None or pack.slot < self.floor)

    def _guarded(self, check: Callable[[], object], commits: tuple[str, ...]) -> None:
        try:
            check()
        except (TxStoreError, OSError) as error:
            self._fault_of(error, commits)

    def _fault_of(
        self, error: TxStoreError | OSError, commits: tuple[str, ...] = (), *, path: str | None = None
    ) -> None:
        if isinstance(error, CorruptionError):
            self._add(Fault(error.path, error.reason, error.offset, error.key, commits))
        elif isinstance(error, OSError):
            self._fault(path or self.storage.url, f"it can't be read: {error}", commits)
        else:
            self._fault(path or str(getattr(error, "path", self.storage.url)), str(error), commits)

    def _fault(self, path: str, reason: str, commits: tuple[str, ...] = ()) -> None:
        self._add(Fault(path, reason, commits=commits))

    def _add(self, fault: Fault) -> None:
        if fault not in self.report.faults:  # a damaged head is met twice
            self.report.faults.append(fault)
