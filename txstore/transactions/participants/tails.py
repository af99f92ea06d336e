"""Reads the staged frames of other participants as they grow, from one or several packs of each participant.

It yields a participant's frames in their order, each when it is complete.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from txstore.errors import CorruptionError
from txstore.format import encoding, names, packfile
from txstore.format.encoding import MalformedError, crc32c
from txstore.format.packfile import Frame, Predecessor
from txstore.history.commits import Commits
from txstore.locks.chunk_locks import is_parked
from txstore.storage.request_threads import in_parallel

_WINDOW = 64 << 10  # bytes to read at a time
_ANY_SIZE = 1 << 63


#: The fields that a process may state about itself, with their checks.
_FIT: Mapping[str, Callable[[Any], bool]] = {
    "host": lambda host: isinstance(host, str),
    "pid": lambda pid: isinstance(pid, int) and 0 <= pid < 1 << 31,
    "locks": lambda word: isinstance(word, int) and is_parked(word),
}


def _about(content: bytes) -> dict[str, Any]:
    """Return the valid fields that a process states about itself. Raises `MalformedError`."""
    told = encoding.json_object(content)
    return {name: told[name] for name, is_fit in _FIT.items() if name in told and is_fit(told[name])}


class Tail:
    """Reads the frames of one participant from its pack as the pack grows. Not safe in threads."""

    def __init__(self, commits: Commits, transaction: bytes, participant: int) -> None:
        self.participant = participant
        self.pack_id = packfile.participants_pack(transaction, participant)
        self.path = names.staging_path(transaction, participant)
        self.about: dict[str, Any] = {}  # the participant's host, process id and lock word
        self.is_sealed = False
        self.is_done = False  # the participant has stated that all its work is done, not only an operation
        self.certain = -1  # the last frame that counts whether or not the participant has died since: a seal
        self.kept: int | None = None  # the participant has aborted its frames after this one
        self.unfinished: Frame | None = None  # the frame that it is writing, or died writing
        self.end = packfile.HEAD_SIZE  # the end of the frames read so far
        self._commits = commits
        self._sequence = 0
        self._done_at = -1  # the last seal that states the end of all work
        self._head_is_checked = False

    def __str__(self) -> str:
        return f"process {self.about.get('pid', '?')} on {self.about.get('host', '?')}"

    def ends(self) -> dict[int, int]:
        """Return the offset at which the frames end, by the number of the pack in the transaction."""
        return {self.participant: self.end}

    @property
    def last(self) -> int:
        """The sequence of the last frame read. -1 before the first."""
        return self._sequence - 1

    def is_alive(self) -> bool:
        try:
            return self._commits.storage.is_held(self.path)
        except FileNotFoundError:
            return False

    def new_frames(self, packs: Collection[str] | None = None) -> Iterator[Frame]:
        """Yield the frames added since the last call. Raises `CorruptionError` or `OSError`.

        `packs` are the names of all participants' packs, if the caller has just listed them: this saves a request.
        """
        storage = self._commits.storage
        if not self._head_is_checked and not self._check_head():
            return
        window, begin = memoryview(b""), self.end
        waiting: Frame | None = None  # a frame is complete if another frame follows it
        position, sequence = self.end, self._sequence
        while True:
            if position - begin + packfile.FRAME_HEAD_MOST > len(window):
                try:
                    window, begin = memoryview(storage.read_range(self.path, position, _WINDOW)), position
                except FileNotFoundError:  # the transaction has ended
                    return
            try:
                frame = packfile.decode_frame(window, position, begin=begin, size=_ANY_SIZE)
            except MalformedError:
                break
            if frame.sequence != sequence or frame.kind == packfile.FRAME_MERGED:
                break  # the rest comes from a commit, which may fail; no participant staged it
            if waiting is not None:
                yield self._take(waiting)
            waiting = frame
            position, sequence = frame.end, sequence + 1
        self.unfinished = None
        if waiting is not None and self._is_complete(waiting):
            yield self._take(waiting)
        elif waiting is not None:
            self.is_sealed = False
            self.unfinished = waiting if waiting.kind in packfile.REF_OF_FRAME else None

    def _check_head(self) -> bool:
        try:
            head = self._commits.storage.read_range(self.path, 0, packfile.HEAD_SIZE)
        except FileNotFoundError:
            return False
        if len(head) < packfile.HEAD_SIZE or not any(head):
            return False  # its process is creating it, or a loss of power destroyed unsynced data
        try:
            found = packfile.decode_head(head)
        except encoding.MalformedError as error:
            raise CorruptionError(self.path, offset=0, reason=error.reason) from error
        if found != (self.pack_id, self._commits.identity.id, self.participant):
            raise CorruptionError(self.path, offset=0, reason="the pack's head names another transaction")
        self._head_is_checked = True
        return True

    def _is_complete(self, frame: Frame) -> bool:
        """Tell whether the last frame's value is complete: its writer may still write it, or may have died."""
        value = self._read(frame)
        return len(value) == frame.length and crc32c(value) == frame.checksum

    def _read(self, frame: Frame) -> bytes:
        try:
            return self._commits.storage.read_range(self.path, frame.offset, frame.length)
        except FileNotFoundError:  # the transaction has ended
            return b""

    def _take(self, frame: Frame) -> Frame:
        self.end, self._sequence = frame.end, frame.sequence + 1
        self._note_seal(frame)
        if frame.kind == packfile.FRAME_PARTICIPANT:
            with contextlib.suppress(MalformedError):
                self.about = _about(self._read(frame))
        return frame

    def _note_seal(self, frame: Frame) -> None:
        if frame.kind not in packfile.FRAMES_READ:  # a process that only reads leaves no unfinished work
            self.is_sealed = frame.kind == packfile.FRAME_SEAL
            self.is_done = self.is_sealed and frame.seen == packfile.SEEN_NOTHING
        if self.is_done:
            self._done_at = frame.sequence
        if frame.kind == packfile.FRAME_SEAL and not isinstance(frame.seen, Predecessor):
            self.certain = frame.sequence
        elif frame.kind == packfile.FRAME_PARTICIPANT:  # a process that breaks off undoes the seals of its operations
            self.certain = self._done_at
        if self.is_sealed and isinstance(frame.seen, Predecessor) and self.kept is None:
            self.kept = frame.seen.sequence


class RemoteTail(Tail):
    """Reads the frames of one participant on an object store. Its packs are complete, and each lists its frames."""

    def __init__(self, commits: Commits, transaction: bytes, participant: int) -> None:
        super().__init__(commits, transaction, participant)
        self._storage = commits.storage
        self._transaction = transaction
        self._ends: dict[int, int] = {}
        self._read_own_file = participant > 0  # participant 0 may have begun in the file that becomes the commit
        self._read_about = False

    def ends(self) -> dict[int, int]:
        return dict(self._ends)

    def new_frames(self, packs: Collection[str] | None = None) -> Iterator[Frame]:
        if not self._read_about and self.participant:
            with contextlib.suppress(FileNotFoundError, MalformedError):
                self.about = _about(self._storage.read(self.path))
                self._read_about = True
        if not self._read_own_file:
            with contextlib.suppress(FileNotFoundError):
                content = self._storage.read(self.path)
                self._read_own_file = True
                yield from map(self._take, self._frames_in(content))
        there = set(self._storage.list(names.data_pack_directory(self._transaction))) if packs is None else packs
        new = []
        nth = len(self._ends) + 1
        while packfile.participants_pack(self._transaction, packfile.pack_number(self.participant, nth)).hex() in there:
            new.append(packfile.pack_number(self.participant, nth))
            nth += 1
        # There may be as many packs as chunks, so read them in parallel.
        for number, (first, frames) in zip(new, in_parallel(self._pack, new), strict=True):
            end = packfile.HEAD_SIZE
            for frame in frames:
                end = frame.end
                offset = packfile.join_offset(packfile.nth_of(number), frame.offset)
                yield self._take(replace(frame, sequence=first + frame.sequence, offset=offset))
            self._ends[number] = end

    def _frames_in(self, content: bytes) -> Iterator[Frame]:
        """Yield the frames in the content of a whole file."""
        view, position = memoryview(content), packfile.HEAD_SIZE
        while position < len(content):
            try:
                frame = packfile.decode_frame(view, position)
            except MalformedError:
                return
            position = frame.end
            yield frame

    def _pack(self, number: int) -> tuple[int, list[Frame]]:
        """Return the sequence of a pack's first frame, and its frames. Raises `CorruptionError` or `OSError`."""
        pack_id = packfile.participants_pack(self._transaction, number)
        path = names.data_pack_path(pack_id)
        try:
            tail, size = self._storage.read_tail(path, _WINDOW)
            head = tail if size <= len(tail) else self._storage.read_range(path, 0, packfile.HEAD_SIZE)
            head = head[: packfile.HEAD_SIZE]
            if packfile.decode_head(head) != (pack_id, self._commits.identity.id, number):
                raise CorruptionError(path, offset=0, reason="the pack's head names another transaction")
            return packfile.first_frame(head), list(self._listed(path, tail, size))
        except MalformedError as error:
            raise CorruptionError(path, reason=error.reason) from error

    def _listed(self, path: str, tail: bytes, size: int) -> Iterator[Frame]:
        """Return the frames of a pack, from the directory at its end, if it has one; otherwise from the whole file."""
        try:
            end, length = packfile.decode_directory(tail[-packfile.DIRECTORY_SIZE :], size)
        except MalformedError:
            return self._frames_in(self._storage.read(path))
        content = tail[-length - packfile.DIRECTORY_SIZE : -packfile.DIRECTORY_SIZE]
        if length + packfile.DIRECTORY_SIZE > len(tail):
            content = self._storage.read_range(path, size - length - packfile.DIRECTORY_SIZE, length)
        return packfile.frames_listed(content, end)

    def _take(self, frame: Frame) -> Frame:
        self._sequence = frame.sequence + 1
        self._note_seal(frame)
        return frame


def tail_of(commits: Commits, transaction: bytes, participant: int) -> Tail:
    """Return the reader of one participant's frames."""
    return (RemoteTail if commits.staged.uploads else Tail)(commits, transaction, participant)
