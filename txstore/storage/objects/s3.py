"""S3: s3fs finds the credentials and the endpoint, and this module sends each request itself.

s3fs's own methods send more than one request (HEAD and GET for a whole object, HEAD and LIST for a missing one) and
cache answers. They upload a larger object in parts, and only the last request asks the server to create it exclusively.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from txstore.storage.objects.async_backend import PagedBackend
from txstore.storage.objects.backend import Object, Version, VersionsTold
from txstore.storage.objects.errors import chain, facts_of

MOST_DELETED = 1000  # objects in one request


def is_version(version: str | None) -> bool:
    """Tell whether what a server says of an object means that it keeps what the object was before."""
    return version not in (None, "", "null")


def _do_not_wait(request: Any, **_: Any) -> None:
    """Send the content at once: waiting to be asked for it costs a round trip, and has no time-out."""
    if "Expect" in request.headers:
        del request.headers["Expect"]


class S3Backend(PagedBackend):
    def __init__(self, filesystem: Any, bucket: str, prefix: str) -> None:
        super().__init__(filesystem, prefix)
        self._fs.retries = 1  # object_client tries again
        self._bucket = bucket
        self.versions = self
        self._told = VersionsTold()

    @property
    def versions_begun(self) -> int:
        return self._told.begun

    async def _call(self, method: str, **arguments: Any) -> Any:
        return await self._fs._call_s3(method, Bucket=self._bucket, **arguments)

    async def _ask(self, path: str, wanted: str | None) -> tuple[bytes, str | None]:
        header = {} if wanted is None else {"Range": wanted}
        try:
            answer = await self._call("get_object", Key=self._prefix + path, **header)
        except OSError as error:
            if facts_of(error).beyond_end:
                return b"", None
            raise
        if wanted is None and is_version(answer.get("VersionId")):
            self._told.note(are_told=True)
        async with answer["Body"] as body:
            return await body.read(), answer.get("ContentRange")

    async def _page(
        self, directory: str, most: int, *, start: str | None, token: str | None
    ) -> tuple[list[Object], str | None]:
        prefix = self._directory(directory)
        where = {"ContinuationToken": token} if token is not None else {} if start is None else {"StartAfter": start}
        answer = await self._call("list_objects_v2", Prefix=prefix, Delimiter="/", MaxKeys=most, **where)
        found = [
            Object(each["Key"][len(prefix) :], each["Size"], each["LastModified"].timestamp())
            for each in answer.get("Contents", ())
            if each["Key"] != prefix  # what some tools create to have a directory
        ]
        found += [Object(each["Prefix"][len(prefix) : -1], 0, None) for each in answer.get("CommonPrefixes", ())]
        return found, answer.get("NextContinuationToken")

    async def _put(self, path: str, content: bytes, *, is_new: bool) -> None:
        client = await self._fs.set_session()
        # Sooner or later for each client: a second time it changes nothing.
        client.meta.events.register("request-created.s3.PutObject", _do_not_wait, unique_id="txstore")
        condition = {"IfNoneMatch": "*"} if is_new else {}
        known = client.meta.service_model.operation_model("PutObject").input_shape.members
        if not condition.keys() <= known.keys():  # s3fs would drop what botocore does not know, and overwrite
            raise OSError("botocore is too old to create exclusively: upgrade s3fs, aiobotocore and botocore")
        answer = await self._call("put_object", Key=self._prefix + path, Body=content, **condition)
        self._told.note(are_told=is_version(answer.get("VersionId")))

    async def _delete(self, paths: Sequence[str]) -> None:
        if len(paths) == 1:
            await self._call("delete_object", Key=self._prefix + paths[0])
            return
        for start in range(0, len(paths), MOST_DELETED):
            names = [{"Key": self._prefix + path} for path in paths[start : start + MOST_DELETED]]
            answer = await self._call("delete_objects", Delete={"Objects": names, "Quiet": True})
            for error in answer.get("Errors", ()):
                raise OSError(f"{error.get('Key')} could not be deleted: error code: {error.get('Code')}")

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

    # --- versions

    def list_versions(self, directory: str) -> Sequence[Version]:
        return self._run(self._list_versions, directory)

    def get_version(self, path: str, version: str) -> bytes:
        return self._run(self._get_version, path, version)

    def delete_versions(self, path: str, versions: Sequence[str]) -> None:
        for version in versions:
            self._run(lambda version=version: self._call("delete_object", Key=self._prefix + path, VersionId=version))

    async def _list_versions(self, directory: str) -> Sequence[Version]:
        prefix, where = self._directory(directory), dict[str, str]()
        found = defaultdict[str, dict[str, list[tuple[bool, datetime, Version]]]](
            lambda: {"DeleteMarkers": [], "Versions": []}
        )
        while True:
            answer = await self._call("list_object_versions", Prefix=prefix, Delimiter="/", **where)
            for kind in ("Versions", "DeleteMarkers"):
                for each in answer.get(kind, ()):
                    version = Version(each["Key"][len(prefix) :], each["VersionId"], kind == "DeleteMarkers")
                    found[version.name][kind].append((each["IsLatest"], each["LastModified"], version))
            if not answer.get("IsTruncated"):
                break
            where = {"KeyMarker": answer["NextKeyMarker"]}
            if answer.get("NextVersionIdMarker"):
                where["VersionIdMarker"] = answer["NextVersionIdMarker"]
        # Of one name and kind, the newest is told first, whatever the clocks of a server's machines say.
        return [
            version
            for kinds in found.values()
            for *_, version in heapq.merge(*(told[::-1] for told in kinds.values()), key=lambda told: told[:2])
        ]

    async def _get_version(self, path: str, version: str) -> bytes:
        answer = await self._call("get_object", Key=self._prefix + path, VersionId=version)
        async with answer["Body"] as body:
            return bytes(await body.read())
