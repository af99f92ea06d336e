from typing import Literal, final

from _typeshed import ReadableBuffer, WriteableBuffer

IMPLEMENTATION: Literal["c", "python"]
READ: int
MISSING: int
PLACED: int
EMPTY: int
IN_BASE: int

def load(zstd: str | None, blosc: str | None, /) -> tuple[str, ...]: ...

@final
class Batch:
    def __init__(
        self,
        rows: list[tuple[object, object, object, object, object]],
        array: ReadableBuffer,
        chunk: tuple[tuple[int, ...], tuple[int, ...]],
        inner: tuple[tuple[int, ...], tuple[int, ...], bool, bool] | None,
        itemsize: int,
        codecs: tuple[tuple[str | int, ...], ...],
        fill: bytes,
        empties: int,
        writable: bool,
        /,
    ) -> None: ...
    @property
    def bound(self) -> int: ...
    def read(self, packs: list[ReadableBuffer], table: ReadableBuffer, threads: int, /) -> bytes: ...
    def encode(
        self,
        keys: tuple[bytes, ...],
        seen: ReadableBuffer,
        arena: WriteableBuffer,
        position: int,
        sequence: int,
        threads: int,
        packs: list[ReadableBuffer] = ...,
        table: ReadableBuffer = ...,
        /,
    ) -> tuple[int, int]: ...
    def placed(self) -> bytes: ...
