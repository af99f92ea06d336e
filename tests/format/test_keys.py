"""Keys, prefixes and names."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txstore.errors import CorruptionError, KeyFormatError
from txstore.format import keys

segments = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda segment: segment not in (".", "..")
)
paths = st.lists(segments, min_size=1, max_size=6).map("/".join)


@given(st.text(max_size=30) | st.text("./a\udc80", max_size=12))
def test_what_is_refused_is_just_what_the_format_forbids(key):
    valid = {"", ".", ".."}.isdisjoint(key.split("/")) and not any("\ud800" <= char <= "\udfff" for char in key)
    try:
        assert keys.encode_key(key) == key.encode()
        assert valid
    except KeyFormatError:
        assert not valid
    stored = key.encode(errors="surrogatepass")
    assert keys.decode_key(stored) == (key if valid else None)
    assert keys.decode_prefix(stored + b"/") == (key + "/" if valid else None)


def test_prefixes_that_are_stored():
    assert keys.decode_prefix(b"") == ""
    assert keys.decode_prefix(b"a") is None
    assert keys.stored_prefix(b"a/b/", "packs/x") == "a/b/"
    for read in (keys.stored_key, keys.stored_prefix):
        with pytest.raises(CorruptionError, match=r"packs/x: .*is no"):
            read(b"../", "packs/x")
    for root in ("", "/", "//"):
        assert keys.directory_prefix(root) == ""
    with pytest.raises(KeyFormatError):
        keys.directory_prefix("a//b")
    assert keys.after_prefix("") is None
    assert list(keys.ancestors("")) == []


def test_the_length_is_that_of_the_bytes():
    assert len(keys.encode_key("x" * keys.MAX_KEY_BYTES)) == keys.MAX_KEY_BYTES
    assert len(keys.encode_key("ü" * (keys.MAX_KEY_BYTES // 2))) == keys.MAX_KEY_BYTES
    for key in ("x" * (keys.MAX_KEY_BYTES + 1), "ü" * (keys.MAX_KEY_BYTES // 2 + 1)):
        assert keys.decode_key(key.encode()) is None
        with pytest.raises(KeyFormatError, match="at most 4096"):
            keys.encode_key(key)


@given(paths)
def test_a_directory_prefix_ends_in_a_slash(path):
    for spelled in (path, path + "/", "/" + path):
        assert keys.directory_prefix(spelled) == path + "/"


@given(paths, paths)
def test_after_prefix_is_above_what_lies_below_and_below_all_else(path, other):
    prefix = keys.directory_prefix(path)
    after = keys.after_prefix(prefix)
    assert prefix < after
    assert (prefix.encode() <= other.encode() < after.encode()) == other.startswith(prefix)


@given(paths)
def test_covering_prefixes(key):
    found = list(keys.covering_prefixes(key))
    assert found == sorted(found, key=len, reverse=True)
    assert found[-1] == ""
    assert found == [key[:i] for i in range(len(key), -1, -1) if i == 0 or key[i - 1] == "/"]


@given(paths)
def test_ancestors_are_the_nodes_above(path):
    found = list(keys.ancestors(path))
    assert [keys.directory_prefix(node) for node in found] == list(keys.covering_prefixes(path))


@given(st.one_of(st.just(""), paths), st.sampled_from(keys.DOCUMENT_NAMES))
def test_documents(path, name):
    key = keys.document_key(path, name)
    assert keys.is_document(key)
    assert keys.node_of_document(key) == path


@pytest.mark.parametrize("key", ["c/0", "azarr.json", "zarr.json/c", "a/xzarr.json", "a.zarray", "ZARR.JSON", "zarr"])
def test_other_keys_are_no_documents(key):
    assert not keys.is_document(key)


@given(st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=100))
def test_names(name):
    if name[0] in ".-":
        with pytest.raises(KeyFormatError, match="tag"):
            keys.check_name("tag", name)
    else:
        assert keys.check_name("tag", name) == name


@pytest.mark.parametrize("name", ["", "a" * 101, "a/b", "a\\b", "a b", "a\n", "é", "a\0", "..", b"a", None, 1])
def test_names_that_would_not_be_file_names(name):
    with pytest.raises(KeyFormatError, match=r"branch .*use 1 to 100"):
        keys.check_name("branch", name)


@pytest.mark.parametrize(
    ("names", "documents"),
    [
        (["zarr.json", "a", "b"], ["a/zarr.json", "b/zarr.json"]),
        ([".zgroup", ".zattrs", "a"], ["a/.zarray", "a/.zgroup", "a/.zattrs"]),
        (["0", "1"], []),  # chunks
        ([], []),
    ],
)
def test_documents_of_members(names: list[str], documents: list[str]) -> None:
    assert keys.documents_of_members(names) == documents
