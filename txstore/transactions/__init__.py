"""Runs transactions: stages writes, joins participants, finds conflicts, and commits."""
