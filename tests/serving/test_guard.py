"""Who may ask: methods, names of this server, origins of pages elsewhere, the token."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

import txstore
from tests.serving.asking import Answer, ask, asked, scope_of
from txstore.serving import application
from txstore.serving.application import Application

Get = Callable[..., Answer]
PLACES = (
    "/",
    "/at/main/zarr.json",
    "/api/repository",
    "/files/format.json",
    "/files/tags/",
    "/api/events",
    "/page/none.js",
)


def test_every_answer_says_what_may_be_done_with_it(get: Get) -> None:
    for place, given in product(
        (*PLACES, "/at/nothing/zarr.json", "/at/main/three/plain/c/0/0", "/api/nothing", "/page/dom.js"),
        ({}, {"method": "HEAD"}, {"method": "OPTIONS"}, {"method": "POST"}, {"headers": {"host": "evil.example"}},
         {"headers": {"origin": "https://evil.example"}}, {"headers": {"range": "bytes=0-1"}},
         {"headers": {"range": "bytes=99999-"}}, {"headers": {"if-none-match": "*"}}),
    ):  # fmt: skip
        headers = given.get("headers", {})
        if place == "/api/events" and not given.get("method") and not headers.keys() & {"host", "origin"}:
            continue  # it goes on without an end: test_events.py asks for it
        answer = get(place, **given)
        assert answer.headers["x-content-type-options"] == "nosniff", (place, given)
        assert "default-src 'none'" in answer.headers["content-security-policy"], (place, given)
        assert given or answer.headers["cross-origin-resource-policy"] == "same-origin", place


def test_nothing_can_be_written(get: Get) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "PROPFIND", "get"):
        for place in PLACES:
            answer = get(place, method=method)
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")


def test_names_of_this_machine(get: Get) -> None:
    for host in ("localhost", "localhost:1", "LOCALHOST:1", "127.0.0.1:8000", "127.0.0.1", "[::1]:8000", "[::1]"):
        for place in PLACES[:5]:
            assert get(place, headers={"host": host}).status == 200


def test_other_names_are_refused(get: Get) -> None:
    """A name that somebody else has given to this address: a page of theirs would read what is here."""
    for host in (
        "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:8000", "", "127.0.0.2",
        "0.0.0.0", "localhost@evil.example", "evil.example#localhost", "[::2]", "127.0.0.1:x@evil", "[",
        "localhost, evil.example",
    ):  # fmt: skip
        for place in PLACES:
            answer = get(place, headers={"host": host})
            assert (answer.status, answer.json["error"]["type"]) == (421, "HostRefused")


async def test_two_names_are_none(app: Application) -> None:
    scope = scope_of("/api/repository")
    for hosts in ([], [b"localhost", b"localhost"], [b"localhost", b"evil.example"]):
        scope["headers"] = [(b"host", host) for host in hosts]
        assert (await asked(app, scope)).status == 421


async def test_the_address_that_was_connected_to_is_no_name(app: Application) -> None:
    scope = scope_of("/api/repository", headers={"host": "192.168.1.7:8000"})
    assert (await asked(app, scope)).status == 421
    scope["server"] = ("192.168.1.7", 8000)
    assert (await asked(app, scope)).status == 200
    scope = scope_of("/api/repository", headers={"host": "evil.example"}) | {"server": ("evil.example", 8000)}
    assert (await asked(app, scope)).status == 421


def test_names_that_were_allowed(repo: txstore.Repository) -> None:
    app = application(repo, hosts=["Data.example.org"])
    assert ask(app, "/api/repository", headers={"host": "data.example.org:80"}).status == 200
    assert ask(app, "/api/repository", headers={"host": "other.example.org"}).status == 421
    assert ask(application(repo, hosts=["*"]), "/api/repository", headers={"host": "any.example"}).status == 200


# --- pages of other origins


def test_pages_elsewhere_may_not_read(get: Get) -> None:
    origins = ("https://evil.example", "null", "http://localhost:8001", "https://localhost:8000", "http://localhost")
    for origin, place, method in product(origins, PLACES, ("GET", "HEAD", "OPTIONS")):
        answer = get(place, headers={"origin": origin}, method=method)
        assert answer.status == 403
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["vary"] == "Origin"


def test_the_page_itself_may(get: Get) -> None:
    answer = get("/api/repository", headers={"origin": "http://localhost:8000"})
    assert answer.status == 200
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("origins", [["https://viewer.example"], ["*"]])
def test_origins_that_were_allowed(repo: txstore.Repository, origins: list[str]) -> None:
    app = application(repo, origins=origins)
    given = {"origin": "https://viewer.example"}
    answer = ask(app, "/at/main/three/plain/c/0/0", headers=given | {"range": "bytes=0-3"})
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (206, "https://viewer.example")
    exposed = answer.headers["access-control-expose-headers"]
    assert {"Content-Range", "Content-Length", "ETag"} <= set(exposed.split(", "))
    missing = ask(app, "/at/main/none", headers=given)
    assert (missing.status, missing.headers["access-control-allow-origin"]) == (404, "https://viewer.example")
    first = given | {"access-control-request-method": "GET", "access-control-request-headers": "range"}
    preflight = ask(app, "/at/main/x", headers=first, method="OPTIONS")
    assert preflight.status == 204
    assert "GET" in preflight.headers["access-control-allow-methods"]
    assert "Range" in preflight.headers["access-control-allow-headers"]
    assert "access-control-allow-private-network" not in preflight.headers
    private = ask(
        app, "/at/main/x", headers=first | {"access-control-request-private-network": "true"}, method="OPTIONS"
    )
    assert private.headers["access-control-allow-private-network"] == "true"


# --- the token

TOKEN = "s3cret-Token_x"


@pytest.fixture
def locked(repo: txstore.Repository) -> Application:
    return application(repo, token=TOKEN, origins=["https://viewer.example"])


def test_nothing_is_told_without_the_token(locked: Application) -> None:
    wrong: list[dict[str, str]] = [
        {}, {"authorization": "Bearer"}, {"authorization": "Bearer x"}, {"authorization": f"Basic {TOKEN}"},
        {"authorization": f"Bearer {TOKEN}x"}, {"authorization": "Bearer \xe4"}, {"cookie": f"txstore={TOKEN}"},
        {"cookie": ";;=\x00"}, {"cookie": f"{cookie_name(locked)}={TOKEN}"}, {"cookie": f"{cookie_name(locked)}="},
    ]  # fmt: skip
    for place, headers in product(PLACES, wrong):
        answer = ask(locked, place, headers=headers)
        assert (answer.status, answer.json["error"]["type"]) == (401, "TokenRequired")
        assert TOKEN not in str(answer.headers) + answer.body.decode()
    for place, query in product(PLACES, ("token=", "token=x", "tokens=" + TOKEN, "token=%ff")):
        assert ask(locked, f"{place}?{query}").status == 401
    for path in ("/t/", "/t/x/", f"/t/{TOKEN}", f"/t/{TOKEN}x/", f"//t/{TOKEN}/", f"/at/t/{TOKEN}/", f"/T/{TOKEN}/"):
        assert ask(locked, path).status == 401, path


def test_the_token_as_bearer(locked: Application) -> None:
    for kind in ("Bearer", "bearer"):
        given = {"authorization": f"{kind} {TOKEN}"}
        assert ask(locked, "/at/main/zarr.json", headers=given).status == 200
        told = ask(locked, f"/at/{locked.repository.head().id}/zarr.json", headers=given)
        assert told.headers["cache-control"] == "no-cache"  # nobody between answers others with it, unasked


def test_the_token_in_the_address_becomes_a_cookie(locked: Application) -> None:
    for place, location in (
        (f"/?token={TOKEN}", "./"),
        (f"/?a=1&token={TOKEN}&b=%26", "./?a=1&b=%26"),
        (f"/at/main/zarr.json?token={TOKEN}", "./zarr.json"),
        (f"//evil.example?token={TOKEN}", "./evil.example"),
        (f"/api/repository?token={TOKEN}", "./repository"),
    ):
        answer = ask(locked, place)
        assert (answer.status, answer.headers["location"], answer.body) == (303, location, b"")
        cookie, *about = answer.headers["set-cookie"].split("; ")
        assert set(about) == {"Path=/", "HttpOnly", "SameSite=Lax"}
        assert TOKEN not in cookie  # the cookie gives nobody the token
        assert ask(locked, "/api/repository", headers={"cookie": f"other=1; {cookie}"}).status == 200
        for token in ("another", TOKEN):  # and is of no use to another process
            other = application(locked.repository, token=token)
            told = f"{cookie_name(other, token)}={cookie.partition('=')[2]}"
            assert ask(other, "/api/repository", headers={"cookie": f"{cookie}; {told}"}).status == 401


@pytest.mark.parametrize("root", ["", "/weather"])
def test_the_token_in_the_path_is_for_what_has_but_a_url(locked: Application, root: str) -> None:
    below = f"{root}/t/{TOKEN}"
    for place in ("/at/main/zarr.json", "/api/repository", "/files/format.json", "/", "/page/main.js"):
        answer = ask(locked, below + place, root_path=root)
        assert answer.status == 200, place
        assert "set-cookie" not in answer.headers
        assert "public" not in answer.headers["cache-control"]
    assert ask(locked, f"{below}/t/{TOKEN}/at/main/zarr.json", root_path=root).status == 400


def test_a_token_is_not_empty(repo: txstore.Repository) -> None:
    with pytest.raises(ValueError, match="empty"):
        application(repo, token="")


def test_a_cookie_takes_no_time(locked: Application) -> None:
    """Before Python 3.11.10 the library's parser takes 20 seconds for this one."""
    begun = time.monotonic()
    assert ask(locked, "/api/repository", headers={"cookie": 'a="' + "\\x" * 30_000 + '"'}).status == 401
    assert time.monotonic() - begun < 5


def cookie_name(app: Application, token: str = TOKEN) -> str:
    return ask(app, f"/?token={token}").headers["set-cookie"].partition("=")[0]


def test_a_preflight_has_no_token(locked: Application) -> None:
    given = {"origin": "https://viewer.example", "access-control-request-method": "GET"}
    answer = ask(locked, "/at/main/zarr.json", headers=given, method="OPTIONS")
    assert answer.status == 204
    assert "Authorization" in answer.headers["access-control-allow-headers"]
    assert ask(locked, "/at/main/zarr.json", headers=given).status == 401


async def test_what_is_no_http(app: Application) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    await app({"type": "websocket", "path": "/", "headers": []}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]
