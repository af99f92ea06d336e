"""Answers of web servers, of which no more is kept than was asked for."""

from __future__ import annotations

import re

import aiohttp

#: Of a whole object that is read at once, in bytes: records, names and pages of a listing are far smaller.
_WHOLE = 256 << 20
_PIECE = 64 << 10
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class BoundedAnswer(aiohttp.ClientResponse):
    """An answer that ends where the wanted range ends. A simple web server sends the whole object for a range."""

    async def read(self) -> bytes:
        if self._body is None:
            wanted = _RANGE.fullmatch(self.request_info.headers.get("Range", ""))
            first, last = (int(wanted[1]), int(wanted[2])) if wanted else (0, _WHOLE - 1)
            length, passed, kept = last + 1 - first, first if self.status == 200 else 0, bytearray()
            async for piece in self.content.iter_chunked(_PIECE):
                kept += piece[passed:] if passed else piece
                passed = max(0, passed - len(piece))
                if len(kept) > length or (self.status == 200 and wanted and len(kept) == length):
                    self.close()  # what is left of it is never read
                    break
            if len(kept) > length and self.status < 400 and not (wanted and self.status == 200):
                raise OSError(
                    f"the server sends more than the {length:,} bytes it was asked for: it can't be read from"
                )
            self._body = bytes(kept[:length])
        return self._body
