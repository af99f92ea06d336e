"""Azure Blob Storage: adlfs finds the credentials, and Azure's own client sends the requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txstore.storage.objects.async_backend import AsyncBackend, each_of
from txstore.storage.objects.backend import Object
from txstore.storage.objects.errors import chain, facts_of

PAGE = 5000  # names in one answer to a listing


class AzureBackend(AsyncBackend):
    def __init__(self, filesystem: Any, container: str, prefix: str) -> None:
        super().__init__(filesystem, prefix)
        self._container = filesystem.service_client.get_container_client(container)
        # object_client tries again
        self._how: dict[str, Any] = {"retry_total": 0, "connection_timeout": 5, "read_timeout": 30}
        self._how |= filesystem._timeout_kwargs

    def _blob(self, path: str) -> Any:
        return self._container.get_blob_client(self._prefix + path)

    async def _get(self, path: str) -> bytes:
        return await self._get_range(path, None, None)

    async def _get_range(self, path: str, offset: int | None, length: int | None) -> bytes:
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

    async def _get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        # Azure knows no ranges from the end: this takes two requests.
        size: int = (await self._blob(path).get_blob_properties(**self._how)).size
        length = min(length, size)
        return (await self._get_range(path, size - length, length) if length else b""), size

    async def _list(self, directory: str) -> list[Object]:
        prefix = self._directory(directory)
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

    async def _put(self, path: str, content: bytes, *, is_new: bool) -> None:
        # Above 64 MiB the client sends blocks; they become an object by one request, which has the condition.
        await self._blob(path).upload_blob(content, overwrite=not is_new, max_concurrency=4, **self._how)

    async def _delete(self, paths: Sequence[str]) -> None:
        async def one(path: str) -> None:
            try:
                await self._blob(path).delete_blob(**self._how)
            except Exception as error:
                if not facts_of(error).missing:
                    raise

        await each_of(one, paths)

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
