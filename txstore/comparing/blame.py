"""Blame: finds the commit that wrote each chunk of an array, and each document, by the seq of its ref."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from txstore.commit import Commit
from txstore.errors import NodeNotFoundError
from txstore.format.display import html_head, html_table, printable
from txstore.format.documents import Described, describe, index_of
from txstore.format.keys import DOCUMENT_NAMES, after_prefix, directory_prefix, document_key, is_document
from txstore.history.snapshot import Snapshot
from txstore.segments.runs import Live

#: Largest number of chunks of an array, stored or not, for a blame.
MAX_CHUNKS = 1 << 27
_NOT_STORED = -1


class Blame:
    """The commits that wrote the present content of a node: `Repository.blame`.

    Attributes
    ----------
    path : str
    commits : list of Commit or None
        The commits that wrote any of it, newest first. None: a commit that is no longer kept.
    chunks : numpy.ndarray or None
        For an array: for each chunk of its grid an index into `commits`, -1 if the chunk is not stored.
    documents : dict
        From the names of the node's documents to their commits.

    Examples
    --------
    >>> import numpy as np, tempfile, txstore, zarr
    >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
    >>> with repo.transaction("first") as store:
    ...     z = zarr.create_array(store, name="t2m", data=np.ones(6), chunks=(2,))
    >>> with repo.transaction("second") as store:
    ...     zarr.open_array(store, path="t2m")[3] = 5
    >>> blame = repo.blame("t2m")
    >>> blame.chunks
    array([1, 0, 1])
    >>> blame[1].message
    'second'
    """

    def __init__(
        self,
        path: str,
        commits: list[Commit | None],
        chunks: npt.NDArray[np.int64] | None,
        documents: Mapping[str, Commit | None],
    ) -> None:
        self.path = path
        self.commits = commits
        self.chunks = chunks
        self.documents = documents

    def __getitem__(self, chunk: int | tuple[int, ...]) -> Commit | None:
        """Return the commit that wrote the chunk at a place in the grid; None if it is not stored."""
        if self.chunks is None:
            raise NodeNotFoundError(self.path, "array", "group")
        at = int(self.chunks[chunk])
        return None if at == _NOT_STORED else self.commits[at]

    def as_dict(self) -> dict[str, Any]:
        """Return the blame for JSON: commits as ids, chunks as indices of these."""
        return {
            "path": self.path,
            "commits": [None if commit is None else commit.id for commit in self.commits],
            "chunks": None if self.chunks is None else self.chunks.tolist(),
            "documents": {name: None if commit is None else commit.id for name, commit in self.documents.items()},
        }

    def rows(self) -> Iterator[tuple[Commit | None, int, list[str]]]:
        """Yield each commit with the number of chunks, and the documents, that it wrote."""
        counts = [0] * len(self.commits)
        if self.chunks is not None:
            counts = np.bincount(self.chunks[self.chunks >= 0], minlength=len(self.commits)).tolist()
        for commit, count in zip(self.commits, counts, strict=True):
            yield commit, count, [name for name, by in self.documents.items() if by == commit]

    def __repr__(self) -> str:
        return f"<Blame {self.path or '/'}: {len(self.commits)} commits>"

    def __str__(self) -> str:
        return "\n".join(["  ".join(cells).rstrip() for cells in self._cells()])

    def _repr_html_(self) -> str:
        return html_head("Blame", self.path or "/") + html_table(self._cells())

    def _cells(self) -> Iterator[tuple[str, str, str]]:
        for commit, count, documents in self.rows():
            what = [*([f"{count:,} chunks"] if count else []), *documents]
            told = "no longer kept" if commit is None else commit.message.partition("\n")[0]
            yield "-" if commit is None else f"{commit} {commit.id[:12]}", ", ".join(what), printable(told)


def blame(snapshot: Snapshot, path: str, commits_of: Callable[[Sequence[int]], Mapping[int, Commit | None]]) -> Blame:
    """Raises `NodeNotFoundError`; `ValueError` for an array of more than `MAX_CHUNKS` chunks.

    `commits_of` returns the commits for seqs.
    """
    name = path.strip("/")
    described = describe(snapshot.get_view, name)
    if described is None:
        raise NodeNotFoundError(name)
    found = {each: snapshot.seq_of(document_key(name, each)) for each in DOCUMENT_NAMES}
    documents = {each: seq for each, seq in found.items() if seq is not None}
    seqs = _seqs_of_chunks(snapshot, described) if described.kind == "array" else None
    written = set(documents.values())
    if seqs is not None:
        written.update(map(int, np.unique(seqs[seqs > 0])))
    ordered = sorted(written, reverse=True)
    commits = commits_of(ordered)
    numbers = np.array([*reversed(ordered)])
    chunks = (
        None if seqs is None else np.where(seqs > 0, len(ordered) - 1 - np.searchsorted(numbers, seqs), _NOT_STORED)
    )
    return Blame(
        name, [commits[seq] for seq in ordered], chunks, {each: commits[seq] for each, seq in documents.items()}
    )


def _seqs_of_chunks(snapshot: Snapshot, described: Described) -> npt.NDArray[np.int64]:
    """Return the seq of each chunk of the grid, 0 where nothing is stored."""
    counts = tuple(axis.count for axis in described.grid().axes)
    if np.prod(counts, dtype=float) > MAX_CHUNKS:
        raise ValueError(f"{described.path!r} has {counts} chunks: blame works for at most {MAX_CHUNKS:,}")
    seqs = np.zeros(counts, np.int64)
    prefix = directory_prefix(described.path)
    stop = after_prefix(prefix)
    for page in snapshot.runs.pages(prefix.encode(), None if stop is None else stop.encode()):
        _note(seqs, page, len(prefix.encode()))
    return seqs


def _note(seqs: npt.NDArray[np.int64], page: Sequence[Live], skip: int) -> None:
    """Note the seqs of a page of keys below an array."""
    dimensions = seqs.ndim
    suffixes = [key[skip:] for key, *_ in page]
    places = _parsed(suffixes, dimensions)
    if places is not None:
        rows = np.array([seq for _, _, _, seq, *_ in page])
    else:  # documents among them, or other keys
        found = [
            (index_of(suffix.decode(), dimensions), seq)
            for suffix, (_, _, _, seq, *_) in zip(suffixes, page, strict=True)
            if suffix.isascii() and not is_document(suffix.decode())
        ]
        kept = [(place, seq) for place, seq in found if place is not None]
        places = np.array([place for place, _ in kept], np.int64).reshape(len(kept), dimensions)
        rows = np.array([seq for _, seq in kept], np.int64)
    if not dimensions:
        seqs[...] = rows.max(initial=0)
        return
    is_inside = (places < seqs.shape).all(axis=1)
    seqs[tuple(places[is_inside].T)] = rows[is_inside]


def _parsed(suffixes: Sequence[bytes], dimensions: int) -> npt.NDArray[np.int64] | None:
    """Return the places in the grid of many keys at once; None if any is not the key of a chunk."""
    slashes = suffixes[0].replace(b".", b"/").count(b"/")
    text = b"/".join(suffixes).replace(b".", b"/")
    if suffixes[0].startswith(b"c"):
        text = text.replace(b"c/", b"")
    is_uniform = text.count(b"/") == dimensions * len(suffixes) - 1 and slashes in (dimensions - 1, dimensions)
    if not dimensions or not is_uniform or text.translate(None, b"0123456789/"):
        return None
    return np.fromstring(text.decode(), np.int64, sep="/").reshape(-1, dimensions)
