"""Which commit has written each chunk: against the log, chunk by chunk."""

import json
from random import Random
from typing import Any

import numpy as np
import pytest
import zarr

import txstore


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("shape", [(7,), (5, 6), (3, 4, 5)])
def test_each_chunk_by_its_commit(repo: txstore.Repository, zarr_format: Any, shape: tuple[int, ...]) -> None:
    source = Random(str(shape))
    with repo.transaction("create") as store:
        zarr.create_array(store, name="g/x", shape=shape, chunks=(2,) * len(shape), dtype="i4", zarr_format=zarr_format)
    counts = tuple(-(-extent // 2) for extent in shape)
    wanted = np.full(counts, "", object)
    for number in range(12):
        chunk = tuple(source.randrange(count) for count in counts)
        with repo.transaction(f"{number}") as store:
            zarr.open_array(store, path="g/x")[tuple(2 * at for at in chunk)] = number + 1
        wanted[chunk] = f"{number}"
        if number == 6:
            repo.optimize()
    with repo.transaction("units") as store:
        zarr.open_array(store, path="g/x").attrs["units"] = "K"
    blame = repo.blame("g/x")
    assert blame.chunks is not None
    found = np.array([
        "" if (commit := blame[chunk]) is None else commit.message for chunk in np.ndindex(counts)
    ]).reshape(counts)  # fmt: skip
    assert found.tolist() == wanted.tolist()
    document = {3: "zarr.json", 2: ".zattrs"}[zarr_format]
    by = blame.documents[document]
    assert by.message == "units"
    assert [commit.version for commit in blame.commits if commit] == sorted(
        {commit.version for commit in blame.commits if commit}, reverse=True
    )
    assert json.loads(json.dumps(blame.as_dict()))["path"] == "g/x"
    assert "units" in str(blame)
    assert "<table>" in blame._repr_html_()
    assert repo.blame("g/x", 0).chunks.max() == -1  # type: ignore[union-attr]


def test_scalars_groups_and_what_is_not_there(repo: txstore.Repository) -> None:
    with repo.transaction("first") as store:
        zarr.create_array(store, name="g/s", data=np.array(3))
    blame = repo.blame("g/s")
    assert (blame.chunks.shape, int(blame.chunks)) == ((), 0)
    group = repo.blame("g")
    assert group.chunks is None
    assert list(group.documents) == ["zarr.json"]
    with pytest.raises(txstore.NodeNotFoundError):
        group[0]
    with pytest.raises(txstore.NodeNotFoundError):
        repo.blame("nothing")


def test_commits_that_are_not_kept(repo: txstore.Repository) -> None:
    for number in range(5):
        with repo.transaction(f"{number}") as store:
            if not number:
                zarr.create_array(store, name="x", data=np.ones(10), chunks=(2,))
            zarr.open_array(store, path="x")[2 * number] = number + 5
    repo.vacuum(keep=2)
    blame = repo.blame("x")
    told = [None if blame[at] is None else blame[at].message for at in range(5)]  # type: ignore[union-attr]
    assert told == [None, None, None, "3", "4"]
    assert "no longer kept" in str(blame)
