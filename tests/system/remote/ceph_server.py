"""Ceph's RADOS gateway over a cluster of one machine: `python -m tests.system.remote.ceph_server FOLDER PORT BUCKET`.

One monitor and one OSD, whose objects are in memory, and the gateway, which answers S3 on PORT. A gateway that ends is
started again, as a service manager does. All of it ends with this process. On Debian: apt-get install ceph-mon ceph-osd
ceph-common radosgw.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.system.remote.servers import CEPH_KEY, CEPH_SECRET, START_SECONDS, answers, free_port

CONFIGURATION = """\
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{monitor}/0
public addr = 127.0.0.1
ms bind msgr1 = false
mon allow pool size one = true
mon data avail warn = 0
mon data avail crit = 0
mon max pg per osd = 1000
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 4294967296
keyring = {folder}/keyring
run dir = {folder}
admin socket = {folder}/$name.socket
log file = {folder}/$name.log
mon data = {folder}/monitor
osd data = {folder}/osd
rgw data = {folder}
"""


class Cluster:
    """A monitor, an OSD and a gateway, whose files are in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fsid = str(uuid.uuid4())
        self.daemons: list[subprocess.Popen[bytes]] = []

    def run(self, program: str, *arguments: str) -> str:
        command = [program, "--conf", str(self.folder / "configuration"), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=START_SECONDS).stdout

    def start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [program, "--conf", str(self.folder / "configuration"), "-f", *arguments]
        with (self.folder / f"{program}.output").open("ab") as output:
            daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        self.daemons.append(daemon)
        return daemon

    def bring_up(self) -> None:
        """Start monitor and OSD, and make the gateway's user."""
        folder, port = self.folder, free_port()
        for name in ("monitor", "osd"):
            (folder / name).mkdir()
        text = CONFIGURATION.format(fsid=self.fsid, monitor=port, folder=folder)
        (folder / "configuration").write_text(text)
        keyring, monitors = str(folder / "keyring"), str(folder / "monitors")
        everything = ("--cap", "mon", "allow *", "--cap", "osd", "allow *")
        for name in ("mon.", "client.admin", "osd.0"):
            is_first = ["--create-keyring"] if name == "mon." else []
            command = ["ceph-authtool", *is_first, keyring, "--gen-key", "-n", name, *everything]
            subprocess.run(command, check=True, capture_output=True)
        address = f"v2:127.0.0.1:{port}/0"
        command = ["monmaptool", "--create", "--fsid", self.fsid, "--addv", "a", address, monitors]
        subprocess.run(command, check=True, capture_output=True)
        self.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monitors, "--keyring", keyring)
        self.start("ceph-mon", "-i", "a")
        until(lambda: answers(port))
        self.run("ceph", "auth", "import", "-i", keyring)
        osd = str(uuid.uuid4())
        self.run("ceph", "osd", "new", osd, "0")
        self.run("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", osd)
        self.run("ceph", "osd", "crush", "add", "osd.0", "1.0", "root=default", "host=here")
        self.start("ceph-osd", "-i", "0")
        until(lambda: "1 up" in self.run("ceph", "osd", "stat"))
        keys = ["--access-key", CEPH_KEY, "--secret-key", CEPH_SECRET]
        self.run("radosgw-admin", "user", "create", "--uid", "tests", "--display-name", "tests", *keys)

    def start_gateway(self, port: int) -> subprocess.Popen[bytes]:
        frontend = f"beast endpoint=127.0.0.1:{port}"
        return self.start("radosgw", "--name", "client.admin", "--rgw-frontends", frontend)

    def end(self) -> None:
        for daemon in self.daemons:
            daemon.kill()
            daemon.wait()


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError("Ceph did not start")
        time.sleep(0.1)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.end()


def create_bucket(port: int, name: str) -> None:
    import boto3

    session = boto3.session.Session(CEPH_KEY, CEPH_SECRET, region_name="us-east-1")
    session.client("s3", endpoint_url=f"http://127.0.0.1:{port}").create_bucket(Bucket=name)


def main(folder: Path, port: int, bucket: str) -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())  # the daemons end, too
    place = folder / str(os.getpid())
    place.mkdir(parents=True)
    with running(place) as cluster:
        cluster.bring_up()
        hidden = free_port()  # the one that users ask for answers when there is a bucket, and not before
        gateway = cluster.start_gateway(hidden)
        until(lambda: answers(hidden))
        create_bucket(hidden, bucket)
        gateway.kill()
        while True:
            gateway.wait()
            gateway = cluster.start_gateway(port)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
