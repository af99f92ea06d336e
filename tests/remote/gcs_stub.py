"""As much of Google Cloud Storage as txstore asks for, kept in memory: `python -m tests.remote.gcs_stub PORT BUCKET`.

No emulator on PyPI looks at ifGenerationMatch. This one does: 0 means that there must be no such object.
"""

from __future__ import annotations

import datetime
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

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
            case _:
                self.refuse(404, "The specified bucket does not exist.")

    def content(self, content: bytes) -> None:
        wanted = self.headers.get("Range")
        if wanted is None:
            self.answer(200, content)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, len(content) - int(last))
        stop = min(len(content), int(last) + 1) if first and last else len(content)
        if start >= stop:
            self.answer(416, b"", Content_Range=f"bytes */{len(content)}")
        else:
            self.answer(206, content[start:stop], Content_Range=f"bytes {start}-{stop - 1}/{len(content)}")

    def list(self, objects: dict[str, tuple[bytes, str, int]], parameters: dict[str, str]) -> None:
        prefix = parameters.get("prefix", "")
        start = parameters.get("startOffset", "")
        after = parameters.get("pageToken", "")
        limit = int(parameters.get("maxResults", 1000))
        found: dict[str, dict[str, object] | None] = {}
        with lock:
            for name, (content, updated, _) in objects.items():
                if name.startswith(prefix):
                    inside = name[len(prefix) :]
                    directory, slash, _ = inside.partition("/")
                    shown = prefix + directory + slash if slash and parameters.get("delimiter") else name
                    is_object = shown == name
                    if shown >= start and shown > after:
                        found[shown] = (
                            {"name": name, "size": str(len(content)), "updated": updated} if is_object else None
                        )
        page = sorted(found)[:limit]
        answer: dict[str, object] = {
            "items": [found[name] for name in page if found[name] is not None],
            "prefixes": [name for name in page if found[name] is None],
        }
        if len(found) > len(page):
            answer["nextPageToken"] = page[-1]
        self.answer(200, json.dumps(answer).encode())

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        match self.parsed():
            case ["upload", "storage", "v1", "b", bucket, "o"], {"name": name, **rest} if bucket in buckets:
                with lock:
                    there = buckets[bucket].get(name)
                    generation = there[2] if there is not None else 0
                    wanted = rest.get("ifGenerationMatch")
                    if wanted is None or int(wanted) == generation:
                        now = datetime.datetime.now(datetime.UTC).isoformat()
                        buckets[bucket][name] = (content, now, generation + 1)
                        done = True
                    else:
                        done = False
                if done:
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
            case _:
                self.refuse(404, "The specified bucket does not exist.")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    buckets[sys.argv[2]] = {}
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
