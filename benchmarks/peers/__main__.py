"""`python -m benchmarks.peers`. Processes that are started for a sample import this module, and nothing by it."""

if __name__ == "__main__":
    import sys

    from benchmarks.cli import peers

    sys.exit(peers())
