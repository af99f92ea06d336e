"""S3, Google Cloud Storage and Azure through obstore, where it is installed: many times faster on small objects.

The options are those of the fsspec class. fsspec is used instead if an option has no counterpart in obstore, or if the
options hold no credentials: the two libraries look for these in different places. A forked child uses fsspec, too:
obstore's threads do not survive a fork, and a request would wait for them for ever.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from txstore import processes
from txstore.storage.objects import fsspec_backends, urls
from txstore.storage.objects.backend import (
    LONGEST_SECONDS,
    Backend,
    Content,
    Object,
    Objects,
    Versions,
    VersionsTold,
    above,
    clock_of,
)
from txstore.storage.objects.errors import facts_of
from txstore.storage.objects.s3 import is_version
from txstore.storage.objects.urls import Target
from txstore.storage.request_threads import each_in_thread

if TYPE_CHECKING:
    from typing_extensions import Buffer

CREATION = "conditional"
FAMILIES = {"s3", "azure", "gcs"}
PAGE = 1000  # names in one answer to a listing
CLIENT = {"connect_timeout": "5s", "read_timeout": "30s", "timeout": f"{LONGEST_SECONDS}s"}

_after_fork = False


@processes.in_child
def _in_child() -> None:
    global _after_fork  # noqa: PLW0603
    _after_fork = _after_fork or "obstore" in sys.modules


class Connection(NamedTuple):
    """What obstore is given."""

    store: str  # the name of its class
    arguments: dict[str, Any]
    endpoint: str  # a URL of the server that needs no permission
    lists_after: bool


def is_installed() -> bool:
    return importlib.util.find_spec("obstore") is not None


def connection_of(target: Target) -> Connection | None:
    """Put a target's options in obstore's terms; None if that can't be done."""
    translate = {"s3": _s3, "azure": _azure, "gcs": _gcs}.get(target.family)
    if translate is None or "::" in target.address:
        return None
    options = {name: value for name, value in target.options.items() if value is not None}
    connection = translate(target, options)
    if options or connection is None:  # each translation takes out what it knows
        return None
    urls.check_endpoint(connection.endpoint, target.url)
    return connection


def _s3(target: Target, options: dict[str, Any]) -> Connection | None:
    client = {name: value for name, value in dict(options.pop("client_kwargs", {})).items() if value is not None}
    anonymous = options.pop("anon", False)
    environment = os.environ
    given = {
        "access_key_id": options.pop("key", options.pop("username", None)) or client.pop("aws_access_key_id", None),
        "secret_access_key": options.pop("secret", options.pop("password", None))
        or client.pop("aws_secret_access_key", None),
        "session_token": options.pop("token", None) or client.pop("aws_session_token", None),
    }
    endpoint = options.pop("endpoint_url", None) or client.pop("endpoint_url", None)
    endpoint = endpoint or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    region = client.pop("region_name", None) or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if options.pop("use_ssl", True) is not True or client:
        return None
    if not anonymous and not given["access_key_id"] and not environment.get("AWS_ACCESS_KEY_ID"):
        return None  # botocore looks for credentials in more places
    if region is None and endpoint is None:
        return None  # botocore asks where the bucket is
    bucket, prefix = urls.bucket_and_prefix(target.address)
    if bucket.startswith("arn:"):
        return None
    arguments = {name: value for name, value in given.items() if value and not anonymous}
    arguments |= {"bucket": bucket, "prefix": prefix, "region": region or "us-east-1", "conditional_put": "etag"}
    if anonymous:
        arguments["skip_signature"] = True
    if endpoint is not None:
        arguments["endpoint"] = endpoint
    return Connection("S3Store", arguments, endpoint or f"https://s3.{region}.amazonaws.com", lists_after=True)


def _azure(target: Target, options: dict[str, Any]) -> Connection | None:
    container, *rest = urls.azure_parts(target.address)
    text = options.pop("connection_string", None)
    said = dict(part.split("=", 1) for part in text.split(";") if "=" in part) if text else {}
    account = options.pop("account_name", None) or said.get("AccountName")
    if account is None and "@" in target.address:
        account = target.address.partition("@")[2].partition(".")[0]
    given = {
        "account_key": options.pop("account_key", None) or said.get("AccountKey"),
        "sas_key": options.pop("sas_token", None) or said.get("SharedAccessSignature"),
        "client_id": options.pop("client_id", None),
        "client_secret": options.pop("client_secret", None),
        "tenant_id": options.pop("tenant_id", None),
    }
    anonymous = options.pop("anon", False)
    if account is None or not (anonymous or any(given.values())):
        return None
    suffix = said.get("EndpointSuffix", "core.windows.net")
    protocol = said.get("DefaultEndpointsProtocol", "https")
    host = options.pop("account_host", None)
    default = f"https://{host}" if host else f"{protocol}://{account}.blob.{suffix}"
    endpoint = said.get("BlobEndpoint", default).rstrip("/")
    arguments = {name: value for name, value in given.items() if value}
    arguments |= {"container_name": container, "account_name": account, "endpoint": endpoint}
    arguments["prefix"] = "".join(f"{part}/" for part in rest)
    if anonymous and not any(given.values()):
        arguments["skip_signature"] = True
    return Connection("AzureStore", arguments, endpoint, lists_after=False)


def _gcs(target: Target, options: dict[str, Any]) -> Connection | None:
    token = options.pop("token", None)
    options.pop("project", None)
    options.pop("access", None)
    bucket, prefix = urls.bucket_and_prefix(target.address)
    arguments: dict[str, Any] = {"bucket": bucket, "prefix": prefix}
    endpoint = "https://storage.googleapis.com"
    if token == "anon":
        arguments["skip_signature"] = True
        if options.get("endpoint_url"):
            endpoint = str(options.pop("endpoint_url")).rstrip("/")
            account = {"gcs_base_url": endpoint, "client_email": "", "private_key": "", "private_key_id": ""}
            # Older versions know no other way to say it.
            arguments["service_account_key"] = json.dumps({**account, "disable_oauth": True})
    elif isinstance(token, Mapping) and token.get("type") == "service_account":
        arguments["service_account_key"] = json.dumps(dict(token))
    elif isinstance(token, str) and os.path.isfile(token):
        arguments["application_credentials"] = token
    elif token is None and os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        arguments["application_credentials"] = os.environ["GOOGLE_APPLICATION_CREDENTIALS"]
    else:
        return None  # gcsfs knows more kinds
    return Connection("GCSStore", arguments, endpoint, lists_after=True)


def build(target: Target) -> Backend:
    """Connect to a target."""
    connection = connection_of(target)
    if _after_fork or connection is None or not is_installed():
        try:
            return fsspec_backends.build(target)
        except ImportError as error:
            raise OSError(
                "obstore does not work in a process that was forked after it was used, and fsspec can't take over: "
                f"{error}; or start processes with the method spawn or forkserver"
            ) from None
    return ObstoreBackend(connection, target)


class ObstoreBackend:
    def __init__(self, connection: Connection, target: Target) -> None:
        import obstore.store

        self._connection = connection
        self._target = target
        self._told = VersionsTold()
        client = {**CLIENT, "allow_http": True} if connection.endpoint.startswith("http://") else CLIENT
        retries = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}  # object_client tries again
        arguments = {name: value for name, value in connection.arguments.items() if value != "" or name != "prefix"}
        self._store = getattr(obstore.store, connection.store)(**arguments, client_options=client, retry_config=retries)

    @cached_property
    def versions(self) -> Versions | None:
        """Versions of objects, which obstore does not know: through fsspec's class, if it is installed."""
        if self._connection.store != "S3Store" or importlib.util.find_spec("s3fs") is None:
            return None
        return fsspec_backends.build(replace(self._target, engine="fsspec")).versions

    @property
    def versions_begun(self) -> int:
        return self._told.begun

    def get(self, path: str) -> bytes:
        answer = self._store.get(path)
        if self._tells_versions(answer.meta.get("version")):
            self._told.note(are_told=True)
        return bytes(answer.bytes())

    def get_range(self, path: str, offset: int, length: int) -> Content:
        try:
            return memoryview(self._store.get_range(path, start=offset, length=length))
        except Exception as error:
            # The last one is of the emulator of Azure, which has a range of an empty object end at -1.
            if facts_of(error).beyond_end or re.search(r"Wanted range starting at|bytes 0--1/0", str(error)):
                return b""
            raise

    async def await_range(self, path: str, offset: int, length: int) -> Content:
        return memoryview(await self._store.get_range_async(path, start=offset, length=length))

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[Content]:
        # Not its own `get_ranges`: that joins ranges that touch, which were cut to be fetched in parallel, and panics
        # where an object ends before a range.
        return list(each_in_thread(lambda wanted: self.get_range(path, *wanted), ranges))

    def get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        if self._connection.store != "AzureStore":  # which knows no ranges from the end
            try:
                answer = self._store.get(path, options={"range": {"suffix": length}})
                return bytes(answer.bytes()), int(answer.meta["size"])
            except Exception as error:
                # An empty object has no last byte: some servers say so, others answer with all of it.
                if not facts_of(error).beyond_end and "non-partial response" not in str(error):
                    raise
        try:
            size = int(self._store.head(path)["size"])
        except FileNotFoundError:  # the answer to HEAD does not say what is missing, the object or the bucket
            content = self.get(path)
            return content[-length:], len(content)
        length = min(length, size)
        return (bytes(self.get_range(path, size - length, length)) if length else b""), size

    def list(self, directory: str) -> list[Object]:
        prefix = f"{directory}/" if directory else ""
        answer = self._store.list_with_delimiter(prefix or None)
        found = [
            Object(each["path"][len(prefix) :], each["size"], each["last_modified"].timestamp())
            for each in answer["objects"]
        ]
        return found + [Object(each[len(prefix) :].rstrip("/"), 0, None) for each in answer["common_prefixes"]]

    def list_after(self, directory: str, name: str, limit: int) -> Objects | None:
        if not self._connection.lists_after:
            return None
        prefix = f"{directory}/" if directory else ""
        found: dict[str, Object] = {}
        position = name
        while len(found) < limit:
            stream = self._store.list(prefix or None, offset=prefix + position, chunk_size=min(limit + 1, PAGE))
            chunk = next(stream, None)
            if chunk is None:
                break
            last = slash = ""
            for each in chunk:
                # It lists what is in directories below, too: each of them is one name.
                last, slash, _ = each["path"][len(prefix) :].partition("/")
                if last > name and not (slash and last in found):
                    found[last] = (
                        Object(last, 0, None)
                        if slash
                        else Object(last, each["size"], each["last_modified"].timestamp())
                    )
            if len(chunk) < min(limit + 1, PAGE):
                break
            position = f"{last}0" if slash else last  # the next sign after a slash: past the directory of this name
        return above(found.values(), name, limit)

    def is_link(self, path: str) -> bool:
        return False

    def put(self, path: str, parts: Sequence[Buffer]) -> None:
        self._put(path, parts, mode="overwrite")

    def create(self, path: str, parts: Sequence[Buffer]) -> None:
        self._put(path, parts, mode="create")

    def _put(self, path: str, parts: Sequence[Buffer], *, mode: Literal["create", "overwrite"]) -> None:
        answer = self._store.put(path, list(parts), mode=mode, use_multipart=False)
        self._told.note(are_told=self._tells_versions(answer.get("version")))

    def _tells_versions(self, version: str | None) -> bool:
        return self._connection.store == "S3Store" and is_version(version)  # Google's are told of every object

    def delete(self, paths: Sequence[str]) -> None:
        if len(paths) > 1 and self._connection.store == "S3Store":
            self._store.delete(list(paths))
            return
        list(each_in_thread(self._delete, paths))

    def _delete(self, path: str) -> None:
        try:
            self._store.delete(path)
        except FileNotFoundError as error:
            if facts_of(error).no_bucket:
                raise

    def now(self) -> float:
        # obstore shows no headers. A server says what time it is to everybody, also where it says no to all else.
        request = urllib.request.Request(self._connection.endpoint, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return clock_of(answer.headers.get("Date"))
        except urllib.error.HTTPError as error:
            with error:
                return clock_of(error.headers.get("Date"))
