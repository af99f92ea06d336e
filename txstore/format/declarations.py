"""What commits hand on from one to the next in their headers: constraints, views, and cursors of feeds. No I/O.

Each is a JSON object with a name. A commit that declares or drops none has those of its parent.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

#: JSON objects by name. Where it says what a transaction changes, None drops a name.
Written = Mapping[str, Any]

_NONE: Final[Written] = MappingProxyType({})


class Declarations(NamedTuple):
    """All that one commit hands on, or all that a transaction changes of it."""

    constraints: Written = _NONE
    views: Written = _NONE
    cursors: Written = _NONE

    def __bool__(self) -> bool:
        return any(self[:])


NOTHING_DECLARED = Declarations()
