"""Admits requests: the server checks the method, `Host`, `Origin` and the token before anything else.

A page of another site can make a browser send requests here. The site may point its own name at this address (DNS
rebinding), so `Host` must be a known name. The page may ask from its own origin, so `Origin` must be this server's or
an allowed one. An address needs no check against a list: a client that names the address it connected to was not
misled.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Mapping
from urllib.parse import parse_qsl, urlencode, urlsplit

from txstore.serving.answers import Failure, Headers, Scope, Send, answer, headers_of, path_of

METHODS = ("GET", "HEAD", "OPTIONS")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
ANY = "*"
#: Most host names that are cached as admitted.
_HOSTS = 64

_EXPOSED = b"Accept-Ranges, Content-Encoding, Content-Length, Content-Range, ETag"
_ASKED = b"Authorization, Cache-Control, If-Match, If-None-Match, If-Range, Range"


class Guard:
    """Decides about requests, by their headers alone.

    Parameters
    ----------
    token : str, optional
        The secret that a client must send. It is not empty.
    hosts : collection of str
        Names of this server, besides the machine's own names for itself; "*": any.
    origins : collection of str
        Origins of other sites' pages that may read; "*": all.
    secret : bytes, optional
        What the cookie is made of. Guards of the same secret know each other's cookies. Default: random bytes.
    """

    def __init__(
        self, token: str | None, hosts: Collection[str], origins: Collection[str], secret: bytes | None = None
    ) -> None:
        if token == "":
            raise ValueError("the token is empty, so any client would know it")
        self._token = token
        self._hosts = {*LOOPBACK, *(host.lower() for host in hosts)}
        self.origins = {origin.lower().rstrip("/") for origin in origins}
        self._known: dict[tuple[bytes, str], str] = {}
        # The cookie is valid for this server only, and does not contain the token: other programs of the user can
        # read cookies, and the browser sends them to servers on other ports.
        secret = secrets.token_bytes(32) if secret is None else secret
        self._cookie = f"txstore-{hmac.digest(secret, b'the name', 'sha256').hex()[:12]}"
        self._session = hmac.digest(secret, b"the session " + (token or "").encode(), "sha256").hex()

    async def check(self, scope: Scope, send: Send) -> Headers | None:
        """Return the headers that the answer must have; None if the request is answered already. Raises `Failure`."""
        given = headers_of(scope)
        headers = self._check_place(scope, given)
        if scope["method"] == "OPTIONS":
            await answer(scope, send, 204, [*headers, *_preflight(given)])
            return None
        if self._has_token(scope, given):
            return headers
        await self._take_token(scope, send, headers)
        return None

    def _check_place(self, scope: Scope, given: Mapping[bytes, bytes]) -> Headers:
        """Check all but the token."""
        host = self._check_host(scope)
        headers = self._check_origin(scope, given.get(b"origin"), host)
        if scope["method"] not in METHODS:
            raise Failure(405, "MethodNotAllowed", "this server is read-only: use GET or HEAD", [*headers, _ALLOWED])
        return headers

    def _check_host(self, scope: Scope) -> str:
        named = [value for name, value in scope["headers"] if name == b"host"]
        here = (scope.get("server") or ("",))[0]
        place = (named[0], here) if len(named) == 1 else (b"", here)
        host = self._known.get(place)
        if host is None:
            host = self._host_of(*place)
            if len(self._known) < _HOSTS:
                self._known[place] = host
        return host

    def _host_of(self, named: bytes, here: str) -> str:
        """Return the name that a request gives this server; `here` is the address it came to. Raises `Failure`."""
        host = named.decode("latin-1").lower()
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            name = None
        if not name or not (ANY in self._hosts or name in self._hosts or (name == here and _is_ip(name))):
            told = f"this server is not called {host!r}: to allow that, start it with --allow-host {name or 'NAME'}"
            raise Failure(421, "HostRefused", told)
        return host

    def _check_origin(self, scope: Scope, sent: bytes | None, host: str) -> list[tuple[bytes, bytes]]:
        headers = [(b"vary", b"Origin"), (b"cross-origin-resource-policy", b"same-origin")]
        if sent is None:
            return headers
        origin = sent.decode("latin-1").lower()
        if origin == f"{scope.get('scheme', 'http')}://{host}":
            return headers
        if ANY not in self.origins and origin not in self.origins:
            told = f"pages of {origin!r} may not read this: to allow it, start the server with --allow-origin {origin}"
            raise Failure(403, "OriginRefused", told, headers)
        return [*headers, (b"access-control-allow-origin", sent), (b"access-control-expose-headers", _EXPOSED)]

    def _has_token(self, scope: Scope, given: Mapping[bytes, bytes]) -> bool:
        """Tell whether a request has the token in its path or headers, or needs none.

        Programs that take only a URL send it in the path: `/t/TOKEN` before the rest.
        """
        if self._token is None:
            return True
        root = scope.get("root_path") or ""
        segments = path_of(scope)[len(root) :].decode("latin-1").split("/", 3)
        if segments[:2] == ["", "t"] and len(segments) == 4 and self._is_token(segments[2]):
            scope["root_path"] = f"{root}/t/{segments[2]}"
            return True
        bearer = given.get(b"authorization", b"").decode("latin-1")
        if bearer[:7].lower() == "bearer " and self._is_token(bearer[7:].strip()):
            return True
        kept = _cookie(given.get(b"cookie", b""), self._cookie) or ""
        return hmac.compare_digest(kept.encode(), self._session.encode())

    async def _take_token(self, scope: Scope, send: Send, headers: Headers) -> None:
        """Answer a request that has the token in its query. Raises `Failure` if it has none."""
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        if any(name == "token" and self._is_token(value) for name, value in query):
            await self._remember(scope, send, query, headers)
            return
        told = (
            "this needs the token that the server printed: open the address with ?token=..., send it as "
            "`Authorization: Bearer`, or read plain Zarr below /t/TOKEN/at/"
        )
        raise Failure(401, "TokenRequired", told, [*headers, (b"www-authenticate", b"Bearer")])

    async def _remember(self, scope: Scope, send: Send, query: list[tuple[str, str]], headers: Headers) -> None:
        """Answer with a cookie, and the same address without the token: it must not stay in a history or a link."""
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        # Only the part after the last slash: a path that begins with two slashes would lead to another host.
        place = path_of(scope).rpartition(b"/")[2].decode("latin-1")
        # Lax: the browser sends the cookie when a user follows a link of another page, such as a notebook, but not for
        # resources that the page embeds.
        cookie = f"{self._cookie}={self._session}; Path={scope.get('root_path') or '/'}; HttpOnly; SameSite=Lax"
        about = [
            *headers,
            (b"location", f"./{place}{'?' if rest else ''}{rest}".encode("latin-1")),
            (b"set-cookie", cookie.encode("latin-1")),
            (b"cache-control", b"no-store"),
            (b"referrer-policy", b"no-referrer"),
        ]
        await answer(scope, send, 303, about)

    def _is_token(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())


_ALLOWED = (b"allow", ", ".join(METHODS).encode())


def _preflight(given: Mapping[bytes, bytes]) -> Headers:
    about = [
        _ALLOWED,
        (b"access-control-allow-methods", ", ".join(METHODS).encode()),
        (b"access-control-allow-headers", _ASKED),
        (b"access-control-max-age", b"600"),
    ]
    if b"access-control-request-private-network" in given:
        about.append((b"access-control-allow-private-network", b"true"))
    return about


def _cookie(sent: bytes, name: str) -> str | None:
    """Return the value of a cookie. The library's parser takes seconds for what a hostile client may send."""
    pairs = (each.strip().partition("=") for each in sent.decode("latin-1").split(";"))
    return next((value for key, _, value in pairs if key == name), None)


def _is_ip(name: str) -> bool:
    return ":" in name or name.replace(".", "").isdigit()
