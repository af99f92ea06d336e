"""The page beside a repository, on each of the servers."""

import inspect
from typing import Any

import fsspec
import pytest

from tests.system.remote.conftest import STORES
from tests.system.remote.servers import Server
from txstore.serving.files import put_page


# gcsfs asks for the kind of a bucket by gRPC, and the emulator has none; what it is told is looked at below.
@pytest.mark.parametrize("server", sorted(store for store in STORES if not store.startswith("gcs")), indirect=True)
def test_the_page_is_there_and_says_what_it_is(server: Server) -> None:
    url = server.url()
    for _ in range(2):  # an update replaces it
        written = put_page(url, options=server.storage_options)
    assert written.endswith("/index.html")
    options: dict[str, Any] = {k: v for k, v in server.storage_options.items() if not k.startswith("txstore_")}
    fs, root = fsspec.core.url_to_fs(url, **options)
    fs.invalidate_cache()
    index = fs.cat_file(f"{root}/index.html")
    assert b'<meta name="txstore-repository" content=".">' in index
    assert b"CorruptionError" in fs.cat_file(f"{root}/page/reader/errors.js")
    for name, kind in [
        ("index.html", "text/html"),
        ("page/main.js", "text/javascript"),
        ("page/style.css", "text/css"),
    ]:
        about = fs.info(f"{root}/{name}")
        told = about.get("ContentType") or about.get("contentType")
        told = told or (about.get("content_settings") or {}).get("content_type")
        if {"s3", "abfs"} & set((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol):
            assert told is not None, about
            assert told.startswith(kind), about


def test_gcsfs_takes_what_it_is_told() -> None:
    gcsfs = pytest.importorskip("gcsfs.core")
    assert "content_type" in inspect.signature(gcsfs.GCSFileSystem._pipe_file).parameters
