"""Shows the repository as it will be after a commit, so that constraints can check it.

The transaction's own view is its writes over its base. This view is its writes over the head, after the committer found
that the newer commits do not conflict.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from types import MappingProxyType

from txstore.format import packfile
from txstore.format.constraints import Outcome
from txstore.format.documents import NODE_DOCUMENTS, Described, DocumentChange, compare_documents, describe
from txstore.format.keys import after_prefix, directory_prefix, document_key
from txstore.history.snapshot import Snapshot
from txstore.transactions.conflicts import Settled
from txstore.transactions.view import View


class CommitOutcome(Outcome):
    """The head with a transaction's writes over it. `unchanged` are staged keys that the commit omits.

    `merged_away` are chunks that have only fill values after the merge. `settled` are the values of keys that other
    commits have changed, too.
    """

    def __init__(
        self,
        view: View,
        unchanged: Collection[str],
        head: Snapshot,
        merged_away: Collection[str] = (),
        settled: Settled = MappingProxyType({}),
    ) -> None:
        self._view = view
        self._settled = settled
        self._merged_away = merged_away
        self._unchanged = unchanged
        self._head = head

    def get(self, key: str) -> bytes | memoryview | None:
        """Return a document."""
        if key in self._settled:
            return self._settled[key]
        link = self._view.staged.get(key)
        if link is not None and key not in self._unchanged:
            return None if link.kind == packfile.FRAME_TOMBSTONE else self._view.read(link)
        if (found := self._view.reflinks.find(key)) is not None:
            return found[0].get_view(found[1])
        return None if self._view.staged.is_below_deleted(key) else self._head.get_view(key)

    def __contains__(self, key: str) -> bool:
        if key in self._settled:
            return self._settled[key] is not None
        link = self._view.staged.get(key)
        if link is not None and key not in self._unchanged:
            return link.kind != packfile.FRAME_TOMBSTONE and key not in self._merged_away
        if (found := self._view.reflinks.find(key)) is not None:
            return found[1] in found[0]
        return not self._view.staged.is_below_deleted(key) and key in self._head

    def after(self, path: str) -> Described | None:
        return describe(self.get, path)

    def before(self, path: str) -> Described | None:
        return describe(self._head.get_view, path)

    def rewrites(self, path: str) -> bool:
        documents = [document_key(path, name) for name in (*NODE_DOCUMENTS, ".zattrs")]
        return self.remakes(path) or any(
            (key in self._view.staged and key not in self._unchanged) or self._view.reflinks.find(key) is not None
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
