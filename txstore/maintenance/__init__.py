"""Verify, repair, vacuum, optimize, back up, measure."""
