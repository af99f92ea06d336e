"""On a local disk: arrays, commits, keys, locks and upkeep."""
