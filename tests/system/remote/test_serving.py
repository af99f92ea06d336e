"""`txstore serve` over object stores: what each request reads lies far away, and is read in threads."""

from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.serving.asking import ask
from tests.tools.inside import objects_of, storage_of
from txstore.serving import application
from txstore.serving.entrance import listen
from txstore.serving.server import Server

pytestmark = pytest.mark.long


def test_pages_and_readers_far_away(server):
    url = server.url()
    repo = txstore.Repository(url, storage_options=server.storage_options, single_writer=True)
    data = np.random.default_rng(0).integers(0, 255, (40, 50), "u1")
    with repo.transaction("first") as store:
        root = zarr.create_group(store)
        root.create_array("plain", data=data, chunks=(10, 20))
        root.create_array("sharded", data=data, chunks=(5, 5), shards=(20, 25))
        root.create_array("text", data=np.array(["a", "größer"], "T"))
    old = repo.head()
    repo.tags["v1"] = old
    with repo.transaction("second") as store:
        zarr.open_array(store, path="plain")[:10] = 0
    served = txstore.Repository(url, storage_options=server.storage_options, create=False)
    app = application(served)
    for place in ("api/transactions", "api/locks", "files/format.json", "files/heads/main", "files/commits/"):
        assert ask(app, f"/{place}").status == 200, place
    first = ask(app, "/files/commits/main/0000000000", headers={"range": "bytes=-20"})
    assert (first.status, first.body) == (206, storage_of(repo).read("commits/main/0000000000")[-20:])
    key = "/at/v1/sharded/c/0/0"
    whole = ask(app, key)
    part = ask(app, key, headers={"range": "bytes=-20"})
    assert (part.status, part.body) == (206, whole.body[-20:])
    assert ask(app, key, headers={"if-none-match": whole.headers["etag"]}).status == 304
    assert ask(app, "/at/main/no").status == 404
    listening = Server(served, listen(has_token=False))
    listening.start()
    try:
        for ref in ("v1", old.id):
            group = zarr.open_group(f"{listening.address}at/{ref}", mode="r")
            for name in ("plain", "sharded"):
                np.testing.assert_array_equal(group[name][:], data)
            assert list(group["text"][:]) == ["a", "größer"]
        assert not zarr.open_group(f"{listening.address}at/main", mode="r")["plain"][:10].any()
    finally:
        listening.close()


RECORD = f"erased/{'ab' * 16}"
PACK = f"packs/ab/{'ab' * 16}"


@pytest.mark.parametrize("kind", ["hard", "symbolic", "above"])
@pytest.mark.parametrize("path", ["commits/main/0000000009", RECORD, PACK])
def test_no_private_file_that_another_user_of_the_file_server_has_linked_to(
    server_of, tmp_path, path, kind, monkeypatch
):
    """The server follows links as the user whom TxStore is for it. No link: it was removed again when it was asked."""
    server = server_of("sftp")
    url = server.url()
    repo = txstore.Repository(url, storage_options=server.storage_options)
    with repo.begin() as mapping:
        mapping["x"] = b"1"
    app, at = application(repo), Path("/" + url.partition("://")[2].partition("/")[2], path)
    private = tmp_path / "private" / at.name
    private.parent.mkdir()
    private.write_bytes(b'{"checksum": "of-mine", "more": "' + b"of-mine" * 100_000 + b'"}')
    if kind == "above":
        if at.parent.exists():
            at.parent.rename(at.parent.with_name("was"))
        else:
            at.parent.parent.mkdir(exist_ok=True)
        at.parent.symlink_to(private.parent)
    else:
        at.parent.mkdir(parents=True, exist_ok=True)
        (at.hardlink_to if kind == "hard" else at.symlink_to)(private)
    for is_seen in (True, False):
        if not is_seen:
            monkeypatch.setattr(objects_of(repo), "is_link", lambda path: False)
        for given in ({}, {"range": "bytes=5-70"}, {"range": "bytes=-70"}, {"range": "bytes=200000-"}):
            answer = ask(app, f"/files/{path}", headers=given)
            assert (answer.status, b"of-mine" in answer.body) == (500, False), given
        if is_seen and kind == "above" and path != PACK:
            assert ask(app, f"/files/{path.rpartition('/')[0]}/").status == 500
