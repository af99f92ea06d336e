"""A repository that a plain web server serves: what is read without lists, and what says that it needs them."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

import txstore
from tests.reader_js.node import bucket, listed, running, served
from tests.serving.asking import ask
from txstore.serving import application

pytest.importorskip("aiohttp")


@contextmanager
def with_pages(directory: Path) -> Iterator[str]:
    """Serve a directory, and a page with links in place of each directory."""
    page = '<html><title>Data</title><a href="about.html">About</a> <a href="contact">Contact</a></html>'
    files = Starlette(routes=[Mount("/", StaticFiles(directory=directory))])

    async def paged(scope: Any, receive: Any, send: Any) -> None:
        answer: Any = HTMLResponse(page) if (directory / scope["path"].strip("/")).is_dir() else files
        await answer(scope, receive, send)

    with running(paged) as base:
        yield base


WITHOUT_LISTS = {"404": served, "403": bucket, "page": with_pages}


@pytest.fixture(params=WITHOUT_LISTS)
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with WITHOUT_LISTS[request.param](tmp_path) as url:
        yield url


def commit(repo: txstore.Repository, value: bytes, branch: str = "main") -> None:
    with repo.begin(value.decode(), branch=branch) as transaction:
        transaction["a"] = value


@pytest.fixture
def repo(tmp_path: Path) -> txstore.Repository:
    """Two commits, of which the first is tagged, and two branches, one without commits of its own."""
    repo = txstore.Repository(tmp_path / "data.tx")
    commit(repo, b"1")
    repo.tags["v1"] = repo.head()
    commit(repo, b"2")
    repo.branches["dev"] = repo.head()
    commit(repo, b"3", "dev")
    repo.branches["bare"] = repo.head()
    return repo


def test_heads_and_names_are_found_without_lists(repo: txstore.Repository, base: str) -> None:
    there = txstore.Repository(f"{base}/data.tx")
    assert there.head() == repo.head()
    assert there.head("dev") == repo.head("dev")
    assert there.head("bare") == repo.head("bare")
    assert [commit.id for commit in there.log()] == [commit.id for commit in repo.log()]
    assert there.tags["v1"] == repo.tags["v1"]
    assert there.mapping(tag="v1")["a"] == b"1"
    assert there.mapping(at=repo.log()[1].id)["a"] == b"1"
    with pytest.raises(txstore.CommitNotFoundError, match="there is no such branch\n"):
        there.head("none")
    with pytest.raises(KeyError):
        there.tags["none"]


@pytest.mark.parametrize("names", ["tags", "branches"])
def test_what_needs_a_list_says_so(repo: txstore.Repository, base: str, names: str) -> None:
    with pytest.raises(OSError, match="this web server lists no names"):
        list(getattr(txstore.Repository(f"{base}/data.tx"), names))


def test_a_vacuum_leaves_no_reader_behind(repo: txstore.Repository, base: str) -> None:
    """The commits that were known are tagged or gone, and the next one is missing."""
    there = txstore.Repository(f"{base}/data.tx")
    del repo.branches["dev"], repo.branches["bare"]
    for value in (b"4", b"5"):
        assert there.head() == repo.head()
        repo.tags[f"at{value.decode()}"] = repo.head()
        for each in (value, value * 2):
            commit(repo, each)
        repo.optimize()
        repo.vacuum(keep=1)
        assert there.mapping()["a"] == value * 2


@pytest.mark.parametrize("damage", ["no commit", "no head cache", "head cache"])
def test_without_the_newest_commit_there_is_no_other(repo, base, tmp_path, damage):
    head_cache = tmp_path / "data.tx/heads/main"
    if damage == "no commit":
        (tmp_path / "data.tx/commits/main/0000000001").unlink()
    elif damage == "no head cache":
        head_cache.unlink()
    else:
        head_cache.write_bytes(head_cache.read_bytes()[::-1])
    with pytest.raises((txstore.CorruptionError, OSError), match="lists no names: the newest commit can't be found"):
        txstore.Repository(f"{base}/data.tx").head()


def test_lists_are_used_where_there_are_some(repo: txstore.Repository, tmp_path: Path) -> None:
    (tmp_path / "data.tx/heads/main").unlink()
    with listed(tmp_path) as base:
        there = txstore.Repository(f"{base}/data.tx")
        assert there.head() == repo.head()
        assert list(there.tags) == ["v1"]
        assert sorted(there.branches) == ["bare", "dev", "main"]
        assert there.erasures() == []  # a directory that is not there


def test_a_server_that_is_closed_is_no_empty_one(repo: txstore.Repository, tmp_path: Path) -> None:
    """No credentials were given: none are at fault. Nor is what can't be read missing."""
    refusing = False
    files = Starlette(routes=[Mount("/", StaticFiles(directory=tmp_path))])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        answer: Any = Response(status_code=403) if refusing else files
        await answer(scope, receive, send)

    with running(app) as base:
        there = txstore.Repository(f"{base}/data.tx")
        assert there.head() == repo.head()
        refusing = True
        with pytest.raises(PermissionError, match="the server refuses to read this") as caught:
            there.head()
        assert "these credentials" not in str(caught.value)


def test_a_busy_server_is_no_missing_commit(repo: txstore.Repository, tmp_path: Path) -> None:
    """fsspec calls whatever fails while it asks for a length a missing file."""
    busy = 0
    files = Starlette(routes=[Mount("/", StaticFiles(directory=tmp_path))])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal busy
        if busy and scope["path"].endswith("0000000002"):
            busy -= 1
            await Response(status_code=503)(scope, receive, send)
        else:
            await files(scope, receive, send)

    with running(app) as base:
        there = txstore.Repository(f"{base}/data.tx")
        assert there.head() == repo.head()
        commit(repo, b"4")
        busy = 4
        assert there.head() == repo.head()


def test_a_run_of_another_copy(repo: txstore.Repository, base: str, tmp_path: Path) -> None:
    """Two copies went on by themselves, and a file of one was put into the other: its runs are whole, and not meant."""
    repo = txstore.Repository(tmp_path / "one.tx")
    with repo.begin() as transaction:
        for number in range(7000):  # so many that no later commit merges its run
            transaction[f"old{number}"] = b"0"
    shutil.copytree(tmp_path / "one.tx", tmp_path / "two.tx")
    for name, value in ("one.tx", b"1"), ("two.tx", b"2"):
        with txstore.Repository(tmp_path / name).begin() as transaction:
            transaction["large"] = bytes(1 << 20)
            for number in range(3000):
                transaction[f"{number}"] = value
    commit(repo, b"3")
    (tmp_path / "two.tx/commits/main/0000000001").replace(tmp_path / "one.tx/commits/main/0000000001")
    with pytest.raises(txstore.CorruptionError, match="this is pack"):
        txstore.Repository(f"{base}/one.tx").mapping()["7"]


def test_a_server_that_leads_to_where_we_alone_may_reach(repo: txstore.Repository, tmp_path: Path) -> None:
    """What one of these says, a server of the repository would hand on to anybody."""
    secret = b"of-mine" * 100_000
    asked = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        await Response(secret)(scope, receive, send)

    with running(inner) as there, ExitStack() as servers:
        files = StaticFiles(directory=tmp_path / "data.tx")

        async def leading(scope: Any, receive: Any, send: Any) -> None:
            ranged = dict(scope["headers"]).get(b"range", b"")
            if scope["path"] != "/commits/main/0000000009":
                await files(scope, receive, send)
            elif scope["method"] == "HEAD" or ranged == b"bytes=0-7":
                await Response(b"TXSTPACK" + bytes(len(secret) - 8))(scope, receive, send)
            else:
                await RedirectResponse(f"{there}/secret")(scope, receive, send)

        far = txstore.Repository(servers.enter_context(running(leading)), create=False)
        for given in ({}, {"range": "bytes=9-20"}, {"range": "bytes=-9"}):
            answer = ask(application(far), "/files/commits/main/0000000009", headers=given)
            assert (answer.status, b"of-mine" in answer.body) == (500, False)
    assert not asked
