"""As much of S3 as the clients of these benchmarks ask for, from memory, as far away as one likes.

`S3Stub` runs it in a process of its own: one thread of asyncio, some thousand requests a second, all of them under way
at once, as they would be at a distance. A request takes half of its time to get here and the other half to go back, so
of two that are sent together either may come first where there is jitter. Signatures are not looked at.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import random
import subprocess
import sys
import time
import uuid
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from typing import NamedTuple, Self
from xml.sax.saxutils import escape, unescape

from aiohttp import web

_ROOT = Path(__file__).parents[2]
BUCKET = "peers"


class Stored(NamedTuple):
    body: bytes
    etag: str
    modified: float


class Traffic(NamedTuple):
    """What a stub was asked for in a time."""

    #: Requests of each kind; of what is stored the new objects, and bytes that were received and sent.
    counts: Counter[str]
    #: When each request was under way, in seconds from any moment on, if the stub was far away.
    seen: list[tuple[float, float]]

    @property
    def requests(self) -> int:
        return sum(count for kind, count in self.counts.items() if kind not in ("received", "sent", "objects"))

    def under_way(self, samples: int) -> list[float]:
        """Return how many were under way, on average in each of so many parts of the time from first to last."""
        found = [0.0] * samples
        if not self.seen:
            return found
        first = min(began for began, _ in self.seen)
        step = (max(ended for _, ended in self.seen) - first) / samples
        for began, ended in (((began - first) / step, (ended - first) / step) for began, ended in self.seen):
            for sample in range(int(began), min(int(ended) + 1, samples)):
                found[sample] += min(ended, sample + 1) - max(began, sample)
        return found


class Stub:
    """The objects, and what is answered about them."""

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.names: list[str] = []  # of the objects, ascending
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.seconds = 0.0  # that a request takes besides what the server needs for it
        self.jitter = 0.0  # of each way, as a share of its time: 0.5 is half as much to half as much again
        self.traffic = Traffic(Counter(), [])
        self._etags = itertools.count(1)

    async def serve(self, request: web.Request) -> web.Response:
        began = time.monotonic()
        bucket, _, key = request.match_info["path"].partition("/")
        if bucket == "-":
            told, self.traffic = self.traffic, Traffic(Counter(), [])
            self.seconds, self.jitter = float(request.query["seconds"]), float(request.query["jitter"])
            return web.json_response(told)
        body = await request.read()
        await asyncio.sleep(self.way())
        answer = self.answer(request.method, key, body, request.query, request.headers)
        await asyncio.sleep(self.way())
        await answer.prepare(request)
        await answer.write_eof()
        if self.seconds:
            self.traffic.seen.append((began, time.monotonic()))
        return answer

    def way(self) -> float:
        """Return how long one way takes."""
        return self.seconds / 2 * random.uniform(1 - self.jitter, 1 + self.jitter)

    def answer(
        self, method: str, key: str, body: bytes, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> web.Response:
        counts = self.traffic.counts
        counts[_kind(method, key, headers)] += 1
        counts["received"] += len(body)
        answer = self._object(method, key, body, query, headers) if key else self._bucket(method, body, query)
        if isinstance(answer.body, bytes | memoryview):
            counts["sent"] += len(answer.body)
            answer.headers["Content-Length"] = f"{len(answer.body)}"
        return answer

    def _object(
        self, method: str, key: str, body: bytes, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> web.Response:
        there = self.objects.get(key)
        if method == "PUT" and "uploadId" in query:
            self.uploads[query["uploadId"]][int(query["partNumber"])] = _unchunked(body, headers)
            return web.Response(headers={"ETag": self._etag()})
        if method == "POST" and "uploads" in query:
            number = uuid.uuid4().hex
            self.uploads[number] = {}
            return _xml(f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>")
        if method in ("PUT", "POST"):
            expected = headers.get("If-Match", there.etag if there else "").strip('"')
            if ("If-None-Match" in headers and there) or expected != (there.etag.strip('"') if there else ""):
                return _error(412, "PreconditionFailed")
        if method == "PUT":
            return web.Response(headers={"ETag": self._store(key, _unchunked(body, headers))})
        if method == "POST":
            parts = self.uploads.pop(query["uploadId"])
            etag = self._store(key, b"".join(parts[number] for number in sorted(parts)))
            found = f"<Key>{escape(key)}</Key><ETag>{escape(etag)}</ETag>"
            return _xml(f"<CompleteMultipartUploadResult>{found}</CompleteMultipartUploadResult>")
        if method == "DELETE":
            self._remove(key)
            return web.Response(status=204)
        return _error(404, "NoSuchKey") if there is None else _read(there, headers.get("Range", ""))

    def _store(self, key: str, body: bytes) -> str:
        if key not in self.objects:
            insort(self.names, key)
            self.traffic.counts["objects"] += 1
        self.objects[key] = Stored(body, self._etag(), time.time())
        return self.objects[key].etag

    def _etag(self) -> str:
        return f'"{next(self._etags):032x}"'

    def _remove(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            del self.names[bisect_left(self.names, key)]

    def _bucket(self, method: str, body: bytes, query: Mapping[str, str]) -> web.Response:
        if method == "POST" and "delete" in query:
            keys = [unescape(part.partition("</Key>")[0]) for part in body.decode().split("<Key>")[1:]]
            for key in keys:
                self._remove(key)
            deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            return _xml(f"<DeleteResult>{deleted}</DeleteResult>")
        if method != "GET" or "list-type" not in query:
            return web.Response(status=200 if method in ("HEAD", "PUT") else 404)
        return self._list(query)

    def _list(self, query: Mapping[str, str]) -> web.Response:
        prefix, delimiter, most = query.get("prefix", ""), query.get("delimiter", ""), int(query.get("max-keys", 1000))
        token = query.get("continuation-token", "")  # the last name of the page before: of a folder or an object
        first = max(bisect_left(self.names, max(prefix, token)), bisect_right(self.names, query.get("start-after", "")))
        entries: dict[str, str] = {}
        for at in range(first, len(self.names)):
            key = self.names[at]
            if len(entries) > most or not key.startswith(prefix):
                break
            folder, is_below, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            name = prefix + folder + delimiter if is_below else key
            if name <= token or name in entries:
                continue
            if is_below:
                entries[name] = f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
                continue
            stored = self.objects[key]
            modified = datetime.fromtimestamp(stored.modified, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
            entries[name] = (
                f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified>"
                f"<ETag>{escape(stored.etag)}</ETag><Size>{len(stored.body)}</Size>"
                "<StorageClass>STANDARD</StorageClass></Contents>"
            )
        more, names = len(entries) > most, list(entries)[:most]
        next_one = f"<NextContinuationToken>{escape(names[-1])}</NextContinuationToken>" if more else ""
        return _xml(
            f"<ListBucketResult><Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(names)}</KeyCount>"
            f"<MaxKeys>{most}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>{next_one}"
            f"{''.join(entries[name] for name in names)}</ListBucketResult>"
        )


def _read(stored: Stored, wanted: str) -> web.Response:
    headers = {"ETag": stored.etag, "Last-Modified": formatdate(stored.modified, usegmt=True), "Accept-Ranges": "bytes"}
    if not wanted.startswith("bytes="):
        return web.Response(body=stored.body, headers=headers)
    size = len(stored.body)
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    start = int(first) if first else max(size - int(last), 0)
    end = min(int(last), size - 1) if first and last else size - 1
    if start >= size:
        return _error(416, "InvalidRange")
    headers["Content-Range"] = f"bytes {start}-{end}/{size}"
    return web.Response(status=206, body=stored.body[start : end + 1], headers=headers)


def _kind(method: str, key: str, headers: Mapping[str, str]) -> str:
    if not key:
        return {"GET": "list", "POST": "delete"}.get(method, "bucket")
    if method == "PUT" and "If-None-Match" in headers:
        return "create"
    return {"POST": "upload"}.get(method, method.lower())


def _xml(body: str, status: int = 200) -> web.Response:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n{body}'
    return web.Response(body=text.encode(), content_type="application/xml", status=status)


def _error(status: int, code: str) -> web.Response:
    return _xml(f"<Error><Code>{code}</Code><Message>{code}</Message></Error>", status)


def _unchunked(body: bytes, headers: Mapping[str, str]) -> bytes:
    """Return the body without the sizes and signatures that Amazon's clients put between its pieces."""
    if "x-amz-decoded-content-length" not in headers:
        return body
    found = []
    while size := int((line := body.partition(b"\r\n"))[0].partition(b";")[0], 16):
        found.append(line[2][:size])
        body = line[2][size + 2 :]
    return b"".join(found)


async def main() -> None:
    application = web.Application(client_max_size=1 << 40)
    application.router.add_route("*", "/{path:.*}", Stub().serve)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until whoever started it has gone


class S3Stub:
    """A stub that runs in a process of its own. A context manager; ends it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()


def move_away(port: int, seconds: float = 0.0, *, jitter: float = 0.0) -> Traffic:
    """Let each request to the stub at a port take so long from now on; return what there was since the last time."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", f"/-/?seconds={seconds}&jitter={jitter}")
    counts, seen = json.loads(connection.getresponse().read())
    connection.close()
    return Traffic(Counter(counts), [(began, ended) for began, ended in seen])


if __name__ == "__main__":
    asyncio.run(main())
