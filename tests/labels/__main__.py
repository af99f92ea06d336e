"""Makes histories, as `make histories WHAT=labels` does, and fails if a commit is not what the model says."""

import sys

from tests.labels.histories import histories
from tests.tools.crew import main

if __name__ == "__main__":
    sys.exit(main(histories, __doc__, 5000))
