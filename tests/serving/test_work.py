"""What the files of a repository don't say: how it is called here, open transactions, locks, feeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.serving.asking import Answer, ask
from txstore.serving import application

Get = Callable[..., Answer]


def test_how_it_was_named(repo: txstore.Repository) -> None:
    app = application(repo, origins=["https://viewer.example"])
    told = {"url": repo.url, "name": "data.tx", "origins": ["https://viewer.example"]}
    assert ask(app, "/api/repository").json == told


def test_who_stages_what(get: Get, repo: txstore.Repository) -> None:
    assert get("/api/transactions").json == {"transactions": [], "visible": True}
    with repo.transaction("by day", name="days") as store:
        zarr.open_array(store, path="three/plain")[0, 0] = 3
        [told] = get("/api/transactions").json["transactions"]
        assert (told["name"], told["message"], told["branch"]) == ("days", "by day", "main")
        [process] = told["processes"]
        assert process["alive"]
        assert process["nodes"] == [{"path": "three/plain", "keys": 1}]
        zarr.open_array(store, path="three/sharded")[0, 0] = 3
        [told] = get("/api/transactions").json["transactions"]
        assert told["processes"][0]["keys"] == 2
    assert get("/api/transactions").json["transactions"][0]["processes"][0]["sealed"]
    repo.transaction(name="days").rollback()
    assert get("/api/transactions").json["transactions"] == []


def test_who_holds_locks(get: Get, repo: txstore.Repository) -> None:
    assert get("/api/locks").json["holders"] == []
    with repo.transaction(lock={"three/plain": (slice(0, 7), slice(0, 16))}):
        told = get("/api/locks").json
        if told["kind"] == "table":
            [holder] = told["holders"]
            assert holder["locks"] == 2
            assert holder["nodes"] == [{"path": "three/plain", "locks": 2}]
    assert [each for each in get("/api/locks").json["holders"] if each["locks"]] == []


def test_how_far_feeds_are_behind(get: Get, repo: txstore.Repository) -> None:
    assert get("/api/feeds").json == {"feeds": []}
    feed = repo.feeds.create("means", paths="three/plain")
    repo.branches["other"] = repo.head()
    repo.feeds.on("other").create("own")
    with repo.transaction() as store:
        zarr.open_array(store, path="three/plain")[0, 0] = 3
    first, second = get("/api/feeds").json["feeds"]
    assert (first["name"], first["behind"], first["pending"], first["kept_on"]) == ("means", 2, True, "main")
    assert (second["name"], second["behind"], second["pending"], second["kept_on"]) == ("own", 1, False, "other")
    feed.reset()
    assert not get("/api/feeds").json["feeds"][0]["pending"]


@pytest.mark.parametrize("question", ["repository", "transactions", "locks", "feeds"])
def test_no_question_needs_to_write(tmp_path: Any, question: str) -> None:
    """Where nothing may be written, all can be read."""
    repo = txstore.Repository(f"memory://{tmp_path}/far.tx", single_writer=True)
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(4))
    assert ask(application(repo), f"/api/{question}").status == 200
