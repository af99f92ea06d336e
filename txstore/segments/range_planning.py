"""Plans which byte ranges of a pack to request: near ones together, and ahead of a reader that reads in order.

A request costs as much time as some hundred KiB, so small gaps are fetched along. Reading ahead begins with the third
read in a row: of two, chance makes too many where values are read at random. Several streams may be interleaved.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

#: Gaps up to this length are fetched along, in bytes.
GAP = 64 << 10
#: No request is for more, and neighbours are fetched together up to this length.
RANGE = 8 << 20
WINDOW_SMALLEST, WINDOW_LARGEST = 128 << 10, 4 << 20
#: From a window of this length on, the next one is fetched in the background. Shorter streams may end at any time.
IN_BACKGROUND = 2 << 20
#: What may lie between two values that were written one after the other: the header of a frame, and its key.
_NEAR = 4 << 10
_IN_A_ROW = 3
_STREAMS_MOST = 16

Range = tuple[int, int]  # begin and end


@dataclass(slots=True)
class _Stream:
    """Reads that follow one another. `end` is where what was fetched for them ends."""

    end: int
    reads: int = 1
    window: int = WINDOW_SMALLEST // 2

    @property
    def is_read_ahead(self) -> bool:
        return self.reads >= _IN_A_ROW

    def is_followed_by(self, begin: int) -> bool:
        # Threads take neighbours in any order: behind a stream that is under way more is likely to be wanted.
        return self.end <= begin <= self.end + (GAP if self.is_read_ahead else _NEAR)


class ReadAhead:
    """The streams of one pack. Not safe in threads, but for `is_due`."""

    def __init__(self) -> None:
        self._streams: list[_Stream] = []  # the one that was read last comes last
        # The last window that was read ahead of the stream that has one of `IN_BACKGROUND` or more.
        self._due: Range = (0, 0)

    def plan(self, wanted: Iterable[Range], size: int | None, alone: Container[Range] = ()) -> list[Range]:
        """Return what to fetch for ranges that are not at hand: ascending, without overlaps.

        `size` is the length of the pack, if it is known: nothing is read ahead of its end, nor of ranges in `alone`.
        """
        planned: list[Range] = []
        for begin, end in sorted(wanted):
            done = planned[-1][1] if planned else 0
            if end > done:
                is_alone = (begin, end) in alone
                start, stop = (max(begin, done), end) if is_alone else self._extended(max(begin, done), end, size)
                planned.append((max(start, done), stop))
        return list(_joined(planned))

    def is_due(self, position: int) -> bool:
        """Tell whether somebody has come so far that what follows should be fetched while the window is read."""
        begin, end = self._due
        return begin <= position < end

    def go_on(self, position: int, size: int | None) -> list[Range]:
        """Return the window that follows the one which a position lies in, if it was not asked for before."""
        begin, end = self._due
        stream = next((stream for stream in self._streams if stream.end == end), None)
        if not begin <= position < end or stream is None:
            return []
        stop = end + stream.window if size is None else min(end + stream.window, size)
        stream.end, self._due = stop, (end, stop)
        return [(end, stop)]

    def _extended(self, begin: int, end: int, size: int | None) -> Range:
        stream = next((stream for stream in reversed(self._streams) if stream.is_followed_by(begin)), None)
        if stream is None:
            self._streams = [*self._streams[1 - _STREAMS_MOST :], _Stream(end)]
            return begin, end
        self._streams.remove(stream)
        self._streams.append(stream)
        if stream.is_read_ahead:
            begin = stream.end
        stream.reads += 1
        if stream.is_read_ahead:
            stream.window = min(2 * stream.window, WINDOW_LARGEST)
            ahead = begin + stream.window
            end = max(end, ahead if size is None else min(ahead, size))
            if stream.window >= IN_BACKGROUND:
                self._due = begin, end
        stream.end = end
        return begin, end


def _joined(ranges: Iterable[Range]) -> Iterable[Range]:
    begin = end = -1
    for next_begin, next_end in ranges:
        if begin >= 0 and next_begin - end <= GAP and next_end - begin <= RANGE:
            end = max(end, next_end)
        else:
            if begin >= 0:
                yield begin, end
            begin, end = next_begin, next_end
    if begin >= 0:
        yield begin, end


def cut(begin: int, end: int) -> Iterable[Range]:
    """Yield the requests that a range is fetched by, all at once."""
    for start in range(begin, end, RANGE):
        yield start, min(start + RANGE, end)
