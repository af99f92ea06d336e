"""I7: what several processes of one transaction did to a key must form a chain. No I/O.

Each frame says what its writer had seen of the key: nothing, the base, or another frame. The frames of a chain follow
one another, each having seen the one before, so the last holds the work of all. Where two frames have seen the same,
one of them does not know the other's work; nothing is merged silently, so the commit names the key. Two exceptions:
what a process wrote that died before it was done is dropped where somebody else wrote the key afresh, and equal values
that were written without having seen anything count as one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from txstore.format import packfile
from txstore.format.packfile import Predecessor, Seen

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
) -> Link | None:
    """Return the link that counts; None if there is no chain.

    Where a deleted prefix hides the key, it counts, as a tombstone. `lost` are participants that died before they were
    done. `equal` compares the bytes of two values of one length and checksum.
    """
    prefixes = prefixes or {}
    chain = order(links, prefixes)
    if chain is None and lost:
        kept = _without_lost(links, lost)
        chain = order(kept, prefixes)
        if chain is not None and any(link.seen == chain[-1].place and link.participant in lost for link in links):
            return None  # those who died had gone on from there, and nobody has done that again
        links = kept
    if chain is None and equal is not None and _are_equal(links, equal):
        chain = list(links[:1])
    if chain is None:
        return None
    last = chain[-1]
    for prefix in prefixes:
        if prefix.participant in lost or any(_is_after(link, prefix, prefixes) for link in chain):
            continue
        if chain[-1].participant != prefix.participant and not all(link.participant in lost for link in chain):
            return None  # who deleted and who wrote did not know of one another
        last = tombstone(prefix)
    return last


def tombstone(prefix: Predecessor) -> Link:
    """Return the deletion of a prefix as a frame on one of the keys below it."""
    return Link(prefix.participant, prefix.sequence, packfile.SEEN_NOTHING, packfile.FRAME_TOMBSTONE, 0, 0, 0)


def order(links: Sequence[Link], prefixes: Prefixes | None = None) -> list[Link] | None:
    """Return the links in the order of the chain; None if they form none."""
    first: Link | None = None
    followers: dict[Seen, Link] = {}
    for link in links:
        before = _before(link, links, prefixes or {})
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


def _before(link: Link, links: Sequence[Link], prefixes: Prefixes) -> Predecessor | None:
    """Return the frame on the key that a link follows; None if it begins a chain."""
    seen = link.seen
    if isinstance(seen, Predecessor) and (
        any(seen == other.place for other in links) or not _is_prefix(seen, prefixes)
    ):
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
    """Tell whether a power loss has taken what was seen. Whoever built on it has the work of all in his own frame."""
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
