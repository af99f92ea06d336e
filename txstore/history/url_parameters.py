"""Parses the parameters of a `txstore:` URL: which commit to read, and what becomes of writes.

They are a query, `txstore::data.tx?branch=dev&commit=on-close`. A path may follow it, because tools append paths to the
URL that they were given.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from txstore.commit import MAIN
from txstore.history.find import At

#: The only value of `commit=`.
ON_CLOSE = "on-close"

#: The parameters in a URL, and in the full name of a file (`TxStoreFileSystem.full_name`), which has no wildcard.
NAMED = re.compile(r"(?:\?[^?/]*=|;(?:at|shared|transaction)=)[^?/]*")
_VERSION = re.compile(r"-?\d{1,9}")
_SHARED = re.compile(r"[0-9a-f]{32}")


class Parameters(NamedTuple):
    """The parameters of a URL. None: it does not have this one."""

    branch: str | None = None
    at: str | None = None
    tag: str | None = None
    transaction: str | None = None  # the name of a transaction to stage into
    shared: str | None = None  # the id of a transaction to stage into: see `TxStore.share`
    commit: str | None = None
    message: str | None = None

    @property
    def reads(self) -> tuple[str, At | None, str | None]:
        """The branch, commit and tag to read."""
        at = self.at
        return self.branch or MAIN, int(at) if at is not None and _VERSION.fullmatch(at) else at, self.tag

    @property
    def writes(self) -> bool:
        """Whether the URL says what becomes of writes."""
        return (self.transaction or self.shared or self.commit) is not None

    def __str__(self) -> str:
        return "&".join(f"{name}={value}" for name, value in self._asdict().items() if value is not None)


def split_parameters(url: str) -> tuple[str, Parameters]:
    """Return a URL without its parameters, and these. A path behind them remains, at the end of the URL.

    Raises `ValueError` for a parameter that there is not, and for parameters that exclude each other.
    """
    found = list(NAMED.finditer(url))
    if not found:
        return url, Parameters()
    place, below = url[: found[-1].start()], url[found[-1].end() :]
    return place.rstrip("/") + below if below else place, parse_parameters(found[-1][0][1:])


def parse_parameters(query: str) -> Parameters:
    """Return the parameters of a query. Values are percent-decoded. Raises the errors of `split_parameters`."""
    given: dict[str, str] = {}
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        if name not in Parameters._fields:
            known = ", ".join(Parameters._fields)
            raise ValueError(f"?{name}=: a txstore URL has no such parameter, only {known}")
        if name in given or not value:
            raise ValueError(f"?{name}=: give one value in a txstore URL")
        given[name] = unquote(value)
    parameters = Parameters(**given)
    _check(parameters)
    return parameters


def _check(parameters: Parameters) -> None:
    writing = [name for name in ("transaction", "shared", "commit") if getattr(parameters, name) is not None]
    reading = [name for name in ("at", "tag") if getattr(parameters, name) is not None]
    if len(reading) == 2:
        raise ValueError("?at= and ?tag=: give one of them in a txstore URL")
    if len(writing) > 1:
        raise ValueError(f"?{writing[0]}= and ?{writing[1]}=: give one of them in a txstore URL")
    if writing and reading:
        raise ValueError(f"?{reading[0]}= names a commit to read, ?{writing[0]}= is for writing: give one of them")
    if parameters.commit not in (None, ON_CLOSE):
        raise ValueError(f"?commit={parameters.commit}: the only value is {ON_CLOSE}")
    others = parameters.branch or parameters.message
    if parameters.shared is not None and (others or not _SHARED.fullmatch(parameters.shared)):
        raise ValueError("?shared=: pass the URL of store.share() on as it is")
