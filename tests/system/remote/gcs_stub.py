"""As much of Google Cloud Storage as txstore asks for, in memory: `python -m tests.system.remote.gcs_stub PORT BUCKET`.

No emulator on PyPI looks at ifGenerationMatch. This one does: 0 means that there must be no such object. It speaks
JSON, as gcsfs does, and XML, as obstore does.
"""

from __future__ import annotations

import datetime
import email.utils
import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

lock = threading.Lock()
buckets: dict[str, dict[str, tuple[bytes, str, int]]] = {}  # name -> content, time, generation


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else head and body of an answer are 40 ms apart
    wbufsize = 1 << 16

    def log_message(self, *arguments: Any) -> None:
        pass

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def refuse(self, status: int, message: str) -> None:
        self.answer(status, json.dumps({"error": {"code": status, "message": message}}).encode())

    def parsed(self) -> tuple[list[str], dict[str, str]]:
        url = urlsplit(self.path)
        return [unquote(part) for part in url.path.strip("/").split("/")], {
            name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()
        }

    def put(self, objects: dict[str, tuple[bytes, str, int]], name: str, content: bytes, wanted: str | None) -> int:
        """Put an object if its generation is the one wanted; return that of the new one, 0 if it is not."""
        with lock:
            generation = objects[name][2] if name in objects else 0
            if wanted is not None and int(wanted) != generation:
                return 0
            now = datetime.datetime.now(datetime.UTC).isoformat()
            objects[name] = (content, now, generation + 1)
            return generation + 1

    # --- XML

    def refuse_in_xml(self, status: int, code: str) -> None:
        self.answer(status, f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code></Error>".encode())

    def missing_in_xml(self, bucket: str) -> None:
        self.refuse_in_xml(404, "NoSuchKey" if bucket in buckets else "NoSuchBucket")

    def get_in_xml(self, bucket: str, parts: list[str], parameters: dict[str, str]) -> None:
        name = "/".join(parts)
        if bucket in buckets and not parts:
            self.list_in_xml(buckets[bucket], parameters)
        elif (found := buckets.get(bucket, {}).get(name)) is None:
            self.missing_in_xml(bucket)
        else:
            content, updated, generation = found
            time = email.utils.format_datetime(datetime.datetime.fromisoformat(updated), usegmt=True)
            self.content(content, Last_Modified=time, ETag=f'"{generation}"', x_goog_generation=str(generation))

    def list_in_xml(self, objects: dict[str, tuple[bytes, str, int]], parameters: dict[str, str]) -> None:
        start = max(parameters.get("start-after", ""), parameters.get("continuation-token", ""))
        shown, rest = self.listed(
            objects,
            parameters.get("prefix", ""),
            parameters.get("delimiter"),
            lambda name: name > start,
            int(parameters.get("max-keys", 1000)),
        )
        answer = ["<?xml version='1.0' encoding='UTF-8'?><ListBucketResult>"]
        for name, size, updated in shown:
            if updated is None:
                answer.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
            else:
                answer.append(
                    f"<Contents><Key>{escape(name)}</Key><LastModified>{updated}</LastModified>"
                    f"<ETag>&quot;1&quot;</ETag><Size>{size}</Size></Contents>"
                )
        if rest is not None:
            answer.append(f"<NextContinuationToken>{escape(rest)}</NextContinuationToken>")
        self.answer(200, "".join([*answer, "</ListBucketResult>"]).encode())

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        (bucket, *parts), _ = self.parsed()
        if bucket not in buckets:
            self.missing_in_xml(bucket)
        elif made := self.put(
            buckets[bucket], "/".join(parts), content, self.headers.get("x-goog-if-generation-match")
        ):
            self.answer(200, ETag=f'"{made}"', x_goog_generation=str(made))
        else:
            self.refuse_in_xml(412, "PreconditionFailed")

    # --- JSON

    def do_GET(self) -> None:
        match self.parsed():
            case ["storage", "v1", "b", bucket], _ if bucket in buckets:
                self.answer(200, json.dumps({"kind": "storage#bucket"}).encode())
            case ["storage", "v1", "b", bucket, "o"], parameters if bucket in buckets:
                self.list(buckets[bucket], parameters)
            case ["storage", "v1", "b", bucket, "o", name], _ if bucket in buckets:
                if name in buckets[bucket]:
                    self.content(buckets[bucket][name][0])
                else:
                    self.refuse(404, f"No such object: {bucket}/{name}")
            case ["storage", "v1", "b", *_], _:
                self.refuse(404, "The specified bucket does not exist.")
            case [bucket, *parts], parameters:
                self.get_in_xml(bucket, parts, parameters)

    def content(self, content: bytes, **headers: str) -> None:
        wanted = self.headers.get("Range")
        if wanted is None:
            self.answer(200, content, **headers)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, len(content) - int(last))
        stop = min(len(content), int(last) + 1) if first and last else len(content)
        if start >= stop:
            self.answer(416, b"", Content_Range=f"bytes */{len(content)}")
        else:
            place = f"bytes {start}-{stop - 1}/{len(content)}"
            self.answer(206, content[start:stop], Content_Range=place, **headers)

    def list(self, objects: dict[str, tuple[bytes, str, int]], parameters: dict[str, str]) -> None:
        start, after = parameters.get("startOffset", ""), parameters.get("pageToken", "")
        shown, rest = self.listed(
            objects,
            parameters.get("prefix", ""),
            parameters.get("delimiter"),
            lambda name: name >= start and name > after,
            int(parameters.get("maxResults", 1000)),
        )
        answer: dict[str, object] = {
            "items": [
                {"name": name, "size": str(size), "updated": updated}
                for name, size, updated in shown
                if updated is not None
            ],
            "prefixes": [name for name, _, updated in shown if updated is None],
        }
        if rest is not None:
            answer["nextPageToken"] = rest
        self.answer(200, json.dumps(answer).encode())

    @staticmethod
    def listed(
        objects: dict[str, tuple[bytes, str, int]],
        prefix: str,
        delimiter: str | None,
        is_wanted: Callable[[str], bool],
        limit: int,
    ) -> tuple[list[tuple[str, int, str | None]], str | None]:
        """Return names, sizes and times, None of a prefix, and after which of them the next page begins."""
        found: dict[str, tuple[int, str | None]] = {}
        with lock:
            for name, (content, updated, _) in objects.items():
                if name.startswith(prefix):
                    directory, slash, _ = name[len(prefix) :].partition("/")
                    shown = prefix + directory + slash if slash and delimiter else name
                    if is_wanted(shown):
                        found[shown] = (len(content), updated) if shown == name else (0, None)
        page = sorted(found)[:limit]
        return [(name, *found[name]) for name in page], page[-1] if len(found) > len(page) else None

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        match self.parsed():
            case ["upload", "storage", "v1", "b", bucket, "o"], {"name": name, **rest} if bucket in buckets:
                if self.put(buckets[bucket], name, content, rest.get("ifGenerationMatch")):
                    self.answer(200, json.dumps({"name": name}).encode())
                else:
                    self.refuse(412, "At least one of the pre-conditions you specified did not hold.")
            case _:
                self.refuse(404, "The specified bucket does not exist.")

    def do_DELETE(self) -> None:
        match self.parsed():
            case ["storage", "v1", "b", bucket, "o", name], _ if bucket in buckets:
                with lock:
                    there = buckets[bucket].pop(name, None)
                if there is not None:
                    self.answer(204)
                else:
                    self.refuse(404, f"No such object: {bucket}/{name}")
            case ["storage", "v1", "b", *_], _:
                self.refuse(404, "The specified bucket does not exist.")
            case [bucket, *parts], _:
                with lock:
                    there = buckets.get(bucket, {}).pop("/".join(parts), None)
                if there is not None:
                    self.answer(204)
                else:
                    self.missing_in_xml(bucket)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    buckets[sys.argv[2]] = {}
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
