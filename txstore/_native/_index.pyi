from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, final, overload

from typing_extensions import Buffer

IMPLEMENTATION: str

@final
class Run:
    def __new__(cls, buffer: Buffer, seq: int) -> Run: ...
    @property
    def seq(self) -> int: ...
    @property
    def entries(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def max_seq(self) -> int: ...
    @property
    def prefixes(self) -> list[tuple[bytes, int]]: ...
    @property
    def packs(self) -> list[bytes]: ...
    def scan(
        self, start: bytes, stop: bytes | None, limit: int, since: int = 0
    ) -> list[tuple[bytes, int, int, int, int, int, int]]: ...
    def window(self, start: bytes, at_least: int, since: int = 0) -> tuple[int, int, bytes | None]: ...
    def verify(self) -> None: ...

def lookup(runs: tuple[Run, ...], key: bytes, /) -> tuple[int, int, int, int, int, int, int] | None: ...
def locate(runs: tuple[Run, ...], keys: tuple[bytes, ...], /) -> bytes: ...
def scan(
    runs: tuple[Run, ...], start: bytes, stop: bytes | None, limit: int
) -> list[tuple[bytes, int, int, int, int, int, int, int]]: ...

_Entries = Iterable[
    tuple[bytes, int, int, int, int]
    | tuple[bytes, int, int, int, int, int]
    | tuple[bytes, int, int, int, int, int, int]
]
_Tables = Sequence[Sequence[bytes]]
_Sink = Callable[[bytes], object]
_Moves = tuple[bytes | Buffer, ...]

@overload
def build(entries: _Entries, prefixes: Iterable[bytes], packs: Iterable[bytes] = (), sink: None = None) -> bytes: ...
@overload
def build(entries: _Entries, prefixes: Iterable[bytes], packs: Iterable[bytes], sink: _Sink) -> None: ...
@overload
def merge(
    runs: tuple[Run, ...], tables: _Tables, forgotten: int = 0, own: bool = False, sink: None = None
) -> bytes: ...
@overload
def merge(runs: tuple[Run, ...], tables: _Tables, forgotten: int, own: bool, sink: _Sink) -> None: ...
@overload
def reflink(
    runs: tuple[Run, ...],
    tables: _Tables,
    start: bytes,
    stop: bytes | None,
    to: bytes,
    sink: None = None,
    moves: _Moves | None = None,
) -> bytes: ...
@overload
def reflink(
    runs: tuple[Run, ...],
    tables: _Tables,
    start: bytes,
    stop: bytes | None,
    to: bytes,
    sink: _Sink,
    moves: _Moves | None = None,
) -> None: ...

_Pack = TypeVar("_Pack", bound=tuple[bytes, str | None, int])
_Run = TypeVar("_Run", bound=tuple[object, int, int, int, int, int])
_Section = TypeVar("_Section", bound=tuple[int, int, int])

def decode_header(
    header: bytes, pack_name: type[_Pack], run_name: type[_Run], section: type[_Section], /
) -> (
    tuple[
        bytes,
        bytes,
        bytes,
        bytes,
        int,
        int,
        int,
        str,
        str,
        str,
        bytes | None,
        tuple[int, ...],
        tuple[_Section, ...],
        tuple[_Run, ...],
        int,
        int,
        int,
        int,
        bytes | None,
        bytes | None,
        bytes | None,
        bytes | None,
    ]
    | None
): ...
def encode_header(
    branch: str,
    author: str,
    message: str,
    properties: bytes,
    statistics: tuple[int, ...],
    sections: tuple[tuple[int, int, int], ...],
    runs: tuple[tuple[object, int, int, int, int, int], ...],
    packs: bytes,
    pending: int,
    /,
) -> bytes: ...
