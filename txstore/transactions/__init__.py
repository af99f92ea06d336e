"""Staging, participants, conflicts, the commit."""
