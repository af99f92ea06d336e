"""Azure Blob Storage through adlfs, which knows the credentials; the requests are made by Azure's own client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fsspec.asyn import sync

from txstore.object_engines import LONGEST_SECONDS, PARALLEL_REQUESTS, Object, Objects, as_bytes, clock_of
from txstore.object_errors import chain, facts_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

PAGE = 5000  # names in one answer to a listing


class AzureEngine:
    def __init__(self, filesystem: Any, container: str, prefix: str) -> None:
        self._fs = filesystem
        self._container = filesystem.service_client.get_container_client(container)
        self._prefix = prefix
        # object_client tries again
        self._how: dict[str, Any] = {"retry_total": 0, "connection_timeout": 5, "read_timeout": 30}
        self._how |= filesystem._timeout_kwargs

    def _run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        result: T = sync(self._fs.loop, function, *args, timeout=LONGEST_SECONDS)
        return result

    def _blob(self, path: str) -> Any:
        return self._container.get_blob_client(self._prefix + path)

    async def _get(self, path: str, offset: int | None = None, length: int | None = None) -> bytes:
        try:
            download = await self._blob(path).download_blob(
                offset=offset, length=length, max_concurrency=4, **self._how
            )
            content: bytes = await download.readall()
        except Exception as error:
            if facts_of(error).beyond_end:
                return b""
            raise
        return content

    async def _get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        slots = asyncio.Semaphore(PARALLEL_REQUESTS)

        async def one(offset: int, length: int) -> bytes:
            async with slots:
                return await self._get(path, offset, length)

        return await asyncio.gather(*(one(*each) for each in ranges))

    async def _get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        # Azure knows no ranges from the end: this takes two requests.
        size: int = (await self._blob(path).get_blob_properties(**self._how)).size
        length = min(length, size)
        return (await self._get(path, size - length, length) if length else b""), size

    def get(self, path: str) -> bytes:
        return self._run(self._get, path)

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        return self._run(self._get, path, offset, length)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._run(self._get_ranges, path, ranges)

    def get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        return self._run(self._get_tail, path, length)

    async def _list(self, directory: str) -> list[Object]:
        prefix = self._prefix + (directory + "/" if directory else "")
        found = []
        async for each in self._container.walk_blobs(
            name_starts_with=prefix or None, delimiter="/", results_per_page=PAGE, **self._how
        ):
            name = each.name[len(prefix) :]
            if name.endswith("/"):
                found.append(Object(name[:-1], 0, None))
            elif name:
                found.append(Object(name, each.size, each.last_modified.timestamp()))
        return found

    def list(self, directory: str) -> list[Object]:
        return self._run(self._list, directory)

    def list_after(self, directory: str, name: str, limit: int) -> Objects | None:
        return None

    def put(self, path: str, content: Buffer) -> None:
        self._run(self._put, path, as_bytes(content), True)

    def create(self, path: str, content: Buffer) -> None:
        self._run(self._put, path, as_bytes(content), False)

    async def _put(self, path: str, content: bytes, overwrite: bool) -> None:
        # Above 64 MiB the client sends blocks; they become an object by one request, which has the condition.
        await self._blob(path).upload_blob(content, overwrite=overwrite, max_concurrency=4, **self._how)

    def delete(self, paths: Sequence[str]) -> None:
        self._run(self._delete, paths)

    async def _delete(self, paths: Sequence[str]) -> None:
        slots = asyncio.Semaphore(PARALLEL_REQUESTS)

        async def one(path: str) -> None:
            async with slots:
                try:
                    await self._blob(path).delete_blob(**self._how)
                except Exception as error:
                    if not facts_of(error).missing:
                        raise

        await asyncio.gather(*(one(path) for path in paths))

    def now(self) -> float:
        return clock_of(self._run(self._date))

    async def _date(self) -> str | None:
        headers: dict[str, str] = {}

        def note(response: Any) -> None:
            headers.update({name.lower(): value for name, value in response.http_response.headers.items()})

        try:
            await self._container.get_container_properties(raw_response_hook=note, **self._how)
        except Exception as error:
            for each in chain(error):  # a refusal has a date, too
                refused = getattr(getattr(each, "response", None), "headers", None)
                if refused is not None and (date := refused.get("Date")):
                    return str(date)
            raise
        return headers.get("date")
