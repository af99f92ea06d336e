"""Makes histories, as `make feeds` does, and fails if a change was lost or done twice."""

from __future__ import annotations

import argparse
import sys

from tests.feeds.histories import histories


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts = histories(arguments.histories, arguments.seed)
    print(f"{arguments.histories} histories, 0 wrong: {dict(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
