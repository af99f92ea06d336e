"""Reads ahead in files that a caller reads one after the other: on a remote storage, each read costs a round trip.

On a local disk read-ahead gains nothing, so each range is read when the caller asks for it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Protocol

from txstore.observing import carried
from txstore.storage.request_threads import executor

#: Files are fetched in pieces of this length.
PIECE = 4 << 20
#: Pieces, and bytes, that are under way or wait to be read. As many bytes of read pieces are kept, for they may be read
#: again: a run lies in the file of a commit.
PIECES, BYTES = 32, 64 << 20

ReadRange = Callable[[str, int, int], bytes]
_Piece = tuple[str, int]  # which file, and the number of the piece in it


class FileReader(Protocol):
    """Reads ranges of files."""

    def expect(self, path: str, size: int, parts: Iterable[tuple[int, int]] | None = None) -> None:
        """Announce a file of `size` bytes, of which all is read next, or parts: (offset, length) each."""

    def keep(self, path: str, content: bytes) -> None:
        """Take all of a file that was read for something else: it need not be read again."""

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return a range of a file, shorter only where that ends. Raises `OSError`."""


class Unfetched:
    """Reads each range when it is asked for."""

    def __init__(self, read_range: ReadRange) -> None:
        self.read_range = read_range

    def expect(self, path: str, size: int, parts: Iterable[tuple[int, int]] | None = None) -> None:
        """Nothing is gained by reading it earlier."""

    def keep(self, path: str, content: bytes) -> None:
        """To read it again costs little."""


class Fetched:
    """Reads ranges of files; announced ranges were fetched in advance. For one thread."""

    def __init__(self, read_range: ReadRange) -> None:
        self._read_range = read_range
        self._sizes: dict[str, int] = {}
        self._expected: deque[_Piece] = deque()
        self._pieces: OrderedDict[_Piece, Future[bytes]] = OrderedDict()  # what was used last comes last
        self._ahead: dict[_Piece, None] = {}  # pieces that were not read yet, in their order
        self._bytes = 0  # of all pieces

    def expect(self, path: str, size: int, parts: Iterable[tuple[int, int]] | None = None) -> None:
        """Announce a file of `size` bytes, of which all is read next, or parts: (offset, length) each."""
        self._sizes[path] = size
        for offset, length in [(0, size)] if parts is None else parts:
            self._expected += [(path, n) for n in range(offset // PIECE, -(-min(offset + length, size) // PIECE))]

    def keep(self, path: str, content: bytes) -> None:
        """Take all of a file that was read for something else, if there is room: it need not be fetched again."""
        piece = (path, 0)
        if self._bytes + len(content) > 2 * BYTES or len(content) > PIECE:
            return
        if piece not in self._pieces:
            self._sizes[path] = len(content)
            there: Future[bytes] = Future()
            there.set_result(content)
            self._pieces[piece] = there
            self._bytes += len(content)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return a range of a file, shorter only where that ends. Raises `OSError`."""
        end = min(offset + length, self._sizes.get(path, 0))
        if offset >= end:  # it was not announced, or somebody looks for more than it should have
            return self._read_range(path, offset, length)
        parts = []
        for n in range(offset // PIECE, -(-end // PIECE)):
            piece = self._piece((path, n))
            parts.append(piece[max(offset - n * PIECE, 0) : end - n * PIECE])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _piece(self, wanted: _Piece) -> bytes:
        if wanted in self._ahead:
            for skipped in list(self._ahead):
                del self._ahead[skipped]
                if skipped == wanted:
                    break
        if wanted not in self._pieces:
            self._submit(wanted)
        self._pieces.move_to_end(wanted)
        self._read_ahead()
        try:
            return self._pieces[wanted].result()
        except BaseException:
            self._drop(wanted)
            raise

    def _read_ahead(self) -> None:
        while self._expected and len(self._ahead) < PIECES and sum(map(self._length, self._ahead)) < BYTES:
            piece = self._expected.popleft()
            if piece not in self._pieces:
                self._ahead[piece] = None
                self._submit(piece)
        for piece in list(self._pieces) if self._bytes > 2 * BYTES else ():
            if self._bytes <= 2 * BYTES:
                break
            if piece not in self._ahead and self._pieces[piece].done():
                self._drop(piece)

    def _submit(self, piece: _Piece) -> None:
        path, n = piece
        length = self._length(piece)
        future = executor("read files", PIECES).submit(carried(self._read_range), path, n * PIECE, length)
        self._pieces[piece] = future
        self._bytes += length

    def _drop(self, piece: _Piece) -> None:
        self._ahead.pop(piece, None)
        if self._pieces.pop(piece, None) is not None:
            self._bytes -= self._length(piece)

    def _length(self, piece: _Piece) -> int:
        return min(PIECE, self._sizes[piece[0]] - piece[1] * PIECE)
