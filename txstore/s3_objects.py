"""S3 through s3fs, which knows the credentials and the endpoint; the requests are made one by one here.

s3fs's own methods ask more than once (a whole object is HEAD and GET, a missing one HEAD and LIST), remember what they
have seen, and send larger objects in parts, of which only the last request says that there must be no such object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fsspec.asyn import sync

from txstore.object_engines import (
    LONGEST_SECONDS,
    PARALLEL_REQUESTS,
    Object,
    Objects,
    above,
    as_bytes,
    clock_of,
    size_of,
)
from txstore.object_errors import chain, facts_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

MOST_DELETED = 1000  # objects in one request
PAGE = 1000  # names in one answer to a listing


def _do_not_wait(request: Any, **_: Any) -> None:
    """Send the content at once: to be asked for it first is a round trip, without a time-out where nobody asks."""
    if "Expect" in request.headers:
        del request.headers["Expect"]


class S3Engine:
    def __init__(self, filesystem: Any, bucket: str, prefix: str) -> None:
        self._fs = filesystem
        self._fs.retries = 1  # object_client tries again
        self._bucket = bucket
        self._prefix = prefix

    def _run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        result: T = sync(self._fs.loop, function, *args, timeout=LONGEST_SECONDS)
        return result

    async def _call(self, method: str, **arguments: Any) -> Any:
        return await self._fs._call_s3(method, Bucket=self._bucket, **arguments)

    async def _get(self, path: str, wanted: str | None = None) -> tuple[bytes, Any]:
        """Return what is in an object and the answer's header; empty, and none, if it ends before what is wanted."""
        header = {} if wanted is None else {"Range": wanted}
        try:
            answer = await self._call("get_object", Key=self._prefix + path, **header)
        except OSError as error:
            if facts_of(error).beyond_end:
                return b"", {}
            raise
        async with answer["Body"] as body:
            return await body.read(), answer

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
        content, answer = self._run(self._get, path, f"bytes=-{length}")
        if "ContentRange" in answer:
            return content, size_of(answer["ContentRange"])
        return content[-length:], len(content)  # some servers give all of an object that is shorter

    async def _list(self, directory: str, **arguments: Any) -> tuple[list[Object], bool, str | None]:
        prefix = self._prefix + (directory + "/" if directory else "")
        arguments.setdefault("MaxKeys", PAGE)
        answer = await self._call("list_objects_v2", Prefix=prefix, Delimiter="/", **arguments)
        found = [
            Object(each["Key"][len(prefix) :], each["Size"], each["LastModified"].timestamp())
            for each in answer.get("Contents", ())
            if each["Key"] != prefix  # what some tools create to have a directory
        ]
        for each in answer.get("CommonPrefixes", ()):
            found.append(Object(each["Prefix"][len(prefix) : -1], 0, None))
        return found, answer.get("IsTruncated", False), answer.get("NextContinuationToken")

    async def _list_all(self, directory: str) -> list[Object]:
        found, _, token = await self._list(directory)
        while token is not None:
            more, _, token = await self._list(directory, ContinuationToken=token)
            found += more
        return found

    def list(self, directory: str) -> list[Object]:
        return self._run(self._list_all, directory)

    async def _list_after(self, directory: str, name: str, limit: int) -> Objects:
        start = self._prefix + (directory + "/" if directory else "") + name
        # One more, since a directory of the name itself is above it, with its slash.
        found, _, token = await self._list(directory, StartAfter=start, MaxKeys=min(limit + 1, PAGE))
        while token is not None and len(found) <= limit:  # a page may be shorter than asked for, or empty
            more, _, token = await self._list(directory, ContinuationToken=token)
            found += more
        return above(found, name, limit)

    def list_after(self, directory: str, name: str, limit: int) -> Objects | None:
        return self._run(self._list_after, directory, name, limit)

    def put(self, path: str, content: Buffer) -> None:
        self._run(self._put, path, as_bytes(content), {})

    def create(self, path: str, content: Buffer) -> None:
        self._run(self._put, path, as_bytes(content), {"IfNoneMatch": "*"})

    async def _put(self, path: str, content: bytes, condition: dict[str, str]) -> None:
        client = await self._fs.set_session()
        # Sooner or later for each client: a second time it changes nothing.
        client.meta.events.register("request-created.s3.PutObject", _do_not_wait, unique_id="txstore")
        known = client.meta.service_model.operation_model("PutObject").input_shape.members
        if not condition.keys() <= known.keys():  # s3fs would drop what botocore does not know, and overwrite
            raise OSError("botocore is too old to create exclusively: upgrade s3fs, aiobotocore and botocore")
        await self._call("put_object", Key=self._prefix + path, Body=content, **condition)

    def delete(self, paths: Sequence[str]) -> None:
        self._run(self._delete, paths)

    async def _delete(self, paths: Sequence[str]) -> None:
        if len(paths) == 1:
            await self._call("delete_object", Key=self._prefix + paths[0])
            return
        for start in range(0, len(paths), MOST_DELETED):
            names = [{"Key": self._prefix + path} for path in paths[start : start + MOST_DELETED]]
            answer = await self._call("delete_objects", Delete={"Objects": names, "Quiet": True})
            for error in answer.get("Errors", ()):
                raise OSError(f"{error.get('Key')} could not be deleted: error code: {error.get('Code')}")

    def now(self) -> float:
        return clock_of(self._run(self._date))

    async def _date(self) -> str | None:
        try:
            answer = await self._call("head_bucket")
        except OSError as error:  # a refusal has a date, too
            for each in chain(error):
                response = getattr(each, "response", None)
                if response and (date := response["ResponseMetadata"].get("HTTPHeaders", {}).get("date")):
                    return str(date)
            raise
        return str(answer["ResponseMetadata"]["HTTPHeaders"].get("date"))
