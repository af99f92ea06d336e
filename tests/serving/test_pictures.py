"""Pictures of chunks that a stranger has made: what decodes them is bounded, and ends with the request."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

import txstore
from tests.serving.asking import Answer, ask, asked, scope_of
from tests.tools.waiting import wait_until
from txstore.serving import decoders
from txstore.serving.application import Application

Get = Callable[..., Answer]

#: A member of a gzip file, of which there may be many, one behind the other.
MEMBER = gzip.compress(bytes(16 << 20), 9)


def document(shape: int = 4, **members: Any) -> bytes:
    told = {"zarr_format": 2, "shape": [shape], "chunks": [shape], "dtype": "<i4", "fill_value": 0, "order": "C"}
    return json.dumps(told | {"filters": None, "compressor": None} | members).encode()


def put(repo: txstore.Repository, name: str, value: bytes, **members: Any) -> None:
    with repo.begin() as mapping:
        mapping[f"{name}/.zarray"] = document(**members)
        mapping[f"{name}/0"] = value


@pytest.fixture
def bomb(repo: txstore.Repository) -> str:
    """The path of an array of 16 bytes, whose chunk says that it has 32 GiB."""
    put(repo, "bomb", MEMBER * 2048, compressor={"id": "gzip", "level": 9})
    return "/api/preview/main/bomb"


def decoding() -> list[int]:
    """The processes that decode for this one."""
    found = []
    for directory in Path("/proc").iterdir():
        try:
            status = (directory / "stat").read_text().rpartition(")")[2].split()
            command = (directory / "cmdline").read_bytes()
        except (OSError, NotADirectoryError):
            continue
        if int(status[1]) == os.getpid() and status[0] != "Z" and b"txstore.codecs.decoder_process" in command:
            found.append(int(directory.name))
    return found


@pytest.fixture
def running() -> Callable[[], list[int]]:
    """Returns those that this test has begun: other applications may have left some."""
    before = {*decoding()}
    return lambda: [each for each in decoding() if each not in before]


Running = Callable[[], list[int]]


def test_memory_is_bounded(get: Get, bomb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "MEMORY", 128 << 20)
    answer = get(bomb)
    assert (answer.status, answer.json["error"]["type"]) == (413, "TooLarge")
    assert "128 MiB" in answer.json["error"]["message"]
    assert get("/api/preview/main/three/plain").status == 200


def test_time_is_bounded(get: Get, repo: txstore.Repository, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "MEMORY", 1 << 40)
    monkeypatch.setattr(decoders, "SECONDS", 2.0)
    put(repo, "slow", MEMBER * 256, compressor={"id": "gzip", "level": 9})
    answer = get("/api/preview/main/slow")
    assert (answer.status, answer.json["error"]["type"]) == (413, "TooLarge")
    assert "2 s" in answer.json["error"]["message"]
    assert running() == []


async def test_many_pictures_of_a_bomb_do_not_hold_up_the_others(
    app: Application, bomb: str, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor after their clients have left, which ends what decodes for them."""
    monkeypatch.setattr(decoders, "MEMORY", 1 << 40)
    waiting = [Leaving(app, bomb) for _ in range(16)]
    await asyncio.to_thread(wait_until, lambda: len(running()) == 2)
    for place in ("/api/repository", "/api/tree/main", "/api/usage/main"):
        assert (await asked(app, scope_of(place))).status == 200
    assert len(running()) == 2
    for each in waiting:
        each.leave()
    await asyncio.gather(*(each.task for each in waiting))
    await asyncio.to_thread(wait_until, lambda: running() == [])
    assert (await asked(app, scope_of("/api/preview/main/three/plain"))).status == 200


class Leaving:
    """A client that leaves before it has its answer."""

    def __init__(self, app: Application, place: str) -> None:
        self._left = asyncio.Event()
        self.task = asyncio.ensure_future(app(scope_of(place), self._receive, self._send))

    def leave(self) -> None:
        self._left.set()

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        raise AssertionError(message)


def test_a_process_is_used_again_and_ends_when_it_is_idle(app: Application, running: Running) -> None:
    assert ask(app, "/api/preview/main/three/plain").status == 200
    (first,) = running()
    assert ask(app, "/api/preview/main/three/sharded").status == 200
    assert running() == [first]
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: is_zombie(first))
    assert ask(app, "/api/preview/main/three/plain").status == 200
    app.close()
    assert running() == []


def is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_what_a_repository_lacks_is_told_as_elsewhere(
    app: Application, repo: txstore.Repository, running: Running
) -> None:
    """What goes wrong when a value is fetched is no matter of codecs."""
    (Path(repo.url).parent / "raw.bin").unlink()
    answer = ask(app, "/api/preview/main/three/outside")
    assert answer.json["error"]["type"] == "SourceChangedError"
    assert running() == []


def test_damaged_chunks(get: Get, repo: txstore.Repository) -> None:
    put(repo, "damaged", b"nothing that gzip has made", compressor={"id": "gzip", "level": 1})
    assert get("/api/preview/main/damaged").json["error"]["type"] == "NoPicture"


def test_values_are_those_that_zarr_reads(get: Get, repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        times = np.array(["2026-01-01", "NaT"], "M8[ns]")
        zarr.create_array(store, name="times", data=times)
        zarr.create_array(store, name="complex", data=np.array([3 + 4j, 0]))
        zarr.create_array(store, name="empty", shape=(0,), dtype="f8")
        zarr.create_array(store, name="old", data=np.array(["a", "größer"], "U8"), zarr_format=2)
    whole = zarr.open_array(repo.snapshot(), path="three/sharded", mode="r")[:]
    answer = get("/api/preview/main/three/sharded?selection=3:30,5")
    np.testing.assert_array_equal(np.frombuffer(answer.body, "<f4"), whole[3:30, 5])
    assert answer.headers["x-missing-chunks"] == "0/2"
    found = np.frombuffer(get("/api/preview/main/times").body, "<f4")
    assert found[0] == np.float32(times[:1].astype("i8")[0])
    assert np.isnan(found[1])
    assert np.frombuffer(get("/api/preview/main/complex").body, "<f4").tolist() == [5, 0]
    assert get("/api/preview/main/empty").headers["x-max"] == "null"
    assert get("/api/preview/main/old").json == {"shape": [2], "values": ["a", "größer"]}
    assert get("/api/preview/main/three/strings").json == {"shape": [3], "values": ["a", "", "größer"]}


# --- codecs that are not to be run


class Trace(numcodecs.abc.Codec):  # type: ignore[misc]
    """A codec that leaves a file where it was run, in whatever process that is."""

    codec_id = "txstore-test-trace"
    place: Path

    def encode(self, buf: Any) -> Any:
        return buf

    def decode(self, buf: Any, out: Any = None) -> Any:
        self.place.write_bytes(b"")
        return buf


@pytest.fixture
def trace(tmp_path: Path) -> Iterator[Path]:
    Trace.place = tmp_path / "ran"
    numcodecs.register_codec(Trace)
    yield Trace.place
    del numcodecs.registry.codec_registry[Trace.codec_id]


class Runs:
    """What a pickle of runs when it is loaded."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def __reduce__(self) -> Any:
        return Path.touch, (self._place,)


def test_a_codec_that_is_not_on_the_list_is_never_run(get: Get, repo: txstore.Repository, trace: Path) -> None:
    put(repo, "x", bytes(16), filters=[{"id": Trace.codec_id}])
    answer = get("/api/preview/main/x")
    assert (answer.status, answer.json["error"]["type"]) == (400, "CodecRefusedError")
    assert f"TXSTORE_CODECS={Trace.codec_id}" in answer.json["error"]["message"]
    assert not trace.exists()
    zarr.open_array(repo.snapshot(), path="x", mode="r")[:]  # as the user asks
    assert trace.exists()


@pytest.mark.parametrize("filters", [("vlen-utf8", "pickle"), ("pickle", "vlen-utf8"), ("pickle",)])
def test_a_pickle_is_never_loaded(get: Get, repo: txstore.Repository, tmp_path: Path, filters: tuple[str, ...]) -> None:
    value = numcodecs.Pickle().encode(np.array([Runs(tmp_path / "ran")], object))
    put(repo, "x", bytes(value), dtype="|O", shape=1, fill_value=None, filters=[{"id": each} for each in filters])
    assert get("/api/preview/main/x").status == 400
    assert not (tmp_path / "ran").exists()
