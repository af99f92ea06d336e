"""Closes the parts of a transaction: decides which participants' work counts, and what the commit refuses (I7, I8)."""

from __future__ import annotations

import logging

from txstore.codecs.chunk_codec import NotMergeableError
from txstore.errors import ConflictError, CorruptionError, ParticipantLostError
from txstore.format import packfile
from txstore.format.regions import WHOLE, Region
from txstore.transactions.own_part import Part
from txstore.transactions.participants.chains import Link
from txstore.transactions.view import View

_log = logging.getLogger(__name__)

_TAKE_TURNS = (
    "Trying again alone does not help. Roll back, and either align the work with the chunks, so that no two processes "
    "write one, or let them take turns: each reads and writes its part within `with store.lock(path, selection)`"
)
_LOCKED_TOO_LATE = (
    "They take locks, but what one of them wrote comes from what it had read before it held the lock, and others have "
    "written since. Roll back, and let each read under the lock what it changes there: within "
    "`with store.lock(path, selection)`, from an array that is opened there if it may have been resized"
)
_UNKNOWN_TO_EACH_OTHER = "several processes of this transaction wrote these keys without knowing of each other's writes"


def close_parts(part: Part, view: View, *, allow_lost: bool = False) -> None:
    """Stop all staging, and decide whose frames count.

    Raises `ParticipantLostError` (I8) and `ConflictError` (I7). If no commit is made, call `Membership.reopen`.
    """
    members, staged = part.members, view.staged
    members.follow_others()  # before the seal: a process that the seal refuses may end at once
    if (shared := members.shared) is None:
        return
    living = members.siblings.whole_or_living(shared, shared.participants())
    shared.seal()
    failed = {other.members.staged.me for other in part.all_in_this_process() if other.has_failed}
    lost = members.close_siblings(shared, living, failed)

    def are_equal(one: Link, other: Link) -> bool:
        return view.read(one) == view.read(other)

    def whole(key: str) -> Region:
        try:
            return view.merger(key).whole
        except NotMergeableError:
            return WHOLE

    siblings = members.siblings
    given_up = siblings.given_up()
    broken = staged.settle(lost, are_equal, given_up, whole=whole)
    if broken and (killed := siblings.killed(shared)):  # other processes may have repeated their tasks
        broken = staged.settle(lost | dict.fromkeys(killed, -1), are_equal, given_up, among=broken)
    lost_keys = siblings.lost_keys(lost, whole)
    if allow_lost:  # except keys whose values a loss of power destroyed, because they were never synced
        lost_keys = [key for key in lost_keys if _is_damaged(view, key)]
    if lost and not lost_keys:
        _log.info("participants that died, whose work is dropped: %s", ", ".join(map(siblings.label, lost)))
    if lost_keys:
        raise ParticipantLostError([siblings.label(number) for number in lost], lost_keys)
    if broken:
        raise ConflictError(
            broken,
            reason=_UNKNOWN_TO_EACH_OTHER + "".join(_told_of_regions(view, key) for key in broken[:1]),
            advice=_LOCKED_TOO_LATE if all(_have_locked(part, key) for key in broken) else _TAKE_TURNS,
        )


def _told_of_regions(view: View, key: str) -> str:
    """Return the regions of a key that at least two processes wrote in part, as text for a message."""
    regions = [str(link.region) for link in view.staged.links(key) if link.region is not WHOLE]
    return f" (of {key!r} {', '.join(regions)})" if len(regions) > 1 else ""


def _have_locked(part: Part, key: str) -> bool:
    """Tell whether the processes that wrote a key have locked anything. For the owner this is unknown."""
    staged, siblings = part.members.staged, part.members.siblings
    writers = staged.writers(key) - {0}
    mine = staged.me in writers and not part.announced
    return bool(writers) and not mine and all(siblings.locks_of(writer) is not None for writer in writers - {staged.me})


def _is_damaged(view: View, key: str) -> bool:
    try:
        for link in view.staged.layers(key) or filter(None, [view.staged.get(key)]):
            if link.kind in packfile.REF_OF_FRAME:
                view.read(link)
    except CorruptionError:
        return True
    return False
