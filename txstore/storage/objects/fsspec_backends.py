"""Object stores through fsspec: which of its classes can create exclusively, and how.

fsspec opens the connection. For each known class, a backend of ours sends the requests. Through any other class
processes can read, and a single writer can write.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import fsspec.core

from txstore.storage.objects import urls
from txstore.storage.objects.azure import AzureBackend
from txstore.storage.objects.backend import OF_PROCESS, READ_ONLY, SINGLE_WRITER, Backend, Refusal
from txstore.storage.objects.file_servers import SftpServer, SmbServer
from txstore.storage.objects.gcs import GcsBackend
from txstore.storage.objects.plain import MemoryBackend, PlainBackend
from txstore.storage.objects.s3 import S3Backend
from txstore.storage.objects.urls import Target

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
