"""Real servers on loopback, each started once for a run of the tests, whatever the number of its workers.

A server that can't be started is a reason to skip; where the environment has TXSTORE_REQUIRE_SERVERS=1, a failure.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import filelock

ROOT = Path(__file__).parents[3]
START_SECONDS = 60
BUCKET = "txstore-tests"
AZURE_ACCOUNT = "devstoreaccount1"
# The one that every Azurite has; it opens nothing else.
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

CEPH_KEY = "ceph-access-key"
CEPH_SECRET = "ceph-secret-never-shown"
CEPH_PROGRAMS = ("ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")

SMB_PASSWORD = "password-never-shown"
SAMBA_DIRECTORIES = (
    "private dir",
    "state directory",
    "lock directory",
    "cache directory",
    "pid directory",
    "ncalrpc dir",
)


class Unavailable(Exception):
    """A server can't be started here; the message says why."""


class Server(NamedTuple):
    name: str
    url_prefix: str
    storage_options: dict[str, Any]
    port: int  # 0: it has none

    def url(self) -> str:
        """Return a URL that nobody else uses."""
        return f"{self.url_prefix}/{uuid.uuid4().hex}"

    def with_options(self, **options: Any) -> Server:
        return self._replace(storage_options={**self.storage_options, **options})


def free_port() -> int:
    """Return a port that nobody else gets before it is used: none of those that systems give away by themselves."""
    while True:
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", random.randrange(10_000, 30_000)))
            return int(free.getsockname()[1])


@contextmanager
def shared(name: str, directory: Path, start: Callable[[Path], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what `start` says of a server of this name, which the first one to come starts and the last one stops.

    `start(folder)` returns "command", "port", and what else users have to know.
    """
    folder = directory / name
    users = folder / "users"
    users.mkdir(parents=True, exist_ok=True)
    mine = users / str(os.getpid())
    mine.touch()
    try:
        with filelock.FileLock(folder / "lock", timeout=START_SECONDS * 2):
            about = folder / "about.json"
            known = json.loads(about.read_text()) if about.exists() else None
            if known is not None and "unavailable" in known:
                raise Unavailable(known["unavailable"])
            if known is None or not answers(known["port"]):
                try:
                    known = launched(folder, start)
                except Unavailable as reason:
                    about.write_text(json.dumps({"unavailable": str(reason)}))
                    raise
                about.write_text(json.dumps(known))
        yield known
    finally:
        mine.unlink(missing_ok=True)


def launched(folder: Path, start: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    known = start(folder)
    said = folder / "output"
    with said.open("wb") as output:
        supervisor = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("supervisor.py")), str(folder), *known["command"]],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while not answers(known["port"]):
        if supervisor.poll() is not None or time.monotonic() > deadline:
            raise Unavailable(f"it did not start: {said.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)
    supervisor.returncode = 0  # nobody waits for it: it ends after its last user
    return known


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=START_SECONDS):
            return True
    except OSError:
        return False


def needs(*packages: str) -> None:
    for package in packages:
        try:
            __import__(package)
        except ImportError as error:
            raise Unavailable(f"{error}: pip install 'txstore[test]'") from None


# --- each of them
@contextmanager
def memory(directory: Path) -> Iterator[Server]:
    yield Server("memory", "memory://txstore-tests", {}, 0)


@contextmanager
def s3(directory: Path) -> Iterator[Server]:
    def start(folder: Path) -> dict[str, Any]:
        needs("moto.server", "s3fs")
        port = free_port()
        return {"command": [sys.executable, "-m", "tests.system.remote.s3_server", str(port), BUCKET], "port": port}

    with shared("s3", directory, start) as known:
        options = {
            "key": "test-access-key",
            "secret": "test-secret-never-shown",
            "endpoint_url": f"http://127.0.0.1:{known['port']}",
            "client_kwargs": {"region_name": "us-east-1"},
        }
        yield Server("s3", f"s3://{BUCKET}", options, known["port"])


@contextmanager
def ceph(directory: Path) -> Iterator[Server]:
    def start(folder: Path) -> dict[str, Any]:
        needs("boto3", "s3fs")
        missing = [program for program in CEPH_PROGRAMS if shutil.which(program) is None]
        if missing:
            raise Unavailable(f"{missing[0]} is missing: apt-get install ceph-mon ceph-osd ceph-common radosgw")
        port = free_port()
        command = [sys.executable, "-m", "tests.system.remote.ceph_server", str(folder), str(port), BUCKET]
        return {"command": command, "port": port}

    with shared("ceph", directory, start) as known:
        options = {
            "key": CEPH_KEY,
            "secret": CEPH_SECRET,
            "endpoint_url": f"http://127.0.0.1:{known['port']}",
            "client_kwargs": {"region_name": "us-east-1"},
        }
        yield Server("ceph", f"s3://{BUCKET}", options, known["port"])


def azurite() -> list[str]:
    """Return the command of Azurite, which .ci/run installs."""
    for place in (os.environ.get("TXSTORE_AZURITE"), str(ROOT / "build/azurite/node_modules/.bin/azurite-blob")):
        if place and os.path.exists(place):
            return with_node(place)
    found = shutil.which("azurite-blob")
    if found is None:
        raise Unavailable("Azurite is missing: npm install --prefix build/azurite azurite")
    return with_node(found)


def with_node(program: str) -> list[str]:
    node = shutil.which("node")
    if node is None:
        raise Unavailable("node is missing, which runs Azurite")
    return [node, "--require", str(Path(__file__).with_name("azurite.js")), program]


@contextmanager
def azure(directory: Path) -> Iterator[Server]:
    def start(folder: Path) -> dict[str, Any]:
        needs("adlfs", "azure.storage.blob")
        port = free_port()
        command = [
            *azurite(), "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent",
            "--blobHost", "127.0.0.1", "--blobPort", str(port),
        ]  # fmt: skip
        return {"command": command, "port": port}

    with shared("azure", directory, start) as known:
        text = azure_connection(known["port"])
        create_container(text)
        yield Server("azure", f"az://{BUCKET}", {"connection_string": text}, known["port"])


def azure_connection(port: int, key: str = AZURE_KEY) -> str:
    return (
        f"DefaultEndpointsProtocol=http;AccountName={AZURE_ACCOUNT};AccountKey={key};"
        f"BlobEndpoint=http://127.0.0.1:{port}/{AZURE_ACCOUNT};"
    )


def create_container(connection: str) -> None:
    from azure.core.exceptions import ResourceExistsError
    from azure.storage.blob import BlobServiceClient

    with BlobServiceClient.from_connection_string(connection) as service:
        try:
            service.create_container(BUCKET)
        except ResourceExistsError:
            return


@contextmanager
def gcs(directory: Path) -> Iterator[Server]:
    def start(folder: Path) -> dict[str, Any]:
        needs("gcsfs")
        port = free_port()
        return {"command": [sys.executable, "-m", "tests.system.remote.gcs_stub", str(port), BUCKET], "port": port}

    with shared("gcs", directory, start) as known:
        options = {"token": "anon", "endpoint_url": f"http://127.0.0.1:{known['port']}"}
        yield Server("gcs", f"gs://{BUCKET}", options, known["port"])


def sshd() -> str:
    found = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise Unavailable("sshd is missing: apt-get install openssh-server")
    return found


@contextmanager
def sftp(directory: Path) -> Iterator[Server]:
    def start(folder: Path) -> dict[str, Any]:
        needs("paramiko")
        program = sshd()
        if os.getuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # where it insists on being able to lock itself in
        for name in ("host", "user"):
            key = folder / name
            key.unlink(missing_ok=True)
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        (folder / "files").mkdir(exist_ok=True)
        port = free_port()
        config = folder / "config"
        config.write_text(
            f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host\nPidFile none\n"
            f"AuthorizedKeysFile {folder}/user.pub\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            "PermitRootLogin yes\nMaxStartups 200\nSubsystem sftp internal-sftp\n"
        )
        return {"command": [program, "-D", "-e", "-f", str(config)], "port": port}

    with shared("sftp", directory, start) as known:
        folder = directory / "sftp"
        options = {
            "username": getpass.getuser(),
            "port": known["port"],
            "key_filename": str(folder / "user"),
            "allow_agent": False,
            "look_for_keys": False,
        }
        yield Server("sftp", f"sftp://127.0.0.1:{known['port']}{folder}/files", options, known["port"])


@contextmanager
def smb(directory: Path) -> Iterator[Server]:
    def start(folder: Path) -> dict[str, Any]:
        needs("smbprotocol")
        program = shutil.which("smbd", path=os.environ["PATH"] + ":/usr/sbin")
        if program is None:
            raise Unavailable("Samba is missing: apt-get install samba")
        port = free_port()
        (folder / "files").mkdir(exist_ok=True)
        (folder / "state").mkdir(exist_ok=True)
        kept = "".join(f"{what} = {folder}/state\n" for what in SAMBA_DIRECTORIES)
        config = folder / "config"
        config.write_text(
            f"[global]\nsmb ports = {port}\ninterfaces = lo\nbind interfaces only = yes\n"
            "server role = standalone server\n"
            f"{kept}passdb backend = tdbsam:{folder}/state/passdb.tdb\nlog file = {folder}/log\n"
            "disable netbios = yes\ndisable spoolss = yes\nload printers = no\n"
            f"[share]\npath = {folder}/files\nread only = no\n"
        )
        added = ["smbpasswd", "-c", str(config), "-s", "-a", getpass.getuser()]
        subprocess.run(added, input=f"{SMB_PASSWORD}\n" * 2, text=True, check=True, capture_output=True)
        return {"command": [program, "--foreground", "--no-process-group", "-s", str(config)], "port": port}

    with shared("smb", directory, start) as known:
        options = {"username": getpass.getuser(), "password": SMB_PASSWORD}
        yield Server("smb", f"smb://127.0.0.1:{known['port']}/share", options, known["port"])


SERVERS = {"memory": memory, "s3": s3, "azure": azure, "gcs": gcs, "sftp": sftp, "smb": smb, "ceph": ceph}
