"""Seals: what this process has said of its part of a transaction. A seal says that all before it is whole (I8)."""

from __future__ import annotations

from txstore import processes


class Seals:
    """Sequences of the last frame, and of the last seals, of one process. Safe in threads. No I/O."""

    def __init__(self, *, by_operation: bool) -> None:
        self._counting = processes.new_lock()  # of `staged_at` and `sealed_at`
        self.by_operation = by_operation  # what this process stages is whole at the end of each operation
        #: Held while a seal is made: no operation begins before the seal is there.
        self.sealing = processes.new_lock()
        self._operations: set[object] = set()  # that are under way
        self.restart()

    def restart(self) -> None:
        """Forget all: nothing was staged yet."""
        self.staged_at = self.sealed_at = -1
        self.kept_at = -1  # of the last seal that holds though this process breaks off what it does
        self._done_at = -1  # of the last seal by which it has said that it was done, not just with an operation
        self.is_half = False  # an operation has failed that has staged something: no later one vouches for that
        self._operations = set()

    def count(self, sequence: int) -> None:
        """Note a frame that this process has appended."""
        with self._counting:
            self.staged_at = max(self.staged_at, sequence)

    def note(self, sequence: int) -> None:
        """Note a seal that this process has appended."""
        with self._counting:
            self.sealed_at = max(self.sealed_at, sequence)

    def note_done(self, sequence: int) -> None:
        """Note that this seal says that all work is done, and so holds whatever fails later."""
        self.kept_at = self._done_at = sequence
        self.is_half = False

    def keep(self) -> None:
        """Let the last seal hold, whatever fails later."""
        self.kept_at = self.sealed_at

    @property
    def is_sealed(self) -> bool:
        """Whether a seal is the last that this process has staged: another thread may stage while one seals."""
        return self.sealed_at >= self.staged_at

    @property
    def is_done(self) -> bool:
        """Whether this process has said that all its work is done, and has staged nothing since."""
        return self._done_at >= max(self.staged_at, self.sealed_at)

    @property
    def is_in_operation(self) -> bool:
        """Whether an operation is under way: what is staged may be half of it."""
        return bool(self._operations)

    def begin_operation(self, operation: object) -> bool:
        """Note that an operation is under way that may stage; return False if that is noted already."""
        if operation in self._operations:
            return False
        with self.sealing:
            self._operations.add(operation)
        return True

    def end_operation(self, operation: object) -> None:
        """Note that an operation has ended. The caller holds `sealing`."""
        self._operations.discard(operation)
