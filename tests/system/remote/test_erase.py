"""Erasing on object stores: files are objects, what was read is cached, and nobody tells who reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

import txstore
from tests.maintenance.test_erase import SECRETS, check_all_is_told, fill, leaks
from tests.maintenance.upkeep import below, put
from tests.system.remote.repositories import again, opened
from tests.system.remote.servers import Server

pytestmark = pytest.mark.long


def scanned(repo: txstore.Repository) -> list[str]:
    """What `leaks` finds in all objects, but those that a cleanup in the background deletes meanwhile."""
    objects = repo.engine.storage.objects

    def found() -> Iterator[tuple[str, bytes]]:
        for path, _ in below(objects):
            with contextlib.suppress(FileNotFoundError):
                yield path, bytes(objects.get(path))

    return leaks(found())


@pytest.fixture
def filled(server: Server) -> txstore.Repository:
    """With a commit of two participants: the packs of such list their frames a second time."""
    repo = opened(server)
    fill(repo)
    with repo.begin("of two") as mapping:
        mapping["s/mine"] = SECRETS["s/c/0"]
        shared = mapping.participation.share()
        other = again(repo)
        theirs = other.engine.join(shared, other.engine.commits.identity.id)
        theirs["s/theirs"] = SECRETS["s/c/1"]
        theirs["k/theirs"] = b"kept"
        theirs.participation.seal()
        theirs.participation.end()
    assert scanned(repo)
    return repo


def test_no_object_has_a_byte_of_it(filled: txstore.Repository) -> None:
    other = again(filled)
    reader = other.mapping(at=1)
    assert reader["s/c/0"] == SECRETS["s/c/0 again"]
    filled.erase("s")
    assert scanned(filled) == []
    for repo in (filled, again(filled)):
        check_all_is_told(repo, 3)
        assert repo.mapping()["k/theirs"] == b"kept"
        with pytest.raises(txstore.ErasedError):
            repo.mapping(at=7)["s/theirs"]
    with pytest.raises(txstore.ErasedError):
        reader["s/t/c/0"]  # its run is open: zeros are found
    assert reader["k/c/0"]
    assert again(filled).verify().faults == []
    put(other, {"s/c/0": b"new"})
    assert again(filled).mapping()["s/c/0"] == b"new"
    assert [each.finished is not None for each in filled.erasures()] == [True]


def test_who_stages_is_waited_for(filled: txstore.Repository) -> None:
    writer = again(filled).begin("goes on")
    writer["s/c/7"] = SECRETS["s/c/0"]
    writer.participation.share()
    with pytest.raises(txstore.ErasureTimeoutError, match=r"open.*Nothing was changed"):
        filled.erase("s", timeout=0)
    writer.rollback()
    filled.erase("s", timeout=30)
    assert scanned(filled) == []
