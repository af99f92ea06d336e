"""Buckets of a server of S3 whose versioning is switched on, and processes that commit meanwhile."""

import contextlib
import uuid
from pathlib import Path
from typing import Any

import txstore
from tests.system.remote.servers import Server

#: What the error says that a committer gets.
CAUSE = r"the server ignores conditional writes.*Ceph 16\.2 does so in a bucket that keeps versions"
STOPPED = r"did not create objects exclusively.*verify --repair.*suspend versioning first"


class Bucket:
    """A bucket of its own."""

    def __init__(self, server: Server) -> None:
        import boto3

        options = server.storage_options
        session = boto3.session.Session(options["key"], options["secret"], region_name="us-east-1")
        self.client = session.client("s3", endpoint_url=options["endpoint_url"])
        self.name = f"bucket-{uuid.uuid4().hex}"
        self.client.create_bucket(Bucket=self.name)

    def keep_versions(self, status: str = "Enabled") -> None:
        self.client.put_bucket_versioning(Bucket=self.name, VersioningConfiguration={"Status": status})

    def url(self) -> str:
        return f"s3://{self.name}/data.tx"


def increment(store: txstore.TxStore) -> None:
    store.mapping["count/c/0"] = str(int(bytes(store.mapping["count/c/0"])) + 1).encode()


def write_until_stopped(url: str, options: dict[str, Any], writer: int, file: str) -> list[str]:
    """Commit until that is refused, each third time an increment of what all write; return what was said each time.

    What was acknowledged is told in a file, before it is gone on.
    """
    repo = txstore.Repository(url, storage_options=options)
    number, said = 0, list[str]()
    with Path(file).open("ab", buffering=0) as told:
        while len(said) < 3:
            try:
                if number % 3:
                    with repo.transaction(f"{writer}/{number}") as store:
                        store[f"{writer}/c/{number}"] = f"{writer}/{number}".encode()
                else:
                    repo.run(increment, message=f"{writer}/{number}")
                told.write(f"{writer}/{number}\n".encode())
            except (txstore.TxStoreError, OSError) as error:
                said.append(f"{type(error).__name__}: {error}")
            number += 1
    return said


def check_repaired(url: str, options: dict[str, Any], acknowledged: list[str]) -> None:
    """Repair a repository; whatever was acknowledged is there then, and all is well."""
    repo = txstore.Repository(url, storage_options=options)
    before = set[str]()
    with contextlib.suppress(txstore.CorruptionError):  # the history is no line
        before.update(commit.id for commit in repo.log())
    report = repo.verify(repair=True)
    assert {fault.part for fault in report.faults} <= {"lost"}, report.faults
    repo = txstore.Repository(url, storage_options=options)
    log = list(repo.log())
    made = [commit.message for commit in log]
    assert [commit.version for commit in log] == list(range(len(log)))[::-1]
    assert len(set(made)) == len(made)
    assert set(acknowledged) <= set(made), set(acknowledged) - set(made)
    increments = [message for message in made if "/" in message and not int(message.partition("/")[2]) % 3]
    assert int(bytes(repo.mapping()["count/c/0"])) == len(increments)
    for message in made:
        if "/" in message and message not in increments:
            writer, _, number = message.partition("/")
            assert bytes(repo.mapping()[f"{writer}/c/{number}"]) == message.encode()
    lost = {commit for fault in report.faults for commit in fault.commits}
    assert before - {commit.id for commit in log} <= lost
    assert not lost & {commit.id for commit in log}
    assert repo.verify().faults == []
    with repo.transaction("after") as store:
        store["after/c"] = b"after"
    assert txstore.Repository(url, storage_options=options).head().message == "after"
