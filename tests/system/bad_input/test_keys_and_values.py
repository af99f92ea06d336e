"""Keys that can't be stored, and values that are not bytes: refused at once, and the transaction goes on."""

import array

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.commits import set_keys
from tests.tools.hostile import DOTS, unchecked_keys
from tests.tools.inside import open_named

BAD_KEYS = ["", "/", "/a", "a/", "a//b", "x" * 4097, "ü" * 2049, "\udc80", *DOTS]


@pytest.fixture
def transactions(repo):
    """A transaction and a session that have something staged."""
    tx, session = repo.begin(), txstore.TxStore(repo)
    for writer in (tx, session):
        writer["good"] = b"1"
    yield tx, session
    for writer in (tx, session):
        assert writer.changes()["set"] == ["good"]
        assert writer.changes()["deleted"] == []
    tx.commit()  # not failed
    session.rollback()


@pytest.mark.parametrize("key", BAD_KEYS)
def test_a_key_that_cannot_be_stored(transactions, key):
    for writer in transactions:
        with pytest.raises(txstore.KeyFormatError, match="key"):
            writer[key] = b"1"
        with pytest.raises(txstore.KeyFormatError, match="key"):
            writer[key]
    with pytest.raises(txstore.KeyFormatError, match="key"):
        transactions[0].delete(key)


@pytest.mark.parametrize("path", DOTS)
def test_a_path_that_leads_elsewhere(transactions, tmp_path, path):
    tx, session = transactions
    (tmp_path / "file").write_bytes(b"1")
    tries = [
        lambda: tx.set_reference(path, tmp_path / "file"),
        lambda: tx.delete_dir(path),
        lambda: list(tx.list_dir(path)),
        lambda: list(tx.keys_below(path)),
        lambda: tx.setitems({path: b"1"}),
        lambda: zarr.create_group(session, path=path),
    ]
    for each in tries:
        with pytest.raises(ValueError, match=r"\.\.|segment|'\.'"):
            each()


@pytest.mark.parametrize("key", DOTS)
def test_such_a_key_in_a_commit_is_damage(tmp_path, key):
    """Whoever has written it was no writer of ours."""
    repo = txstore.Repository(tmp_path / "data.tx")
    set_keys(repo, {"good": b"1"})
    before = repo.begin()
    list(before)
    before["good"] = b"2"
    with unchecked_keys(), repo.begin() as other:
        other[key] = b"1"
    assert [(fault.part, fault.reason) for fault in repo.verify().faults] == [("run", f"{key.encode()} is no key")]
    snapshot = repo.mapping()
    assert snapshot["good"] == b"1"
    for read in (lambda: list(snapshot), repo.usage, lambda: list(repo.snapshot())):
        with pytest.raises(txstore.CorruptionError, match="is no key"):
            read()
    before.commit()  # of what it says, a commit that does not touch it needs nothing


@pytest.mark.parametrize("path", ["..", "a/..", "../.."])
def test_such_a_path_that_was_deleted_in_a_commit(tmp_path, path):
    repo = txstore.Repository(tmp_path / "data.tx")
    set_keys(repo, {"good": b"1"})
    before = repo.begin(isolation="serializable")
    before["good"] = b"2"
    list(before)
    with unchecked_keys():
        set_keys(repo, {f"{path}/x": b"1"})
        with repo.begin() as other:
            other.delete_dir(path)
    with pytest.raises(txstore.CorruptionError, match=r"is no (key|prefix)"):
        before.commit()
    before.rollback()


@pytest.mark.parametrize("key", ["..", "a/../b"])
@pytest.mark.parametrize("kind", ["value", "prefix"])
def test_such_a_key_that_a_participant_has_staged(repo, key, kind):
    store, other = open_named(repo, "job"), open_named(repo, "job")
    store["good"] = b"1"
    with unchecked_keys():
        if kind == "value":
            other[key] = b"1"
        else:
            other.delete_dir(key)
        other.lifecycle.leave()
    with pytest.raises(txstore.CorruptionError, match=r"is no (key|prefix)"):
        store.commit()
    store.rollback()
    assert repo.head() is None


@pytest.mark.parametrize("key", [None, 5, b"a", ("a",), np.int64(5)])
def test_a_key_that_is_not_a_string(transactions, key):
    for writer in transactions:
        for use in (lambda w: w.__setitem__(key, b"1"), lambda w: w[key]):
            with pytest.raises(TypeError, match=f"a key is a string, not {type(key).__name__}"):
                use(writer)
        assert key not in writer
        with pytest.raises(KeyError):
            del writer[key]


@pytest.mark.parametrize("key", ["...", "..a/b", "a..", ".a/.b", "a\0b", "a\nb", "C:\\x", " "])
def test_a_key_is_no_file_name(repo, key):
    set_keys(repo, {key: b"1"})
    assert repo.snapshot()[key] == b"1"
    assert list(repo.snapshot()) == [key]


@pytest.mark.parametrize("value", ["text", None, 5, 1.5, [1, 2], object()])
def test_a_value_that_is_not_bytes(transactions, value):
    for writer in transactions:
        with pytest.raises(TypeError, match=rf"bytes.*{type(value).__name__}"):
            writer["key"] = value
        assert "key" not in writer


@pytest.mark.parametrize("value", [np.arange(8)[::2], memoryview(b"abcdef")[::2]])
def test_a_value_with_gaps(transactions, value):
    for writer in transactions:
        with pytest.raises((ValueError, TypeError, BufferError), match="contiguous"):
            writer["key"] = value


@pytest.mark.parametrize(
    "value",
    [b"ab", bytearray(b"ab"), memoryview(b"ab"), array.array("B", b"ab"), np.frombuffer(b"ab", "u1"), np.zeros((2, 3))],
)
def test_anything_bytes_like_is_copied(repo, value):
    expected = bytes(memoryview(value).tobytes())
    with repo.transaction() as store:
        store["key"] = value
        if not memoryview(value).readonly:
            memoryview(value).cast("B")[0] = 0xFF
    assert repo.snapshot()["key"] == expected


async def test_zarrs_set_takes_zarrs_buffers(repo):
    store = txstore.TxStore(repo)
    with pytest.raises(TypeError, match=r"takes a zarr Buffer, not bytes; use store\[key\] = bytes"):
        await store.set("key", b"1")
    assert store.staged_count == 0


@pytest.mark.parametrize("message", [5, b"bytes", "\udc80"])
def test_a_message_that_is_not_text(repo, message):
    for begin in (repo.transaction, repo.begin):
        with pytest.raises((TypeError, ValueError), match="message"):
            begin(message)
    assert not repo.exists


@pytest.mark.parametrize("properties", [{"array": np.arange(2)}, {"set": {1}}, {"bytes": b"1"}, {1: 1, "a": 2}])
def test_properties_that_are_not_json(repo, properties):
    """They are refused before the work begins, not when it is to be committed."""
    for begin in (repo.transaction, repo.begin):
        with pytest.raises(TypeError, match="properties"):
            begin(properties=properties)
    assert not repo.exists
