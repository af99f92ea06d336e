"""Leases that are soon over: for tests, in the process of the test and in those that it starts."""

from __future__ import annotations

from txstore import leases

#: The server's times are in whole seconds, and a machine may be busy: shorter ones would tell of that.
BEAT, TERM = 0.5, 10.0


def shorten() -> None:
    """Call this first in a process, before it holds anything."""
    leases.BEAT, leases.TERM = BEAT, TERM
