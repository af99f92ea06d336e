"""I7: what several processes of one transaction did to a key must form a chain. No I/O.

Each frame says what its writer had seen of the key: nothing, the base, or another frame. The frames of a chain follow one
another, each having seen the one before, so the last holds the work of all. Where two frames have seen the same, one of them
does not know the other's work; nothing is merged silently, so the commit names the key. Two exceptions: what a process
wrote that died before it was done is dropped where somebody else wrote the key afresh, and equal values that were written
without having seen anything count as one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from txstore import format
from txstore.format import Predecessor, Seen


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
            # Of its own frames a process knows the one before, though the frame may not say so.
            if not isinstance(link.seen, Predecessor) or link.seen == own.place:
                links[i] = link._replace(seen=own.seen)
                return
            break
    links.append(link)


def resolve(
    links: Sequence[Link],
    prefixes: Collection[Predecessor] = (),
    lost: Collection[int] = (),
    equal: Callable[[Link, Link], bool] | None = None,
) -> tuple[Link | None, bool]:
    """Return the link that counts, and whether its value is hidden by a deleted prefix; None if there is no chain.

    `prefixes` are the deletions of prefixes above the key. `lost` are participants that died before they were done.
    `equal` compares the bytes of two values of one length and checksum.
    """
    chain = order(links, prefixes)
    if chain is None and lost:
        links = _without_lost(links, lost)
        chain = order(links, prefixes)
    if chain is None and equal is not None and _are_equal(links, equal):
        chain = list(links[:1])
    if chain is None:
        return None, False
    last, hidden = chain[-1], False
    for prefix in prefixes:
        if prefix.participant not in lost and not any(_is_after(link, prefix) for link in chain):
            if last.participant != prefix.participant:
                return None, False  # who deleted and who wrote did not know of one another
            hidden = True
    return last, hidden


def order(links: Sequence[Link], prefixes: Collection[Predecessor] = ()) -> list[Link] | None:
    """Return the links in the order of the chain; None if they form none."""
    first: Link | None = None
    followers: dict[Seen, Link] = {}
    for link in links:
        if isinstance(link.seen, Predecessor) and link.seen not in prefixes:
            if link.seen in followers:
                return None  # two have seen the same
            followers[link.seen] = link
        elif first is None:
            first = link
        else:
            return None  # two begin anew
    chain = []
    while first is not None:
        chain.append(first)
        first = followers.pop(first.place, None)
    return None if followers else chain  # what is left follows a frame that was written over


def _is_after(link: Link, prefix: Predecessor) -> bool:
    """Tell whether the writer of a link knew that a prefix was deleted."""
    if link.participant == prefix.participant:
        return link.sequence > prefix.sequence
    # Frames of a process are learned in their order.
    seen = link.seen
    return isinstance(seen, Predecessor) and seen.participant == prefix.participant and seen.sequence >= prefix.sequence


def _without_lost(links: Sequence[Link], lost: Collection[int]) -> Sequence[Link]:
    """Leave out what was lost, unless somebody who was not has built on it."""
    needed = {link.seen for link in links if link.participant not in lost}
    if not needed:
        return links
    kept = []
    for link in reversed(links):
        if link.participant not in lost or link.place in needed:
            kept.append(link)
            needed.add(link.seen)
    return kept[::-1]


def _are_equal(links: Sequence[Link], equal: Callable[[Link, Link], bool]) -> bool:
    first = links[0]
    what = (first.kind, first.length, first.checksum)
    return all(
        link.seen == format.SEEN_NOTHING and (link.kind, link.length, link.checksum) == what and equal(first, link)
        for link in links
    )
