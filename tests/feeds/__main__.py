"""Makes histories, as `make histories WHAT=feeds` does, and fails if a change was lost or done twice."""

import sys

from tests.feeds.histories import histories
from tests.tools.crew import main

if __name__ == "__main__":
    sys.exit(main(histories, __doc__, 2000))
