"""Resolves the segment `txstore:` of zarr's URL pipelines: `s3://bucket/data.tx|txstore:path/in/it?branch=dev`.

URL pipelines (https://github.com/jbms/url-pipeline, before that ZEP 8) are an open proposal. A zarr that has them finds
this module by the entry point group `zarr.url_adapters`; no other zarr imports it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from zarr.abc.url_pipeline import AdapterResolution, URLPipelineAdapter

from txstore.errors import UncommittedChangesWarning, warn
from txstore.format.names import CHAINED
from txstore.history.opening import Access, locate
from txstore.history.url_parameters import Parameters, split_parameters
from txstore.interchange.concealing import concealed
from txstore.repository import Repository
from txstore.store import TxStore

if TYPE_CHECKING:
    from zarr.abc.url_pipeline import PipelineContext, PipelineSegment


class TxStoreAdapter(URLPipelineAdapter):  # type: ignore[misc]
    """Opens a repository for zarr: at a commit, or in a transaction, as the parameters of the segment say.

    The segment to the left is the place of the repository. As the first segment, `txstore:` is followed by that place:
    `txstore:///data/data.tx/path`. The store commits when it is closed, if the segment says `?commit=on-close`.
    """

    @classmethod
    async def open_pipeline_segment(cls, segment: PipelineSegment, context: PipelineContext) -> AdapterResolution:
        body, parameters = split_parameters(segment.raw.partition(":")[2])
        place, below = _place_of(unquote(body), context)
        options = dict(context.storage_options or {})

        def opened() -> tuple[TxStore, str]:
            url, inside = locate(CHAINED + place, Access(options))
            return _open(Repository(url, create=False, storage_options=options), parameters, context.mode), inside

        store, inside = await asyncio.to_thread(concealed, opened, [place], options)
        await store._ensure_open()
        return AdapterResolution(store=store, path="/".join(part for part in (inside, below) if part))


class CommittedOnClose(TxStore):
    """A store that commits when it is closed. If an exception closes it, its changes are dropped, with a warning."""

    def close(self) -> None:
        if not self.read_only and self.staged_count:
            error = sys.exception()
            if error is None:
                self.commit()
            else:
                self.rollback()
                why = f"the store was closed because of {type(error).__name__}: its staged changes are dropped"
                warn(why, UncommittedChangesWarning)
        super().close()


def _place_of(body: str, context: PipelineContext) -> tuple[str, str]:
    """Return the URL of the repository, and the path inside it. Raises `ValueError`."""
    if not context.preceding:
        return body.removeprefix(":").removeprefix("//"), ""
    place, *others = context.preceding
    if others or place.query is not None:
        raise ValueError(
            f"{context.preceding_url}: a repository lies in a directory, or in an object store: give its URL "
            "before |txstore:, and parameters after it"
        )
    if place.scheme == "file":
        return unquote(urlsplit(place.raw).path), body.strip("/")
    return place.raw, body.strip("/")


def _open(repository: Repository, parameters: Parameters, mode: str | None) -> TxStore:
    branch, at, tag = parameters.reads
    if not parameters.writes and mode in ("w", "w-", "r+"):
        raise ValueError(
            f"mode={mode!r}: |txstore: is for reading, unless the URL says who commits: ?commit=on-close, "
            "?transaction=NAME, or the URL of store.share()"
        )
    store: TxStore
    if parameters.shared is not None:
        store = TxStore.joining(repository.engine, parameters.shared)
    elif parameters.transaction is not None:
        store = repository.transaction(parameters.message, name=parameters.transaction, branch=branch)
    elif parameters.commit is not None and mode != "r":
        branch = repository.engine.branch(branch)
        return CommittedOnClose.begin(repository.engine, branch=branch, message=parameters.message, properties=None)
    else:
        return repository.snapshot(at, branch=branch, tag=tag)
    return store.with_read_only(True) if mode == "r" else store
