"""Leases that are soon over: for tests, in the process of the test and in those that it starts."""

from txstore.storage import leases
from txstore.store import TxStore

#: The server's times are in whole seconds, and a machine may be busy: who stands still for half the term has lost it.
BEAT, TERM = 0.5, 16.0


def shorten() -> None:
    """Call this first in a process, before it holds anything."""
    leases.BEAT, leases.TERM = BEAT, TERM


def rest(store: TxStore) -> None:
    """Renew no lease from now on: what is on its way when a process is killed would arrive later, as if it lived."""
    for lease in list(store.mapping.staging.storage.leases._held):
        lease._closing.acquire()
