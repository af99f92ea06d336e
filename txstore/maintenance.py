"""Walking everything that can be reached: so far `verify`, which reports and changes nothing."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from txstore import format
from txstore._native import index, local
from txstore.commits import MAIN, Commits, Stored
from txstore.errors import CorruptionError, TxStoreError
from txstore.format import PackName, RunName


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
        self.values: dict[bytes, _Values] = {}

    def run(self) -> Report:
        try:
            chain = list(self._chain())
            self._check_slots(chain)
        except TxStoreError as error:
            self._fault_of(error)
            chain = []
        total = sum(stored.footer.file_length for stored in chain)
        for stored in reversed(chain):  # oldest first: refs point back
            self._check_pack(stored)
            if self.progress is not None:
                self.progress(self.report.bytes, total)
        for name in self.storage.list("tags"):
            self._guarded(lambda name=name: self.commits.by_tag(name), ())  # type: ignore[misc]
        return self.report

    def _chain(self) -> Iterator[Stored]:
        """Yield the commits from the head down, and report where the chain breaks."""
        head = self.commits.head(MAIN)
        try:
            yield from self.commits.ancestors(head)
        except TxStoreError as error:
            self._fault_of(error)

    def _check_slots(self, chain: list[Stored]) -> None:
        """Report commit files above the head: an orphan, or a gap in the slots."""
        head = chain[0].header.slot if chain else -1
        for slot in sorted(self.commits.slots(MAIN)):
            if slot > head:
                path = format.commit_path(MAIN, slot)
                self.report.faults.append(Fault(path, "this commit does not follow the one in the slot before it"))

    def _check_pack(self, stored: Stored) -> None:
        self.report.commits += 1
        self.report.bytes += stored.footer.file_length
        commit_id = stored.header.id.hex()
        try:
            data = memoryview(self.storage.map(stored.path))
        except OSError as error:
            self.report.faults.append(Fault(stored.path, f"it can't be read: {error}", commits=(commit_id,)))
            return
        self._guarded(lambda: self._check_frames(stored, data), (commit_id,))
        for run in stored.header.runs:
            if run.pack is None:
                self._guarded(lambda run=run: self._check_run(stored, run, data), (commit_id,))  # type: ignore[misc]
            elif run.pack.id not in self.values:
                self.report.faults.append(
                    Fault(stored.path, f"it lists a run in {run.pack.path}, which is not there", commits=(commit_id,))
                )

    def _check_frames(self, stored: Stored, data: memoryview) -> None:
        values = self.values[stored.header.id] = _Values()
        path = stored.path
        try:
            found = format.decode_head(bytes(data[: format.HEAD_SIZE]))
        except format.MalformedError as error:
            raise CorruptionError(path, offset=0, reason=error.reason) from error
        if found[:2] != (stored.header.id, stored.header.repository_id):
            raise CorruptionError(path, offset=0, reason="the pack's head names another pack or repository")
        position, sequence = format.HEAD_SIZE, 0
        end = min(section.offset for section in stored.header.sections)
        while position < end:
            try:
                frame = format.decode_frame(data, position)
                if frame.kind == format.FRAME_VALUE:
                    local.view(data, frame.offset, frame.length, frame.checksum)
            except ValueError as error:
                raise CorruptionError(path, offset=position, reason=str(error)) from error
            if frame.sequence != sequence or frame.end > end:
                raise CorruptionError(path, offset=position, reason="the frames do not follow one another")
            if any(data[position + format.FRAME_SIZE + len(frame.key) : frame.offset]) or any(
                data[frame.offset + frame.length : frame.end]
            ):
                raise CorruptionError(path, offset=position, reason="the padding of a frame is not zero")
            values.offsets.append(frame.offset)
            values.lengths.append(frame.length)
            values.checksums.append(frame.checksum)
            self.report.values += 1
            position, sequence = frame.end, sequence + 1

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
                if kind != format.REF_PACK:
                    continue
                values = self.values.get(packs[pack].id)
                if values is None or not values.has(offset, length, checksum):
                    raise CorruptionError(
                        stored.path, offset=name.offset, key=key.decode(),
                        reason=f"a ref points at byte {offset} of {packs[pack].path}, where no such value is",
                    )  # fmt: skip
            start = entries[-1][0] + b"\0"

    def _guarded(self, check: Callable[[], object], commits: tuple[str, ...]) -> None:
        try:
            check()
        except TxStoreError as error:
            self._fault_of(error, commits)

    def _fault_of(self, error: TxStoreError, commits: tuple[str, ...] = ()) -> None:
        if isinstance(error, CorruptionError):
            fault = Fault(error.path, error.reason, error.offset, error.key, commits)
        else:
            fault = Fault(self.storage.url, str(error), commits=commits)
        self.report.faults.append(fault)
