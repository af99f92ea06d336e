"""Stores on S3, by what is at hand for each. A path here is `PORT/PREFIX`: a server of this machine, and where in it.

zarr has ten requests under way at a time unless it is told otherwise; its stores are measured with that, and with as
many as a bucket at some distance wants.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from benchmarks.peers.array_peers import TensorStoreFile
from benchmarks.peers.peer import NAME, Peer
from benchmarks.peers.zarr_peers import Fsspec, Icechunk, Object, PlainTxStore, TxStore, ZarrPeer
from benchmarks.simulated.s3_stub import BUCKET

_KEY, _SECRET, _REGION = "key", "secret", "us-east-1"
_MANY = 128


def port_of(path: Path) -> int:
    return int(path.parts[0])


def _endpoint(path: Path) -> str:
    return f"http://127.0.0.1:{port_of(path)}"


def _url(path: Path) -> str:
    return f"s3://{BUCKET}/{path.name}"


def _options(path: Path) -> dict[str, Any]:
    client = {"region_name": _REGION}
    return {"key": _KEY, "secret": _SECRET, "endpoint_url": _endpoint(path), "client_kwargs": client}


class _Concurrent(ZarrPeer):
    concurrency: ClassVar[int | None] = None

    def __init__(self, path: Path) -> None:
        import zarr

        super().__init__(path)
        if self.concurrency is not None:
            zarr.config.set({"async.concurrency": self.concurrency})


class RemoteTxStore(TxStore):
    def repository(self) -> Any:
        import txstore

        return txstore.Repository(_url(self.path), storage_options=_options(self.path))


class _PlainRemoteTxStore(_Concurrent, RemoteTxStore, PlainTxStore):
    pass


class _RemoteObject(_Concurrent, Object):
    def store(self, *, read_only: bool = False) -> Any:
        from obstore.store import S3Store
        from zarr.storage import ObjectStore

        bucket = S3Store(
            BUCKET,
            prefix=self.path.name,
            endpoint=_endpoint(self.path),
            access_key_id=_KEY,
            secret_access_key=_SECRET,
            region=_REGION,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )
        return ObjectStore(bucket, read_only=read_only)


class _RemoteFsspec(_Concurrent, Fsspec):
    packages = ("s3fs",)

    def store(self, *, read_only: bool = False) -> Any:
        from zarr.storage import FsspecStore

        return FsspecStore.from_url(_url(self.path), storage_options=_options(self.path), read_only=read_only)


class _RemoteIcechunk(_Concurrent, Icechunk):
    processes = "yes"

    def storage(self) -> Any:
        import icechunk

        return icechunk.s3_storage(
            bucket=BUCKET,
            prefix=self.path.name,
            region=_REGION,
            endpoint_url=_endpoint(self.path),
            allow_http=True,
            access_key_id=_KEY,
            secret_access_key=_SECRET,
            force_path_style=True,
        )


class RemoteTensorStore(TensorStoreFile):
    name = "TensorStore"

    def bucket(self) -> dict[str, Any]:
        return {
            "driver": "s3",
            "bucket": BUCKET,
            "endpoint": _endpoint(self.path),
            "path": f"{self.path.name}/",
            "aws_region": _REGION,
            "aws_credentials": {"type": "anonymous"},
        }

    def keys(self) -> dict[str, Any]:
        bucket = self.bucket()
        return bucket | {"path": f"{bucket['path']}{NAME}/"}


class RemoteOcdbt(RemoteTensorStore):
    name = "TensorStore ocdbt"
    processes = "yes"

    def keys(self) -> dict[str, Any]:
        return {"driver": "ocdbt", "base": self.bucket(), "path": f"{NAME}/"}


def _variant(kind: type[_Concurrent], name: str, pipeline: str, concurrency: int | None = None) -> type[Peer]:
    at_once = f", {concurrency} at once" if concurrency else ""
    attributes = {
        "name": f"{name}, {pipeline}{at_once}",
        "pipeline": pipeline,
        "concurrency": concurrency,
        "durable": True,
    }
    return type(f"{kind.__name__}_{pipeline}_{concurrency}", (kind,), attributes)


REMOTE_PEERS: list[type[Peer]] = [
    RemoteTxStore,
    _variant(_PlainRemoteTxStore, "TxStore", "fused"),
    _variant(_RemoteObject, "ObjectStore", "fused"),
    _variant(_RemoteObject, "ObjectStore", "fused", _MANY),
    _variant(_RemoteObject, "ObjectStore", "batched", _MANY),
    _variant(_RemoteFsspec, "FsspecStore", "fused"),
    _variant(_RemoteIcechunk, "Icechunk", "fused"),
    _variant(_RemoteIcechunk, "Icechunk", "fused", _MANY),
    RemoteTensorStore,
    RemoteOcdbt,
]
