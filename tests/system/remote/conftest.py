"""The servers, started when a test first asks for one, and object stores over them."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zarr.core.sync

from tests.system.remote import lease_times, servers
from tests.system.remote.proxy import Proxy
from tests.system.remote.servers import Server
from txstore.history import branches_in_objects, object_head_caches
from txstore.storage import leases, remote
from txstore.storage.objects import client, obstore_backend
from txstore.storage.objects.interface import ObjectStore, open_objects

#: What a test over `objects` runs on: a server, and what its requests are made with.
STORES = {
    "memory": ("memory", "fsspec"),
    "s3-s3fs": ("s3", "fsspec"),
    "s3-obstore": ("s3", "obstore"),
    "azure-adlfs": ("azure", "fsspec"),
    "azure-obstore": ("azure", "obstore"),
    "sftp": ("sftp", "fsspec"),
    "gcs-gcsfs": ("gcs", "fsspec"),
    "gcs-obstore": ("gcs", "obstore"),
    "smb": ("smb", "fsspec"),
    "ceph-s3fs": ("ceph", "fsspec"),
    "ceph-obstore": ("ceph", "obstore"),
}
# TXSTORE_SERVERS=smb,s3 chooses those of them; Samba and Ceph are left out without,
# since they take the most to be installed. TXSTORE_S3=ceph: whatever asks for S3 gets Ceph's gateway.
_asked = os.environ.get("TXSTORE_SERVERS", "memory,s3,azure,sftp,gcs").split(",")
STORES = {store: about for store, about in STORES.items() if about[0] in _asked}
#: Those of them that several processes can write to, each kind once where both packages would do.
SEVERAL_WRITERS = [
    store
    for store in ("s3-s3fs", "s3-obstore", "azure-obstore", "sftp", "smb", "ceph-s3fs", "ceph-obstore")
    if store in STORES
]


@pytest.fixture(scope="session")
def server_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Return the server of a name; the test is skipped if it can't be started."""
    base = tmp_path_factory.getbasetemp()
    directory: Path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "servers"
    running: dict[str, Server] = {}
    missing: dict[str, str] = {}
    with ExitStack() as stack:

        def server_of(name: str) -> Server:
            name = os.environ.get("TXSTORE_S3", name) if name == "s3" else name
            if name not in running and name not in missing:
                try:
                    running[name] = stack.enter_context(servers.SERVERS[name](directory))
                except servers.Unavailable as reason:
                    missing[name] = str(reason)
            if name in missing:
                unavailable(f"{name}: {missing[name]}")
            return running[name]

        yield server_of


def with_engine(server: Server, engine: str) -> Server:
    if engine == "obstore" and not obstore_backend.is_installed():
        unavailable("obstore is missing: pip install 'txstore[obstore]'")
    return server.with_options(txstore_engine=engine)


def unavailable(reason: str) -> None:
    if os.environ.get("TXSTORE_REQUIRE_SERVERS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def drops_conditions(proxy: Proxy, server_of: Callable[[str], Server]) -> Proxy:
    """A proxy that can take conditions off requests: before a server that looks at no signature, which has them."""
    if server_of("s3").name == "ceph":
        pytest.skip("Ceph looks at signatures")
    return proxy


@pytest.fixture(params=sorted(STORES))
def server(request: pytest.FixtureRequest, server_of: Callable[[str], Server]) -> Server:
    """Each of the servers, with each of the packages that its requests are made with."""
    name, engine = STORES[request.param]
    return with_engine(server_of(name), engine)


@pytest.fixture
def objects(server: Server) -> ObjectStore:
    """An empty object store."""
    return open_objects(server.url(), server.storage_options)


@pytest.fixture(params=["fsspec", "obstore"])
def s3(request: pytest.FixtureRequest, server_of: Callable[[str], Server]) -> Server:
    return with_engine(server_of("s3"), request.param)


@pytest.fixture
def proxy(server_of: Callable[[str], Server]) -> Iterator[Proxy]:
    """A proxy in front of S3."""
    with Proxy(server_of("s3").port) as proxy:
        yield proxy


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BEAT", "TERM"):
        monkeypatch.setattr(leases, name, getattr(lease_times, name))


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that was seen, and a proof that the server gave, count however slow this machine is."""
    for module, name in ((object_head_caches, "STAYS"), (branches_in_objects, "TRUSTED"), (remote, "CHECKED_EVERY")):
        monkeypatch.setattr(module, name, 1e9)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Requests that fail are soon given up."""
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.2)
    yield
    zarr.core.sync.sync(_finish_reads())  # or they would go on, no longer so quick


async def _finish_reads() -> None:
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
