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
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

_ROOT = Path(__file__).parents[2]
BUCKET = "peers"


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]  # lower case
    body: bytes


class Answer(NamedTuple):
    status: int
    body: bytes | memoryview = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass
class Stored:
    body: bytes
    etag: str
    modified: float


@dataclass
class Distance:
    """How long a request takes besides what the server needs for it."""

    seconds: float = 0.0
    jitter: float = 0.0  # of each way, as a share of its time: 0.5 is half as much to half as much again

    def way(self) -> float:
        """Return how long one way takes."""
        return self.seconds / 2 * random.uniform(1 - self.jitter, 1 + self.jitter)


class Seen(NamedTuple):
    """When a request was under way, in seconds from any moment on."""

    began: float
    ended: float


class Stub:
    """The objects, and what is answered about them."""

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.names: list[str] = []  # of the objects, ascending
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.distance = Distance()
        self.counts: Counter[str] = Counter()
        self.seen: list[Seen] = []
        self._etags = itertools.count(1)

    def answer(self, request: Request) -> Answer:
        bucket, _, key = request.path.lstrip("/").partition("/")
        if bucket == "-":
            return self._control(key, request)
        self.counts[_kind(key, request)] += 1
        self.counts["received"] += len(request.body)
        answer = self._answer(key, request)
        self.counts["sent"] += len(answer.body)
        return answer

    def _answer(self, key: str, request: Request) -> Answer:
        if not key:
            return self._bucket(request)
        handlers = {"GET": self._get, "HEAD": self._get, "PUT": self._put, "DELETE": self._delete, "POST": self._upload}
        return handlers[request.method](key, request)

    def _control(self, what: str, request: Request) -> Answer:
        if what == "distance":
            self.distance = Distance(**{name: float(value) for name, value in request.query.items()})
        if what == "seen":
            seen, self.seen = self.seen, []
            return Answer(200, json.dumps(seen).encode())
        counts, self.counts = self.counts, Counter()
        return Answer(200, json.dumps(counts).encode())

    def _bucket(self, request: Request) -> Answer:
        if request.method == "POST" and "delete" in request.query:
            keys = [unescape(part.partition("</Key>")[0]) for part in request.body.decode().split("<Key>")[1:]]
            for key in keys:
                self._remove(key)
            deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            return _xml(f"<DeleteResult>{deleted}</DeleteResult>")
        if request.method != "GET" or "list-type" not in request.query:
            return Answer(200 if request.method in ("HEAD", "PUT") else 404)
        return self._list(request.query)

    def _list(self, query: dict[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = max(query.get("start-after", ""), query.get("continuation-token", ""))
        most = int(query.get("max-keys", "1000"))
        entries: dict[str, str] = {}
        at = max(bisect_left(self.names, prefix), bisect_right(self.names, after))
        while len(entries) <= most and at < len(self.names) and (key := self.names[at]).startswith(prefix):
            folder, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if found:
                name = escape(prefix + folder + delimiter)
                entries[name] = f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"
                at = bisect_left(self.names, f"{prefix}{folder}{delimiter}\U0010ffff", at)
                continue
            stored = self.objects[key]
            modified = _iso(stored.modified)
            entries[key] = (
                f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified>"
                f"<ETag>{escape(stored.etag)}</ETag><Size>{len(stored.body)}</Size>"
                "<StorageClass>STANDARD</StorageClass></Contents>"
            )
            at += 1
        names = list(entries)[:most]
        more = len(entries) > most
        token = f"{names[-1]}\U0010fffd" if more and names[-1] not in self.objects else names[-1] if more else ""
        next_one = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if more else ""
        return _xml(
            f"<ListBucketResult><Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(names)}</KeyCount>"
            f"<MaxKeys>{most}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>{next_one}"
            f"{''.join(entries[name] for name in names)}</ListBucketResult>"
        )

    def _get(self, key: str, request: Request) -> Answer:
        stored = self.objects.get(key)
        if stored is None:
            return _error(404, "NoSuchKey")
        headers = (
            ("ETag", stored.etag),
            ("Last-Modified", formatdate(stored.modified, usegmt=True)),
            ("Accept-Ranges", "bytes"),
        )
        wanted = request.headers.get("range", "")
        if not wanted.startswith("bytes="):
            return Answer(200, stored.body, headers)
        size = len(stored.body)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(size - int(last), 0)
        end = min(int(last), size - 1) if first and last else size - 1
        if start >= size:
            return _error(416, "InvalidRange")
        return Answer(
            206, memoryview(stored.body)[start : end + 1], (*headers, ("Content-Range", f"bytes {start}-{end}/{size}"))
        )

    def _put(self, key: str, request: Request) -> Answer:
        body = _unchunked(request)
        if "uploadId" in request.query:
            self.uploads[request.query["uploadId"]][int(request.query["partNumber"])] = body
            return Answer(200, b"", (("ETag", self._etag()),))
        there = self.objects.get(key)
        if_match = request.headers.get("if-match")
        if ("if-none-match" in request.headers and there is not None) or (
            if_match is not None and (there is None or there.etag.strip('"') != if_match.strip('"'))
        ):
            return _error(412, "PreconditionFailed")
        etag = self._store(key, body)
        return Answer(200, b"", (("ETag", etag),))

    def _store(self, key: str, body: bytes) -> str:
        etag = self._etag()
        if key not in self.objects:
            insort(self.names, key)
            self.counts["objects"] += 1
        self.objects[key] = Stored(body, etag, time.time())
        return etag

    def _etag(self) -> str:
        return f'"{next(self._etags):032x}"'

    def _remove(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            del self.names[bisect_left(self.names, key)]

    def _delete(self, key: str, request: Request) -> Answer:
        self._remove(key)
        return Answer(204)

    def _upload(self, key: str, request: Request) -> Answer:
        if "uploads" in request.query:
            number = uuid.uuid4().hex
            self.uploads[number] = {}
            return _xml(f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>")
        if "if-none-match" in request.headers and key in self.objects:
            return _error(412, "PreconditionFailed")
        parts = self.uploads.pop(request.query["uploadId"])
        etag = self._store(key, b"".join(parts[number] for number in sorted(parts)))
        found = f"<Key>{escape(key)}</Key><ETag>{escape(etag)}</ETag>"
        return _xml(f"<CompleteMultipartUploadResult>{found}</CompleteMultipartUploadResult>")


def _kind(key: str, request: Request) -> str:
    if not key:
        return "list" if request.method == "GET" else "delete" if request.method == "POST" else "bucket"
    if request.method == "PUT" and "if-none-match" in request.headers:
        return "create"
    return {"POST": "upload"}.get(request.method, request.method.lower())


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _xml(body: str) -> Answer:
    return Answer(
        200, f'<?xml version="1.0" encoding="UTF-8"?>\n{body}'.encode(), (("Content-Type", "application/xml"),)
    )


def _error(status: int, code: str) -> Answer:
    return _xml(f"<Error><Code>{code}</Code><Message>{code}</Message></Error>")._replace(status=status)


def _unchunked(request: Request) -> bytes:
    """Return the body without the sizes and signatures that Amazon's clients put between its pieces."""
    if "x-amz-decoded-content-length" not in request.headers:
        return request.body
    found, rest = [], request.body
    while size := int((line := rest.partition(b"\r\n"))[0].partition(b";")[0], 16):
        found.append(line[2][:size])
        rest = line[2][size + 2 :]
    return b"".join(found)


# --- HTTP


async def _serve(stub: Stub, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while (read := await _read(reader, writer)) is not None:
            request, began = read
            is_far = not request.path.startswith("/-/")
            if is_far:
                await asyncio.sleep(stub.distance.way())
            answer = stub.answer(request)
            if is_far:
                await asyncio.sleep(stub.distance.way())
            headers = {"Content-Length": len(answer.body), "x-amz-request-id": 0, "Date": formatdate(usegmt=True)}
            headers |= dict(answer.headers)
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            writer.write(f"HTTP/1.1 {answer.status} OK\r\n{head}\r\n".encode())
            if request.method != "HEAD":
                writer.write(answer.body)
            await writer.drain()
            if is_far and stub.distance.seconds:
                stub.seen.append(Seen(began, time.monotonic()))
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # a client that has gone away
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Request, float] | None:
    """Return a request, and when its first line was there; None if the client has gone."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    began = time.monotonic()
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = b""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readline()).partition(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    elif length := int(headers.get("content-length", "0")):
        body = await reader.readexactly(length)
    url = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
    return Request(method, unquote(url.path), query, headers, body), began


async def main() -> None:
    stub = Stub()
    server = await asyncio.start_server(
        lambda reader, writer: _serve(stub, reader, writer), "127.0.0.1", 0, limit=16 << 20, backlog=1024
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until whoever started it has gone
    server.close()


# --- in a process of its own


class S3Stub:
    """A stub that runs. A context manager; ends it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        if self._process.stdout is None:
            raise AssertionError("it was started with a pipe")
        self.port = int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()


def move_away(port: int, seconds: float, *, jitter: float = 0.0) -> None:
    """Let each request to the stub at a port take so long from now on, as `Distance` has it, and count anew."""
    _post(port, f"/-/distance?seconds={seconds}&jitter={jitter}")


def take_counts(port: int) -> Counter[str]:
    """Return how many requests of each kind there were since the last time, and how many bytes and new objects."""
    return Counter(_post(port, "/-/count"))


def take_seen(port: int) -> list[Seen]:
    """Return the requests that were far away, since the last time, in the order of their ends."""
    return [Seen(*each) for each in _post(port, "/-/seen")]


def under_way(seen: Iterable[Seen], samples: int) -> list[float]:
    """Return how many requests were under way, on average in each of so many parts of the time from first to last."""
    seen = list(seen)
    if not seen:
        return [0.0] * samples
    began, ended = min(each.began for each in seen), max(each.ended for each in seen)
    step = (ended - began) / samples
    found = [0.0] * samples
    for each in seen:
        first, last = (each.began - began) / step, (each.ended - began) / step
        for sample in range(int(first), min(int(last) + 1, samples)):
            found[sample] += min(last, sample + 1) - max(first, sample)
    return found


def requests_in(counts: Counter[str]) -> int:
    return counts.total() - counts["received"] - counts["sent"] - counts["objects"]


def _post(port: int, path: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path)
    found = json.loads(connection.getresponse().read())
    connection.close()
    return found


if __name__ == "__main__":
    asyncio.run(main())
