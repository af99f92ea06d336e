"""Commits and what leads to them: versions, snapshots, runs, packs, tags, following."""
