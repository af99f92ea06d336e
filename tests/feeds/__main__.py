"""Makes histories, as `make feeds` does, and fails if a change was lost or done twice."""

from __future__ import annotations

import sys

from tests.crew import main
from tests.feeds.histories import histories

if __name__ == "__main__":
    sys.exit(main(histories, __doc__, 2000))
