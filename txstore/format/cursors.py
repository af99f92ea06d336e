"""Encodes and decodes the cursors of feeds in commit headers: docs/understand/format.md, "Cursors". No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from txstore.format.keys import check_name

#: Stands between the name of a feed and the number of a share in the name of that share's mark.
_OF_SHARE = "#"
#: Shares into which one change is divided, at most: each has a mark in every header until all are done.
MAX_SHARES = 256


class FeedPlace(NamedTuple):
    """A commit of the followed branch. Version -1, without an id, is before the first commit."""

    version: int
    commit: str | None

    def as_dict(self) -> dict[str, Any]:
        return {"version": self.version, "commit": self.commit}

    @classmethod
    def from_dict(cls, written: Any) -> FeedPlace:
        version, commit = written["version"], written["commit"]
        if not _is_number(version) or version < -1 or (commit is None) != (version == -1):
            raise ValueError(f"{written!r} is no place in a history")
        if commit is not None:
            _check_id(commit)
        return cls(version, commit)


#: Before the first commit.
BEGINNING = FeedPlace(-1, None)


class Keep(NamedTuple):
    """How much a vacuum keeps for a feed that has fallen behind: commits, or microseconds. None: no such limit."""

    commits: int | None = None
    microseconds: int | None = None


class Shares(NamedTuple):
    """A change that several workers share: where it ends, into how many shares it is divided, and its token.

    `division` is a digest of the shares. A worker that would divide the change otherwise finds out by it.
    """

    to: FeedPlace
    into: int
    token: str
    division: str


class Cursor(NamedTuple):
    """How far a feed has come, and what it was created with."""

    branch: str  # the id of the branch that it follows
    paths: tuple[str, ...]  # none: everything
    place: FeedPlace
    token: str  # another one whenever the cursor moves
    created: int  # microseconds since 1970
    keep: Keep = Keep()
    shares: Shares | None = None
    handed_out: FeedPlace | None = None  # where a change of several commits ends that a job has been given

    def as_dict(self) -> dict[str, Any]:
        written: dict[str, Any] = {
            "branch": self.branch, "paths": list(self.paths), "place": self.place.as_dict(), "token": self.token,
            "created": self.created, "keep": self.keep._asdict(),
        }  # fmt: skip
        if self.shares is not None:
            to, into, token, division = self.shares
            written["shares"] = {"to": to.as_dict(), "into": into, "token": token, "division": division}
        if self.handed_out is not None:
            written["handed_out"] = self.handed_out.as_dict()
        return written

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Cursor:
        """Return a cursor of a header. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        branch, paths, keep = written["branch"], written["paths"], written["keep"]
        if not isinstance(branch, str) or not branch:
            raise ValueError(f"{branch!r} is no id of a branch")
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise TypeError(f"{paths!r} is no list of paths")
        if not _is_number(written["created"]):
            raise TypeError(f"{written['created']!r} is no time")
        limits = Keep(keep["commits"], keep["microseconds"])
        if not all(each is None or (_is_number(each) and each > 0) for each in limits):
            raise ValueError(f"{keep!r} is no limit")
        place, shares = FeedPlace.from_dict(written["place"]), _shares(written.get("shares"))
        end = written.get("handed_out")
        handed_out = None if end is None else FeedPlace.from_dict(end)
        if handed_out is not None and handed_out.version <= place.version:
            raise ValueError(f"a change can't end at {handed_out}, where the feed is at {place}")
        token = _check_id(written["token"])
        return cls(branch, tuple(paths), place, token, written["created"], limits, shares, handed_out)


def _shares(written: Any) -> Shares | None:
    if written is None:
        return None
    into = written["into"]
    if not _is_number(into) or not 0 < into <= MAX_SHARES:
        raise ValueError(f"{into!r} is no number of shares")
    to, token = FeedPlace.from_dict(written["to"]), _check_id(written["token"])
    return Shares(to, into, token, _check_id(written["division"]))


def _is_number(found: Any) -> bool:
    return isinstance(found, int) and not isinstance(found, bool)


def _check_id(found: Any) -> str:
    if not isinstance(found, str) or len(found) != 32 or set(found) - set("0123456789abcdef"):
        raise ValueError(f"{found!r} is no id")
    return found


# --- names


def check_cursor_name(name: str) -> str:
    """Return the name of a feed's cursor, or of the mark of a share of it. Raises `KeyFormatError`."""
    feed, of_share, number = name.partition(_OF_SHARE) if isinstance(name, str) else (name, "", "")
    check_name("feed", feed)
    if of_share and not (number.isascii() and number.isdecimal() and len(number) < 4):
        check_name("feed", name)
    return name


def mark_of(feed: str, share: int) -> str:
    """Return the name of the mark that a share of a change is done."""
    return f"{feed}{_OF_SHARE}{share}"


def is_mark(name: str) -> bool:
    return _OF_SHARE in name


def check_cursor(name: str, written: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless this is a cursor, or for the name of a mark, a mark: a vacuum must understand it."""
    try:
        if is_mark(name):
            _check_id(written["shares"])
            _check_id(written["token"])
        else:
            Cursor.from_dict(written)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"this is no cursor of a feed, which repo.feeds makes: {error!r}") from error
