"""Parses URLs of object stores into the kind of store, its root and its options, and hides their secrets in messages.

A chained URL, `simplecache::s3://bucket/data.tx`, names wrappers around the store. Wrappers that only cache are
dropped: their copies go stale, and none of them passes exclusive creation on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import fsspec.core

from txstore.storage.objects.errors import Secrets

# How a protocol is called, and the extra of txstore that brings what it needs.
FAMILIES = {
    "s3": ("s3", "s3"),
    "s3a": ("s3", "s3"),
    "gs": ("gcs", "gcs"),
    "gcs": ("gcs", "gcs"),
    "az": ("azure", "azure"),
    "abfs": ("azure", "azure"),
    "abfss": ("azure", "azure"),
    "memory": ("memory", None),
    "sftp": ("sftp", "sftp"),
    "ssh": ("sftp", "sftp"),
    "smb": ("smb", "smb"),
}
SCHEME = {"s3": "s3", "gcs": "gs", "azure": "az", "memory": "memory", "sftp": "sftp", "smb": "smb"}
WRAPPERS = {"blockcache", "cached", "filecache", "simplecache", "dir", "async_wrapper"}
LOCAL = {"file", "local"}
# Whose files are unpacked, or lie anywhere, as the archive or manifest says.
_ARCHIVES = {"libarchive", "reference", "tar", "zip"}
# What a URL begins with, behind the protocol.
_PLACES = {
    "s3": "the bucket: s3://bucket/path",
    "gcs": "the bucket: gs://bucket/path",
    "azure": "the container: az://container/path",
    "sftp": "the host: sftp://host/path",
    "smb": "the host: smb://host/share/path",
}
ENGINE_OPTION = "txstore_engine"
# Options of fsspec itself: how its instances are kept and listings cached, which is settled here.
INSTANCE_OPTIONS = {
    "asynchronous",
    "default_fill_cache",
    "listings_expiry_time",
    "loop",
    "max_paths",
    "skip_instance_cache",
    "use_listings_cache",
}


@dataclass(frozen=True)
class Target:
    """The place of a store, and the options to connect. A pickle holds the options, `repr` does not."""

    family: str
    protocol: str
    address: str = field(repr=False)  # the URL as it was given, without the wrappers
    url: str
    options: Mapping[str, Any] = field(repr=False)
    engine: str | None = None  # "fsspec" or "obstore" if the caller wants one of them
    single_writer: bool = False

    def secrets(self) -> Secrets:
        return Secrets(self.options, (self.address,))

    def shown(self, path: str) -> str:
        return f"{self.url}/{path}" if path else self.url


def target_of(url: str, options: Mapping[str, Any], *, engine: str | None, single_writer: bool) -> Target:
    """Take a URL apart. Raises ValueError if it is none, or is that of a directory of this machine."""
    address, given = _unwrapped(url, options)
    protocol, separator, _ = address.partition("://")
    if not separator or protocol in LOCAL:
        raise ValueError(
            f"{public(url)}: a directory of this machine is no object store: give its path, without a protocol in front"
        )
    engine = given.pop(ENGINE_OPTION, None) or engine
    if engine not in (None, "fsspec", "obstore"):
        raise ValueError(f"{ENGINE_OPTION} is {engine!r}: choose fsspec or obstore")
    given = {name: value for name, value in given.items() if name not in INSTANCE_OPTIONS}
    family, _ = FAMILIES.get(protocol, (protocol, None))
    canonical = _canonical(family, address)
    if family in _PLACES and re.match(r"/|$", address.partition("://")[2]):
        raise ValueError(f"{public(url)}: what is missing is {_PLACES[family]}")
    for endpoint in _endpoints(family, given):
        check_endpoint(endpoint, canonical)
    return Target(
        family=family,
        protocol=protocol,
        address=address,
        url=canonical,
        options=given,
        engine=engine,
        single_writer=single_writer,
    )


def _unwrapped(url: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Drop the wrappers of a chained URL, and find the options of what is wrapped."""
    links = url.split("::")
    given = dict(options)
    inside = ""
    while len(links) > 1 and (wrapper := links[0].partition("://")[0]) in WRAPPERS:
        if wrapper == "dir":
            inside = "/".join(part for part in (links[0].partition("://")[2].strip("/"), inside) if part)
        links.pop(0)
        own = given.pop(wrapper, None)
        target = given.pop("target_options", None) or (own or {}).get("target_options")
        given.update(target or {})
        for name in ("cache_storage", "cache_check", "check_files", "expiry_time", "same_names", "target_protocol"):
            given.pop(name, None)
    address = "::".join(links)
    if inside:
        address = f"{address.rstrip('/')}/{inside}"
    protocol = links[0].partition("://")[0]
    for name in {protocol, *(alias for alias in FAMILIES if FAMILIES[alias] == FAMILIES.get(protocol))}:
        if isinstance(given.get(name), Mapping):
            given.update(given.pop(name))
    return address, given


def _endpoints(family: str, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the addresses of servers that options name, and the environment does."""
    client = options.get("client_kwargs")
    said = [options.get("endpoint_url"), client.get("endpoint_url") if isinstance(client, Mapping) else None]
    if family == "s3":
        said += [os.environ.get("AWS_ENDPOINT_URL_S3"), os.environ.get("AWS_ENDPOINT_URL")]
    yield from (each for each in said if isinstance(each, str) and each)


def check_endpoint(endpoint: str, url: str) -> None:
    """Raise ValueError if an endpoint is no address of a server, or goes on to the bucket: libraries would panic."""
    shown = public(endpoint)
    try:
        parts = urlsplit(endpoint)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # no port
        is_address = False
    if not is_address or re.search(r"[\s\x00-\x1f]", endpoint):
        raise ValueError(f"{url}: the endpoint {shown!r} is no address of a server: write it as https://host:port")
    protocol, _, place = url.partition("://")
    if protocol == "s3" and parts.path.rstrip("/").rpartition("/")[2] == place.partition("/")[0]:
        raise ValueError(f"{url}: the endpoint {shown!r} ends in the name of the bucket: leave that out there")


#: What begins as a URL does, but lacks slashes: it would be taken for a path of this machine, with all that it holds.
_LACKS_SLASHES = re.compile(r"(?:.*::)?[A-Za-z][A-Za-z0-9+.-]+:(?:/(?!/)|(?![:/]).*@)")

#: A user whose @ is escaped would be taken for part of the host, and shown with it.
_ESCAPED_USER = re.compile(r"((?:https?|ftp|sftp|ssh|smb)://)[^/@]*%(?:25)*40(?=[^/@]*(?:/|$))", re.IGNORECASE)


def lacks_slashes(url: str) -> bool:
    return _LACKS_SLASHES.match(url) is not None


def check_slashes(url: str) -> None:
    """Raise `ValueError` for what was meant to be a URL, and is none."""
    if lacks_slashes(url):
        told = "two slashes follow the scheme of a URL; if this is a path of this machine, write ./ before it"
        raise ValueError(f"{public(url)}: {told}")
    if _ESCAPED_USER.search(url):
        told = "a host has no escaped @: write the user before a plain @, or give user and password in storage_options"
        raise ValueError(f"{public(url)}: {told}")


def archives_of(url: str) -> list[str]:
    """Return which layers of a chained URL are archives or manifests."""
    layers = [layer.partition("://")[0] for layer in url.split("::")]
    return [layer for layer in layers if layer in _ARCHIVES and layer != url]


def has_parameters(scheme: str) -> bool:
    """Tell whether servers of a scheme may take what follows a semicolon for parameters, and not for part of a name."""
    return scheme.rpartition("::")[2].lower() not in FAMILIES


def public(url: str) -> str:
    """Return a URL without user, password, query and parameters; the web's also without a fragment."""
    if lacks_slashes(url):
        url = re.sub(r"(?<!:):/?(?![:/])", "://", url, count=1)
    behind = r"[?#;].*$" if has_parameters(url.partition("://")[0]) else r"\?.*$"  # elsewhere a name may have those
    return re.sub(behind, "", _without_user(url)).rstrip("/")


def _without_user(url: str) -> str:
    scheme, separator, rest = _ESCAPED_USER.sub(r"\1", url).partition("://")
    if not separator:
        return url
    host, slash, path = rest.partition("/")
    if "@" in host:
        host = host.rpartition("@")[2]
    elif "@" in path and scheme not in LOCAL and (not host or re.search(r":(?!\d*$)", host)):
        # No port, so a password, with a slash in it; or there is a slash too many.
        host, slash, path = path.rpartition("@")[2].partition("/")
    return f"{scheme}://{host}{slash}{path}"


def _canonical(family: str, address: str) -> str:
    """The one way to write where a store is: other names of the protocol, doubled slashes and users are gone."""
    if family not in SCHEME:
        return public(address)
    if "?" in address:
        raise ValueError(
            f"{public(address)}: {SCHEME[family]}:// URLs have no query: give it in storage_options, "
            "and choose a path without a ?"
        )
    if family == "azure":
        return "az://" + "/".join(azure_parts(address))
    if family in ("sftp", "smb"):
        parts = urlsplit(address)
        is_number = True
        try:
            port = f":{parts.port}" if parts.port not in (None, 22, 445) else ""
        except ValueError:  # it would say what stands there, perhaps a password: it must not be our error's context
            is_number = False
        if not is_number:
            raise ValueError(
                f"{public(address)}: the port is no number; in a user name or password write / as %2F and @ as %40, or "
                "give them in storage_options"
            )
        path = f"{parts.path}#{parts.fragment}" if parts.fragment else parts.path  # a name may have a #
        return f"{family}://{parts.hostname or ''}{port}/{_clean(path)}".rstrip("/")
    return f"{SCHEME[family]}://{_clean(_without_user(address).partition('://')[2])}"


def _clean(path: str) -> str:
    return "/".join(part for part in path.split("/") if part)


def azure_parts(address: str) -> list[str]:
    """Return the container and the segments of the path; a container may stand before the account's host."""
    place = address.partition("://")[2]
    container, at, rest = place.partition("@")
    if at and "/" not in container:
        place = f"{container}/{rest.partition('/')[2]}"
    return [part for part in place.split("/") if part]


def bucket_and_prefix(address: str) -> tuple[str, str]:
    """Return the bucket, and what is before every name in it: empty, or ending in a slash."""
    bucket, _, path = address.partition("://")[2].partition("/")
    prefix = _clean(path)
    return bucket, prefix + "/" if prefix else ""


def filesystem_class(target: Target) -> Any:
    """Return fsspec's class.

    Raises `ModuleNotFoundError`, which names what to install, and `ValueError` for an unknown protocol.
    """
    try:
        return fsspec.get_filesystem_class(target.protocol)
    except ImportError as error:
        raise missing_package(target.address, error) from None
    except ValueError:
        raise ValueError(f"{target.url}: no file system is known for {target.protocol}://; look at the URL") from None


def missing_package(url: str, error: ImportError) -> ModuleNotFoundError:
    """Return what says which of our extras brings what fsspec lacks for a URL, perhaps a chained one."""
    protocols = [link.partition("://")[0] for link in url.split("::")]
    extra = next((extra for each in protocols if (extra := FAMILIES.get(each, ("", None))[1]) is not None), None)
    advice = "" if extra is None else f"pip install 'txstore[{extra}]' "
    told = f"({error})" if advice else f"{error}"
    return ModuleNotFoundError(f"{public(url)}: a package is missing: {advice}{told}", name=error.name)
