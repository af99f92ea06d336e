"""The C of headers: it answers what Python would have, and leaves to Python whatever it does not answer."""

import gc
import struct
import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.format.test_layout import branches, headers, headers_with, ids, json_values, numbers, run_lists, text
from txstore._native import index as native
from txstore._native import index_fallback
from txstore.format import commitfile
from txstore.format.commitfile import CommitName, Header, RunName, Section
from txstore.format.encoding import MalformedError
from txstore.format.packfile import PackName

pytestmark = pytest.mark.skipif(native.IMPLEMENTATION != "c", reason="the extension was not built")


def plain(branch: str) -> st.SearchStrategy[Header]:
    """Headers as commits have them: without data packs, and not those that begin a branch, or merge another."""
    packs = st.none() | ids.map(PackName) | st.builds(PackName, ids, st.just(branch) | branches, numbers)
    return headers_with(
        branch=st.just(branch), properties=st.dictionaries(text, json_values, max_size=3), runs=run_lists(packs)
    )


plain_headers = branches.flatmap(plain)


def in_python(call: Any, *args: Any) -> Any:
    """Return what a call gives without the extension: a value, or an exception's type and words."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commitfile, "native", index_fallback)
        return outcome(call, *args)


def outcome(call: Any, *args: Any) -> Any:
    try:
        return call(*args)
    except MalformedError as error:
        return type(error), str(error)


@pytest.mark.long
@given(plain_headers)
def test_plain_headers_are_decoded_as_python_does(header: Header) -> None:
    encoded = header.encode()
    assert native.decode_header(encoded, PackName, RunName, Section) is not None
    found = Header.decode(encoded)
    assert found == header == in_python(Header.decode, encoded)
    assert [type(run) for run in found.runs] == [RunName] * len(header.runs)
    assert [type(run.pack) for run in found.runs] == [type(run.pack) for run in header.runs]
    assert [type(section) for section in found.sections] == [Section] * len(header.sections)
    assert [hash(run) for run in found.runs] == [hash(run) for run in header.runs]


@pytest.mark.long
@given(headers | plain_headers)
def test_headers_are_encoded_as_python_does(header: Header) -> None:
    assert header.encode() == in_python(header.encode)


def fields(*typed: tuple[int, bytes]) -> bytes:
    return b"".join(struct.pack("<HI", tag, len(content)) + content for tag, content in typed)


FIXED = Header(*[bytes(16)] * 4, 0, 1, 0, "").encode()[: commitfile.HEADER.size]
ENTRY = b"\x01" + bytes(16) + b"\x05"


@pytest.mark.parametrize(
    "typed",
    [
        fields((1, b"main"), (7, b"\x16" + ENTRY + b"side" + bytes(5))),
        fields((1, b"main"), (7, b"\x16" + ENTRY + b"mai/" + bytes(5))),
        fields((1, b"../x"), (7, b"\x16" + ENTRY + b"../x" + bytes(5))),
        fields((1, b"-x"), (7, b"\x14" + ENTRY + b"-x" + bytes(5))),
        fields((1, b"a" * 101), (7, b"\x77" + ENTRY + b"a" * 101 + bytes(5))),
        fields((7, b"\x12" + ENTRY + bytes(5))),
        fields((7, b"\x11\x02" + bytes(16) + bytes(5))),
        fields((7, b"\x12\x02" + bytes(17) + bytes(5))),
        fields((7, b"\x11\x03" + bytes(16) + bytes(5))),
        fields((7, b"\x00" + bytes(4))),
        fields((7, b"\x00" + b"\xff" * 9 + b"\x01" + bytes(4))),
        fields((7, b"\x00" + b"\xff" * 9 + b"\x02" + bytes(4))),
        fields((7, b"\x00" + b"\x80\x00" + bytes(4))),
        fields((5, bytes(9))),
        fields((5, b"\x80")),
        fields((6, bytes(4))),
        fields((2, b"\xff")),
        fields((4, b"")),
        fields((4, b"[]")),
        fields((7, (b"\x11\x02" + bytes(16) + bytes(5)) * 2)),
        fields((7, bytes(6) + bytes([0, 0, 1, 0, 0, 0]) + bytes(6))),
        fields((7, b"".join(bytes([0, 0, 129 + i // 128, i // 128, 0, 0, 0]) for i in range(1025)))),
        fields((6, bytes(3 * 1025))),
        fields((9, b"\x01")),
        fields((8, b"\x11\x02" + bytes(16) + b"\x07")),
        fields((9, b"")),
        fields((9, b"\x01\x02")),
        fields((10, b"later"), (65535, b"too")),
        fields((14, b"")),
        fields((14, b"\x00")),
        fields((14, b"\x01\x01")),
        fields((14, b"\x00\x81\x01")),
        fields((14, b"\x00\x02"), (14, b"\x01\x02more")),
        fields((2, b"a"), (2, b"b")),
        fields((3, b"a"), (2, b"b")),
        fields((0, b"")),
        fields((2, b"a"))[:-2],
        b"\x01\x00\xff\xff\xff\xff",
        b"\x01\x00",
    ],
)
def test_what_is_odd_is_taken_as_python_does(typed: bytes) -> None:
    assert outcome(Header.decode, FIXED + typed) == in_python(Header.decode, FIXED + typed)


@pytest.mark.long
@given(plain_headers, branches, ids)
def test_what_begins_a_branch_or_merges_another_is_left_to_python(header: Header, branch: str, some: bytes) -> None:
    for changes in ({"fork": branch}, {"merged": CommitName(branch, header.version, some, some)}):
        changed = replace(header, **changes)
        encoded = changed.encode()
        assert native.decode_header(encoded, PackName, RunName, Section) is None
        assert Header.decode(encoded) == changed
        assert in_python(Header.encode, changed) == encoded


@pytest.mark.parametrize("at", [0, 4, 6, 8, 16])
def test_other_kinds_are_taken_as_python_does(at: int) -> None:
    header = FIXED[:at] + b"\x07" + FIXED[at + 1 :]
    assert outcome(Header.decode, header) == in_python(Header.decode, header)


@pytest.mark.parametrize("types", [(tuple, tuple), (1, 2, 3), (list, tuple, tuple), (tuple, tuple, str)])
def test_other_types_are_refused(types: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        native.decode_header(FIXED, *types)


@pytest.mark.parametrize(
    "changes",
    [
        {0: b"main"}, {1: "\ud800"}, {3: ""}, {4: (-1,)}, {4: (1 << 64,)}, {4: [1]}, {5: (1,)}, {5: ((1, 2),)},
        {6: ((None, 1, 2, 3, 4),)}, {6: (((b"short", None, 0), 1, 2, 3, 4, 5),)}, {6: ((("x",), 1, 2, 3, 4, 5),)},
        {6: (((bytes(16), 1, 0), 1, 2, 3, 4, 5),)}, {6: (((bytes(16), "b", -1), 1, 2, 3, 4, 5),)},
        {6: (((bytes(16), "b", None), 1, 2, 3, 4, 5),)}, {7: None}, {8: -1}, {8: None},
    ],
)  # fmt: skip
def test_what_can_not_be_encoded_is_refused(changes: dict[int, Any]) -> None:
    args = ["main", "", "", b"", (), (), (), b"", 0]
    native.encode_header(*args)
    for at, value in changes.items():
        args[at] = value
    with pytest.raises((TypeError, OverflowError, UnicodeEncodeError)):
        native.encode_header(*args)


def test_nothing_is_kept() -> None:
    runs = (RunName(None, 1, 2, 3, 4, 5), RunName(PackName(bytes(16)), 1, 2, 3, 4, 5))
    runs += (RunName(PackName(bytes(16), "main", 1 << 40), *[1 << 50] * 5),) * 3
    sections = (Section(1, 1 << 40, 3),) * 2
    header = Header(*[bytes(16)] * 4, 0, 1, 0, "main", "ana", "x", {"a": 1}, sections=sections, runs=runs, pending=3)
    encoded = header.encode()

    def use_everything() -> int:
        for at in range(len(encoded) + 1):
            native.decode_header(encoded[:at], PackName, RunName, Section)
            native.decode_header(encoded[:at] + b"\xff" + encoded[at + 1 :], PackName, RunName, Section)
        header.encode()
        with pytest.raises(TypeError):
            native.encode_header("main", "", "", b"", (), (), (*runs, (None,)), b"", 0)
        gc.collect()
        return sys.getallocatedblocks()

    use_everything()
    counts = [use_everything() for _ in range(4)]
    # A leak is there each time; other threads may allocate something once.
    assert min(after - before for before, after in pairwise(counts)) < 20
