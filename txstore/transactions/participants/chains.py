"""I7: what several processes of one transaction did to a key must form a chain. No I/O.

Each frame says what its writer had seen of the key: nothing, the base, or another frame. The frames of a chain follow
one another, each having seen the one before, so the last holds the work of all. Where two frames have seen the same,
one of them does not know the other's work, and the commit names the key. A process that has seen a frame knows what
its writer knew then, though the writer may have written the key once more since. Three exceptions: of chunks that were
written in part, frames whose regions have no element in common are laid over one another; what a process wrote that
died before it was done is dropped where somebody else wrote the same afresh; and equal values that were written without
having seen anything count as one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from typing import NamedTuple

from txstore.format import packfile
from txstore.format.packfile import Predecessor, Seen
from txstore.format.regions import WHOLE, Region

#: Deletions of prefixes above a key, and which other deletion above it each had seen.
Prefixes = Mapping[Predecessor, Seen]


class Link(NamedTuple):
    """The frames of one process on a key that follow one another; `sequence` and what comes after are of the last."""

    participant: int
    sequence: int
    seen: Seen  # by the first of them
    kind: int
    offset: int
    length: int
    checksum: int
    region: Region = WHOLE  # which elements of a chunk the process has written in these frames

    @property
    def place(self) -> Predecessor:
        return Predecessor(self.participant, self.sequence)


def extend(links: list[Link], link: Link) -> None:
    """Add a frame, which comes after all others of its process."""
    for i in range(len(links) - 1, -1, -1):
        own = links[i]
        if own.participant == link.participant:
            if link.sequence < own.sequence:
                return  # a thread of the process was overtaken by another
            # Of its own frames a process knows the one before, though the frame may not say so.
            if not isinstance(link.seen, Predecessor) or link.seen == own.place:
                links[i] = link._replace(seen=own.seen)
                return
            break
    links.append(link)


def resolve(
    links: Sequence[Link],
    prefixes: Prefixes | None = None,
    lost: Collection[int] = (),
    equal: Callable[[Link, Link], bool] | None = None,
) -> list[Link] | None:
    """Return the link that counts, or the links that count laid over one another; None if they don't fit together.

    Where a deleted prefix hides the key, it counts, as a tombstone. `lost` are participants that died before they were
    done. `equal` compares the bytes of two values of one length and checksum.
    """
    prefixes = prefixes or {}
    found = arrange(links, prefixes)
    if found is None and lost:
        kept = _without_lost(links, lost)
        found = arrange(kept, prefixes)
        if found is not None and not _is_done_again(links, kept, found, lost):
            return None
        links = kept
    if found is None and equal is not None and _are_equal(links, equal):
        found = Arranged([links[0]], [links[0]._replace(region=_united(links))])
    if found is None:
        return None
    layers, last = found.layers, found.links[-1]
    for prefix in prefixes:
        knowing = _knowing(found.links, prefix, prefixes)
        if prefix.participant in lost or _is_known(found, knowing):
            continue
        is_last = len(found.layers) == 1 and last.participant == prefix.participant and last.place not in knowing
        if not is_last and not all(link.participant in lost for link in found.links):
            return None  # who deleted and who wrote did not know of one another
        layers = [tombstone(prefix)]
    return layers


def know_of(links: Sequence[Link], prefixes: Prefixes) -> bool:
    """Tell whether the writers of what is left of a key knew of all deletions of prefixes above it."""
    found = arrange(links, prefixes)
    return found is not None and all(_is_known(found, _knowing(links, prefix, prefixes)) for prefix in prefixes)


def _is_known(found: Arranged, knowing: Collection[Predecessor]) -> bool:
    """Tell whether the writers of all that is left of a key are among the ones that know something."""
    # What was written in part leaves something of what is below it; what came before a whole is gone.
    whole = max((at for at, link in enumerate(found.links) if link.region.is_whole), default=0)
    return all(link.place in knowing for link in found.links[whole:])


def tombstone(prefix: Predecessor) -> Link:
    """Return the deletion of a prefix as a frame on one of the keys below it."""
    return Link(prefix.participant, prefix.sequence, packfile.SEEN_NOTHING, packfile.FRAME_TOMBSTONE, 0, 0, 0)


class Arranged(NamedTuple):
    """The links of a key, each behind the ones that its process had seen, and which of them overlay one another."""

    links: list[Link]
    layers: list[Link]  # if there is one, it has the work of all, and all that was written is its region


def arrange(links: Sequence[Link], prefixes: Prefixes | None = None) -> Arranged | None:
    """Arrange the links of a key. Return None if two have written the same element without knowing of one another."""
    chain = order(links, prefixes)
    if chain is not None:
        return Arranged(chain, [chain[-1]._replace(region=_united(chain))])
    if all(link.region.is_whole for link in links):
        return None
    known = _knowledge(links, prefixes or {})
    if known is None:
        return None
    places = sorted(range(len(links)), key=lambda at: known[at].bit_count())
    # What came before a link that wrote the whole is contained in it, whatever it was.
    whole = next((at for at in reversed(places) if links[at].region.is_whole), None)
    above = places if whole is None else [at for at in places if at == whole or known[at] >> whole & 1]
    if whole is not None and any(not known[whole] >> before & 1 for before in set(places) - set(above)):
        return None
    apart = [pair for pair in combinations(above, 2) if not known[pair[1]] >> pair[0] & 1]
    if any(links[one].region.intersects(links[other].region) for one, other in apart):
        return None
    layers = [links[at] for at in above]
    if not apart:
        layers = [layers[-1]._replace(region=_united(layers))]
    return Arranged([links[at] for at in places], layers)


def _knowledge(links: Sequence[Link], prefixes: Prefixes) -> list[int] | None:
    """Return for each link which others its process had seen, a bit for each; None if that is not known."""
    learned = _learned(links, prefixes)
    if learned is None:
        return None
    numbers = {link.place: at for at, link in enumerate(links)}
    parents = {at: [numbers[other.place] for other in learned[link.place]] for at, link in enumerate(links)}
    known = [0] * len(links)
    try:
        for at in TopologicalSorter(parents).static_order():
            for parent in parents[at]:
                known[at] |= known[parent]
                # Else what was seen was written over: what its process has written by now was not seen.
                if links[at].participant == links[parent].participant or links[at].seen == links[parent].place:
                    known[at] |= 1 << parent
    except CycleError:
        return None
    return known


def _learned(links: Iterable[Link], prefixes: Prefixes) -> dict[Predecessor, list[Link]] | None:
    """Return from which others the writer of each link has learned: it knew what the first frames of these had seen.

    These are the one that its process has written before, and the one that has the frame which it had seen, or had it
    until its process wrote over that. Return None if a frame that was seen is not there.
    """
    written: dict[int, list[Link]] = {}
    for link in sorted(links, key=lambda link: link.sequence):
        written.setdefault(link.participant, []).append(link)
    places = {link.place for own in written.values() for link in own}
    learned: dict[Predecessor, list[Link]] = {}
    for own in written.values():
        for before, link in zip([None, *own], own, strict=False):
            others = learned[link.place] = [] if before is None else [before]
            seen = link.seen
            if isinstance(seen, Predecessor) and (seen in places or not _is_prefix(seen, prefixes)):
                theirs = written.get(seen.participant, [])
                at = bisect_left(theirs, seen.sequence, key=lambda link: link.sequence)
                if at == len(theirs):
                    return None
                others.append(theirs[at])
    return learned


def _united(links: Iterable[Link]) -> Region:
    return Region.of_all(link.region for link in links)


def _is_done_again(links: Sequence[Link], kept: Sequence[Link], found: Arranged, lost: Collection[int]) -> bool:
    """Tell whether all was done again that those wrote who died, and are left out."""
    if any(link.seen == found.links[-1].place and link.participant in lost for link in links):
        return False  # the participants that died had gone on from there
    places = {link.place for link in links}
    if len(found.layers) > 1 and not all(link.place in places for link in kept):
        return False  # of what was built on, there is only what came later
    left_out = [link for link in links if all(link.participant != other.participant for other in kept)]
    return all(_united(kept).contains(link.region) for link in left_out)


def order(links: Sequence[Link], prefixes: Prefixes | None = None) -> list[Link] | None:
    """Return the links in the order of the chain; None if they form none."""
    first: Link | None = None
    followers: dict[Seen, Link] = {}
    places = {link.place for link in links}
    for link in links:
        before = _before(link, links, places, prefixes or {})
        if before is None and first is None:
            first = link
        elif before is None or before in followers:
            return None  # two begin anew, or have seen the same
        else:
            followers[before] = link
    chain = []
    while first is not None:
        chain.append(first)
        first = followers.pop(first.place, None)
    return None if followers else chain  # what is left follows a frame that was written over


def _before(
    link: Link, links: Sequence[Link], places: Collection[Predecessor], prefixes: Prefixes
) -> Predecessor | None:
    """Return the frame on the key that a link follows; None if it begins a chain."""
    seen = link.seen
    if isinstance(seen, Predecessor) and (seen in places or not _is_prefix(seen, prefixes)):
        return seen
    own = (other.place for other in links if other.participant == link.participant and other.sequence < link.sequence)
    return max(own, default=None, key=lambda place: place.sequence)


def _is_prefix(seen: Predecessor, prefixes: Prefixes) -> bool:
    """Tell whether a frame that is not on the key may be the deletion of a prefix, or of one that was repeated."""
    return any(place.participant == seen.participant and place.sequence >= seen.sequence for place in prefixes)


def newest(prefixes: Prefixes, participants: Collection[int]) -> Predecessor:
    """Return the deletion, by one of `participants`, that knew of all others by them, if one did."""
    places = [place for place in prefixes if place.participant in participants]
    return next((place for place in places if all(_knows(place, other, prefixes) for other in places)), places[-1])


def _knowing(links: Sequence[Link], prefix: Predecessor, prefixes: Prefixes) -> set[Predecessor]:
    """Return the places of the links whose writers knew, be it from others on the key, that a prefix was deleted."""
    followers: dict[Predecessor, list[Link]] = {}
    learned = _learned(links, prefixes) or {}
    for link in links:
        for other in learned.get(link.place, ()):
            followers.setdefault(other.place, []).append(link)
    knowing: set[Predecessor] = set()
    found = [link for link in links if _is_after(link, prefix, prefixes)]
    while found:
        place = found.pop().place
        if place not in knowing:
            knowing.add(place)
            found += followers.get(place, [])
    return knowing


def _is_after(link: Link, prefix: Predecessor, prefixes: Prefixes) -> bool:
    """Tell whether the writer of a link knew that a prefix was deleted."""
    return _knows(link.place, prefix, prefixes) or _knows(link.seen, prefix, prefixes)


def _knows(seen: Seen, prefix: Predecessor, prefixes: Prefixes) -> bool:
    """Tell whether it was known that a prefix was deleted when a frame was written."""
    if not isinstance(seen, Predecessor):
        return False
    if seen.participant == prefix.participant:
        return seen.sequence >= prefix.sequence  # frames of a process are learned in their order
    return any(
        own.participant == seen.participant and own.sequence <= seen.sequence and _knows(before, prefix, prefixes)
        for own, before in prefixes.items()
    )


def _without_lost(links: Sequence[Link], lost: Collection[int]) -> Sequence[Link]:
    """Leave out what was lost, but for what somebody who was not has built on."""
    kept = [link for link in links if link.participant not in lost]
    if not kept:
        return links
    needed = [link.seen for link in kept]
    while needed:
        seen = needed.pop()
        if not isinstance(seen, Predecessor) or seen.participant not in lost:
            continue
        # The process may have written the key once more, before it died: that is not needed.
        own = (link for link in links if link.participant == seen.participant and link.sequence >= seen.sequence)
        base = min(own, key=lambda link: link.sequence, default=None)
        if base is not None:
            kept.append(base._replace(sequence=seen.sequence))
            needed.append(base.seen)
    present = {link.participant for link in kept}
    return [_without_seen(link) if _is_gone(link.seen, lost, present) else link for link in kept]


def _is_gone(seen: Seen, lost: Collection[int], present: Collection[int]) -> bool:
    """Tell whether a power loss has taken what was seen.

    A participant that built on it has all of that work in its own frame.
    """
    return isinstance(seen, Predecessor) and seen.participant in lost and seen.participant not in present


def _without_seen(link: Link) -> Link:
    return link._replace(seen=packfile.SEEN_BASE)


def _are_equal(links: Sequence[Link], equal: Callable[[Link, Link], bool]) -> bool:
    first = links[0]
    what = (first.kind, first.length, first.checksum)
    return all(
        link.seen == packfile.SEEN_NOTHING and (link.kind, link.length, link.checksum) == what and equal(first, link)
        for link in links
    )
