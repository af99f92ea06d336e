"""`make histories WHAT=views`: fails if an output is not what numpy makes of its sources."""

import sys

from tests.tools.crew import main
from tests.views.histories import histories

if __name__ == "__main__":
    sys.exit(main(histories, __doc__, 2000))
