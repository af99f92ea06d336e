"""Object stores through fsspec: which of its classes can create exclusively, and how.

fsspec opens the connection. For each known class, a backend of ours sends the requests. Through any other class
processes can read, and a single writer can write.

adlfs finds the credentials of Azure, gcsfs those of Google. Azure's own client sends the requests there. For Google
this module does, since gcsfs's own methods retry for minutes, and log the server's answer each time.
"""

from __future__ import annotations

import asyncio
import datetime
import functools
import io
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import fsspec.core

from txstore.storage.objects import urls
from txstore.storage.objects.async_backend import AsyncBackend, PagedBackend, each_of
from txstore.storage.objects.backend import OF_PROCESS, READ_ONLY, SINGLE_WRITER, Backend, Object, Refusal
from txstore.storage.objects.errors import chain, facts_of
from txstore.storage.objects.file_servers import SftpServer, SmbServer
from txstore.storage.objects.plain import MemoryBackend, PlainBackend
from txstore.storage.objects.s3 import S3Backend
from txstore.storage.objects.urls import Target


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


# How each class creates exclusively. A class that has taken the place of the known one under its protocol is another.
CREATION = {
    "s3fs.core.S3FileSystem": "conditional",  # If-None-Match: *
    "gcsfs.core.GCSFileSystem": "conditional",  # ifGenerationMatch=0
    "adlfs.spec.AzureBlobFileSystem": "conditional",  # If-None-Match: *
    "fsspec.implementations.memory.MemoryFileSystem": OF_PROCESS,
    "fsspec.implementations.sftp.SFTPFileSystem": "rename",
    "fsspec.implementations.smb.SMBFileSystem": "rename",
}


def creation_of(target: Target) -> str:
    """Return how a target creates exclusively. Raises ModuleNotFoundError where its package is missing."""
    known = _creation_of_class(target)
    if target.single_writer and target.family != "memory":  # which no other process sees
        return SINGLE_WRITER
    return known or READ_ONLY


def _creation_of_class(target: Target) -> str | None:
    cls = urls.filesystem_class(target)
    if "::" not in target.address:
        for each in cls.__mro__:
            if (name := f"{each.__module__}.{each.__qualname__}") in CREATION:
                return CREATION[name]
    return None


def build(target: Target) -> Backend:
    """Connect to a target."""
    if _creation_of_class(target) is None:
        options = {name: value for name, value in target.options.items() if name not in urls.INSTANCE_OPTIONS}
        if target.protocol in ("http", "https"):
            options = {"get_client": functools.partial(_client, _refuse_inner_hosts), **options}
        filesystem, root = fsspec.core.url_to_fs(target.address, **options)
        filesystem = _unwrapped(filesystem)
        if "http" not in filesystem.protocol:
            return PlainBackend(filesystem, root)
        from txstore.storage.objects.web import WebBackend  # late: it needs aiohttp

        return WebBackend(filesystem, root)
    if target.family == "sftp":
        return SftpServer(functools.partial(_instance, target), _path(target))
    if target.family == "smb":
        return SmbServer(_options(target), _path(target))
    filesystem = _instance(target)
    if target.family == "memory":
        return MemoryBackend(filesystem, _path(target))
    if target.family == "azure":
        container, *rest = urls.azure_parts(target.address)
        return AzureBackend(filesystem, container, "".join(f"{part}/" for part in rest))
    bucket, prefix = urls.bucket_and_prefix(target.address)
    return S3Backend(filesystem, bucket, prefix) if target.family == "s3" else GcsBackend(filesystem, bucket, prefix)


def build_plain(target: Target) -> PlainBackend:
    """Connect to a target as to any other, whatever more its class could do: to this host, and to no other."""
    if target.protocol in ("http", "https"):
        target = replace(
            target, options={"get_client": functools.partial(_client, _refuse_other_hosts), **target.options}
        )
    backend = MemoryBackend if target.family == "memory" else PlainBackend
    return backend(_instance(target), _path(target))


async def _client(check: Callable[..., Awaitable[None]], **options: Any) -> Any:
    from txstore.storage.objects.web import BoundedAnswer, client

    return client(check, BoundedAnswer, **options)


async def _refuse_inner_hosts(_: Any, __: Any, request: Any) -> None:
    """`txstore serve` would hand on what a server has led it to: `inner_host`."""
    from txstore.storage.objects.web import inner_host

    if await inner_host(request) is not None:
        raise Refusal(request.response.status, "it leads to a host that is not public")


async def _refuse_other_hosts(_: Any, __: Any, request: Any) -> None:
    """What may be read is said by host: a server must not lead to others, which it may know, and we alone can reach."""
    answer = request.response
    leads_to = request.url.join(type(request.url)(answer.headers.get("Location") or answer.headers.get("URI", "")))
    if leads_to.origin() != request.url.origin():
        raise Refusal(answer.status, "it leads to another host")


def _options(target: Target) -> dict[str, Any]:
    """Return the options of the file system, with what the URL says."""
    said = urls.filesystem_class(target)._get_kwargs_from_urls(target.address)
    said.pop("url_fragment", None)  # a part of a name that has a #: `_strip_protocol` leaves it there
    return {**said, **target.options}


def _instance(target: Target) -> Any:
    options = _options(target)
    if target.family == "s3":
        config = {"retries": {"total_max_attempts": 1}, "max_pool_connections": 32, **options.get("config_kwargs", {})}
        options["config_kwargs"] = config
    if target.family in ("s3", "azure", "gcs"):
        options |= {"asynchronous": False, "use_listings_cache": False}
    if target.family == "sftp":
        options = {"timeout": 10, "banner_timeout": 15, "auth_timeout": 15, **options}  # seconds
    return urls.filesystem_class(target)(**options, skip_instance_cache=True)


def _path(target: Target) -> str:
    return str(urls.filesystem_class(target)._strip_protocol(target.address)).rstrip("/")


def _unwrapped(filesystem: Any) -> Any:
    """Return the file system that a wrapper has inside, as far as its paths are the same."""
    while True:
        inside = getattr(filesystem, "sync_fs", None)  # AsyncFileSystemWrapper
        if inside is None and type(filesystem).__module__ == "fsspec.implementations.cached":
            inside = filesystem.fs
        if inside is None:
            return filesystem
        filesystem = inside
