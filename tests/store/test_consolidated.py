"""Consolidated metadata: clients that make it or ask for it are served, and it is a copy that can't go stale."""

import json
import warnings
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.commits import commit, create_array
from txstore.errors import ConflictError, StaleArrayError

xr = pytest.importorskip("xarray")

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")


@pytest.fixture(params=[3, 2])
def zarr_format(request: Any) -> int:
    return int(request.param)


def fill(repo: txstore.Repository, zarr_format: int, *, consolidated: bool = True) -> None:
    with repo.transaction() as store:
        group = zarr.open_group(store, mode="w", zarr_format=zarr_format, attributes={"title": "t"})
        group.create_array("a", data=np.arange(4), chunks=(2,))
        group.create_group("b/c").create_array("x", shape=(3,), dtype="f4")
        if consolidated:
            zarr.consolidate_metadata(store)


def opened(store: txstore.TxStore, **options: Any) -> zarr.Group:
    group = zarr.open_consolidated(store, mode="r", **options)
    assert group.metadata.consolidated_metadata is not None
    return group


def test_what_was_consolidated_is_opened_by_it(repo: txstore.Repository, zarr_format: int) -> None:
    fill(repo, zarr_format)
    for group in (
        opened(repo.snapshot()),
        opened(repo.snapshot(), zarr_format=zarr_format),
        zarr.open(repo.snapshot(), mode="r", use_consolidated=True),
        zarr.open_group(repo.snapshot(), mode="r"),
    ):
        found = group.metadata.consolidated_metadata.flattened_metadata
        assert sorted(found) == ["a", "b", "b/c", "b/c/x"]
        assert dict(group.attrs) == {"title": "t"}
        assert group["b/c/x"].shape == (3,)
        np.testing.assert_array_equal(group["a"][:], np.arange(4))
    assert zarr.open_group(repo.snapshot(), mode="r", use_consolidated=False).metadata.consolidated_metadata is None


def test_it_is_what_zarr_makes_of_a_directory(repo: txstore.Repository, zarr_format: int, tmp_path: Any) -> None:
    fill(repo, zarr_format)
    repo.export(tmp_path / "plain")
    zarr.consolidate_metadata(str(tmp_path / "plain"))
    there = zarr.open_consolidated(str(tmp_path / "plain"), mode="r")
    assert opened(repo.snapshot()).metadata == there.metadata


def test_none_is_ever_stored(repo: txstore.Repository, zarr_format: int) -> None:
    """So to consolidate again is no change, and a writer gets none."""
    fill(repo, zarr_format)
    first, snapshot = repo.head(), repo.mapping()
    stored = b"".join(bytes(snapshot.get_view(key) or b"") for key in snapshot if not key.endswith(("/0", "/1")))
    assert b'"inline"' not in stored
    assert stored.count(b'"shape"') == 2  # once for each array
    commit(repo, zarr.consolidate_metadata)
    assert repo.head() == first
    with repo.transaction() as store:
        for mode in ("r+", "a"):
            assert zarr.open_group(store, mode=mode).metadata.consolidated_metadata is None
            with pytest.raises(ValueError, match=r"onsolidated|zmetadata"):
                zarr.open_consolidated(store, mode=mode)


def test_it_is_never_stale(repo: txstore.Repository, zarr_format: int) -> None:
    fill(repo, zarr_format)
    with repo.transaction() as store:
        group = zarr.open_group(store, mode="r+")
        for value in (4, 5, 6):  # through a group with the shapes in it, two of three would be lost
            group["a"].append(np.array([value]))
        group.create_array("new", shape=(1,), dtype="i1")
        del group["b"]
        assert opened(store)["a"].shape == (7,)
    np.testing.assert_array_equal(opened(repo.snapshot())["a"][:], np.arange(7))
    assert sorted(opened(repo.snapshot())) == ["a", "new"]
    assert sorted(opened(repo.snapshot(0))) == ["a", "b"]
    commit(repo, lambda store: store.restore("", at=0))
    assert sorted(opened(repo.snapshot())) == ["a", "b"]


def test_a_group_below_has_its_own(repo: txstore.Repository, zarr_format: int) -> None:
    fill(repo, zarr_format, consolidated=False)
    commit(repo, lambda store: zarr.consolidate_metadata(store, path="b"))
    with pytest.raises(ValueError, match=r"onsolidated|zmetadata"):
        zarr.open_consolidated(repo.snapshot(), mode="r")
    group = opened(repo.snapshot(), path="b")
    assert sorted(group.metadata.consolidated_metadata.flattened_metadata) == ["c", "c/x"]
    assert zarr.open_group(repo.snapshot(), mode="r").metadata.consolidated_metadata is None
    commit(repo, lambda store: zarr.open_group(store, path="b", mode="w", zarr_format=zarr_format))
    assert zarr.open_group(repo.snapshot(), path="b", mode="r").metadata.consolidated_metadata is None


def test_two_that_consolidate_are_only_in_conflict_with_who_changes_attributes(repo: txstore.Repository) -> None:
    fill(repo, 3, consolidated=False)
    one, other, third = (repo.transaction() for _ in range(3))
    for store, name in ((one, "one"), (other, "other"), (third, "third")):
        group = zarr.open_group(store, mode="r+")
        group.create_array(name, data=np.arange(3))
        if store is third:
            group.attrs["n"] = 1
        zarr.consolidate_metadata(store)
    one.commit()
    other.commit()
    with pytest.raises(ConflictError):
        third.commit()
    third.rollback()
    assert sorted(opened(repo.snapshot())) == ["a", "b", "one", "other"]


def test_to_read_it_is_to_read_all_documents_below(repo: txstore.Repository, zarr_format: int) -> None:
    def changed(change: Any) -> None:
        commit(repo, lambda store: change(zarr.open_group(store, mode="r+")))

    fill(repo, zarr_format)
    for change in (
        lambda group: group.create_array("b/c/new", shape=(1,), dtype="i1"),
        lambda group: group["b/c/x"].resize((9,)),
        lambda group: group["b"].attrs.update(n=1),
    ):
        reader = repo.transaction(isolation="serializable")
        opened(reader)
        reader["seen/zarr.json"] = b"{}"
        changed(change)
        with pytest.raises(ConflictError):
            reader.commit()
        reader.rollback()


def test_arrays_from_it_are_refused_when_others_have_changed_them(repo: txstore.Repository, zarr_format: int) -> None:
    fill(repo, zarr_format)
    store = repo.transaction()
    array = opened(store)["a"]
    store["b/other"] = b"x"
    store.commit()
    create_array(repo, "a", shape=(4,), chunks=(3,), dtype="f8", overwrite=True, zarr_format=zarr_format)
    store["b/other"] = b"y"
    store.commit()
    with pytest.raises(StaleArrayError):
        array[:]


def test_merged_branches_keep_it(repo: txstore.Repository, zarr_format: int) -> None:
    fill(repo, zarr_format, consolidated=False)
    repo.branches["dev"] = repo.head()
    for branch, name in (("main", "one"), ("dev", "other")):
        with repo.transaction(branch=branch) as store:
            zarr.open_group(store, mode="r+").create_array(name, data=np.arange(3))
            zarr.consolidate_metadata(store)
    repo.merge("dev")
    assert sorted(opened(repo.snapshot())) == ["a", "b", "one", "other"]


def test_as_a_mapping_and_as_files(repo: txstore.Repository, zarr_format: int) -> None:
    fill(repo, zarr_format)
    key = "zarr.json" if zarr_format == 3 else ".zmetadata"
    told = json.loads(repo.mapping()[key])
    nodes = told["consolidated_metadata"]["metadata"] if zarr_format == 3 else told["metadata"]
    assert any(name.startswith("b/c/x") for name in nodes)
    assert repo.mapping().getitems([key])[key] == repo.mapping()[key] == repo.snapshot()[key]
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("txstore", fo=repo.url)
    assert files.cat(key) == repo.mapping()[key]
    assert files.cat_file(key, 2, 9) == repo.mapping()[key][2:9]
    assert files.size(key) == len(repo.mapping()[key])
    with repo.begin() as transaction:
        transaction[key] = json.dumps(told).encode()  # as zarr 2 writes it
    assert repo.mapping()[key] == repo.snapshot(0)[key]


@pytest.mark.parametrize("consolidated", [None, True, False])
def test_xarray_neither_makes_nor_misses_it(repo: txstore.Repository, consolidated: bool | None) -> None:
    data = xr.Dataset({"t": ("x", np.arange(4.0))}, {"x": np.arange(4)})
    more = data.assign_coords(x=data.x + 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with repo.transaction() as store:
            data.to_zarr(store, consolidated=consolidated)
            more.to_zarr(store, consolidated=consolidated, append_dim="x")
            assert xr.open_zarr(store, consolidated=consolidated, chunks=None).sizes["x"] == 8
        for found in (
            xr.open_zarr(repo.snapshot(), consolidated=consolidated, chunks=None),
            xr.open_dataset(repo.snapshot(), engine="zarr", consolidated=consolidated),
        ):
            np.testing.assert_array_equal(found.x, np.arange(8))


def test_a_plain_opening_reads_no_more_documents(repo: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    with repo.transaction() as store:
        group = zarr.open_group(store, mode="w")
        for number in range(20):
            group.create_group(f"g{number}")
    asked: list[str] = []
    snapshot = repo.snapshot()
    get_view = type(snapshot.mapping).get_view
    monkeypatch.setattr(type(snapshot.mapping), "get_view", lambda self, key: asked.append(key) or get_view(self, key))
    zarr.open_group(snapshot, mode="r")
    assert not [key for key in asked if key.startswith("g")]
