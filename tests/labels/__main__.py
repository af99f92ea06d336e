"""Makes histories, as `make labels` does, and fails if a commit is not what the model says."""

from __future__ import annotations

import sys

from tests.crew import main
from tests.labels.histories import histories

if __name__ == "__main__":
    sys.exit(main(histories, __doc__, 5000))
