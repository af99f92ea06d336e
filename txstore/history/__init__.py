"""Reads, finds, follows and publishes commits; has branches, tags and snapshots."""
