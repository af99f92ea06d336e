"""Tracks the seals of this process's part of a transaction. A seal says that all frames before it are complete (I8)."""

from __future__ import annotations

from txstore import processes


class Seals:
    """The sequences of one process's last frame and last seals. Safe in threads. No I/O."""

    def __init__(self, *, by_operation: bool) -> None:
        self._counting = processes.new_lock()  # guards `staged_at` and `sealed_at`
        self.by_operation = by_operation  # this process's part is complete at the end of each operation
        #: Held while this process appends a seal: no operation begins before the seal is written.
        self.sealing = processes.new_lock()
        self._operations: set[object] = set()  # running operations
        self.restart()

    def restart(self) -> None:
        """Reset everything: this process has staged nothing yet."""
        self.staged_at = self.sealed_at = -1
        self.kept_at = -1  # the last seal that stays valid if this process breaks off its work
        self._done_at = -1  # the last seal that states the end of all work, not only of an operation
        self.is_half = False  # an operation failed after it had staged something: later seals would not be true
        self._operations = set()

    def count(self, sequence: int) -> None:
        """Record a frame that this process appended."""
        with self._counting:
            self.staged_at = max(self.staged_at, sequence)

    def note(self, sequence: int) -> None:
        """Record a seal that this process appended."""
        with self._counting:
            self.sealed_at = max(self.sealed_at, sequence)

    def note_done(self, sequence: int) -> None:
        """Record that this seal states the end of all work, and so stays valid even after a later failure."""
        self.kept_at = self._done_at = sequence
        self.is_half = False

    def keep(self) -> None:
        """Make the last seal stay valid even after a later failure."""
        self.kept_at = self.sealed_at

    @property
    def is_sealed(self) -> bool:
        """Whether a seal is this process's last frame. Another thread may stage while this one seals."""
        return self.sealed_at >= self.staged_at

    @property
    def is_done(self) -> bool:
        """Whether this process has stated the end of all its work, and has staged nothing since."""
        return self._done_at >= max(self.staged_at, self.sealed_at)

    @property
    def is_in_operation(self) -> bool:
        """Whether an operation is running: the staged changes may be only a part of it."""
        return bool(self._operations)

    def begin_operation(self, operation: object) -> bool:
        """Record a running operation that may stage; return False if it is already recorded."""
        if operation in self._operations:
            return False
        with self.sealing:
            self._operations.add(operation)
        return True

    def end_operation(self, operation: object) -> None:
        """Record that an operation has ended. The caller holds `sealing`."""
        self._operations.discard(operation)
