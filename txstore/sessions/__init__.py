"""Lets threads share one store: runs one transaction after another, tracks operations, closes the gate for commits."""
