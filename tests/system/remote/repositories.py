"""Repositories on the servers, and what lies in them."""

import time

import pytest

import txstore
from tests.system.remote import lease_times
from tests.system.remote.servers import Server
from tests.tools.inside import commits_of, objects_of, options_of
from tests.tools.waiting import wait_for_background_cleanup, wait_for_requests, wait_until
from txstore.format import names
from txstore.storage import leases


def opened(server: Server) -> txstore.Repository:
    """Return a new repository."""
    return txstore.Repository(server.url(), storage_options=server.storage_options)


def again(repo: txstore.Repository) -> txstore.Repository:
    """Return the same repository as a process sees it that knows nothing of it."""
    return txstore.Repository(repo.url, storage_options=options_of(repo))


def paths(repo: txstore.Repository, directory: str = names.STAGING) -> list[str]:
    return [found.name for found in objects_of(repo).list(directory)]


def packs(repo: txstore.Repository) -> set[str]:
    return {file for folder in paths(repo, names.PACKS) for file in paths(repo, f"{names.PACKS}/{folder}")}


def referred(repo: txstore.Repository) -> set[str]:
    commits = commits_of(repo)
    return {pack.name.id.hex() for stored in commits.chain.ancestors(commits.head()) for pack in stored.header.packs}


def assert_tidy(repo: txstore.Repository) -> None:
    """Nothing is left but what commits refer to, and leases of those who have not noticed the end, or ended before."""
    wait_for_requests()
    wait_for_background_cleanup()
    deadline = time.monotonic() + 10 * lease_times.BEAT
    while (left := paths(repo)) and time.monotonic() < deadline:
        assert all(path.endswith(names.LEASE) for path in left), left
        time.sleep(lease_times.BEAT / 2)
    if left:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(leases, "KEPT", -1.0)
            wait_until(lambda: repo.vacuum() and not paths(repo))  # who has not noticed yet renews its lease once more
    assert packs(repo) == referred(repo)
