"""I7, clause by clause: which of the frames on a key counts, and when none does."""

from itertools import permutations

import pytest

from txstore.format import packfile
from txstore.format.packfile import SEEN_BASE, SEEN_NOTHING, Predecessor, Seen
from txstore.format.regions import Region
from txstore.transactions.participants.chains import Link, extend, resolve
from txstore.transactions.staged_keys import StagedKeys

OWNER, A, B, C, DEAD = 0, 1, 2, 3, 9


def link(participant: int, sequence: int, seen: Seen = SEEN_NOTHING, value: int = 0) -> Link:
    """`value` stands for the bytes: equal values have equal checksums."""
    return Link(participant, sequence, seen, packfile.FRAME_VALUE, 64, 8, value or 100 * participant + sequence)


def resolved(*arguments, **named) -> Link | None:
    """Return the one link that counts."""
    found = resolve(*arguments, **named)
    if found is None:
        return None
    (counts,) = found
    return counts


def dead(*participants: int) -> dict[int, int]:
    """Participants of whose frames none counts."""
    return dict.fromkeys(participants, -1)


def at(participant: int, sequence: int) -> Predecessor:
    return Predecessor(participant, sequence)


# --- chains
def test_a_frame_that_a_thread_of_its_process_has_overtaken_does_not_come_back():
    links = [link(A, 4)]
    extend(links, link(A, 3))
    assert links == [link(A, 4)]


# --- equal values
@pytest.mark.parametrize(
    "other",
    [
        link(B, 1, SEEN_BASE, value=7),  # a read-modify-write: an append of equal rows
        link(B, 1, value=8),
        link(B, 1, value=7)._replace(length=9),
        link(B, 1, value=7)._replace(kind=packfile.FRAME_TOMBSTONE),
    ],
)
def test_what_only_looks_equal_is_not(other):
    assert resolved([link(A, 1, value=7), other], equal=lambda *_: True) is None


def test_equal_checksums_are_no_proof():
    assert resolved([link(A, 1, value=7), link(B, 1, value=7)], equal=lambda *_: False) is None


# --- the lost
def test_what_is_built_on_is_kept_in_whatever_order_it_was_read():
    chain = [link(DEAD, 1), link(DEAD + 1, 1, at(DEAD, 1)), link(A, 1, at(DEAD + 1, 1))]
    for read in permutations([*chain, link(DEAD + 2, 1)]):
        assert resolved(read, lost=dead(DEAD, DEAD + 1, DEAD + 2)) == chain[-1]


def test_what_was_built_on_may_be_gone_with_one_who_died():
    # A power loss has taken what DEAD wrote, which was never synced; A had built on it, and holds the work.
    chain = [link(A, 1, at(DEAD, 1)), link(B, 1, at(A, 1))]
    assert resolved(chain, lost=dead(DEAD)) == chain[-1]
    assert resolved(chain, lost=dead(DEAD, A)) == chain[-1]
    assert resolved(chain) is None
    assert resolved([*chain, link(A + B, 1)], lost=dead(DEAD)) is None


def test_damaged_frames_that_lead_round_in_a_circle_end_too():
    """Each of two that died says that it has seen an earlier frame of the other, which is not there."""
    circle = [link(DEAD, 2, at(DEAD + 1, 1)), link(DEAD + 1, 2, at(DEAD, 1))]
    assert resolved([*circle, link(A, 1, at(DEAD, 1)), link(B, 1)], lost=dead(DEAD, DEAD + 1)) is None
    assert resolved([link(DEAD, 3, at(DEAD, 2)), link(A, 1, at(DEAD, 1)), link(B, 1)], lost=dead(DEAD)) is None


# --- chunks that are written in part
def part(participant: int, sequence: int, start: int, stop: int, seen: Seen = SEEN_NOTHING) -> Link:
    region = Region.of_box(((start, stop),))
    return link(participant, sequence, seen)._replace(kind=packfile.FRAME_PARTIAL, region=region)


def test_parts_that_follow_one_another_in_a_circle():
    assert resolve([part(A, 1, 0, 2, at(B, 1)), part(B, 1, 2, 4, at(A, 1)), part(C, 1, 5, 6)]) is None


# --- the same through `StagedKeys`: deletions of prefixes among frames, in the order of one process after the other
def test_settling_twice_is_settling_once():
    staged = StagedKeys(OWNER)
    staged.add("d/x", link(DEAD, 1))
    staged.hide("d/", A, 1)
    for _ in range(2):
        assert staged.settle({DEAD: -1}, lambda *_: True) == []
        assert staged.lost_keys({DEAD: -1}) == []
        assert not staged.is_set("d/x")
    staged.add("d/x", link(B, 1, at(A, 1)))
    assert staged.settle({DEAD: -1}, lambda *_: True) == []
    assert staged.get("d/x") == link(B, 1, at(A, 1))


def test_what_is_written_has_seen_the_newest_deletion():
    staged = StagedKeys(B)
    staged.hide("d/", OWNER, 50)
    staged.hide("d/e/", A, 1, at(OWNER, 50))
    assert staged.seen("d/e/x", was_read=False) == at(A, 1)
    assert staged.deleted_by_others("") == ["d/", "d/e/"]
    assert staged.deleted_by_others("d/") == ["d/e/"]
    staged.hide("d/e/", B, 3, at(A, 1))
    assert staged.seen("d/e/x", was_read=False) == at(A, 1)  # of its own, a process need not speak


def test_an_array_object_that_holds_what_was_deleted_does_not_know_of_the_deletion():
    staged = StagedKeys(A)
    staged.hide("d/", B, 4)
    document = "d/zarr.json"
    assert staged.seen(document, was_read=True) == SEEN_BASE
    assert staged.seen(document, was_read=False) == at(B, 4)
    assert staged.seen("d/c/0", was_read=True) == at(B, 4)
    staged.was_read_again(document)
    assert staged.seen(document, was_read=True) == at(B, 4)
    staged.hide("d/", B, 7)
    assert staged.seen(document, was_read=True) == SEEN_BASE
