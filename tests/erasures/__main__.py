"""`make histories WHAT=erasures`: fails if anything but what was erased is missing, or that is not."""

import sys

from tests.erasures.histories import histories
from tests.tools.crew import main

if __name__ == "__main__":
    sys.exit(main(histories, __doc__, 2000))
