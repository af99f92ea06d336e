"""Views: what they refuse, what they make, and what the random histories do not reach."""

import json
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.arrays import create, delete
from tests.views.functions import blurred
from tests.views.images import PYRAMID, VALUES, commit, halved, image, put, value
from txstore import TransactionStateError, ViewError
from txstore.deriving import declared
from txstore.errors import CorruptionError, UnsupportedFormatError
from txstore.views import Apply, Coarsen, Reduce, ViewDefinition, register


def attributes(repo: txstore.Repository, path: str = "image") -> dict[str, Any]:
    return dict(zarr.open_group(repo.snapshot(), path=path, mode="r").attrs)


# --- definitions
@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Coarsen("a", "b", (2,)), ValueError, "{level}"),
        (lambda: Coarsen("a", "b{level}", ()), ValueError, "one for each axis"),
        (lambda: Coarsen("a", "b{level}", (1, 1)), ValueError, "not all 1"),
        (lambda: Coarsen("a", "b{level}", (0, 2)), ValueError, "1 or more"),
        (lambda: Coarsen("a", "b{level}", (-2, 2)), ValueError, "1 or more"),
        (lambda: Coarsen("a", "b{level}", (2.5,)), TypeError, "give whole numbers"),  # type: ignore[arg-type]
        (lambda: Coarsen("a", "b{level}", (2,), 0), ValueError, "from 1 to 64"),
        (lambda: Coarsen("a", "b{level}", (2,), 65), ValueError, "from 1 to 64"),
        (lambda: Coarsen("a", "b{level}", (2,), 1, "median"), ValueError, "'mode'"),  # type: ignore[arg-type]
        (lambda: Coarsen("a", "b{level}", (2,), 1, "count"), ValueError, "'mode'"),
        (lambda: Coarsen("a", "b{level}", (2,), when="later"), ValueError, "'follow'"),  # type: ignore[arg-type]
        (lambda: Coarsen("a1", "a{level}", (2,)), ValueError, "from itself"),
        (lambda: Coarsen(7, "a{level}", (2,)), TypeError, "a path is a string"),  # type: ignore[arg-type]
        (lambda: Coarsen("a", "a/{level}", (2,)), ValueError, "an array holds no others"),
        (lambda: Coarsen("a", "b{level}", 2), TypeError, "one for each axis"),  # type: ignore[arg-type]
        (lambda: Reduce("a", "y", "mode", "b"), ValueError, "'count'"),
        (lambda: Reduce("a", "y", "mean", "a"), ValueError, "from itself"),
        (lambda: Reduce("a", "y", "mean", "/a/"), ValueError, "from itself"),
        (lambda: Reduce("a", "y", "mean", "b", by="week"), ValueError, "'month'"),
        (lambda: Reduce("a", "y", "mean", "b", when="never"), ValueError, "'commit'"),  # type: ignore[arg-type]
        (lambda: Apply("f", ["a"], "b"), ValueError, "module:name"),
        (lambda: Apply(":f", ["a"], "b"), ValueError, "module:name"),
        (lambda: Apply(7, ["a"], "b"), ValueError, "module:name"),
        (lambda: Apply("m:f", [], "b"), ValueError, "one array or more"),
        (lambda: Apply("m:f", "a", "b"), TypeError, "a list of paths"),
        (lambda: Apply("m:f", ["a", 7], "b"), TypeError, "a path is a string"),  # type: ignore[list-item]
        (lambda: Apply("m:f", ["a"], "b", overlap=-1), ValueError, "0 or more"),
        (lambda: Apply("m:f", ["a"], "b", overlap=(0, -1)), ValueError, "0 or more"),
        (lambda: Apply("m:f", ["a", "b"], "b"), ValueError, "from itself"),
        (lambda: Apply(lambda block: block, ["a"], "b"), ValueError, "top of a module"),
        (lambda: Apply(partial(blurred), ["a"], "b"), ValueError, "top of a module"),
        (lambda: Apply(np.ndarray.copy, ["a"], "b"), ValueError, "top of a module"),
    ],
)  # fmt: skip
def test_a_bad_definition(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (Coarsen("none", "image/{level}", (2, 2)), "there is no array 'none'"),
        (Coarsen("image", "levels/{level}", (2, 2)), "there is no array 'image'"),
        (Coarsen("image/0", "image/{level}", (2,)), "2 dimensions, and there are 1 factors"),
        (Coarsen("image/0", "taken{level}", (2, 2)), "'taken1' is no array of 2 dimensions"),
        (Coarsen("image/0", "group{level}", (2, 2)), "'group1' is no array of 2 dimensions"),
        (Reduce("image/0", "t", "mean", "m"), "has no dimension 't'"),
        (Apply(blurred, ["image/0", "taken1"], "b"), "different shapes"),
        (Apply(blurred, ["image/0"], "b", overlap=(1, 1, 1)), "2 dimensions"),
    ],
)
def test_what_does_not_fit_its_sources(repo: txstore.Repository, view: ViewDefinition, words: str) -> None:
    group = lambda store: zarr.create_group(store, path="group1")  # noqa: E731
    made = commit(repo, image(), create("taken1"), group)
    with pytest.raises(ValueError, match=words):
        repo.views["v"] = view
    assert repo.head() == made
    assert len(repo.views) == 0


def test_a_bad_name_and_no_view(repo: txstore.Repository) -> None:
    commit(repo, image())
    for name in ("", "a/b", "\n", "x" * 200):
        with pytest.raises(ValueError, match="view"):
            repo.views[name] = PYRAMID
    with pytest.raises(TypeError, match="is no view"):
        repo.views["v"] = "coarsen"
    with pytest.raises(KeyError):
        del repo.views["none"]
    with pytest.raises(KeyError):
        repo.views["none"]

    class Mine(Coarsen):
        pass

    with pytest.raises(TypeError, match="not every writer"):
        repo.views["v"] = Mine("image/0", "image/{level}", (2, 2))


def test_what_is_written_is_read(repo: txstore.Repository) -> None:
    views = {
        "pyramid": Coarsen("/image/0/", "image/{level}", [2, 2], 2, "max"),
        "row": Reduce("image/0", "y", "count", "row", when="follow"),
        "blurred": Apply(blurred, ["image/0"], "blurred", overlap=[1, 1]),
    }
    commit(repo, image(), **views)
    assert repo.snapshot().views == views
    assert {name: view.definition for name, view in repo.views.items()} == views
    assert pickle.loads(pickle.dumps(views)) == views
    assert "Coarsen" in repr(repo.views)
    assert repo.snapshot().views["pyramid"].sources == ("image/0",)
    with pytest.raises(ValueError, match="derived by each commit"):
        repo.views["pyramid"].update()


def test_what_another_version_wrote(repo: txstore.Repository) -> None:
    with pytest.raises(UnsupportedFormatError, match="'sum'"):
        declared.decode("", {"v": {"kind": "sum"}})
    for wrong in ({}, [], {"kind": "coarsen"}, {"kind": "coarsen", **PYRAMID.as_dict(), "factors": 3}):
        with pytest.raises(CorruptionError):
            declared.decode("", {"v": wrong})
    with pytest.raises(CorruptionError):
        declared.as_of("", "v", {"as_of": {"id": "x"}})


def test_a_cycle(repo: txstore.Repository) -> None:
    commit(repo, image(), one=Apply(blurred, ["image/0"], "a"), two=Apply(blurred, ["a"], "b"))
    with pytest.raises(ValueError, match="derived from each other: one, two"):
        repo.views["one"] = Apply(blurred, ["b"], "a")


# --- what is made
def test_a_chain(repo: txstore.Repository) -> None:
    commit(repo, image(), pyramid=PYRAMID, row=Reduce("image/2", "y", "max", "row"))
    commit(repo, put(np.s_[7, 7], 1000))
    expected = halved(halved(value(repo, "image/0")))
    np.testing.assert_array_equal(value(repo, "image/2"), expected)
    np.testing.assert_array_equal(value(repo, "row"), expected.max(axis=0))


def test_a_commit_derives_what_depends_on_it_and_nothing_else(repo: txstore.Repository) -> None:
    commit(repo, image(values=np.ones((32, 32))), pyramid=PYRAMID)
    made = commit(repo, put(np.s_[0, 0], 5))
    (difference,) = [each for each in repo.diff(made.version - 1, made.version).nodes if each.path == "image/1"]
    assert [each[0] for each in difference.regions] == [(0, 4)] or difference.regions
    blame = repo.blame("image/1")
    assert [blame[at].version == made.version for at in np.ndindex(4, 4)].count(True) == 1  # type: ignore[union-attr]


def test_nan_ties_and_edges(repo: txstore.Repository) -> None:
    nan = np.nan
    floats = np.array([[1, nan, nan], [nan, 3, nan], [nan, nan, 5]])
    commit(repo, image("f/0", floats), f=Coarsen("f/0", "f/{level}", (2, 2)), n=Reduce("f/0", "y", "count", "n"))
    np.testing.assert_array_equal(value(repo, "f/1"), [[2, nan], [nan, 5]])
    assert value(repo, "n").tolist() == [1, 1, 1]
    whole = np.array([[0, 1], [2, 2], [3, 3], [250, 255], [254, 255]], "u1")
    commit(
        repo,
        image("i/0", whole),
        i=Coarsen("i/0", "i/{level}", (2, 2)),
        m=Coarsen("i/0", "m/{level}", (2, 2), 1, "mode"),
    )
    assert value(repo, "i/1").tolist() == [[1], [128], [254]]  # 1.25, 127.75, and 254.5 goes to the even one
    assert value(repo, "m/1").tolist() == [[2], [3], [254]]  # of equally frequent ones the lowest


@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "i8", "u8"])
def test_the_ends_of_integers(repo: txstore.Repository, dtype: str) -> None:
    limits = np.iinfo(dtype)
    values = np.array([[limits.min, limits.max]] * 2, dtype)
    commit(repo, image("a/0", values), v=Coarsen("a/0", "a/{level}", (2, 1)))
    assert value(repo, "a/1").tolist() == [[limits.min, limits.max]]
    there = lambda store: zarr.create_array(store, name="n", shape=(2,), dtype=dtype)  # noqa: E731
    floats = np.array([[np.nan, 1e30], [np.nan, 1e30]])
    commit(repo, there, image("f", floats), n=Reduce("f", "y", "mean", "n"))
    assert value(repo, "n").tolist() == [0, limits.max]


def test_an_output_that_was_there_keeps_its_chunks_and_type(repo: txstore.Repository) -> None:
    there = lambda store: zarr.create_array(store, name="image/1", shape=(1, 1), chunks=(3, 3), dtype="u1")  # noqa: E731
    commit(repo, image(), there, pyramid=Coarsen("image/0", "image/{level}", (2, 2)))
    level = zarr.open_array(repo.snapshot(), path="image/1", mode="r")
    assert (level.chunks, level.dtype, level.shape) == ((3, 3), np.dtype("u1"), (4, 4))
    np.testing.assert_array_equal(level[:], np.rint(halved(VALUES)))


def test_what_is_written_to_an_output_is_replaced(repo: txstore.Repository) -> None:
    commit(repo, image(), pyramid=PYRAMID)
    commit(repo, put(np.s_[:], -1, "image/1"), lambda store: zarr.open_array(store, path="image/2").resize((9, 9)))
    np.testing.assert_array_equal(value(repo, "image/1"), halved(VALUES))
    np.testing.assert_array_equal(value(repo, "image/2"), halved(halved(VALUES)))


# --- what is said in the group of a pyramid
def test_ome_zarr_0_5(repo: txstore.Repository) -> None:
    commit(repo, image(), pyramid=PYRAMID)
    ome = attributes(repo)["ome"]
    (scales,) = ome["multiscales"]
    assert ome["version"] == "0.5"
    assert scales["axes"] == [{"name": "y", "type": "space"}, {"name": "x", "type": "space"}]
    assert [each["path"] for each in scales["datasets"]] == ["0", "1", "2"]
    assert scales["datasets"][2]["coordinateTransformations"] == [
        {"type": "scale", "scale": [4.0, 4.0]}, {"type": "translation", "translation": [1.5, 1.5]},
    ]  # fmt: skip


def test_ome_zarr_0_4(repo: txstore.Repository) -> None:
    step = lambda store: zarr.create_group(store, path="image", zarr_format=2, attributes={"of": "mine"})  # noqa: E731
    commit(repo, step, image(zarr_format=2), pyramid=PYRAMID)
    told = attributes(repo)
    assert told["of"] == "mine"
    assert told["multiscales"][0]["version"] == "0.4"
    assert [each["path"] for each in told["multiscales"][0]["datasets"]] == ["0", "1", "2"]


def test_scales_that_are_there_are_kept(repo: txstore.Repository) -> None:
    axes = [{"name": name, "type": "space", "unit": "micrometer"} for name in "yx"]
    first = {"path": "0", "coordinateTransformations": [
        {"type": "scale", "scale": [0.5, 0.25]}, {"type": "translation", "translation": [10, 20]},
    ]}  # fmt: skip
    scales = {"name": "mine", "axes": axes, "datasets": [first, {"path": "9"}]}
    ome = {"version": "0.5", "multiscales": [scales], "omero": {"channels": []}}
    step = lambda store: zarr.create_group(store, path="image", attributes={"ome": ome, "of": "mine"})  # noqa: E731
    commit(repo, step, image(), pyramid=Coarsen("image/0", "image/{level}", (2, 2)))
    told = attributes(repo)
    (found,) = told["ome"]["multiscales"]
    assert (told["of"], told["ome"]["omero"], found["name"], found["axes"]) == ("mine", {"channels": []}, "mine", axes)
    assert [each["path"] for each in found["datasets"]] == ["0", "9", "1"]
    assert found["datasets"][2]["coordinateTransformations"] == [
        {"type": "scale", "scale": [1.0, 0.5]}, {"type": "translation", "translation": [10.25, 20.125]},
    ]  # fmt: skip
    commit(repo, pyramid=Coarsen("image/0", "image/{level}", (2, 2), 2))  # declared anew: no level is listed twice
    assert [each["path"] for each in attributes(repo)["ome"]["multiscales"][0]["datasets"]] == ["0", "9", "1", "2"]


#: Ten metres a pixel, north up, as `spatial` says.
PLACE = {"proj:code": "EPSG:32632", "spatial:dimensions": ["y", "x"],
         "spatial:transform": [10.0, 0.0, 5e5, 0.0, -10.0, 5e6]}  # fmt: skip


def test_geozarr_of_arrays(repo: txstore.Repository) -> None:
    mine = {"uuid": "f17cb550-5864-4468-aeb7-f3180cfb622f", "name": "proj:"}
    there = {**PLACE, "zarr_conventions": [mine], "of": "me"}
    step = lambda store: zarr.create_group(store, path="image", attributes=there)  # noqa: E731
    commit(repo, step, image(), pyramid=PYRAMID)
    told = attributes(repo)
    assert (told["of"], "ome" in told) == ("me", False)
    assert [each["name"] for each in told["zarr_conventions"]] == ["proj:", "multiscales"]
    first, second, third = told["multiscales"]["layout"]
    assert first == {"asset": "0", "transform": {"scale": [1.0, 1.0]}, "spatial:transform": PLACE["spatial:transform"]}
    assert second == {
        "asset": "1", "derived_from": "0", "transform": {"scale": [2.0, 2.0], "translation": [0.0, 0.0]},
        "resampling_method": "average", "spatial:transform": [20.0, 0.0, 5e5, 0.0, -20.0, 5e6],
    }  # fmt: skip
    assert (third["asset"], third["derived_from"]) == ("2", "1")
    assert third["spatial:transform"] == [40.0, 0.0, 5e5, 0.0, -40.0, 5e6]
    commit(repo, pyramid=Coarsen("image/0", "image/{level}", (2, 2), 3))  # declared anew: no level is listed twice
    told = attributes(repo)
    assert [each["asset"] for each in told["multiscales"]["layout"]] == ["0", "1", "2", "3"]
    assert len(told["zarr_conventions"]) == 2


def test_geozarr_of_groups_with_several_variables(repo: txstore.Repository) -> None:
    def step(store: txstore.TxStore) -> None:
        for name in ("b04", "b08"):
            zarr.create_array(
                store, name=f"scene/full/{name}", data=np.stack([VALUES] * 2), chunks=(1, 4, 4),
                dimension_names=("time", "y", "x"), attributes={**PLACE, "spatial:shape": list(VALUES.shape)},
            )  # fmt: skip

    views = {
        name: Coarsen(f"scene/full/{name}", f"scene/level-{{level}}/{name}", (1, 2, 2), 2) for name in ("b04", "b08")
    }
    commit(repo, step, **views)
    scene = zarr.open_group(repo.snapshot(), path="scene", mode="r")
    layout = scene.attrs["multiscales"]["layout"]
    assert [each["asset"] for each in layout] == ["full", "level-1", "level-2"]
    assert layout[2]["transform"]["scale"] == [1.0, 2.0, 2.0]
    for level, size in ((1, 20.0), (2, 40.0)):
        place = scene[f"level-{level}/b08"].attrs
        assert place["spatial:transform"] == [size, 0.0, 5e5, 0.0, -size, 5e6] == layout[level]["spatial:transform"]
        assert "spatial:shape" not in place


@pytest.mark.parametrize(("method", "origin"), [("mean", [5.0, 15.0]), ("nearest", [0.0, 20.0])])
def test_centres_of_coarser_elements_lie_between(repo: txstore.Repository, method: Any, origin: list[float]) -> None:
    place = {"spatial:registration": "node", "spatial:transform": [10.0, 0.0, 0.0, 0.0, -10.0, 20.0]}
    step = lambda store: zarr.create_array(  # noqa: E731
        store, name="dem/0", data=VALUES, chunks=(4, 4), dimension_names=("lat", "lon"), attributes=place
    )
    commit(repo, step, pyramid=Coarsen("dem/0", "dem/{level}", (2, 2), method=method))
    (_, level) = attributes(repo, "dem")["multiscales"]["layout"]
    assert [level["spatial:transform"][at] for at in (2, 5)] == origin


@pytest.mark.parametrize("place", [{"spatial:transform_type": "rpc"}, {"spatial:transform": [1.0, 2.0]}, {}])
def test_a_place_that_is_unknown_is_not_told(repo: txstore.Repository, place: dict[str, Any]) -> None:
    step = lambda store: zarr.create_array(  # noqa: E731
        store, name="dem/0", data=VALUES, chunks=(4, 4), dimension_names=("lat", "lon"), attributes=place
    )
    commit(repo, step, pyramid=Coarsen("dem/0", "dem/{level}", (2, 2)))
    (_, level) = attributes(repo, "dem")["multiscales"]["layout"]
    assert "spatial:transform" not in level


def test_what_is_no_image_gets_no_scales(repo: txstore.Repository) -> None:
    step = lambda store: zarr.create_array(  # noqa: E731
        store, name="table/0", data=VALUES, chunks=(4, 4), dimension_names=("station", "time")
    )
    commit(repo, step, pyramid=Coarsen("table/0", "table/{level}", (2, 2)))
    assert attributes(repo, "table") == {}


# --- functions
@register
def raising(block: np.ndarray) -> np.ndarray:
    if (block == 13).any():
        raise ArithmeticError("thirteen")
    return block


@register
def shortened(block: np.ndarray) -> np.ndarray:
    return block[1:]


def test_a_function_that_raises(repo: txstore.Repository) -> None:
    commit(repo, image(values=np.zeros((8, 8))), v=Apply(raising, ["image/0"], "v"))
    head = repo.head()
    store = repo.transaction()
    put(np.s_[1, 1], 13)(store)
    with pytest.raises(ViewError) as caught:
        store.commit()
    assert caught.value.view == "v"
    assert "ArithmeticError('thirteen')" in caught.value.reason
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert repo.head() == head
    put(np.s_[1, 1], 12)(store)  # what was staged is there
    store.commit()
    assert value(repo, "v")[1, 1] == 12
    with pytest.raises(ViewError, match="shape"):
        repo.views["w"] = Apply(shortened, ["image/0"], "w")
    assert sorted(repo.views) == ["v"]


# --- transactions, branches
def test_named_transactions_derive_and_do_not_declare(repo: txstore.Repository) -> None:
    commit(repo, image(), pyramid=PYRAMID)
    with repo.transaction(name="job") as store:
        with pytest.raises(TransactionStateError, match="without a name"):
            store.views["other"] = Reduce("image/0", "y", "max", "row")
        with pytest.raises(TransactionStateError, match="without a name"):
            del store.views["pyramid"]
        put(np.s_[0, 0], 5)(store)
        store.commit()
    np.testing.assert_array_equal(value(repo, "image/1"), halved(value(repo, "image/0")))


def test_a_transaction_sees_what_it_declares(repo: txstore.Repository) -> None:
    commit(repo, image())
    with repo.transaction() as store:
        store.views["pyramid"] = PYRAMID
        assert sorted(store.views) == ["pyramid"]
        assert len(repo.views) == 0
        store.rollback()
    assert len(repo.views) == 0
    assert "image/1/zarr.json" not in repo.mapping()


def test_two_declare_one_name(repo: txstore.Repository) -> None:
    commit(repo, image())
    one, other = repo.transaction(), repo.transaction()
    one.views["v"] = Reduce("image/0", "y", "max", "row")
    other.views["v"] = Reduce("image/0", "x", "max", "column")
    one.commit()
    with pytest.raises(txstore.ConflictError, match="views"):
        other.commit()
    other.rollback()


def test_a_source_that_goes(repo: txstore.Repository) -> None:
    commit(repo, image(), pyramid=PYRAMID)
    for step in (
        delete("image/0"), delete("image"), delete("image/1"), lambda store: store.move("image/0", "image/raw"),
        lambda store: store.move("image", "picture"), image(values=np.zeros((4, 4, 4)), overwrite=True),
    ):  # fmt: skip
        with pytest.raises(ViewError) as caught:
            commit(repo, step)
        assert "del repo.views['pyramid']" in str(caught.value)
    with repo.transaction() as store:  # the same transaction may drop it
        del store.views["pyramid"]
        delete("image/0")(store)
    assert value(repo, "image/1").shape == (4, 4)
    assert len(repo.views) == 0


# --- views that follow


def test_writing_to_an_output_that_follows(repo: txstore.Repository) -> None:
    commit(repo, image(), v=Coarsen("image/0", "image/{level}", (2, 2), when="follow"))
    view = repo.views["v"]
    view.update()
    commit(repo, put(np.s_[:], -1, "image/1"))
    assert value(repo, "image/1")[0, 0] == -1
    assert not view.is_current()
    view.update()
    np.testing.assert_array_equal(value(repo, "image/1"), halved(VALUES))


def test_two_update_one_view(repo: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(repo, image(), v=Coarsen("image/0", "image/{level}", (2, 2), when="follow"))
    view, commits = repo.views["v"], txstore.TxStore.commit

    def commit_second(self: txstore.TxStore, *arguments: Any) -> Any:
        monkeypatch.setattr(txstore.TxStore, "commit", commits)
        assert view.update() is not None
        return commits(self, *arguments)

    monkeypatch.setattr(txstore.TxStore, "commit", commit_second)
    with pytest.raises(txstore.ConflictError):
        view.update()
    assert view.is_current()


def test_a_commit_that_is_gone(repo: txstore.Repository) -> None:
    """A vacuum has expired the commit that the outputs are of: all is derived anew."""
    commit(repo, image(), v=Coarsen("image/0", "image/{level}", (2, 2), when="follow"))
    view = repo.views["v"]
    view.update()
    for number in range(3):
        commit(repo, put(np.s_[0, 0], number + 1))
    repo.vacuum(keep=1)
    assert not view.is_current()
    assert view.update() is not None
    assert view.is_current()
    np.testing.assert_array_equal(value(repo, "image/1"), halved(value(repo, "image/0")))


def test_a_view_that_is_not_declared_there(repo: txstore.Repository) -> None:
    commit(repo, image(), v=Coarsen("image/0", "image/{level}", (2, 2), when="follow"))
    view = repo.views["v"]
    del repo.views["v"]
    assert not view.is_current()
    with pytest.raises(KeyError):
        view.update()


def test_the_header(repo: txstore.Repository) -> None:
    """docs/understand/format.md, "Views"."""
    commit(repo, image(), p=PYRAMID, r=Reduce("image/0", "y", "mean", "r", when="follow"))
    made = repo.head()
    repo.views["r"].update()
    assert json.loads(json.dumps(dict(repo.mapping().declared.views))) == {
        "p": {"kind": "coarsen", "source": "image/0", "to": "image/{level}", "factors": [2, 2], "levels": 2,
              "method": "mean", "when": "commit"},
        "r": {"kind": "reduce", "source": "image/0", "dim": "y", "method": "mean", "to": "r", "by": None,
              "when": "follow", "as_of": {"id": made.id, "branch": "main", "version": 0}},
    }  # fmt: skip


@pytest.mark.parametrize("when", ["commit", "follow"])
def test_a_revert_leaves_an_output_as_its_view_needs_it(repo: txstore.Repository, when: Any) -> None:
    """An older view made it, of another type: means would be rounded to that."""
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(12).reshape(3, 4), chunks=(2, 2), dimension_names=("a", "b"))
        store.views["v"] = Reduce("x", "a", "count", "y")
    with repo.transaction() as store:
        del zarr.open_group(store, mode="r+")["y"]
        store.views["v"] = Reduce("x", "b", "mean", "y", when=when)
    if when == "follow":
        repo.views["v"].update()
    repo.revert(1)
    repo.revert(2) if when == "follow" else None
    if when == "follow":
        repo.views["v"].update()
        assert repo.views["v"].is_current()
    assert value(repo, "y").tolist() == [1.5, 5.5, 9.5]
    with repo.transaction() as store:
        zarr.open_array(store, path="x")[0] = 0
    if when == "follow":
        repo.views["v"].update()
    assert value(repo, "y").tolist() == [0, 5.5, 9.5]
