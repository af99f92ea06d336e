"""The pipeline is there by itself for arrays over a `TxStore`, and for no others."""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore, LoggingStore, MemoryStore

import txstore
import txstore.pipeline
from txstore.codecs import layout
from txstore.pipeline.codec_pipeline import zarr_default

STORES: dict[str, Any] = {
    "memory": lambda path: MemoryStore(),
    "local": LocalStore,
    "around one of ours": lambda path: LoggingStore(txstore.TxStore(path), log_level="ERROR"),
}


def create(store: Any, **options: Any) -> zarr.Array[Any]:
    return zarr.create_array(store, name="x", shape=(8, 8), chunks=(2, 2), dtype="i4", **options)


def in_process(code: str, **environment: str) -> str:
    run = [sys.executable, "-c", "import zarr, tempfile\nold = zarr.config.get('codec_pipeline.path')\n" + code]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ZARR_", "TXSTORE_PIPELINE"))}
    return subprocess.run(run, env={**kept, **environment}, capture_output=True, text=True, check=True).stdout.strip()


ITS_NAME = """
import txstore, txstore.pipeline
store = txstore.TxStore(tempfile.mkdtemp() + "/data.tx")
z = zarr.create_array(store, name="x", shape=(4,), chunks=(2,), dtype="i4", compressors=None)
print(txstore.pipeline.describe(z), "|", zarr.config.get("codec_pipeline.path") == old)
"""


def test_it_is_on_by_itself() -> None:
    assert in_process(ITS_NAME) == "txstore: batches of chunks | False"


@pytest.mark.long
@pytest.mark.parametrize("word", ["off", "0", "no"])
def test_it_can_be_switched_off(word: str) -> None:
    assert in_process(ITS_NAME, TXSTORE_PIPELINE=word) == f"zarr: {zarr_default().rpartition('.')[2]} | True"


@pytest.mark.skipif(not hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline"), reason="zarr has one pipeline")
def test_what_a_user_has_configured_stays() -> None:
    fused = "zarr.core.codec_pipeline.FusedCodecPipeline"
    assert in_process(ITS_NAME, ZARR_CODEC_PIPELINE__PATH=fused) == "zarr: FusedCodecPipeline | True"
    later = f"import txstore.store\nzarr.config.set({{'codec_pipeline.path': {fused!r}}})" + ITS_NAME
    assert in_process(later).startswith("zarr: FusedCodecPipeline")


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("shards", [None, (4, 4)])
def test_other_stores_have_what_they_would_have(tmp_path: Path, name: str, shards: Any) -> None:
    store = STORES[name](tmp_path / "store")
    z = create(store, shards=shards)
    with zarr.config.set({"codec_pipeline.path": zarr_default()}):
        expected = zarr.open_array(store, path="x").async_array.codec_pipeline
    assert type(z.async_array.codec_pipeline) is type(expected)
    assert z.async_array.codec_pipeline == expected
    assert txstore.pipeline.describe(z) == f"zarr: {type(expected).__name__}"
    z[...] = 1
    assert (z[...] == 1).all()
    if name == "around one of ours":
        store._store.rollback()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "txstore: batches of chunks"),
        ({"shards": (4, 4)}, "txstore: batches of shards"),
        ({"compressors": [zarr.codecs.GzipCodec()]}, "txstore: chunk by chunk"),
    ],
)
def test_it_is_said_which_way_chunks_go(tmp_path: Path, options: Any, expected: str) -> None:
    if layout.libraries() == ():
        options = {"compressors": None, **options}
    with txstore.TxStore(tmp_path / "data.tx") as store:
        assert txstore.pipeline.describe(create(store, **options)).startswith(expected)


def test_a_pickle_of_an_array(tmp_path: Path) -> None:
    with txstore.TxStore(tmp_path / "data.tx") as store:
        create(store)[...] = np.arange(64).reshape(8, 8)
    z = zarr.open_array(txstore.TxStore(tmp_path / "data.tx", read_only=True), path="x", mode="r")
    again = pickle.loads(pickle.dumps(z))
    assert txstore.pipeline.describe(again) == txstore.pipeline.describe(z)
    assert (again[...] == np.arange(64).reshape(8, 8)).all()


@pytest.mark.long
def test_the_page_works() -> None:
    page = Path(__file__).parents[2] / "docs/understand/pipeline.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    said = in_process(block)
    assert f"# {said}" in block
