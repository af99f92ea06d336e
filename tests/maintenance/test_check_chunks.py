"""`verify(decode=True)` finds chunks whose stored bytes are right, and which can't be decoded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec

import txstore
from tests.tools.command_line import run

WITH_CHECKSUM: dict[str, Any] = {"compressors": [BloscCodec(cname="lz4"), Crc32cCodec()]}


@pytest.mark.parametrize("options", [{"chunks": (4,)}, {"chunks": (2,), "shards": (4,)}])
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_checksum_inside_of_a_chunk(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "data.tx"
    repo = txstore.Repository(path)
    with repo.transaction() as store:
        zarr.create_array(store, name="a/x", data=np.arange(1, 9), **options, **WITH_CHECKSUM)
        zarr.create_array(store, name="y", data=np.arange(5))
    assert repo.verify(decode=True).ok
    with repo.transaction() as store:
        value = bytearray(store.mapping["a/x/c/1"])
        value[20] ^= 1
        store.mapping["a/x/c/1"] = bytes(value)
    assert repo.verify().ok
    (fault,) = repo.verify(decode=True).faults
    assert (fault.key, fault.part) == ("a/x/c/1", "chunk")
    told = run("verify", str(path), "--decode")
    assert told.exit_code == 1
    assert "a/x/c/1" in told.output
