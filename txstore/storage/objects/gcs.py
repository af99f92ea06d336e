"""Google Cloud Storage: gcsfs finds the credentials, and this module sends each request itself.

gcsfs's own methods retry for minutes, and log the server's answer each time.
"""

from __future__ import annotations

import asyncio
import datetime
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from txstore.storage.objects.async_backend import PagedBackend, each_of
from txstore.storage.objects.backend import Object, Refusal


class GcsBackend(PagedBackend):
    def __init__(self, filesystem: Any, bucket: str, prefix: str) -> None:
        super().__init__(filesystem, prefix)
        self._bucket = quote(bucket, safe="")

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

    async def _ask(self, path: str, wanted: str | None) -> tuple[bytes, str | None]:
        headers = {"Accept-Encoding": "identity", **({} if wanted is None else {"Range": wanted})}
        try:
            answered, content = await self._call("GET", self._object(path), {"alt": "media"}, headers=headers)
        except Refusal as refusal:
            if refusal.status_code == 416:
                return b"", None
            raise
        return content, answered.get("Content-Range")

    async def _page(
        self, directory: str, most: int, *, start: str | None, token: str | None
    ) -> tuple[list[Object], str | None]:
        prefix = self._directory(directory)
        parameters: dict[str, Any] = {
            "prefix": prefix,
            "delimiter": "/",
            "maxResults": most,
            "fields": "items(name,size,updated),prefixes,nextPageToken",
        }
        if start is not None:
            parameters["startOffset"] = start
        if token is not None:
            parameters["pageToken"] = token
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

    async def _put(self, path: str, content: bytes, *, is_new: bool) -> None:
        parameters = {"uploadType": "media", "name": self._prefix + path}
        if is_new:
            parameters["ifGenerationMatch"] = "0"
        headers = {"Content-Type": "application/octet-stream"}
        await self._call("POST", f"upload/storage/v1/b/{self._bucket}/o", parameters, headers=headers, content=content)

    async def _delete(self, paths: Sequence[str]) -> None:
        async def one(path: str) -> None:
            try:
                await self._call("DELETE", self._object(path))
            except Refusal as refusal:
                if refusal.status_code != 404 or "bucket" in refusal.reason:
                    raise

        await each_of(one, paths)

    async def _date(self) -> str | None:
        try:
            headers, _ = await self._call("GET", f"storage/v1/b/{self._bucket}", {"fields": "kind"})
        except Refusal as refusal:  # it has a date, too
            if refusal.date is None:
                raise
            return refusal.date
        return headers.get("Date")
