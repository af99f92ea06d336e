"""`index` and `local`: the C extensions, or their Python twins where one was not built or TXSTORE_PURE_PYTHON=1."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import _index as index
    from . import _local as local
else:
    pure_python = os.environ.get("TXSTORE_PURE_PYTHON") == "1"
    try:
        if pure_python:
            raise ImportError
        from . import _index as index
    except ImportError:
        from . import index_twin as index
    try:
        if pure_python:
            raise ImportError
        from . import _local as local
    except ImportError:
        from . import local_twin as local

__all__ = ["index", "local"]
