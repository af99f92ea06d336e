from typing import TypeVar

_Pack = TypeVar("_Pack", bound=tuple[bytes, str | None, int])
_Run = TypeVar("_Run", bound=tuple[object, int, int, int, int, int])
_Section = TypeVar("_Section", bound=tuple[int, int, int])

def decode(
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
def encode(
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
