"""The source: how far a call goes through it, and what it looks like from far."""
