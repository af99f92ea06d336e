"""Makes histories, as `make erasures` does, and fails if anything but what was erased is missing, or that is not."""

from __future__ import annotations

import sys

from tests.crew import main
from tests.erasures.histories import histories

if __name__ == "__main__":
    sys.exit(main(histories, __doc__, 2000))
