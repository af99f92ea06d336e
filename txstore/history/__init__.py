"""Commits and what leads to them: slots, snapshots, runs, packs, tags, following."""
