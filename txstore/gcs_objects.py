"""Google Cloud Storage through gcsfs, which knows the credentials; the requests are made one by one here.

gcsfs tries again by itself, for minutes, and writes what the server said to the log each time.
"""

from __future__ import annotations

import asyncio
import datetime
import io
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from fsspec.asyn import sync

from txstore.object_engines import (
    LONGEST_SECONDS,
    PARALLEL_REQUESTS,
    Object,
    Objects,
    Refusal,
    above,
    as_bytes,
    clock_of,
    size_of,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

PAGE = 1000  # names in one answer to a listing


class GcsEngine:
    def __init__(self, filesystem: Any, bucket: str, prefix: str) -> None:
        self._fs = filesystem
        self._bucket = quote(bucket, safe="")
        self._prefix = prefix

    def _run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        result: T = sync(self._fs.loop, function, *args, timeout=LONGEST_SECONDS)
        return result

    async def _call(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> tuple[Mapping[str, str], bytes]:
        """Send one request; raises `Refusal` if its answer is no success."""
        fs = self._fs
        await fs._set_session()
        async with fs.session.request(
            method,
            f"{fs._location}/{path}",
            params=fs._get_params(dict(parameters or {})),
            headers=await asyncio.to_thread(fs._get_headers, dict(headers or {})),  # may ask for a new token, blocking
            data=None if content is None else io.BytesIO(content),
            timeout=fs.requests_timeout,
        ) as answer:
            body = await answer.read()
            if answer.status >= 300:
                reason = "bucket does not exist" if b"bucket does not exist" in body else answer.reason or ""
                raise Refusal(answer.status, reason, date=answer.headers.get("Date"))
            return answer.headers, body

    def _object(self, path: str) -> str:
        return f"storage/v1/b/{self._bucket}/o/{quote(self._prefix + path, safe='')}"

    async def _get(self, path: str, wanted: str | None = None) -> tuple[bytes, Mapping[str, str]]:
        headers = {"Accept-Encoding": "identity", **({} if wanted is None else {"Range": wanted})}
        try:
            answered, content = await self._call("GET", self._object(path), {"alt": "media"}, headers=headers)
        except Refusal as refusal:
            if refusal.status_code == 416:
                return b"", {}
            raise
        return content, answered

    async def _get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        slots = asyncio.Semaphore(PARALLEL_REQUESTS)

        async def one(offset: int, length: int) -> bytes:
            async with slots:
                return (await self._get(path, f"bytes={offset}-{offset + length - 1}"))[0]

        return await asyncio.gather(*(one(*each) for each in ranges))

    def get(self, path: str) -> bytes:
        return self._run(self._get, path)[0]

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        return self._run(self._get, path, f"bytes={offset}-{offset + length - 1}")[0]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._run(self._get_ranges, path, ranges)

    def get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        content, headers = self._run(self._get, path, f"bytes=-{length}")
        if "Content-Range" in headers:
            return content, size_of(headers["Content-Range"])
        return content[-length:], len(content)

    async def _list(self, directory: str, **parameters: Any) -> tuple[list[Object], str | None]:
        prefix = self._prefix + (directory + "/" if directory else "")
        parameters.setdefault("maxResults", PAGE)
        parameters |= {"prefix": prefix, "delimiter": "/", "fields": "items(name,size,updated),prefixes,nextPageToken"}
        _, body = await self._call("GET", f"storage/v1/b/{self._bucket}/o", parameters)
        answer = json.loads(body)
        found = [
            Object(
                each["name"][len(prefix) :],
                int(each["size"]),
                datetime.datetime.fromisoformat(each["updated"]).timestamp(),
            )
            for each in answer.get("items", ())
            if each["name"] != prefix
        ]
        found += [Object(each[len(prefix) : -1], 0, None) for each in answer.get("prefixes", ())]
        return found, answer.get("nextPageToken")

    async def _list_all(self, directory: str) -> list[Object]:
        found, token = await self._list(directory)
        while token is not None:
            more, token = await self._list(directory, pageToken=token)
            found += more
        return found

    def list(self, directory: str) -> list[Object]:
        return self._run(self._list_all, directory)

    async def _list_after(self, directory: str, name: str, limit: int) -> Objects:
        start = self._prefix + (directory + "/" if directory else "") + name
        # Two more: the name itself is listed, and a directory of that name, which is above it with its slash.
        found, token = await self._list(directory, startOffset=start, maxResults=min(limit + 2, PAGE))
        while token is not None and len(found) <= limit + 1:
            more, token = await self._list(directory, startOffset=start, pageToken=token)
            found += more
        return above(found, name, limit)

    def list_after(self, directory: str, name: str, limit: int) -> Objects | None:
        return self._run(self._list_after, directory, name, limit)

    def put(self, path: str, content: Buffer) -> None:
        self._run(self._put, path, as_bytes(content), {})

    def create(self, path: str, content: Buffer) -> None:
        self._run(self._put, path, as_bytes(content), {"ifGenerationMatch": "0"})

    async def _put(self, path: str, content: bytes, condition: dict[str, str]) -> None:
        parameters = {"uploadType": "media", "name": self._prefix + path, **condition}
        headers = {"Content-Type": "application/octet-stream"}
        await self._call("POST", f"upload/storage/v1/b/{self._bucket}/o", parameters, headers=headers, content=content)

    def delete(self, paths: Sequence[str]) -> None:
        self._run(self._delete, paths)

    async def _delete(self, paths: Sequence[str]) -> None:
        slots = asyncio.Semaphore(PARALLEL_REQUESTS)

        async def one(path: str) -> None:
            async with slots:
                try:
                    await self._call("DELETE", self._object(path))
                except Refusal as refusal:
                    if refusal.status_code != 404 or "bucket" in refusal.reason:
                        raise

        await asyncio.gather(*(one(path) for path in paths))

    def now(self) -> float:
        return clock_of(self._run(self._date))

    async def _date(self) -> str | None:
        try:
            headers, _ = await self._call("GET", f"storage/v1/b/{self._bucket}", {"fields": "kind"})
        except Refusal as refusal:  # it has a date, too
            if refusal.date is None:
                raise
            return refusal.date
        return headers.get("Date")
