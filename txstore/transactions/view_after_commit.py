"""Shows the repository as it will be after a commit, so that constraints can check it.

The transaction's own view is its writes over its base. This view is its writes over the head, after the committer found
that the newer commits do not conflict.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from txstore.codecs.chunk_codec import ChunkDecoder, NotMergeableError
from txstore.errors import TxStoreError
from txstore.format import packfile
from txstore.format.commitfile import CommitName
from txstore.format.constraints import Outcome
from txstore.format.documents import NODE_DOCUMENTS, Described, DocumentChange, compare_documents, describe
from txstore.format.keys import after_prefix, directory_prefix, document_key
from txstore.history.changes import Ref, keys_changed_since, refs_of
from txstore.history.commits import Commits
from txstore.history.snapshot import Snapshot
from txstore.transactions.merges import Merges
from txstore.transactions.view import View

if TYPE_CHECKING:
    import numpy.typing as npt


class CommitOutcome(Outcome):
    """The head with a transaction's writes over it. `unchanged` are staged keys that the commit omits."""

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
