"""The views of a transaction and of a repository, as mappings; derives those that commits do not, with `when="follow"`,
from what has changed since the last time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from txstore.commit import MAIN, Commit
from txstore.deriving import declared
from txstore.deriving.declared import Backfill, CommitAt, Reached, Value
from txstore.deriving.definitions import ViewDefinition
from txstore.deriving.derivation import derive, derive_part
from txstore.errors import CommitNotFoundError, SnapshotExpiredError
from txstore.format.documents import Described, DocumentChange, compare_documents, describe, is_node_document
from txstore.format.keys import check_name, directory_prefix
from txstore.format.mapping import Hierarchy
from txstore.history.changes import changed
from txstore.history.declarations import DeclaredByName
from txstore.history.find import At
from txstore.history.snapshot import Snapshot
from txstore.interfaces import AnyRepository, AnyStore


@dataclass(frozen=True, repr=False)
class DeclaredView:
    """A view of a repository.

    Attributes
    ----------
    name : str
    definition : ViewDefinition
    """

    name: str
    definition: ViewDefinition
    _repo: AnyRepository

    def is_current(self, at: At | None = None, *, branch: str = MAIN) -> bool:
        """Tell whether the outputs at a commit are what the view makes of its sources at this commit.

        With `when="commit"` they always are, from the commit on that declared the view. Else this looks for changes of
        the sources since the outputs were derived. False where the view is not declared.
        """
        return is_current(self.name, self._repo.mapping(at, branch=branch), self._derived_from)

    def as_dict(self, at: At | None = None, *, branch: str = MAIN) -> dict[str, Any]:
        """Return what is known of the view at a commit, for JSON: its definition, and whether it is current.

        `as_of` is, with `when="follow"`, the commit that the outputs were derived from: a dict with `id`, `branch` and
        `version`, or None.
        """
        snapshot = self._repo.mapping(at, branch=branch)
        fields = snapshot.declared.views.get(self.name, {})
        place = declared.as_of(snapshot.url, self.name, fields)
        return {
            "kind": self.definition.kind,
            **self.definition.as_dict(),
            "sources": list(self.definition.sources),
            "outputs": list(self.definition.outputs),
            "current": is_current(self.name, snapshot, self._derived_from),
            "as_of": None if place is None else place._asdict(),
        }

    def update(self, *, branch: str = MAIN, message: str | None = None, step: int = 1 << 30) -> Commit | None:
        """Derive what has changed in the sources since the last time, in one commit. None if nothing has.

        The first time, and after somebody else has written to the outputs, everything is derived: in several commits,
        each of chunks that have `step` bytes together. After a crash the next call continues. The last commit is
        returned.

        It takes the memory of some chunks for each core. If another process updates the view meanwhile, one of the two
        raises `ConflictError`. What is committed to the sources meanwhile is left to the next time.

        Raises `ValueError` for a view with `when="commit"`, `KeyError` if it is not declared there, and `ViewError`.
        """
        if step < 1:
            raise ValueError(f"step={step}: give 1 or more bytes")
        last, is_done = None, False
        while not is_done:
            made, is_done = self._update(branch, message or f"view {self.name!r} updated", step)
            last = made or last
        return last

    def _update(self, branch: str, message: str, step: int) -> tuple[Commit | None, bool]:
        """Make one commit, or none. Tell whether nothing is left to do."""
        with self._repo.transaction(message, branch=branch) as store:
            base = store.at_base().mapping
            assert isinstance(base, Snapshot)  # for mypy: so a store that reads does it
            fields = base.declared.views.get(self.name)
            if fields is None or base.commit is None:
                raise KeyError(self.name)
            view = store.views[self.name]
            if view.when == "commit":
                raise ValueError(f"the view {self.name!r} is derived by each commit: it needs no update")
            old = _derived_from(self.name, base, self._derived_from)
            if old is not None and not _have_changed(view, old, base):
                store.rollback()
                return None, True
            since, rest = base, None
            if old is not None:
                derive({self.name: view}, (), _Since(store, view, base, old, base))
            else:
                # All parts are of the commit of the first one. If it is gone, the outputs are derived anew.
                since, place = self._begun(base) or (base, Reached())
                rest = derive_part(self.name, view, _Since(store, view, base, None, since), place, step)
            assert since.commit is not None  # for mypy: a commit has declared the view
            done = since.commit if rest is None else Backfill(CommitAt.of(since.commit), rest)
            store.views.bring_to(self.name, done)
            return store.commit(), rest is None and since is base

    def _begun(self, base: Snapshot) -> tuple[Snapshot, Reached] | None:
        """Return the commit that some of the outputs are derived from, and where to continue. None if it is gone."""
        told = declared.backfill_of(base.url, self.name, base.declared.views[self.name])
        since = None if told is None else _found(told.since, self._derived_from)
        return None if told is None or since is None else (since, told.place)

    def _derived_from(self, place: CommitAt) -> Snapshot:
        return self._repo.mapping(place.id)

    def __repr__(self) -> str:
        return f"<DeclaredView {self.name!r}: {self.definition}>"


def is_current(name: str, snapshot: Snapshot, find: Callable[[CommitAt], Snapshot]) -> bool:
    """Tell what `DeclaredView.is_current` does. `find` opens a commit; it may raise `CommitNotFoundError`."""
    views = declared.decode(snapshot.url, snapshot.declared.views)
    makers = {output: each for each, view in views.items() for output in view.outputs}
    names, met = [name], {name}
    for each in names:  # those that make its sources, too, and so on, each once
        if each not in views:
            return False
        view = views[each]
        if view.when == "follow":
            old = _derived_from(each, snapshot, find)
            if old is None or _have_changed(view, old, snapshot):
                return False
        above = dict.fromkeys(makers[path] for path in view.sources if path in makers)
        names += [other for other in above if other not in met]
        met.update(above)
    return True


def _derived_from(name: str, snapshot: Snapshot, find: Callable[[CommitAt], Snapshot]) -> Snapshot | None:
    """Return the commit that the outputs of a view were derived from; None if there is none, or if it is gone."""
    place = declared.as_of(snapshot.url, name, snapshot.declared.views[name])
    return None if place is None else _found(place, find)


def _found(place: CommitAt, find: Callable[[CommitAt], Snapshot]) -> Snapshot | None:
    try:
        return find(place)
    except (CommitNotFoundError, SnapshotExpiredError):
        return None


def _have_changed(view: ViewDefinition, old: Snapshot, new: Snapshot) -> bool:
    return any(True for path in view.sources for _ in changed(old, new, path))


class _Since:
    """What has changed in the sources between two commits, as if one commit had done it.

    Without an old one, everything has. What is derived is staged in a store, which has the outputs; `base` is its base.
    """

    def __init__(
        self, store: AnyStore, view: ViewDefinition, base: Snapshot, old: Snapshot | None, new: Snapshot
    ) -> None:
        self._store, self._base = store, base
        self._old, self._new = old, new
        self._outputs = view.outputs
        self._below = tuple(map(directory_prefix, view.outputs))
        self._put: dict[str, set[str]] = defaultdict(set)  # by output: keys that were derived
        self._changed: dict[str, list[str]] = {}

    def document(self, key: str) -> Value:
        return self.value(key)

    def value(self, key: str) -> Value:
        return self._view_of(key).get_view(key)

    def value_before(self, key: str) -> Value:
        return None if self._old is None else self._old.get_view(key)

    def __contains__(self, key: str) -> bool:
        return key in self._view_of(key)

    def _view_of(self, key: str) -> Hierarchy:
        return self._store.mapping if key.startswith(self._below) else self._new

    def before(self, path: str) -> Described | None:
        sources = self._new if self._old is None else self._old
        return describe((self._base if path in self._outputs else sources).get_view, path)

    def remakes(self, path: str) -> bool:
        return False  # what was made anew has other chunks, or another document

    def rewrites(self, path: str) -> bool:
        return any(is_node_document(key) for key in self.changed_below(path))

    def restructures(self, path: str) -> bool:
        before, after = self.before(path), describe(self.document, path)
        if before is None or after is None or before.key != after.key:
            return True
        return compare_documents(after.key, before.content, after.content) is DocumentChange.STRUCTURE

    def clears_below(self, path: str) -> bool:
        return False  # each key that was deleted is a change

    def changed_below(self, path: str) -> Iterator[str]:
        if path in self._outputs:  # nobody else has changed them
            yield from list(self._put[path])
        elif self._old is not None:
            if path not in self._changed:
                self._changed[path] = [change.key for change in changed(self._old, self._new, path)]
            yield from self._changed[path]

    def fetch(self, keys: Sequence[str]) -> None:
        made = [key for key in keys if key.startswith(self._below)]
        self._base.fetch(made)
        self._new.fetch([key for key in keys if not key.startswith(self._below)])

    def put(self, key: str, value: bytes | None) -> None:
        for path in self._outputs:
            if key.startswith(directory_prefix(path)):
                self._put[path].add(key)
        if value is None:
            del self._store[key]
        else:
            self._store[key] = value


@dataclass(frozen=True, repr=False, eq=False)
class Views(DeclaredByName[ViewDefinition]):
    """Views by their names. Setting a name makes the outputs and declares the view; deleting it drops the view alone.

    `declare` declares a view, or drops it if it is given None.
    """

    #: Says that the outputs of a view are, after this transaction, what it makes of its sources at a commit, or a part.
    bring_to: Callable[[str, Commit | Backfill], None]

    def _check(self, name: str, value: ViewDefinition) -> None:
        check_view(name, value)


class RepositoryViews(DeclaredByName[Any]):
    """The views of a repository. What is read is a `DeclaredView`, what is set is a `ViewDefinition`."""

    def _check(self, name: str, value: Any) -> None:
        check_view(name, value)

    def __repr__(self) -> str:
        return f"<Views {dict(self)}>"


def check_view(name: str, view: Any) -> None:
    """Raise `TypeError` or `ValueError` unless this is a view and the name one that it may have."""
    check_name("view", name)
    if not isinstance(view, ViewDefinition):
        raise TypeError(f"{view!r} is no view: use a class of txstore.views")
