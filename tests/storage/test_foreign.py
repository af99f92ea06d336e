"""Records of values that lie outside, how files are named, and what is below a prefix."""

from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import pytest

from txstore.errors import SourceError
from txstore.format.encoding import MalformedError, NewerFormatError
from txstore.storage import foreign_values
from txstore.storage.foreign_files import allowed
from txstore.storage.foreign_values import FileVersion, ForeignRange, canonical, is_below, version_of

RANGE = ForeignRange(FileVersion("s3://b/é.nc", 4096, '"tag"'), 512, 256)
#: docs/understand/format.md, "Foreign record", byte by byte.
RECORD = bytes.fromhex(
    "545853 54464f524e 01000000 0c000000 0002000000000000 0001000000000000 0010000000000000"
    "73333a2f2f622fc3a92e6e63 2274616722"
)


def test_a_record_byte_by_byte() -> None:
    assert RANGE.encode() == RECORD
    assert ForeignRange.decode(RECORD) == RANGE


@pytest.mark.parametrize(
    ("at", "new", "words"),
    [
        (0, b"X", "wrong magic"),
        (12, b"\x00", "no range"),
        (12, b"\xff", "bytes are needed"),
        (16, b"\x01\x0f", "no range"),  # the range ends one byte behind the file
        (40, b"\xff", "not UTF-8"),
        (52, b"\xff", "not UTF-8"),
    ],
)
def test_what_is_no_record(at: int, new: bytes, words: str) -> None:
    with pytest.raises(MalformedError, match=words):
        ForeignRange.decode(RECORD[:at] + new + RECORD[at + len(new) :])


def test_records_that_are_cut_short_or_newer() -> None:
    for length in range(52):
        with pytest.raises(MalformedError):
            ForeignRange.decode(RECORD[:length])
    with pytest.raises(NewerFormatError, match="version 2"):
        ForeignRange.decode(RECORD[:8] + b"\x02" + RECORD[9:])


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("/data/nc/x.nc", "file:///data/nc/x.nc"),
        ("//data/nc/../x.nc", "file:///data/x.nc"),
        (Path("/data/x.nc"), "file:///data/x.nc"),
        ("file:///data/x.nc", "file:///data/x.nc"),
        ("local:///data/./x#1?.nc", "file:///data/x#1?.nc"),
        ("s3a://bucket/raw//x.nc", "s3://bucket/raw//x.nc"),
        ("FILE:///data/x.nc", "file:///data/x.nc"),
        ("https://[::1]:8080/x", "https://[::1]:8080/x"),
        ("s3://arn:aws:s3:eu:1:accesspoint/x#1", "s3://arn:aws:s3:eu:1:accesspoint/x#1"),
        ("s3://bucket/100%2525", "s3://bucket/100%2525"),
        ("GS://bucket/raw/a%20b.nc", "gs://bucket/raw/a%20b.nc"),
        ("gcs://bucket/a@b", "gs://bucket/a@b"),
        ("s3://bucket/a;b=1", "s3://bucket/a;b=1"),  # a key: servers that know parameters have other schemes
        ("/data/https:/x@y;z=1", "file:///data/https:/x@y;z=1"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
        ("https://host:8080/x%2Fy", "https://host:8080/x%2Fy"),
    ],
)
def test_one_way_to_write_a_url(url: str, name: str) -> None:
    assert canonical(url) == name
    assert canonical(name) == name


def test_local_paths_are_of_the_directory_that_they_were_given_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ana")
    assert canonical("x.nc") == f"file://{tmp_path}/x.nc"
    assert canonical("~/x.nc") == "file:///home/ana/x.nc"
    assert allowed("raw/") == {f"file://{tmp_path}/raw": {}}


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/../x", "s3://bucket/a/./x", "s3://bucket/a/%2e%2E/x", "s3://bucket/a%2f..%2fx", "s3://b/..\\x",
        "https://host/a/%25252e./x", "https://ana@host/x", "ftp://ana:secret@host/x", "https://host/x?sig=secret",
        "https://host/x#y", "zip://x::s3://bucket/x.zip", "simplecache::/data/x",
        # What hides something from us, and not from whoever opens it.
        "https://host/a/.\t./x", "https://host/a/.%09./x", "s3://bucket/a\n/x", "https://ho\tst/x", "s3://b/%00x",
        "https://host/a\x7fb", "/data/\tx", "https://host/a\x85b", "https://host%2fevil/x", "https://host%252f@evil/x",
        # Queries, and who may see what, of any kind.
        "s3://bucket/x?versionId=secret", "s3://bucket/x%3FversionId=secret", "gs://bucket/x%253fsig=secret",
        "abfs://c@a.dfs/x?sv=secret", "sftp://host?x/y", "https://host/x%3fsig=secret", "sftp://ana@host/x",
        "s3://key:secret@bucket/x", "s3://key%3Asecret%40bucket/x", "s3://key:se/cret@bucket/x",
        "https://host/x;sig=secret", "https://host/a;sig=secret/x.nc", "http://host/x%3Bsig=secret", "ftp://host/x;a=secret",
        # What is no URL, for the want of a slash, would be taken for the path of a file.
        "https:/ana:secret@host/x", "https:ana:secret@host/x", "HTTPS:/host/x", "simplecache::https:/ana:secret@host/x",
        "abfs://user:secret@account/x", "smb://ana:secret@host/share/x", "s3://key:secret%252540bucket/x",
    ],
)  # fmt: skip
def test_what_no_reference_is_made_to(url: str) -> None:
    with pytest.raises(SourceError) as raised:
        canonical(url)
    for secret in ("secret@", "=secret", "cret@", ":secret", "%3Asecret"):
        assert secret not in str(raised.value) + repr(raised.value) + repr(vars(raised.value))
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("levels", [4, 1000, 30_000])
def test_escapes_are_not_decoded_without_end(levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = []
    monkeypatch.setattr(foreign_values, "unquote", lambda text: rounds.append(text) or unquote(text))  # type: ignore[func-returns-value]
    with pytest.raises(SourceError, match="escapes within escapes") as raised:
        canonical("https://host/%" + "25" * levels + "2e")
    assert len(rounds) < 10
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize(
    ("prefix", "inside", "outside"),
    [
        ("/data/nc/", ["/data/nc", "/data/nc/x", "file:///data/nc/y/z"], ["/data/ncx", "/data", "/data/nc/../x"]),
        ("/", ["/x"], ["s3://bucket/x"]),
        ("s3://bucket/raw", ["s3://bucket/raw/x", "s3a://bucket/raw/x"], ["s3://bucket/rawx", "s3://other/raw/x"]),
        ("s3://", ["s3://any/x"], ["/x", "s4://x"]),
        ("https://host", ["https://host/x"], ["https://host:81/x", "http://host/x", "https://host.elsewhere/x"]),
    ],
)
def test_what_is_below_a_prefix(prefix: str, inside: list[str], outside: list[str]) -> None:
    (plain,) = allowed({prefix: None})
    assert [is_below(canonical(url), plain) for url in inside] == [True] * len(inside)
    assert [is_below(canonical(url), plain) for url in outside] == [False] * len(outside)


def test_versions() -> None:
    time = datetime(2026, 1, 2, tzinfo=UTC)
    assert version_of({"size": 1, "mtime": 1.5, "ETag": '"x"'}) == '"x"'
    assert version_of({"mtime": 1.5, "created": 0.5}) == "1.5"
    assert version_of({"ETag": None, "LastModified": time}) == "2026-01-02 00:00:00+00:00"
    assert version_of({"size": 1}) == ""
