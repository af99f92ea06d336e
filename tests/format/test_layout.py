"""Bytes <-> dataclasses: what is encoded is decoded, hostile bytes raise `MalformedError` and nothing else, and the
worked example of docs/understand/format.md is what the code writes."""

import contextlib
import re
import struct
import time
import types
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import txstore
from txstore._native import index
from txstore.commit import Stored
from txstore.errors import KeyFormatError
from txstore.format import commitfile, encoding, names, packfile, records
from txstore.format.commitfile import CommitName, Declarations, Footer, Header, RunName, Section, Statistics
from txstore.format.encoding import MalformedError, NewerFormatError
from txstore.format.packfile import PackName
from txstore.format.records import Branch, HeadCache, RepositoryFormat, Tag
from txstore.format.regions import Region
from txstore.history import identity
from txstore.history import new_commit as versions

u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
ids = st.binary(min_size=16, max_size=16)
text = st.text(max_size=40)
numbers = st.one_of(u64, st.integers(0, 300))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)

branches = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", fullmatch=True)
pack_names = st.builds(PackName, ids, branches, numbers)


def is_branch_name(name):
    try:
        return names.check_branch_name(name) == name
    except KeyFormatError:
        return False


def run_lists(packs):
    """Runs as headers list them: no two at one place."""
    runs = st.builds(RunName, packs, *[numbers] * 5)
    return st.lists(runs, max_size=4, unique_by=lambda run: (run.pack, run.offset)).map(tuple)


def headers_with(**fields):
    """Headers whose numbers are within their bounds."""

    def placed(seq, version, oldest_kept, pending, time, **rest):
        seq = 1 + seq % encoding.MAX_COUNT
        version %= seq
        return Header(
            **rest, seq=seq, version=version, oldest_kept=oldest_kept % (version + 1), pending=pending % (version + 1),
            time=time % (encoding.MAX_TIME + 1),
        )  # fmt: skip

    return st.builds(
        placed, repository_id=ids, id=ids, parent_id=ids, parent_hash=ids, version=numbers, seq=numbers, time=numbers,
        oldest_kept=numbers, author=text, message=text, statistics=st.builds(Statistics, *[numbers] * 5),
        sections=st.lists(st.builds(Section, *[numbers] * 3), max_size=3).map(tuple), optional=u64, pending=numbers,
        group_commit=st.none() | group_commits, **fields,
    )  # fmt: skip


group_commits = st.integers(1, commitfile.MAX_GROUP_COMMIT).flatmap(
    lambda length: st.integers(0, length - 1).map(lambda place: commitfile.GroupCommit(place, length))
)
counted = st.integers(0, encoding.MAX_COUNT)
commit_names = st.builds(CommitName, branches, counted, ids, ids)
headers = st.builds(
    lambda header, declared, fork, merged, reach: replace(
        header,
        declared=declared,
        required=sum(bit for bit, each in zip(commitfile.DECLARED_FEATURES, declared, strict=True) if each),
        fork=fork,
        merged=merged,
        reach=reach,
    ),
    headers_with(
        branch=text, properties=st.dictionaries(text, json_values, max_size=4), runs=run_lists(st.none() | pack_names)
    ),
    st.builds(Declarations, *[st.dictionaries(branches, json_values, max_size=2)] * 3),
    st.none() | branches,
    st.none() | commit_names,
    st.dictionaries(branches, counted, max_size=3),
)
footers = st.builds(
    lambda length, offset, pack, checksum: Footer(length, offset, offset + length + 64, pack, checksum),
    st.integers(0, commitfile.MAX_HEADER), st.integers(0, 2**63), ids, u32,
)  # fmt: skip
head_caches = st.builds(HeadCache, u64, ids, u64, u64, u32, st.booleans(), u32)
tags = st.builds(Tag, branches, u64, ids)
branch_ids = st.just("main") | ids.map(bytes.hex)
branch_records = st.builds(
    lambda name, branch, commit, header, lineage: Branch(
        name,
        branch.hex(),
        commit,
        header,
        tuple((each, version) for version, each in sorted(lineage.items(), reverse=True)),
    ),
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,30}", fullmatch=True).filter(is_branch_name),
    ids, ids, ids, st.dictionaries(counted, branch_ids, min_size=1, max_size=4),
)  # fmt: skip
formats = st.builds(RepositoryFormat, ids, optional=u64)

RECORDS = {
    "header": (headers, Header.encode, Header.decode),
    "footer": (footers, Footer.encode, Footer.decode),
    "head_cache": (head_caches, HeadCache.encode, HeadCache.decode),
    "tag": (tags, Tag.encode, Tag.decode),
    "branch": (branch_records, Branch.encode, Branch.decode),
    "commit name": (commit_names, CommitName.encode, CommitName.decode),
    "format.json": (formats, RepositoryFormat.encode, RepositoryFormat.decode),
    "pack name": (pack_names, PackName.encode, PackName.decode),
    "head": (st.tuples(ids, ids, u32), lambda head: packfile.encode_head(*head), packfile.decode_head),
}
each_record = pytest.mark.parametrize("record", RECORDS)


# --- what is encoded is decoded
@pytest.mark.long
@each_record
@given(data=st.data())
def test_round_trip(record, data):
    values, encode, decode = RECORDS[record]
    value = data.draw(values)
    assert decode(encode(value)) == value


@given(st.integers(0, 2**64 - 1))
def test_a_varint_is_leb128_of_the_shortest_form(value):
    encoded = encoding.encode_varint(value)
    assert len(encoded) == max(1, -(-value.bit_length() // 7)) <= 10
    assert sum((byte & 0x7F) << 7 * i for i, byte in enumerate(encoded)) == value
    assert [byte >= 0x80 for byte in encoded] == [True] * (len(encoded) - 1) + [False]
    assert list(encoding.decode_varints(encoded)) == [value]


@pytest.mark.parametrize(
    "encoded", [b"\x80\x00", b"\x80" * 10 + b"\x01", b"\xff" * 9 + b"\x02", b"\x80", b"\xff" * 100]
)
def test_varints_of_another_form_are_refused(encoded):
    with pytest.raises(MalformedError):
        list(encoding.decode_varints(encoded))


@given(st.integers(0, 2**20).map(lambda n: n * 8), st.integers(1, 4097), st.integers(0, 5000))
def test_where_a_frame_puts_its_value(start, key_length, length):
    value, end = packfile.frame_layout(start, key_length, length)
    after_key = start + packfile.FRAME_SIZE + key_length
    assert after_key <= value < after_key + (packfile.ALIGNMENT if length >= packfile.ALIGNED_FROM else 1)
    assert length < packfile.ALIGNED_FROM or value % packfile.ALIGNMENT == 0
    assert value + length <= end < value + length + 8
    assert end % 8 == 0


seen_of_a_key = st.one_of(st.sampled_from([0, 1]), st.builds(packfile.Predecessor, st.integers(0, 2**32 - 1), u64))


@given(
    st.sampled_from([1, 2, 3, 4, 5, 11, 12]), seen_of_a_key, st.integers(0, encoding.MAX_COUNT),
    st.binary(max_size=60), st.binary(max_size=3000), u16,
    st.lists(st.tuples(u32, st.integers(1, 2**31)), min_size=1, max_size=9),
)  # fmt: skip
def test_frames(kind, seen, sequence, key, value, gap, axes):
    start = gap * 8
    has_predecessor = isinstance(seen, packfile.Predecessor)
    box = tuple((start, start + length) for start, length in axes)
    region = Region.of_box(box) if kind == packfile.FRAME_PARTIAL else Region.whole()
    written = region.encode()
    offset, end = packfile.frame_layout(start, len(key), len(value), has_predecessor=has_predecessor, region=written)
    encoded = packfile.encode_frame(kind, seen, sequence, key, len(value), encoding.crc32c(value), written)
    pack = bytearray(end)
    pack[start : start + len(encoded)] = encoded
    pack[offset : offset + len(value)] = value
    found = packfile.decode_frame(memoryview(pack), start)
    checksum, head_end = encoding.crc32c(value), start + len(encoded)
    assert found == packfile.Frame(kind, seen, sequence, key, head_end, offset, len(value), checksum, end, region)
    part = memoryview(pack)[start:head_end]
    assert packfile.decode_frame(part, start, begin=start, size=end) == found


@given(bit=st.integers(0, 8 * packfile.HEAD_SIZE - 1))
def test_the_head_of_a_pack_is_known_without_being_decoded(bit):
    mine, other = b"m" * 16, b"o" * 16
    head = packfile.encode_head(mine, other, 3, 7)
    assert packfile.is_head_of(head, mine)
    assert not packfile.is_head_of(head, other)
    assert not packfile.is_head_of(head[:-1], mine)
    turned = (int.from_bytes(head, "big") ^ 1 << bit).to_bytes(len(head), "big")
    assert not packfile.is_head_of(turned, mine)
    with pytest.raises(MalformedError):
        packfile.decode_head(turned)


@given(st.binary(min_size=16, max_size=16), u32)
def test_packs_of_a_transaction(transaction, number):
    pack = packfile.participants_pack(transaction, number)
    assert packfile.number_of(transaction, pack) == number
    assert packfile.pack_number(packfile.participant_of(number), packfile.nth_of(number)) == number
    assert (pack == transaction) == (number == 0)
    assert pack[0] == transaction[0], "all packs of a transaction go into one directory"
    name = PackName(pack)
    assert PackName.decode(name.encode()) == name
    assert name.path == f"packs/{pack.hex()[:2]}/{pack.hex()}"


@given(st.integers(0, 10**19 - 1))
def test_names_of_versions(version):
    name = names.commit_path("main", version).rpartition("/")[2]
    assert len(name) >= 10
    assert names.parse_version(name) == version


@pytest.mark.parametrize(
    "name",
    ["", "0", "000000001", "00000000012", "000000001x", "0000000001.orphan-ab", "٠" * 10, "-000000001", "1" * 255],
)
def test_other_names_are_no_versions(name):
    assert names.parse_version(name) is None


@pytest.mark.parametrize("number", [0, 7, 2**32 - 1])
def test_names_of_staged_packs(number):
    assert names.parse_staging(names.staging_path(bytes(16), number).partition("/")[2]) == (bytes(16), number)


@pytest.mark.parametrize("number", ["", "-1", "01", str(2**32), "9" * 200, "0x1", "1.new"])
def test_other_names_are_no_staged_packs(number):
    """The id of a pack has no room for such a number: it was an OverflowError wherever staging was listed."""
    assert names.parse_staging(f"{'0' * 32}.{number}") is None


def test_sizes():
    assert packfile.HEAD.size + 4 == commitfile.FOOTER.size + 4 == records.HEAD_CACHE.size + 4 == 64
    assert packfile.FRAME.size + 4 == packfile.FRAME_SIZE == 32
    assert commitfile.HEADER.size == 120
    assert records.TAG.size == 32
    for record in (
        packfile.HEAD,
        packfile.FRAME,
        commitfile.HEADER,
        commitfile.FOOTER,
        records.HEAD_CACHE,
        records.TAG,
        commitfile.FIELD,
    ):
        assert record.format.startswith("<")  # little-endian, and nothing is aligned


def test_each_statistic_has_a_place_in_the_format():
    assert [field.name for field in fields(Statistics)] == [
        "keys_set", "keys_deleted", "prefixes_deleted", "bytes_set", "arrays",
    ]  # fmt: skip


def test_the_guard_says_how_to_open_it():
    assert b"txstore.TxStore(path)" in records.encode_guard()
    assert b'"must_understand": true' in records.encode_guard()


# --- hostile bytes: tests/fuzz has more of them, with the right checksums
def attempt(decode, data: bytes) -> None:
    with contextlib.suppress(MalformedError):
        decode(data)


@pytest.mark.long
@each_record
@given(data=st.data())
def test_mutated_bytes(record, data):
    values, encode, decode = RECORDS[record]
    encoded = bytearray(encode(data.draw(values)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(encoded)))
        encoded[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    attempt(decode, bytes(encoded))


@pytest.mark.parametrize("depth", [1000, 100_000])
def test_json_that_is_nested_too_deep(depth):
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        nested = opening * depth + b"1" + closing * depth
        attempt(RepositoryFormat.decode, nested)
        attempt(RepositoryFormat.decode, b'{"checksum": "0", "a": ' + nested + b"}")
        field = b'{"a": ' + nested + b"}"
        header = Header(*[bytes(16)] * 4, 0, 1, 0, "main").encode()
        attempt(Header.decode, header + struct.pack("<HI", 4, len(field)) + field)


FIRST = Header(*[bytes(16)] * 4, 0, 1, 0, "main")
RUN = RunName(None, 1, 64, 64, 1, 1)


@pytest.mark.parametrize(
    ("beyond", "reason"),
    [
        (replace(FIRST, version=400_000_000), "version is 400000000, and at most 0"),
        (replace(FIRST, seq=0), "version is 0, and at most -1"),
        (replace(FIRST, version=3, seq=1 << 62), "seq is 4611686018427387904, and at most 4611686018427387903"),
        (replace(FIRST, oldest_kept=1), "oldest kept version is 1, and at most 0"),
        (replace(FIRST, pending=1), "pending is 1, and at most 0"),
        (replace(FIRST, time=encoding.MAX_TIME + 1), "time is 253402300800000000"),
        (replace(FIRST, runs=(RUN, RUN)), "a run twice"),
        (replace(FIRST, runs=tuple(RUN._replace(offset=i) for i in range(1025))), "more than 1024 runs"),
        (replace(FIRST, runs=(RUN,) * 300_000), "a run twice"),
        (replace(FIRST, sections=(Section(1, 64, 64),) * 1025), "more than 1024 sections"),
        (replace(FIRST, properties={"a": "x" * (2 << 20)}), "at most 2097152 are possible"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_header_beyond_its_bounds(beyond, reason):
    """The greatest version of a directory was counted down from, and each of 300,000 equal runs was opened."""
    with pytest.raises(MalformedError, match=reason):
        Header.decode(beyond.encode())


def test_a_header_at_its_bounds():
    most = replace(
        FIRST, version=encoding.MAX_COUNT - 1, seq=encoding.MAX_COUNT, oldest_kept=encoding.MAX_COUNT - 1,
        time=encoding.MAX_TIME, runs=tuple(RUN._replace(offset=i) for i in range(1024)),
        sections=(Section(1, 64, 64),) * 1024, statistics=Statistics(*[2**64 - 1] * 5),
    )  # fmt: skip
    assert Header.decode(most.encode()) == most
    footer = Footer(commitfile.MAX_HEADER, 64, 128 + commitfile.MAX_HEADER, bytes(16), 0)
    assert Footer.decode(footer.encode()) == footer
    with pytest.raises(MalformedError, match="length of the header"):
        Footer.decode(replace(footer, header_length=footer.header_length + 1, header_offset=63).encode())
    commit = Stored(most, footer, bytes(16)).commit
    assert commit.time == datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 101 + b"]" * 101,
        b'{"a":' * 100 + b"[]" + b"}" * 100,
        b"[" * 1000 + b"]" * 1000,
        b"[" * 100_000 + b"]" * 100_000,
        b'"\\ud800"',
        b'{"\\udfff": 1}',
        b'"\xed\xa0\x80"',
        b'"\xff"',
        '{"a": 1}'.encode("utf-16"),
        b"1" * 5000,
        b"",
    ],
)
def test_json_that_could_fail_later(content):
    with pytest.raises(MalformedError):
        encoding.json_value(content)


def test_json_that_can_not_fail_later():
    wide = [[]] * 5000
    deep = [wide]
    for _ in range(97):
        deep = [deep, "[[[["]
    for value in (deep, {"a": [{}] * 200}, "\\ud800", "\U0001f600", [1e400], 10**4000, None, "[" * 200):
        assert encoding.json_value(commitfile.json.dumps(value).encode()) == value


@pytest.mark.parametrize("region", [b"", b"\0\1", b"\1\1\0\0", b"\x11\1" + b"\0\1" * 17, b"\1\1\0\1\0"])
def test_a_partial_frame_with_no_region(region):
    fixed = packfile.FRAME.pack(b"TXFR", packfile.FRAME_PARTIAL, 0, 5, 0, 0, 0)
    rest = b"a/c/0" + packfile.REGION.pack(len(region)) + region
    data = fixed + encoding.CHECKSUM.pack(encoding.crc32c(rest, encoding.crc32c(fixed))) + rest + bytes(8)
    with pytest.raises(MalformedError):
        packfile.decode_frame(memoryview(data), 0)


@pytest.mark.parametrize(("end", "size"), [(64, 64 + 99 + 27), (1 << 63, 1000), (0, 99 + 27)])
def test_a_directory_that_reaches_beyond_its_pack(end, size):
    tail = packfile.encode_directory([bytes(99)], end)[-packfile.DIRECTORY_SIZE :]
    assert packfile.decode_directory(tail, 1 << 64) == (end, 99)
    with pytest.raises(MalformedError, match="reach beyond the pack"):
        packfile.decode_directory(tail, size)


@pytest.mark.parametrize("branch", ["", "..", "../../etc", "a/b", "a\0b", "x" * 101])
def test_a_branch_that_would_lead_elsewhere(branch):
    with pytest.raises(MalformedError, match="branch"):
        PackName.decode(PackName(bytes(16), branch, 1).encode())
    with pytest.raises(MalformedError, match="branch"):
        Tag.decode(Tag(branch, 1, bytes(16)).encode())


def test_newer_versions_are_told_from_damage():
    head = encoding.with_checksum(packfile.HEAD.pack(b"TXSTPACK", 2, 0, bytes(16), bytes(16), 0))
    footer = encoding.with_checksum(commitfile.FOOTER.pack(b"TXSTFOOT", 2, 1, 2, 67, bytes(16), 0))
    header = Header(*[bytes(16)] * 4, 0, 1, 0, "main", required=1 << 31).encode()
    pack = b"\x03" + bytes(20)
    for decode, data in (
        (packfile.decode_head, head),
        (Footer.decode, footer),
        (Header.decode, header),
        (PackName.decode, pack),
        (RepositoryFormat.decode, RepositoryFormat(bytes(16), required=4).encode()),
        (RepositoryFormat.decode, RepositoryFormat(bytes(16), versions="put").encode()),
        (RepositoryFormat.decode, b'{"txstore": 2}'),
    ):
        with pytest.raises(NewerFormatError):
            decode(data)


# --- the worked example of the document
DOCUMENT = Path(__file__).parents[2] / "docs/understand/format.md"
ROW = re.compile(r"\| (\d+) \| `([0-9a-f ]+)` \| (.+) \|")

REPOSITORY = bytes.fromhex("00112233445566778899aabbccddeeff")
COMMIT = bytes.fromhex("0f1e2d3c4b5a69788796a5b4c3d2e1f0")
TIME = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def example() -> bytes:
    """The bytes that the document shows; its offsets are checked on the way."""
    section = DOCUMENT.read_text(encoding="utf-8").partition("## Worked example")[2].partition("\n## ")[0]
    content = b""
    for offset, bytes_, _ in ROW.findall(section):
        assert int(offset) == len(content)
        content += bytes.fromhex(bytes_)
    assert content
    return content


def test_the_code_writes_the_worked_example(example, repo, monkeypatch):
    class Fixed(RepositoryFormat):
        def encode(self) -> bytes:
            return RepositoryFormat(REPOSITORY).encode()

    monkeypatch.setattr(identity, "RepositoryFormat", Fixed)
    clock = types.SimpleNamespace(time_ns=lambda: int(TIME.timestamp()) * 10**9, monotonic=time.monotonic)
    monkeypatch.setattr(versions, "time", clock)
    monkeypatch.setattr(versions, "this_user", lambda: "ana@lab")
    tx = repo.begin("first")
    object.__setattr__(tx.staging.record, "id", COMMIT)
    tx["a/c/0"] = b"hello"
    tx.commit()
    written = Path(repo.url, "commits/main/0000000000").read_bytes()
    assert written.hex(" ") == example.hex(" ")


def test_the_worked_example_is_a_repository(example, open_repo, tmp_path):
    path = tmp_path / "data.tx"
    for name in names.DIRECTORIES:
        (path / name).mkdir(parents=True, exist_ok=True)
    (path / "zarr.json").write_bytes(records.encode_guard())
    (path / "format.json").write_bytes(RepositoryFormat(REPOSITORY).encode())
    (path / "commits/main/0000000000").write_bytes(example)
    repo = open_repo()
    assert dict(repo.mapping()) == {"a/c/0": b"hello"}
    assert repo.head() == txstore.Commit(
        id=COMMIT.hex(), branch="main", version=0, seq=1, parent=None, time=TIME, author="ana@lab", message="first",
        properties={}, statistics=Statistics(keys_set=1, bytes_set=5).as_dict(),
    )  # fmt: skip


def test_the_worked_example_is_decoded_part_by_part(example):
    assert packfile.decode_head(example[:64]) == (COMMIT, REPOSITORY, 0)
    frame = packfile.decode_frame(memoryview(example), 64)
    assert (frame.kind, frame.seen, frame.sequence, frame.key) == (packfile.FRAME_VALUE, False, 0, b"a/c/0")
    assert example[frame.offset : frame.offset + frame.length] == b"hello"
    footer = Footer.decode(example[-64:])
    assert (footer.file_length, footer.pack_id) == (len(example), COMMIT)
    header = Header.decode(example[footer.header_offset : -64])
    assert (header.id, header.version, header.seq, header.parent_id) == (COMMIT, 0, 1, encoding.NO_ID)
    (section,) = header.sections
    assert section.offset == frame.end
    assert header.runs == (RunName(None, 1, section.offset, section.length, 1, 1),)
    run = index.Run(example[section.offset : section.offset + section.length], 1)
    run.verify()
    entry = (b"a/c/0", packfile.REF_PACK, 1, 0, frame.offset, frame.length, frame.checksum)
    assert run.scan(b"", None, -1) == [entry]


def test_each_row_of_the_worked_example_says_what_its_bytes_say(example):
    """Names and numbers in the third column are those of the second."""
    rows = ROW.findall(DOCUMENT.read_text(encoding="utf-8").partition("## Worked example")[2])
    for _, bytes_, meaning in rows:
        content = bytes.fromhex(bytes_)
        quoted = re.search(r"`([^`]+)`$", meaning)
        if quoted:
            assert content == quoted[1].encode(), meaning
        number = re.search(r" (\d+)(: .+)?$|: (\d+)$", meaning)
        if number and len(content) in (1, 2, 4, 8) and "multiple" not in meaning:
            assert int.from_bytes(content, "little") == int(number[3] or number[1]), meaning
