"""The C extensions, or their Python fallbacks if one was not built or TXSTORE_PURE_PYTHON=1.

`locktable` has no fallback: it is None then, and on systems without futexes. `locks/chunk_locks.py` chooses another
kind of lock.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import _chunks as chunks
    from . import _index as index
    from . import _local as local
    from . import _locktable as locktable
else:
    pure_python = os.environ.get("TXSTORE_PURE_PYTHON") == "1"
    try:
        if pure_python:
            raise ImportError
        from . import _chunks as chunks
    except ImportError:
        from . import chunks_fallback as chunks
    try:
        if pure_python:
            raise ImportError
        from . import _index as index
    except ImportError:
        from . import index_fallback as index
    try:
        if pure_python:
            raise ImportError
        from . import _local as local
    except ImportError:
        from . import local_fallback as local
    try:
        if pure_python:
            raise ImportError
        from . import _locktable as locktable
    except ImportError:
        locktable = None

__all__ = ["chunks", "index", "local", "locktable"]
