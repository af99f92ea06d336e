"""Processes that commit through a real gateway, which is killed and started again meanwhile; and a bucket at its quota.

TXSTORE_GATEWAY_KILLS is how often the gateway is killed, and how often the OSD stands still. Versioning is switched on
in their bucket, too: this gateway ignores conditions then. `make histories WHAT=ceph`.
"""

import os
import signal
import subprocess
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

import txstore
from tests import reliability
from tests.system.remote.ceph_server import create_bucket
from tests.system.remote.conftest import STORES, with_engine
from tests.system.remote.killing import acknowledged
from tests.system.remote.versioning import Bucket, check_repaired, write_until_stopped
from tests.tools.upkeep import content, put, rewrite
from tests.tools.waiting import wait_until
from tests.tools.workers import QUICK, Worker, ended

pytestmark = pytest.mark.long

KILLS = int(os.environ.get("TXSTORE_GATEWAY_KILLS", 2))
BETWEEN = 40  # commits from one kill to the next
WRITERS = 8
HALTED = 5.0  # seconds that the OSD stands still: longer than a committer waits before it looks at its version


def write(url: str, options: dict[str, object], writer: int, until: str, file: str) -> None:
    """Commit by turns what no other process writes, and an increment of what all write, until a file is there."""
    repo = txstore.Repository(url, storage_options=options)

    def increment(store: txstore.TxStore) -> None:
        store.mapping["count/c/0"] = str(int(bytes(store.mapping["count/c/0"])) + 1).encode()

    with Path(file).open("ab", buffering=0) as told:
        number = 0
        while not Path(until).exists():
            if number % 2:
                repo.run(increment, message=f"{writer}/{number}")
            else:
                with repo.transaction(f"{writer}/{number}") as store:
                    store[f"{writer}/c/{number}"] = f"{writer}/{number}".encode()
            told.write(f"{writer}/{number}\n".encode())
            number += 1


def processes(pattern: str) -> list[int]:
    found = subprocess.run(["pgrep", "-f", pattern], check=False, capture_output=True, text=True).stdout
    return [int(each) for each in found.split()]


def gateways(port: int) -> list[int]:
    return processes(f"radosgw .*127.0.0.1:{port}$")


def configuration(port: int) -> str:
    """Return the path of the cluster's."""
    wait_until(lambda: gateways(port))  # it may have been killed just now
    words = Path(f"/proc/{gateways(port)[0]}/cmdline").read_text().split("\0")
    return words[words.index("--conf") + 1]


def kill_gateway(port: int) -> None:
    for each in gateways(port):
        os.kill(each, signal.SIGKILL)


def halt_disk(port: int) -> None:
    """Let the OSD stand still for a while: the gateway lives, and answers nobody."""
    (osd,) = processes(f"ceph-osd --conf {configuration(port)}")
    os.kill(osd, signal.SIGSTOP)
    try:
        time.sleep(HALTED)
    finally:
        os.kill(osd, signal.SIGCONT)


GATEWAYS = [store for store, (server, _) in STORES.items() if server == "ceph"]


@pytest.fixture(params=GATEWAYS)
def gateway(request, server_of):
    kind, engine = STORES[request.param]
    return with_engine(server_of(kind), engine)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", [kill_gateway, halt_disk])
def test_an_outage_while_processes_commit(fault, gateway, tmp_path):
    server = gateway
    url, options = server.url(), server.storage_options
    with txstore.Repository(url, storage_options=options).begin("first") as mapping:
        mapping["count/c/0"] = b"0"
    over, files = tmp_path / "over", [tmp_path / f"{writer}" for writer in range(WRITERS)]
    workers = [
        Worker(write, url, options, writer, str(over), str(files[writer]), context=QUICK) for writer in range(WRITERS)
    ]
    with ended(*workers):
        for _ in range(KILLS):
            enough = len(acknowledged(files)) + BETWEEN
            wait_until(lambda enough=enough: len(acknowledged(files)) >= enough)
            fault(server.port)
        enough = len(acknowledged(files)) + BETWEEN
        wait_until(lambda: len(acknowledged(files)) >= enough)
        over.touch()
        for worker in workers:
            worker.result()

    repo = txstore.Repository(url, storage_options=options)
    log = list(repo.log())
    made = [commit.message for commit in log if commit.message != "first"]
    assert [commit.version for commit in log] == list(range(len(log)))[::-1]
    assert sorted(made) == sorted(acknowledged(files)), "each commit is there once"
    increments = [message for message in made if int(message.partition("/")[2]) % 2]
    assert int(bytes(repo.mapping()["count/c/0"])) == len(increments)
    assert repo.verify().faults == []
    reliability.add(f"outages of Ceph: {fault.__name__}", Counter({"outages": KILLS, "commits": len(made)}))


def test_a_bucket_at_its_quota_is_emptied(gateway):
    bucket = f"full-{uuid.uuid4().hex}"
    create_bucket(gateway.port, bucket)
    repo = txstore.Repository(f"s3://{bucket}/data.tx", storage_options=gateway.storage_options)
    expected = rewrite(repo, 12)
    conf = configuration(gateway.port)
    for words in (["set", "--max-objects", "20"], ["enable"]):
        command = ["radosgw-admin", "--conf", conf, "quota", *words, "--quota-scope", "bucket", "--bucket", bucket]
        subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(OSError, match=r"no space left \(QuotaExceeded\)"):
        for _ in range(30):
            expected |= rewrite(repo, 1)
    report = txstore.Repository(repo.url, storage_options=gateway.storage_options).vacuum(keep=1)
    assert report.files > 3
    assert content(repo) == expected
    put(repo, {"there is": b"room again"})
    assert repo.verify().faults == []


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [store for store, (server, _) in STORES.items() if server == "ceph"])
def test_versioning_is_switched_on_while_processes_commit(name, server_of, tmp_path):
    kind, engine = STORES[name]
    server = with_engine(server_of(kind), engine)
    bucket, options = Bucket(server), server.storage_options
    with txstore.Repository(bucket.url(), storage_options=options).begin("first") as mapping:
        mapping["count/c/0"] = b"0"
    files = [tmp_path / f"{writer}" for writer in range(WRITERS)]
    workers = [
        Worker(write_until_stopped, bucket.url(), options, writer, str(files[writer]), context=QUICK)
        for writer in range(WRITERS)
    ]
    with ended(*workers):
        wait_until(lambda: len(acknowledged(files)) >= BETWEEN)
        bucket.keep_versions()
        said = [each for worker in workers for each in worker.result()]
    assert any("Ceph 16.2 does so in a bucket that keeps versions" in each for each in said), said
    bucket.keep_versions("Suspended")
    check_repaired(bucket.url(), options, acknowledged(files))
