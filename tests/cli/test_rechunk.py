"""`txstore rechunk`: chunks, shards and compressors as arguments, and what is refused."""

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.command_line import assert_refused, run, run_json


@pytest.fixture(params=[2, 3])
def array(request: pytest.FixtureRequest, repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction() as store:
        data = np.arange(200).reshape(10, 20)
        zarr.create_array(store, name="x", data=data, chunks=(1, 20), zarr_format=request.param)
    return repo


def opened(repo: txstore.Repository) -> zarr.Array:
    return zarr.open_array(repo.snapshot(), path="x", mode="r")


def test_chunks_and_compressor(array):
    result = run("rechunk", array.url, "x", "--chunks", "10, 3", "--compressor", "zstd:5", "-m", "columns")
    assert result.exit_code == 0, result.output
    assert "columns" in result.stdout
    assert opened(array).chunks == (10, 3)
    assert opened(array).compressors[0].level == 5
    assert np.array_equal(opened(array)[:], np.arange(200).reshape(10, 20))
    assert run_json("rechunk", array.url, "x", "--chunks", "10,4")["message"] == "rechunk x to 10×4"
    assert "nothing to do" in run("rechunk", array.url, "x", "--chunks", "10,4").stdout
    for compressor in ("gzip:1", "blosc", "none"):
        assert run("rechunk", array.url, "x", "--compressor", compressor).exit_code == 0
    assert opened(array).chunks == (10, 4)
    assert opened(array).compressors == ()


def test_shards(repo):
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(200).reshape(10, 20), chunks=(1, 20))
    options = ["--chunks", "5,5", "--shards", "10,10", "--max-memory", "1 MiB", "--workers", "1", "--name", "mine"]
    assert run("rechunk", repo.url, "x", *options).exit_code == 0
    assert (opened(repo).chunks, opened(repo).shards) == ((5, 5), (10, 10))


def test_refused(array):
    for options, words in [
        ([], "say what is to change"),
        (["--chunks", "5"], "2 lengths"),
        (["--chunks", "5,5", "--max-memory", "1"], "max_memory"),
        (["--chunks", "5,5", "--max-memory", "much"], "no size"),
    ]:
        assert_refused(run("rechunk", array.url, "x", *options), words)
    for options in (["--chunks", "5,x"], ["--chunks", "5,0"], ["--chunks", "5,5", "--compressor", "lz77"]):
        assert run("rechunk", array.url, "x", *options).exit_code == 2
    assert_refused(run("rechunk", array.url, "no", "--chunks", "5"), "no")
