"""I7, clause by clause: which of the frames on a key counts, and when none does."""

from itertools import permutations

import pytest

from txstore.format import packfile
from txstore.format.packfile import SEEN_BASE, SEEN_NOTHING, Predecessor, Seen
from txstore.format.regions import WHOLE, Region
from txstore.transactions.participants.chains import Link, extend, newest, order, resolve, tombstone
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
def test_the_last_of_a_chain_counts_in_whatever_order_its_frames_are_read():
    chain = [link(A, 1), link(B, 5, at(A, 1)), link(A, 2, at(B, 5)), link(C, 1, at(A, 2))]
    for read in permutations(chain):
        assert order(read) == chain
        assert resolved(read) == chain[-1]


@pytest.mark.parametrize("seen", [SEEN_NOTHING, SEEN_BASE])
def test_two_that_begin_anew_are_no_chain(seen):
    assert resolved([link(A, 1), link(B, 1, seen)]) is None


def test_two_that_have_seen_the_same_are_no_chain():
    assert resolved([link(A, 1), link(B, 1, at(A, 1)), link(C, 1, at(A, 1))]) is None


def test_who_follows_a_frame_that_was_written_over_makes_no_chain():
    assert resolved([link(A, 2), link(B, 1, at(A, 1))]) is None


def test_a_frame_that_is_not_there_is_followed_by_none():
    assert resolved([link(B, 1, at(A, 1))]) is None


def test_own_frames_are_one_link_that_has_seen_what_the_first_had():
    links = [link(A, 1, SEEN_BASE)]
    extend(links, link(A, 2))
    extend(links, link(A, 4, at(A, 2)))
    assert links == [link(A, 4, SEEN_BASE)]


def test_own_frames_between_those_of_others_are_links_of_their_own():
    links = [link(A, 1)]
    extend(links, link(B, 1, at(A, 1)))
    extend(links, link(A, 2, at(B, 1)))
    extend(links, link(A, 3))
    assert links == [link(A, 1), link(B, 1, at(A, 1)), link(A, 3, at(B, 1))]
    assert resolved(links) == links[-1]


def test_a_frame_that_a_thread_of_its_process_has_overtaken_does_not_come_back():
    links = [link(A, 4)]
    extend(links, link(A, 3))
    assert links == [link(A, 4)]


# --- equal values
def test_equal_values_written_without_having_seen_anything_are_one():
    assert resolved([link(A, 1, value=7), link(B, 1, value=7)], equal=lambda *_: True) == link(A, 1, value=7)


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
def test_a_lost_frame_counts_where_there_is_no_other():
    assert resolved([link(DEAD, 1)], lost=dead(DEAD)) == link(DEAD, 1)


@pytest.mark.parametrize("seen", [SEEN_NOTHING, SEEN_BASE])
def test_work_done_anew_supersedes_what_was_lost(seen):
    assert resolved([link(DEAD, 1, seen), link(A, 1, seen)], lost=dead(DEAD)) == link(A, 1, seen)
    assert resolved([link(DEAD, 1, seen), link(A, 1, seen)]) is None


def test_two_that_did_the_work_anew_must_know_of_one_another():
    assert resolved([link(DEAD, 1), link(A, 1), link(B, 1)], lost=dead(DEAD)) is None
    assert resolved([link(DEAD, 1), link(A, 1), link(B, 1, at(A, 1))], lost=dead(DEAD)) == link(B, 1, at(A, 1))


def test_what_others_have_built_on_is_not_left_out():
    chain = [link(DEAD, 1), link(A, 1, at(DEAD, 1))]
    assert resolved(chain, lost=dead(DEAD)) == chain[-1]
    assert resolved([*chain, link(B, 1)], lost=dead(DEAD)) is None


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


def test_what_was_lost_after_somebody_had_built_on_it_is_left_out():
    # DEAD wrote frame 1, which A has seen, and once more before it died.
    assert resolved([link(DEAD, 2), link(A, 1, at(DEAD, 1))], lost=dead(DEAD)) == link(A, 1, at(DEAD, 1))
    assert resolved([link(DEAD, 2), link(A, 1, at(DEAD, 1))]) is None


def test_damaged_frames_that_lead_round_in_a_circle_end_too():
    """Each of two that died says that it has seen an earlier frame of the other, which is not there."""
    circle = [link(DEAD, 2, at(DEAD + 1, 1)), link(DEAD + 1, 2, at(DEAD, 1))]
    assert resolved([*circle, link(A, 1, at(DEAD, 1)), link(B, 1)], lost=dead(DEAD, DEAD + 1)) is None
    assert resolved([link(DEAD, 3, at(DEAD, 2)), link(A, 1, at(DEAD, 1)), link(B, 1)], lost=dead(DEAD)) is None


def test_who_lives_has_to_know_what_was_lost_of_the_others():
    assert resolved([link(A, 1), link(DEAD, 1, at(A, 1)), link(B, 1, at(A, 1))], lost=dead(DEAD)) == link(
        B, 1, at(A, 1)
    )
    assert resolved([link(A, 1), link(DEAD, 1, at(A, 1)), link(B, 1)], lost=dead(DEAD)) is None


def test_what_was_lost_twice_and_not_done_anew_is_missed():
    before = [link(A, 1), link(DEAD, 1, at(A, 1)), link(DEAD + 1, 1, at(A, 1))]
    assert resolved(before, lost=dead(DEAD, DEAD + 1)) is None
    anew = link(B, 1, at(A, 1))
    assert resolved([*before, anew], lost=dead(DEAD, DEAD + 1)) == anew


# --- deleted prefixes
def test_who_writes_must_know_that_a_prefix_above_was_deleted():
    above = {at(A, 3): SEEN_NOTHING}
    assert resolved([link(B, 1)], above) is None
    assert resolved([link(B, 1, at(A, 3))], above) == link(B, 1, at(A, 3))
    assert resolved([link(B, 1, at(A, 2))], above) is None  # what it has seen was deleted with the rest
    assert resolved([link(B, 1, at(A, 9))], above) is None  # no frame on this key, and none that could be a prefix
    assert resolved([link(A, 4)], above) == link(A, 4)


def test_who_follows_one_that_knew_of_the_deletion_knows():
    above = {at(A, 3): SEEN_NOTHING}
    assert resolved([link(B, 1, at(A, 3)), link(C, 1, at(B, 1))], above) == link(C, 1, at(B, 1))


def test_a_repeated_deletion_stands_for_the_first():
    above = {at(A, 9): SEEN_NOTHING}  # A had deleted the prefix before, as frame 3
    links = [link(B, 1, at(A, 3)), tombstone(at(A, 9))._replace(seen=at(B, 1))]
    assert resolved(links, above) == links[-1]


def test_who_knows_of_a_deletion_knows_what_its_maker_knew():
    above = {at(OWNER, 5): SEEN_NOTHING, at(A, 1): at(OWNER, 5)}
    assert newest(above, {OWNER, A}) == at(A, 1)
    assert resolved([link(B, 1, at(A, 1))], above) == link(B, 1, at(A, 1))
    assert resolved([link(B, 1, at(A, 1))], {**above, at(A, 1): SEEN_NOTHING}) is None
    assert resolved([link(B, 1, at(OWNER, 5))], above) is None
    assert resolved([link(A, 2, at(OWNER, 5))], above) == link(A, 2, at(OWNER, 5))
    later = {at(OWNER, 5): SEEN_NOTHING, at(DEAD, 7): at(OWNER, 5)}
    assert resolved([link(B, 1, at(DEAD, 3))], later, lost=dead(DEAD)) is None  # what was seen was written before


def test_of_deletions_that_did_not_know_of_one_another_none_is_the_newest():
    above = {at(A, 1): SEEN_NOTHING, at(B, 1): SEEN_NOTHING}
    assert resolved([link(C, 1, newest(above, {A, B}))], above) is None


def test_what_its_own_process_has_deleted_is_hidden():
    assert resolved([link(A, 1)], {at(A, 3): SEEN_NOTHING}) == tombstone(at(A, 3))


def test_who_deletes_below_a_deleted_prefix_and_writes_again():
    above = {at(A, 9): SEEN_NOTHING, at(B, 2): at(A, 9)}
    links = [tombstone(at(B, 2))._replace(seen=at(A, 4)), link(B, 3, at(A, 9))]
    assert resolved(links, above) == links[-1]
    assert resolved([links[0], link(C, 1, at(B, 2)), links[1]], above) is None


def test_a_lost_deletion_hides_nothing_of_others():
    assert resolved([link(B, 1)], {at(DEAD, 3): SEEN_NOTHING}, lost=dead(DEAD)) == link(B, 1)


def test_a_deletion_by_who_did_the_work_anew_hides_what_was_lost():
    above = {at(A, 3): SEEN_NOTHING}
    assert resolved([link(DEAD, 1)], above, lost=dead(DEAD)) == tombstone(at(A, 3))
    assert resolved([link(B, 1), link(DEAD, 1, at(B, 1))], above, lost=dead(DEAD)) is None


# --- chunks that are written in part
def part(participant: int, sequence: int, start: int, stop: int, seen: Seen = SEEN_NOTHING) -> Link:
    region = Region.of_box(((start, stop),))
    return link(participant, sequence, seen)._replace(kind=packfile.FRAME_PARTIAL, region=region)


def test_parts_that_have_no_element_in_common_are_laid_over_one_another():
    for read in permutations([part(A, 1, 0, 2), part(B, 1, 2, 4), part(C, 1, 5, 6, SEEN_BASE)]):
        assert sorted(resolve(read)) == sorted(read)


def test_parts_that_overlap_are_refused():
    assert resolve([part(A, 1, 0, 3), part(B, 1, 2, 4)]) is None
    assert resolve([part(A, 1, 0, 3), part(B, 1, 2, 4, at(A, 1))]) == [part(B, 1, 0, 4, at(A, 1))]


def test_each_is_laid_over_what_its_writer_had_seen():
    first, second, third = part(A, 1, 0, 2), part(B, 1, 4, 6), part(C, 1, 1, 3, at(A, 1))
    for read in permutations([first, second, third]):
        found = resolve(read)
        assert sorted(found) == sorted(read)
        assert found.index(first) < found.index(third)
    assert resolve([first, part(B, 1, 2, 4), third]) is None


def test_two_that_went_on_from_one_frame():
    whole = link(OWNER, 1)
    assert resolve([whole, part(A, 1, 0, 2, at(OWNER, 1)), part(B, 1, 2, 4, at(OWNER, 1))])[0] == whole
    assert resolve([whole, part(A, 1, 0, 3, at(OWNER, 1)), part(B, 1, 2, 4, at(OWNER, 1))]) is None


@pytest.mark.parametrize("kind", [packfile.FRAME_VALUE, packfile.FRAME_TOMBSTONE, packfile.FRAME_FOREIGN])
def test_the_whole_beside_a_part_is_refused(kind):
    assert resolve([part(A, 1, 0, 2), link(B, 1)._replace(kind=kind)]) is None


def test_who_has_seen_all_replaces_all():
    parts = [part(A, 1, 0, 2), part(B, 1, 2, 4)]
    seen = [deletion(C, 1, at(A, 1)), link(C, 2, at(B, 1))]
    for read in permutations([*parts, *seen]):
        assert resolve(read) == [seen[1]]
    assert resolve([*parts, seen[0]]) is None
    assert resolve([*parts, *seen, part(B, 7, 5, 6)]) is None  # behind its frame that was seen


def test_parts_that_follow_one_another_in_a_circle():
    assert resolve([part(A, 1, 0, 2, at(B, 1)), part(B, 1, 2, 4, at(A, 1)), part(C, 1, 5, 6)]) is None


def test_parts_below_a_prefix_that_all_know_was_deleted():
    above = {at(OWNER, 9): SEEN_NOTHING}
    parts = [part(A, 1, 0, 2, at(OWNER, 9)), part(B, 1, 2, 4, at(OWNER, 9))]
    assert sorted(resolve(parts, above)) == parts
    assert resolve([parts[0], part(B, 1, 2, 4)], above) is None
    assert len(resolve([parts[0], part(B, 1, 2, 4, at(A, 1)), part(C, 3, 4, 5, at(OWNER, 9))], above)) == 3


def test_who_has_seen_a_part_that_was_written_over_knows_what_its_writer_knew():
    """B has seen frame 2 of A, which has written the chunk once more since."""
    above = {at(OWNER, 9): SEEN_NOTHING}
    over_prefix = [part(A, 4, 0, 2, at(OWNER, 9)), part(B, 1, 2, 4, at(A, 2))]
    over_whole = [link(OWNER, 9), *over_prefix]
    over_part = [part(C, 1, 2, 3), part(A, 4, 0, 2, at(C, 1)), part(B, 1, 2, 4, at(A, 2))]
    for links, prefixes in ((over_prefix, above), (over_whole, {}), (over_part, {})):
        for read in permutations(links):
            assert sorted(resolve(read, prefixes)) == sorted(links)


def test_who_has_seen_a_part_does_not_know_what_its_writer_has_learned_since():
    above = {at(OWNER, 9): SEEN_NOTHING}
    links = [part(A, 2, 0, 1), part(A, 4, 0, 2, at(OWNER, 9)), part(B, 1, 2, 4, at(A, 1))]
    for read in permutations(links):
        assert resolve(read, above) is None
    deleter = [part(A, 4, 0, 2, at(A, 3)), part(B, 1, 2, 4, at(A, 2))]
    assert resolve(deleter, {at(A, 3): SEEN_NOTHING}) is None
    learned = [part(C, 1, 2, 3), part(A, 2, 0, 1), part(A, 4, 0, 2, at(C, 1)), part(B, 1, 2, 4, at(A, 1))]
    assert resolve(learned) is None  # what B has overwritten is of C


def test_a_part_over_one_that_did_not_know_of_the_deletion_does_not_vouch_for_it():
    """It is made of what the other had seen, of which the deletion would leave nothing; a whole is not."""
    above = {at(OWNER, 9): SEEN_NOTHING}
    for unknowing in (part(A, 1, 0, 1), link(A, 1)):
        assert resolve([unknowing, part(OWNER, 10, 2, 3, at(A, 1))], above) is None
        whole = link(OWNER, 10, at(A, 1))
        assert resolve([unknowing, whole], above) == [whole]
        assert resolve([unknowing, whole, part(B, 1, 2, 3, at(OWNER, 10))], above) == [
            part(B, 1, 2, 3, at(OWNER, 10))._replace(region=WHOLE)
        ]


def test_parts_over_a_deletion_that_has_seen_what_came_before():
    above = {at(OWNER, 9): SEEN_NOTHING}
    deleted = tombstone(at(OWNER, 9))._replace(seen=at(C, 1))
    parts = [part(A, 1, 0, 2, at(OWNER, 9)), part(B, 1, 2, 4, at(OWNER, 9))]
    for read in permutations([link(C, 1), deleted, *parts]):
        assert sorted(resolve(read, above)) == sorted([deleted, *parts])


def test_a_lost_part_is_left_out_only_if_it_was_written_again():
    lost, other = part(DEAD, 1, 0, 2), part(A, 1, 4, 6)
    assert sorted(resolve([lost, other], lost=dead(DEAD))) == sorted([lost, other])  # which `lost_keys` tells
    assert resolve([lost, other, part(B, 1, 0, 2)], lost=dead(DEAD)) == [other, part(B, 1, 0, 2)]
    assert resolve([lost, other, part(B, 1, 0, 3)], lost=dead(DEAD)) == [other, part(B, 1, 0, 3)]
    assert resolve([lost, other, part(B, 1, 1, 3)], lost=dead(DEAD)) is None


def test_equal_values_are_not_what_another_has_lost():
    both = [part(A, 1, 4, 6)._replace(checksum=7), part(B, 1, 4, 6)._replace(checksum=7)]
    for lost, counts in ((part(DEAD, 1, 0, 2), False), (part(DEAD, 1, 4, 5), True), (link(DEAD, 1), False)):
        assert bool(resolve([*both, lost], lost=dead(DEAD), equal=lambda *_: True)) is counts


def test_who_lost_work_had_built_on_has_not_repeated_it():
    """A has written again since, without knowing of the lost frame; nobody can tell which part."""
    lost = part(DEAD, 1, 0, 2, at(A, 1))
    assert resolve([part(A, 2, 0, 4), lost], lost=dead(DEAD)) is None
    assert resolve([part(A, 2, 0, 4), part(B, 1, 0, 1, at(A, 2)), lost], lost=dead(DEAD)) is None
    assert resolve([part(A, 2, 0, 4), part(B, 1, 0, 2, at(A, 2)), lost], lost=dead(DEAD)) is not None


@pytest.mark.parametrize("seen", [SEEN_NOTHING, at(A, 1)])
def test_what_was_done_before_a_kill_is_replaced_only_by_who_can_have_read_nothing(seen):
    frames = [part(DEAD, 1, 3, 5), part(B, 1, 0, 8, seen)] + ([part(A, 1, 4, 5)] if seen else [])
    staged = StagedKeys(OWNER)
    for frame in frames:
        staged.add("x", frame)
    assert staged.settle({}, lambda *_: False) == ["x"]
    assert staged.settle({DEAD: -1}, lambda *_: False, among=["x"]) == (["x"] if seen else [])


def test_a_deletion_that_a_lost_one_knew_of_is_not_done_again():
    staged = StagedKeys(OWNER)
    staged.hide("d/", A, 3)
    staged.hide("d/", DEAD, 1, at(A, 3))
    assert staged.lost_keys({DEAD: -1}) == ["d/"]
    staged.hide("d/", B, 1)
    assert staged.lost_keys({DEAD: -1}) == []


def test_what_was_complete_before_counts():
    """DEAD had sealed frame 1, and has lost frame 3."""
    frames = [part(DEAD, 1, 0, 2), part(DEAD, 3, 2, 4, at(DEAD, 1))]
    lost = {DEAD: 2}
    assert resolve([*frames, part(A, 1, 2, 3, at(DEAD, 1))], lost=lost) is None
    assert resolve([*frames, part(A, 1, 2, 4, at(DEAD, 1))], lost=lost)[0].region == Region.of_box(((0, 4),))


def test_frames_after_a_seal_are_a_link_of_their_own_until_the_next():
    staged = StagedKeys(OWNER)
    staged.add("x", part(A, 1, 0, 2))
    staged.close(A, 2)
    staged.add("x", part(A, 3, 4, 6, at(A, 1)))
    assert [link.place for link in staged.links("x")] == [at(A, 1), at(A, 3)]
    staged.close(A, 4)
    assert staged.links("x") == [part(A, 3, 0, 2)._replace(region=Region((((0, 2),), ((4, 6),))))]


def test_own_frames_count_with_all_that_they_have_written():
    staged = StagedKeys(A)
    staged.add("x", part(A, 1, 0, 2))
    assert staged.own_region("x", SEEN_NOTHING) == Region.of_box(((0, 2),))
    staged.add("x", part(B, 1, 4, 6))
    assert staged.own_region("x", SEEN_NOTHING) == Region.of_box(((0, 2),))
    assert staged.own_region("x", at(B, 1)) == Region(())
    assert len(staged.layers("x")) == 2
    assert [end.place for end in staged.ends("x")] == [at(B, 1)]
    assert staged.get("x") in staged.layers("x")
    staged.hide("", A, 5)
    assert staged.layers("x") == []


# --- the same through `StagedKeys`: deletions of prefixes among frames, in the order of one process after the other
def settled(*packs: list[tuple[str, Link]]) -> dict[str, Link] | list[str]:
    """Read pack after pack, as the owner does; return what counts, or the broken keys. A key "d/" is a prefix."""
    staged = StagedKeys(OWNER)
    for pack in packs:
        for key, frame in pack:
            if key.endswith("/"):
                staged.hide(key, frame.participant, frame.sequence, frame.seen)
            else:
                staged.add(key, frame)
    return staged.settle({}, lambda *_: True) or {
        key: found for key, found in staged.items() if found.kind == packfile.FRAME_VALUE
    }


def deletion(participant: int, sequence: int, seen: Seen = SEEN_NOTHING) -> Link:
    return link(participant, sequence, seen)._replace(kind=packfile.FRAME_TOMBSTONE, length=0, checksum=0)


def test_whoever_writes_again_below_a_deleted_prefix_is_read_before_its_deletion():
    writer = [("d/x", link(A, 1, at(B, 2)))]
    deleter = [("d/x", link(B, 1)), ("d/", deletion(B, 2))]
    assert settled(writer, deleter) == settled(deleter, writer) == {"d/x": writer[0][1]}


def test_a_deletion_of_what_is_read_later():
    deleter = [("d/x", deletion(A, 1, at(B, 1))), ("d/", deletion(A, 2))]
    writer = [("d/x", link(B, 1))]
    assert settled(deleter, writer) == settled(writer, deleter) == {}


def test_a_deletion_of_what_another_has_made_of_an_own_frame():
    deleter = [("d/x", link(A, 1)), ("d/x", deletion(A, 2, at(B, 1))), ("d/", deletion(A, 3))]
    writer = [("d/x", link(B, 1, at(A, 1)))]
    third = [("d/x", link(C, 1, at(A, 3)))]
    for packs in permutations([deleter, writer]):
        assert settled(*packs) == {}
    for packs in permutations([deleter, writer, third]):
        assert settled(*packs) == {"d/x": third[0][1]}


def test_a_deletion_that_does_not_know_of_a_write_conflicts_in_either_order():
    deleter = [("d/x", link(A, 1)), ("d/", deletion(A, 2))]
    for seen in (SEEN_NOTHING, at(A, 1)):
        writer = [("d/x", link(B, 1, seen))]
        assert settled(deleter, writer) == settled(writer, deleter) == ["d/x"]


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
