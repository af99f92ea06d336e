"""A client of few words over real sockets, and a server in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class Connection:
    """One connection that is kept for many requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int, address: str = "127.0.0.1") -> Connection:
        """`address` is the one that the connection comes from."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)))

    async def ask(self, path: str, *headers: str) -> None:
        lines = [f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]
        self.writer.write("\r\n".join(lines).encode("latin-1"))
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), headers

    async def get(self, path: str, *headers: str) -> tuple[int, dict[str, str], bytes]:
        await self.ask(path, *headers)
        status, about = await self.head()
        return status, about, await self.reader.readexactly(int(about.get("content-length", 0)))

    async def event(self) -> str:
        """Return the next event of a stream, which comes in pieces with their lengths."""
        while True:
            size = int((await self.reader.readline()).strip() or b"0", 16)
            if not size:
                raise EOFError("the stream has ended")
            piece = await self.reader.readexactly(size)
            await self.reader.readexactly(2)
            if not piece.startswith(b":"):
                return piece.decode()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


@dataclass
class Running:
    process: subprocess.Popen[str]
    address: str

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0

    def status(self, field: str) -> int:
        """Return a number of /proc/PID/status: RssAnon, in KiB, or Threads."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(f"{field}:")))


@contextlib.contextmanager
def running(url: Any, *options: str) -> Iterator[Running]:
    """Run `txstore serve` until the block ends. Without options it needs no token."""
    options = options or ("--no-token",)
    command = [sys.executable, "-m", "txstore", "serve", str(url), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("http://"), process.communicate(timeout=10)
        yield Running(process, line.split()[0])
    finally:
        process.kill()
        process.communicate()
