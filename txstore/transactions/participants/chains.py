"""Checks that the writes of several processes to one key form a chain (I7). No I/O.

Each frame records what its writer had seen of the key: nothing, the base, or another frame. In a chain, each frame has
seen the one before it, so the last frame includes the work of all. If two frames have seen the same, neither writer
knew the other's work, and the commit reports the key. A process that has seen a frame knows what the frame's writer
knew then, even if that writer has written the key again since. There are three exceptions:

- Partial frames of a chunk, whose regions have no common element, are merged.
- The work of a process that died before it finished is dropped if another process wrote the same again.
- Equal values whose writers had seen nothing count as one value.
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

#: Deletions of prefixes above a key, each with the other deletion above the key that it had seen.
Prefixes = Mapping[Predecessor, Seen]


class Link(NamedTuple):
    """Consecutive frames of one process on a key. `sequence`, and `kind` to `checksum`, are of the last frame."""

    participant: int
    sequence: int
    seen: Seen  # of the first frame
    kind: int
    offset: int
    length: int
    checksum: int
    region: Region = WHOLE  # the elements of a chunk that the process wrote in these frames

    @property
    def place(self) -> Predecessor:
        return Predecessor(self.participant, self.sequence)

    @property
    def content(self) -> tuple[int, int, int]:
        return self.kind, self.length, self.checksum


def extend(links: list[Link], link: Link, closed: int = -1) -> bool:
    """Add a frame that comes after all others of its process.

    If it has seen a frame of its process up to `closed`, it is a link of its own: then return True.
    """
    for i in range(len(links) - 1, -1, -1):
        own = links[i]
        if own.participant == link.participant:
            if link.sequence < own.sequence:
                return False  # another thread of the process overtook this one
            # A process knows its own previous frame, even if the frame does not record that.
            if not isinstance(link.seen, Predecessor) or (link.seen == own.place and own.sequence > closed):
                links[i] = merged(own, link)
                return False
            links.append(link)
            return link.seen == own.place
    links.append(link)
    return False


def merged(own: Link, link: Link) -> Link:
    """Return two links of one process as one. If the second says that it has seen the first, its region is new."""
    region = own.region | link.region if isinstance(link.seen, Predecessor) else link.region
    return link._replace(seen=own.seen, region=region)


def resolve(
    links: Sequence[Link],
    prefixes: Prefixes | None = None,
    lost: Mapping[int, int] | None = None,
    equal: Callable[[Link, Link], bool] | None = None,
    whole: Callable[[], Region] = Region.whole,
) -> list[Link] | None:
    """Return the link that counts, or several links to merge in order. None if the links do not form a chain.

    If a deleted prefix hides the key, the result is its tombstone. `lost` are participants that died before they
    finished, each with its last frame that counts. `equal` compares the bytes of two values with equal length and
    checksum. `whole` returns the box of the whole chunk.
    """
    prefixes, lost = prefixes or {}, lost or {}
    found = arrange(links, prefixes)
    if found is None:
        kept, found = _arranged_without(links, prefixes, lost, equal)
        if found is None or not _is_done_again(links, kept, found, lost, prefixes, whole):
            return None
    layers, last = found.layers, found.links[-1]
    for prefix in prefixes:
        knowing = _knowing(found.links, prefix, prefixes)
        if is_lost(prefix, lost) or _is_known(found, knowing):
            continue
        is_last = len(found.layers) == 1 and last.participant == prefix.participant and last.place not in knowing
        if not is_last and not all(is_lost(link.place, lost) for link in found.links):
            return None  # neither the deleting nor the writing process knew of the other
        layers = [tombstone(prefix)]
    return layers


def is_undone(
    links: Sequence[Link],
    prefixes: Prefixes,
    lost: Mapping[int, int],
    equal: Callable[[Link, Link], bool],
    whole: Callable[[], Region],
) -> bool:
    """Tell whether the links do not form a chain only because no participant has repeated all lost work."""
    kept, found = _arranged_without(links, prefixes, lost, equal)
    return found is not None and not _is_done_again(links, kept, found, lost, prefixes, whole)


def _arranged_without(
    links: Sequence[Link],
    prefixes: Prefixes,
    lost: Mapping[int, int],
    equal: Callable[[Link, Link], bool] | None,
) -> tuple[Sequence[Link], Arranged | None]:
    """Return the links without those of lost participants, and how they are arranged."""
    kept = _without_lost(links, lost) if lost else links
    found = arrange(kept, prefixes)
    if found is None and equal is not None and _are_equal(kept, equal):
        found = Arranged([kept[0]], [kept[0]._replace(region=_united(kept))])
    return kept, found


def knows_of_all(seen: Seen, prefixes: Prefixes, participants: Collection[int]) -> bool:
    """Tell whether the writer of a frame knew of the deletions by `participants`."""
    return all(_knows(seen, place, prefixes) for place in prefixes if place.participant in participants)


def know_of(links: Sequence[Link], prefixes: Prefixes) -> bool:
    """Tell whether the writers of the remaining frames of a key knew of all deletions of prefixes above it."""
    found = arrange(links, prefixes)
    return found is not None and all(_is_known(found, _knowing(links, prefix, prefixes)) for prefix in prefixes)


def _is_known(found: Arranged, knowing: Collection[Predecessor]) -> bool:
    """Tell whether the writers of all remaining frames of a key are in `knowing`."""
    # A partial frame keeps elements of the frames below it. A whole frame replaces all frames before it.
    whole = max((at for at, link in enumerate(found.links) if link.region.is_whole), default=0)
    return all(link.place in knowing for link in found.links[whole:])


def tombstone(prefix: Predecessor) -> Link:
    """Return the deletion of a prefix as a frame on a key below it."""
    return Link(prefix.participant, prefix.sequence, packfile.SEEN_NOTHING, packfile.FRAME_TOMBSTONE, 0, 0, 0)


class Arranged(NamedTuple):
    """The links of a key, each after the links that its process had seen, and the layers to merge."""

    links: list[Link]
    layers: list[Link]  # a single layer has the work of all, and its region is everything that was written


def arrange(links: Sequence[Link], prefixes: Prefixes | None = None) -> Arranged | None:
    """Arrange the links of a key. None if two processes wrote the same element without knowing of each other."""
    chain = order(links, prefixes)
    if chain is not None:
        return Arranged(chain, [chain[-1]._replace(region=_united(chain))])
    if all(link.region.is_whole for link in links):
        return None
    known = _knowledge(links, prefixes or {})
    if known is None:
        return None
    places = sorted(range(len(links)), key=lambda at: known[at].bit_count())
    # A link that wrote the whole value includes all links before it.
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
    """Return for each link a bit mask of the links that its process had seen. None if that is unknown."""
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
                # Otherwise the seen frame was overwritten, and the newer frame of that process was not seen.
                if links[at].participant == links[parent].participant or links[at].seen == links[parent].place:
                    known[at] |= 1 << parent
    except CycleError:
        return None
    return known


def _learned(links: Iterable[Link], prefixes: Prefixes) -> dict[Predecessor, list[Link]] | None:
    """Return for each link the links that its writer learned from: it knew what the first frames of these had seen.

    These are the previous link of its own process, and the link with the frame that it had seen, or that replaced that
    frame. Return None if a seen frame does not exist.
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


def _is_done_again(
    links: Sequence[Link],
    kept: Sequence[Link],
    found: Arranged,
    lost: Mapping[int, int],
    prefixes: Prefixes,
    whole: Callable[[], Region],
) -> bool:
    """Tell whether living participants repeated all work of the dead participants whose links are omitted."""
    places, there = {link.place for link in links}, {link.place for link in kept}
    if len(found.layers) > 1 and not there <= places:
        return False  # a later frame has replaced the frame that a living participant built on
    left_out = [link for link in links if is_lost(link.place, lost) and link.place not in there]
    kept = [link for link in kept if link.place in places]
    return all(is_repeated(link, links, kept, prefixes, whole) for link in left_out)


def is_repeated(
    link: Link, links: Sequence[Link], kept: Iterable[Link], prefixes: Prefixes, whole: Callable[[], Region]
) -> bool:
    """Tell whether `kept` links have all elements of a lost link, and were written without its writer's knowledge.

    A process may have written again what the lost writer had seen of it. It is unknown what it has written since. For a
    region with loose boxes, a link with the same region and value will do.
    """
    known = known_to(link, links, prefixes)
    if known is None:
        return False
    anew = [other for other in kept if other.place not in known]
    written = _united(anew)
    return (
        written.contains(link.region)
        or (link.region.is_whole and written.contains(whole()))
        or any(other.content == link.content and other.region == link.region for other in anew)
    )


def known_to(link: Link, links: Sequence[Link], prefixes: Prefixes) -> set[Predecessor] | None:
    """Return the places of the links whose writers a link's writer had learned from. None if that is unknown."""
    learned, known, found = _learned(links, prefixes), set[Predecessor](), [link]
    if learned is None:
        return None
    while found:
        others = [other for other in learned[found.pop().place] if other.place not in known]
        known.update(other.place for other in others)
        found += others
    return known


def order(links: Sequence[Link], prefixes: Prefixes | None = None) -> list[Link] | None:
    """Return the links in the order of the chain. None if they form no chain."""
    first: Link | None = None
    followers: dict[Seen, Link] = {}
    places = {link.place for link in links}
    for link in links:
        before = _before(link, links, places, prefixes or {})
        if before is None and first is None:
            first = link
        elif before is None or before in followers:
            return None  # two links have seen nothing, or have seen the same
        else:
            followers[before] = link
    chain = []
    while first is not None:
        chain.append(first)
        first = followers.pop(first.place, None)
    return None if followers else chain  # a remaining link follows a frame that was overwritten


def _before(
    link: Link, links: Sequence[Link], places: Collection[Predecessor], prefixes: Prefixes
) -> Predecessor | None:
    """Return the frame on the key that a link follows. None if the link begins a chain."""
    seen = link.seen
    if isinstance(seen, Predecessor) and (seen in places or not _is_prefix(seen, prefixes)):
        return seen
    own = (other.place for other in links if other.participant == link.participant and other.sequence < link.sequence)
    return max(own, default=None, key=lambda place: place.sequence)


def _is_prefix(seen: Predecessor, prefixes: Prefixes) -> bool:
    """Tell whether a frame that is not on the key may be the deletion of a prefix, which may have been repeated."""
    return any(place.participant == seen.participant and place.sequence >= seen.sequence for place in prefixes)


def newest(prefixes: Prefixes, participants: Collection[int]) -> Predecessor:
    """Return the deletion by one of `participants` that knew of all their other deletions. If none did, the last."""
    places = [place for place in prefixes if place.participant in participants]
    return next((place for place in places if all(_knows(place, other, prefixes) for other in places)), places[-1])


def _knowing(links: Sequence[Link], prefix: Predecessor, prefixes: Prefixes) -> set[Predecessor]:
    """Return the places of links whose writers knew that a prefix was deleted, also from other writers of the key."""
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
    """Tell whether the writer of a frame knew that a prefix was deleted."""
    if not isinstance(seen, Predecessor):
        return False
    if seen.participant == prefix.participant:
        return seen.sequence >= prefix.sequence  # other processes learn a process's frames in order
    return any(
        own.participant == seen.participant and own.sequence <= seen.sequence and _knows(before, prefix, prefixes)
        for own, before in prefixes.items()
    )


def _without_lost(links: Sequence[Link], lost: Mapping[int, int]) -> Sequence[Link]:
    """Omit the links of lost participants, except links that a living participant built on."""
    kept = [link for link in links if not is_lost(link.place, lost)]
    if not kept:
        return links
    needed, met = [link.seen for link in kept], set[Predecessor]()
    while needed:
        seen = needed.pop()
        # Damaged frames may lead round in a circle.
        if not isinstance(seen, Predecessor) or seen.participant not in lost or seen in met:
            continue
        met.add(seen)
        # The process may have written the key again before it died. That frame is not needed.
        own = (link for link in links if link.participant == seen.participant and link.sequence >= seen.sequence)
        base = min(own, key=lambda link: link.sequence, default=None)
        if base is not None and is_lost(base.place, lost):
            kept.append(base._replace(sequence=seen.sequence))
            needed.append(base.seen)
    present = {link.participant for link in kept}
    return [_without_seen(link) if _is_gone(link.seen, lost, present) else link for link in kept]


def is_lost(place: Predecessor, lost: Mapping[int, int]) -> bool:
    """Tell whether a participant has lost a frame, as it does not count."""
    return place.sequence > lost.get(place.participant, place.sequence)


def _is_gone(seen: Seen, lost: Mapping[int, int], present: Collection[int]) -> bool:
    """Tell whether a loss of power destroyed the seen frame.

    A participant that built on it has all of that work in its own frame.
    """
    return isinstance(seen, Predecessor) and seen.participant in lost and seen.participant not in present


def _without_seen(link: Link) -> Link:
    return link._replace(seen=packfile.SEEN_BASE)


def _are_equal(links: Sequence[Link], equal: Callable[[Link, Link], bool]) -> bool:
    first = links[0]
    return all(
        link.seen == packfile.SEEN_NOTHING and link.content == first.content and equal(first, link) for link in links
    )
