"""The fallback of `_watch.c` if the extension was not built: it can't watch, so a follower has to poll."""

from __future__ import annotations

import errno
import os
from typing import Literal, NoReturn

IMPLEMENTATION: Literal["c", "python"] = "python"


def open_watch(path: str, /) -> NoReturn:
    """Raises OSError: Python itself has no call for this."""
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), path)


def drain(_descriptor: int, /) -> NoReturn:
    """Raises OSError: `open_watch` never returns a descriptor to drain."""
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
