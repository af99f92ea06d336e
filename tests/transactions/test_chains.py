"""I7: which of the frames on a key counts. What processes do is in `tests/model/test_participants_model.py`."""

from txstore.format import packfile
from txstore.format.packfile import SEEN_NOTHING, Predecessor, Seen
from txstore.format.regions import Region
from txstore.transactions.participants.chains import Link, extend, resolve

A, B, C, DEAD = 1, 2, 3, 9


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


def test_a_frame_that_a_thread_of_its_process_has_overtaken_does_not_come_back():
    links = [link(A, 4)]
    extend(links, link(A, 3))
    assert links == [link(A, 4)]


# --- equal values


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


def part(participant: int, sequence: int, start: int, stop: int, seen: Seen = SEEN_NOTHING) -> Link:
    region = Region.of_box(((start, stop),))
    return link(participant, sequence, seen)._replace(kind=packfile.FRAME_PARTIAL, region=region)


def test_parts_that_follow_one_another_in_a_circle():
    assert resolve([part(A, 1, 0, 2, at(B, 1)), part(B, 1, 2, 4, at(A, 1)), part(C, 1, 5, 6)]) is None
