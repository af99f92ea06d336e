"""Commits, branches, tags and snapshots; finding, following and publishing commits."""
