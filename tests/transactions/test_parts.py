"""Chunks that are written in part: merged beside other commits (I5), and among processes of one transaction (I7)."""

from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.inside import open_named
from tests.tools.members import join_in_this_process
from tests.tools.parts import create, read_chunk, region_of, write_part
from txstore.constraints import Complete, RequiredAttributes
from txstore.errors import ConflictError, ConstraintError, ParticipantLostError
from txstore.transactions.transaction import Transaction

KEY = "x/c/0"
BASE = list(range(10, 18))


def at_head(repo: txstore.Repository, key: str = KEY) -> list[Any]:
    return read_chunk(repo.snapshot().mapping, key)


def merged(theirs: Transaction, mine: Transaction) -> None:
    theirs.commit()
    mine.commit()


def refused(theirs: Transaction, mine: Transaction) -> None:
    theirs.commit()
    with pytest.raises(ConflictError):
        mine.commit()
    mine.rollback()


# --- two transactions
def test_other_elements_of_one_chunk(repo: txstore.Repository) -> None:
    create(repo)
    mine, theirs = repo.begin(), repo.begin()
    write_part(mine, KEY, slice(0, 4), 1)
    write_part(theirs, KEY, slice(4, 8), 2)
    theirs.commit()
    assert read_chunk(mine, KEY) == [1] * 4 + BASE[4:]  # until the commit, the base counts
    mine.commit()
    assert at_head(repo) == [1] * 4 + [2] * 4


@pytest.mark.parametrize("equal", [False, True])
def test_the_same_element(repo: txstore.Repository, equal: bool) -> None:
    """Equal values, too: two increments are two increments."""
    create(repo)
    mine, theirs = repo.begin(), repo.begin()
    for transaction in (mine, theirs):
        write_part(transaction, KEY, slice(3, 5), lambda there: there + 1)
    if not equal:
        write_part(theirs, KEY, slice(3, 4), 99)
    theirs.commit()
    with pytest.raises(ConflictError) as caught:
        mine.commit()
    assert caught.value.keys == (KEY,)
    mine.rollback()


def test_a_chunk_that_is_missing_is_all_fill_value(repo: txstore.Repository) -> None:
    create(repo)
    with repo.transaction() as store:
        del store[KEY]
    mine, theirs = repo.begin(), repo.begin()
    write_part(mine, KEY, slice(0, 2), 1)
    write_part(theirs, KEY, slice(6, 8), 2)
    merged(theirs, mine)
    assert at_head(repo) == [1, 1, 0, 0, 0, 0, 2, 2]


def test_a_chunk_that_has_become_all_fill_value_is_deleted(repo: txstore.Repository) -> None:
    create(repo)
    with repo.transaction() as store:
        zarr.open_array(store, path="x")[2:6] = 0
    mine, theirs = repo.begin(), repo.begin()
    write_part(mine, KEY, slice(0, 2), 0)
    write_part(theirs, KEY, slice(6, 8), 0)
    merged(theirs, mine)
    assert KEY not in repo.snapshot().mapping
    again = repo.begin()
    write_part(again, KEY, slice(0, 1), 5)
    again.commit()
    assert at_head(repo) == [5] + [0] * 7


def test_a_deletion_counts_as_writing_the_whole(repo: txstore.Repository) -> None:
    create(repo)
    mine, theirs = repo.begin(), repo.begin()
    mine.modify(KEY, lambda _: None, None)
    write_part(theirs, KEY, slice(6, 8), 2)
    refused(theirs, mine)


def test_an_array_that_was_made_anew_is_another(repo: txstore.Repository) -> None:
    create(repo)
    mine = repo.begin()
    write_part(mine, KEY, slice(0, 1), 1)
    document = bytes(repo.snapshot().mapping["x/zarr.json"])
    with repo.begin() as theirs:
        chunk = theirs[KEY]
        theirs.delete_dir("x")
        theirs["x/zarr.json"] = document
        theirs[KEY] = chunk
    with pytest.raises(ConflictError):
        mine.commit()
    mine.rollback()


def test_whole_chunks_as_before(repo: txstore.Repository) -> None:
    create(repo)
    mine, theirs = repo.begin(), repo.begin()
    mine[KEY] = mine[KEY]  # having read it
    write_part(theirs, KEY, slice(0, 1), 1)
    refused(theirs, mine)
    mine, theirs = repo.begin(), repo.begin()
    write_part(mine, KEY, slice(0, 1), 1)
    mine[KEY] = mine[KEY]
    write_part(mine, KEY, slice(6, 7), 1)  # behind a write of the whole
    write_part(theirs, KEY, slice(7, 8), 1)
    refused(theirs, mine)


def test_serializable_transactions_are_checked_by_key(repo: txstore.Repository) -> None:
    create(repo)
    mine, theirs = repo.begin(isolation="serializable"), repo.begin()
    write_part(mine, KEY, slice(0, 1), 1)
    write_part(theirs, KEY, slice(7, 8), 1)
    refused(theirs, mine)


def test_nothing_is_merged_that_codecs_lose(repo: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    create(repo, compressors=[zarr.codecs.GzipCodec()])  # the C has no codec that loses anything
    mine, theirs = repo.begin(), repo.begin()
    write_part(mine, KEY, slice(0, 1), 1)
    write_part(theirs, KEY, slice(7, 8), 1)
    theirs.commit()
    # The written elements are compared, too, and these are the same.
    monkeypatch.setattr("txstore.codecs.chunk_codec.bits", lambda chunk: object() if chunk.size > 1 else b"")
    with pytest.raises(ConflictError, match="lose"):
        mine.commit()
    monkeypatch.undo()
    mine.commit()
    assert at_head(repo) == [1, *BASE[1:7], 1]


def test_a_commit_that_fails_leaves_what_is_staged_as_it_is(repo: txstore.Repository) -> None:
    create(repo)
    mine, theirs = repo.begin(), repo.begin()
    write_part(mine, KEY, slice(0, 2), 1)
    mine.constraints.declare("x", RequiredAttributes("x", ["units"]))
    write_part(theirs, KEY, slice(6, 8), 2)
    theirs.commit()
    with pytest.raises(ConstraintError):
        mine.commit()
    assert read_chunk(mine, KEY) == [1, 1, *BASE[2:]]
    mine.constraints.declare("x", None)
    write_part(mine, KEY, slice(2, 3), 3)
    mine.commit()
    assert at_head(repo) == [1, 1, 3, *BASE[3:6], 2, 2]


def test_a_merge_keeps_constraints(repo: txstore.Repository) -> None:
    """Each of two commits leaves a chunk there, and both together don't."""
    create(repo)
    repo.constraints["x"] = Complete("x")
    mine, theirs = repo.begin(), repo.begin()
    write_part(mine, KEY, slice(0, 4), 0)
    write_part(theirs, KEY, slice(4, 8), 0)
    theirs.commit()
    with pytest.raises(ConstraintError, match="c/0"):
        mine.commit()
    write_part(mine, KEY, slice(0, 1), 1)
    mine.commit()
    assert at_head(repo) == [1] + [0] * 7


@pytest.mark.parametrize(
    "options",
    [
        {"compressors": None},
        {"zarr_format": 2},
        {"zarr_format": 2, "order": "F", "dtype": ">f8"},
        {"dtype": "f4", "fill_value": np.nan},
        {"dtype": "S3", "fill_value": b""},
        {"dtype": "M8[s]", "fill_value": np.datetime64(0, "s")},
        {"shape": (32,), "chunks": (2,), "shards": (8,)},
        {"dtype": bool, "fill_value": False},
    ],
)
def test_formats_and_types(repo: txstore.Repository, options: dict[str, Any]) -> None:
    create(repo, **options)
    key = "x/0" if options.get("zarr_format") == 2 else KEY
    before = at_head(repo, key)
    mine, theirs = repo.begin(), repo.begin()
    write_part(mine, key, slice(0, 2), lambda there: np.roll(there, 1))
    write_part(theirs, key, slice(5, 8), lambda there: np.roll(there, 1))
    merged(theirs, mine)
    expected = [before[1], before[0], *before[2:5], before[7], before[5], before[6]]
    assert at_head(repo, key) == expected
    assert zarr.open_array(repo.snapshot(), path="x", mode="r")[:8].tolist() == expected


def test_bits_are_compared_not_values(repo: txstore.Repository) -> None:
    create(repo, dtype="f8", fill_value=1.0)
    with repo.begin() as first:
        write_part(first, KEY, slice(0, 2), [np.nan, 0.0])
    mine, theirs = repo.begin(), repo.begin()
    write_part(mine, KEY, slice(0, 1), 5)  # the NaN there stays what it is
    write_part(theirs, KEY, slice(1, 2), -0.0)
    merged(theirs, mine)
    found = zarr.open_array(repo.snapshot(), path="x", mode="r")[:2]
    assert found[0] == 5
    assert np.signbit(found[1])
    mine, theirs = repo.begin(), repo.begin()
    write_part(mine, KEY, slice(1, 2), 7)
    write_part(theirs, KEY, slice(1, 2), 0.0)
    refused(theirs, mine)


def test_objects_are_not_merged(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(4,), dtype=str, chunks=(4,))[:] = ["a", "bb", "c", "d"]
    chunk = repo.snapshot().mapping[KEY]
    mine, theirs = repo.begin(), repo.begin()
    for number, transaction in enumerate((mine, theirs)):
        transaction.modify(KEY, lambda _: bytes(chunk) + b"x", region_of(slice(number, number + 1)))
    refused(theirs, mine)


# --- several participants of one transaction


@pytest.mark.parametrize("lost", [0, 1])
def test_a_part_over_one_of_two_does_not_hide_what_was_lost_of_the_other(repo: txstore.Repository, lost: int) -> None:
    """What is written over one of two that did not know of one another keeps the elements of both."""
    create(repo)
    named = open_named(repo, "job")
    two = [join_in_this_process(repo, named.staging.record.id) for _ in range(2)]
    write_part(two[lost], KEY, slice(0, 2), 1)  # element 2 is missing
    write_part(two[1 - lost], KEY, slice(3, 5), 2)
    two[1 - lost].lifecycle.seal()
    two[lost].staging.part.close()
    later = join_in_this_process(repo, named.staging.record.id)
    write_part(later, KEY, slice(3, 6), 3)
    later.lifecycle.seal()
    for each in (two[1 - lost], later):
        each.staging.part.close()
    with pytest.raises(ParticipantLostError, match=KEY):
        named.commit("job")
    again = join_in_this_process(repo, named.staging.record.id)
    write_part(again, KEY, slice(0, 3), 4)
    again.lifecycle.seal()
    again.staging.part.close()
    named.commit("job")
    assert read_chunk(repo.snapshot().mapping, KEY) == [4, 4, 4, 3, 3, 3, 16, 17]
