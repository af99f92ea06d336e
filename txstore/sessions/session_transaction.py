"""The transaction that a session has open: it begins at the first use, or joins that of another process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from txstore import processes
from txstore.engine import Engine, Position
from txstore.errors import TransactionStateError
from txstore.history.snapshot import Snapshot
from txstore.sessions.stale_arrays import HeldDocuments, Reliance
from txstore.transactions.conflicts import Settle
from txstore.transactions.transaction import Transaction


class Terms(NamedTuple):
    """How the transactions of a session begin."""

    branch: str
    message: str | None
    properties: Mapping[str, Any] | None
    isolation: str
    settle_conflicts: Settle | None


class Joining(NamedTuple):
    """The transaction that a pickle was made in."""

    transaction: bytes
    repository_id: bytes
    seen: Mapping[int, int]  # for each participant, the last frame that the sender saw


class SessionTransaction:
    """One session's open transaction, and the position to begin the next one at. Safe in threads."""

    def __init__(
        self,
        engine: Engine,
        terms: Terms,
        position: Position,
        held: HeldDocuments,
        *,
        first: Transaction | None = None,
        joining: Joining | None = None,
        beside: SessionTransaction | None = None,
        is_block: bool = False,
    ) -> None:
        """`first`: a transaction that is already open. `joining`: another process's transaction, which this one joins.

        `beside`: one that has joined it here, for other array objects. `is_block`: it serves one `with` block of a
        participant.
        """
        self.terms = terms
        self.position = position
        self.present = first  # None: none has begun
        self.ended: str | None = None  # why no more transactions begin
        self.is_block = is_block
        self._engine = engine
        self._held = held
        self._joining = joining
        self._beside: SessionTransaction | None = beside if beside is None else beside._beside or beside
        self._process = os.getpid()
        self._lock = processes.new_rlock()  # no thread that holds it waits for an event loop

    @property
    def is_joined(self) -> bool:
        """Whether another process's pickle has said which transaction this is."""
        return self._joining is not None

    def get(self) -> Transaction:
        """Return the transaction. It begins at the first use."""
        transaction = self.present
        return transaction if transaction is not None else self._begin()

    def _begin(self) -> Transaction:
        with self._lock:
            if self.ended is not None:
                raise TransactionStateError(self.ended, state="ended")
            if self.present is None and self._joining is not None:
                self.present = self._join(self._joining)
            elif self.present is None:
                self.present = self._engine.begin(self.position.snapshot(), **self.terms._asdict())
                # The transaction releases its base when it fails.
                self.position = self.position.held_by(self.present.base)
            return self.present

    def _join(self, joining: Joining) -> Transaction:
        transaction = None if self._beside is None else self._beside.get()
        if transaction is None or transaction.shared_id != joining.transaction or transaction.state != "open":
            transaction = self._engine.join(joining.transaction, joining.repository_id, block=self.is_block)
        transaction.members.see(joining.seen)
        transaction.members.rely_on(self._held.handed_out)
        self._held.look_at_all()
        self.position = Position.of(self._engine, transaction.base, self.terms.branch)
        return transaction

    def share(self, *, creating: bool) -> Joining | None:
        """Let processes that unpickle the store stage into it. None if there is no repository, nor to be created."""
        if self.ended is not None:
            return None
        if self._joining is not None and self.present is None:
            return self._joining
        with self._lock:
            transaction = self.get()
            shared = transaction.lifecycle.share(creating=creating)
            if shared is None:
                return None
            return Joining(shared, self._engine.commits.identity.id, transaction.part.seen())

    def stages_into(self, joining: Joining | None) -> bool:
        """Tell whether a pickle with `joining` was made by this session in its present transaction."""
        if joining is None or (self._joining is None and self._process == os.getpid()):
            return True
        transaction = self.present
        if transaction is not None and transaction.state == "failed" and transaction.members.is_participant:
            return False  # its part is aborted: a store that is sent again joins anew
        here = transaction.shared_id if transaction is not None else self._joining and self._joining.transaction
        return here == joining.transaction

    def knows(self, joining: Joining | None, reliance: Reliance) -> bool:
        """Tell whether this session knows everything that a pickle of the same transaction says.

        The pickle's array objects may know more, or hold other documents, than those of this session.
        """
        if joining is None or (self._joining is None and self._process == os.getpid() and not self.is_named):
            return True
        transaction = self.present
        if transaction is None:
            has_seen = self._joining is not None and self._joining.seen == joining.seen
        else:
            has_seen = transaction.members.has_seen(joining.seen)
        return has_seen and self._held.reliance.covers(reliance)

    @property
    def is_participant(self) -> bool:
        """Whether another process has begun the transaction, and will end it."""
        if self.present is None:
            return self._joining is not None
        return self.present.members.is_participant

    @property
    def is_named(self) -> bool:
        return self.present is not None and self.present.members.is_named

    def writes(self) -> int:
        """Return how many writes of the transaction have begun."""
        transaction = self.present if self._beside is None else self.present or self._beside.present
        return 0 if transaction is None else transaction.lifecycle.writes

    def move_to(self, snapshot: Snapshot) -> None:
        """Base the next transaction on a snapshot."""
        with self._lock:
            self.present, self.position = None, Position.of(self._engine, snapshot, self.terms.branch)

    def end(self, reason: str) -> Transaction | None:
        """Let no more transactions begin; return the open one."""
        with self._lock:
            self.ended = reason
            return self.present
