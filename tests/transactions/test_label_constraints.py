"""I11 for labels: no commit repeats one or puts one out of order, whoever makes it; only what it changes is read."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr

import txstore
from tests.tools.arrays import HAS_RECTILINEAR, Step, array, both, commit, delete, edit_document, put, resize
from tests.tools.steps import forked, status_of
from txstore import ConstraintError
from txstore.codecs.chunk_codec import ChunkDecoder
from txstore.constraints import Constraint, Sorted, Unique
from txstore.format import labels as labels_module


def labels(values: Sequence[Any], path: str = "x", chunks: int = 4, **options: Any) -> Step:
    """Create an array of labels."""

    def step(store: txstore.TxStore) -> None:
        data = np.array(values, options.pop("dtype", None))
        zarr.create_array(store, name=path, data=data, chunks=(chunks,), **options)

    return step


def add(*values: Any, path: str = "x") -> Step:
    """Append labels, as `append_dim` does."""

    def step(store: txstore.TxStore) -> None:
        z = array(store, path)
        z.append(np.array(values, z.dtype))

    return step


def fault_of(error: pytest.ExceptionInfo[ConstraintError], name: str = "it") -> str:
    (violation,) = [each for each in error.value.violations if each.constraint == name]
    assert violation.where == "x"
    return violation.reason


def found(repo: txstore.Repository, path: str = "x") -> list[Any]:
    z = array(repo.snapshot(), path, mode="r")
    return z[:].tolist()


# --- what is refused, and what is not
class Case(NamedTuple):
    name: str
    before: Sequence[Any]
    constraint: Constraint
    step: Step
    broken: str | None = None


TEN = [*range(10, 20)]
#: One for each reason, and what the model has no steps for: `test_constraint_model.py`.
CASES = (
    Case("unique: one that is in another", TEN, Unique("x"), add(20, 11), "labels are repeated: 11 at 1, 11"),
    Case("unique: several", TEN, Unique("x"), add(*TEN), "labels are repeated: 10 at 0, 10; 11 at 1, 11; 12 at 2, 12"),
    Case("unique: more than ten", TEN, Unique("x"), add(*TEN, *TEN), "19 at 9, 19, 29"),
    Case("unique: resized far", TEN, Unique("x"), resize(4 << 40), "labels are repeated: 0 at 12"),
    Case("unique: resized by one of a chunk of its own", [*range(10, 22)], Unique("x"), resize(13)),
    Case("unique: the fill value, and one more", [0, *TEN], Unique("x"), resize(12), "labels are repeated: 0 at 0, 11"),
    Case("unique: a chunk deleted", TEN, Unique("x"), lambda store: store.__delitem__("x/c/0"),
         "labels are repeated: 0 at 0, 1, 2, where nothing is stored"),
    Case("unique: gone", TEN, Unique("x"), delete(), "there is no array"),
    Case("unique: made anew with two dimensions", TEN, Unique("x"),
         lambda store: zarr.create_array(store, name="x", shape=(2, 2), dtype="i4", overwrite=True),
         "it has 2 dimensions: labels have one"),
    Case("sorted: one again", TEN, Sorted("x"), add(19), "its labels do not ascend: 19 at 10 follows 19 at 9"),
    Case("sorted: beside the chunk before", [*range(12)], Sorted("x"), add(5), "5 at 12 follows 11 at 11"),
    Case("sorted: beside the chunk behind", TEN, Sorted("x"), put(3, 14), "14 at 4 follows 14 at 3"),
    Case("sorted: descending, not", TEN[::-1], Sorted("x", descending=True), add(9, 9),
         "its labels do not descend: 9 at 11 follows 9 at 10"),
    Case("sorted: resized far", TEN, Sorted("x"), resize(4 << 40), "0 at 10 follows 19 at 9"),
    Case("sorted: a chunk deleted", TEN, Sorted("x"), lambda store: store.__delitem__("x/c/1"),
         "0 at 4 follows 13 at 3; 0 at 5 follows 0 at 4"),
    Case("sorted: what is no chunk", TEN, Sorted("x"),
         both(lambda store: store.__setitem__("x/c/9", b"?"), lambda store: store.__setitem__("x/c/01", b"?"))),
    Case("sorted: what no codec reads", TEN, Sorted("x"), lambda store: store.__setitem__("x/c/1", b"?"),
         "its labels can't be compared, since its codecs fail"),
    Case("unique: what no codec reads", TEN, Unique("x"), lambda store: store.__setitem__("x/c/1", b"?"),
         "its labels can't be compared, since its codecs fail"),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@pytest.mark.parametrize("others", ["nobody", "somebody"])
def test_what_is_broken_is_refused_and_what_is_not_is_not(repo, case, others):
    commit(repo, labels(case.before, dtype="i4"))
    repo.constraints["it"] = case.constraint
    store = repo.transaction("a step")
    case.step(store)
    staged = store.changes()
    if others == "somebody":  # so that the head is not the base
        commit(repo, labels([1, 1], "elsewhere"))
    before = repo.head()
    if case.broken is None:
        store.commit()
        assert repo.head().message == "a step"
        return
    with pytest.raises(ConstraintError) as caught:
        store.commit()
    assert case.broken in fault_of(caught)
    assert repo.head() == before, "something was published"
    assert store.changes() == staged, "something that was staged is gone"
    store.rollback()


BAD = {
    "repeated": ([1, 2, 3, 4, 5, 3], "labels are repeated: 3 at 2, 5", "3 at 5 follows 5 at 4"),
    "many": ([7] * 100, "7 at 0, 1, 2, ...", "and more"),
    "a number that is none": ([1.0, np.nan, 3.0], "no label (NaN or NaT) at 1", "no label (NaN or NaT) at 1"),
    "only that": ([np.nan], "no label (NaN or NaT) at 0", "no label (NaN or NaT) at 0"),
    "a date that is none": (np.array(["2000-01-01", "NaT"], "M8[D]"), "at 1", "at 1"),
    "text": (["b", "a", "b"], "'b' at 0, 2", "'a' at 1 follows 'b' at 0"),
    "complex numbers": ([1j, 2j], "elements of complex128 have no order", "elements of complex128 have no order"),
}


@pytest.mark.parametrize("what", BAD)
def test_it_has_to_be_so_when_it_is_declared(repo, what):
    values, repeated, unordered = BAD[what]
    commit(repo, labels(values))
    for constraint, reason in ((Unique("x"), repeated), (Sorted("x"), unordered)):
        with pytest.raises(ConstraintError) as caught:
            repo.constraints["it"] = constraint
        assert reason in fault_of(caught)
    assert not repo.constraints


# --- layouts and elements
LAYOUTS: dict[str, dict[str, Any]] = {
    "format 3": {},
    "one chunk": {"chunks": 64},
    "chunks of one": {"chunks": 1},
    "shards": {"chunks": 2, "shards": (6,)},
    "not compressed": {"compressors": None},
    "format 2": {"zarr_format": 2},
    "format 2, slashes": {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "keys of format 2": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    "dots": {"chunk_key_encoding": {"name": "default", "separator": "."}},
    "other filters": {"zarr_format": 2, "filters": [numcodecs.Delta("i4")], "compressors": numcodecs.Zlib()},
}
ELEMENTS = {
    "integers": np.arange(10, dtype="i4"),
    "unsigned": np.arange(10, dtype="u1"),
    "the other byte order": np.arange(10, dtype=">i4"),
    "numbers": np.linspace(-1, 1, 10),
    "half": np.arange(10, dtype="f2"),
    "dates": np.arange(10).astype("M8[s]"),
    "durations": np.arange(10).astype("m8[ns]"),
    "text": np.array(["", "a", "aa", "b", "z", "é", "ü", "中", "文", "𝄞"], dtype=str),
    "bytes": np.array([b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", b"i", b"j"]),
    "long text": np.array([letter * 300 for letter in "abcdefghij"]),
}


def check_layout(repo: txstore.Repository, values: Any, **options: Any) -> None:
    """Append a label that is there to the first nine of ten, one that is out of order, and the right one."""
    commit(repo, labels(values[:9], dtype=values.dtype, **options))
    repo.constraints["it"], repo.constraints["order"] = Unique("x"), Sorted("x")
    for wrong in (values[3], values[8]):
        with pytest.raises(ConstraintError) as caught:
            commit(repo, add(wrong))
        assert "at 3, 9" in fault_of(caught) or "at 8, 9" in fault_of(caught)
        assert "at 9 follows" in fault_of(caught, "order")
    commit(repo, add(values[9]))
    assert found(repo) == values.tolist()
    assert not repo.verify().faults


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(repo, layout):
    check_layout(repo, np.arange(10, dtype="i4"), **LAYOUTS[layout])


@pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning")
@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")
@pytest.mark.parametrize("elements", ELEMENTS)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_elements(repo, elements, zarr_format):
    check_layout(repo, ELEMENTS[elements], zarr_format=zarr_format)


@pytest.mark.filterwarnings("ignore:The codec `vlen-utf8`")
@pytest.mark.parametrize("options", [{}, {"zarr_format": 2}, {"chunks": 2, "shards": (4,)}], ids=str)
def test_text_of_variable_length(repo, options):
    def step(store: txstore.TxStore) -> None:
        chunks = (options.get("chunks", 4),)
        rest = {key: value for key, value in options.items() if key != "chunks"}
        zarr.create_array(store, name="x", shape=(5,), chunks=chunks, dtype=str, **rest)[:] = np.array(list("abcde"))

    commit(repo, step)
    repo.constraints["it"], repo.constraints["order"] = Unique("x"), Sorted("x")
    with pytest.raises(ConstraintError) as caught:
        commit(repo, add("b"))
    assert fault_of(caught) == "labels are repeated: 'b' at 1, 5"
    assert fault_of(caught, "order") == "its labels do not ascend: 'b' at 5 follows 'e' at 4"
    commit(repo, add("ee"))
    with pytest.raises(ConstraintError):
        commit(repo, add("ee"))
    assert found(repo) == [*"abcde", "ee"]


@pytest.mark.skipif(not HAS_RECTILINEAR, reason="this zarr has no rectilinear grids")
def test_chunks_of_different_sizes(repo):
    with zarr.config.set({"array.rectilinear_chunks": True}):
        with repo.transaction() as store:
            zarr.create_array(store, name="x", shape=(8,), chunks=((1, 4, 3),), dtype="i4")[:] = np.arange(8)
            store.constraints["it"], store.constraints["order"] = Unique("x"), Sorted("x")
        for step in (put(5, 0), put(4, 7), put(0, 1)):
            with pytest.raises(ConstraintError) as caught:
                commit(repo, step)
            assert len(caught.value.violations) == 2
        commit(repo, put(7, 9))
        with pytest.raises(ConstraintError, match="9 at 7, 8"):
            commit(repo, add(9))
        commit(repo, add(10))
        assert found(repo) == [*range(7), 9, 10]


@pytest.mark.parametrize(
    ("attributes", "shown"),
    [
        ({"units": "days since 2000-01-01"}, "2000-01-03"),
        ({"units": "hours since 2000-01-01 12:00:00", "calendar": "proleptic_gregorian"}, "2000-01-01T14:00:00"),
        ({"units": "days since 2000-01-01", "calendar": "noleap"}, "2"),
        ({"units": "days since 2000-01-01 of our era"}, "2"),
        ({"units": "days since 9999-12-31"}, "2"),
        ({"units": "m"}, "2"),
        ({"units": 7}, "2"),
    ],
)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_dates_are_told(repo, attributes, shown, zarr_format):
    commit(repo, labels([1, 2], zarr_format=zarr_format, attributes=attributes))
    repo.constraints["it"], repo.constraints["order"] = Unique("x"), Sorted("x")
    with pytest.raises(ConstraintError) as caught:
        commit(repo, add(2))
    assert fault_of(caught) == f"labels are repeated: {shown} at 1, 2"
    assert fault_of(caught, "order") == f"its labels do not ascend: {shown} at 2 follows {shown} at 1"


# --- who commits
def days(first: int, count: int = 2) -> xr.Dataset:
    time = np.datetime64("2024-01-01") + np.arange(first, first + count)
    return xr.Dataset({"t2m": ("time", np.ones(count))}, {"time": time.astype("M8[ns]")})


@pytest.mark.parametrize("constraint", [Unique("time"), Sorted("time")], ids=["unique", "sorted"])
def test_xarray_appends(repo, constraint):
    with repo.transaction() as store:
        days(0).to_zarr(store)
    repo.constraints["time"] = constraint
    for first in (2, 4):
        with repo.transaction() as store:
            days(first).to_zarr(store, append_dim="time")
    for first in (4, 5):  # again, and in part
        with pytest.raises(ConstraintError, match="2024-01-06 at 5"), repo.transaction() as store:
            days(first).to_zarr(store, append_dim="time")
    ds = xr.open_dataset(repo, engine="txstore")
    assert ds.sizes["time"] == 6
    assert ds.indexes["time"].is_unique


@pytest.mark.parametrize("on_conflict", [None, "merge"])
def test_two_write_elements_of_one_chunk(repo, on_conflict):
    """What counts is the merged chunk."""
    commit(repo, labels([*range(8)], chunks=8))
    repo.constraints["it"], repo.constraints["order"] = Unique("x"), Sorted("x", strict=False)
    one = repo.transaction(on_conflict=on_conflict)
    other = repo.transaction(on_conflict=on_conflict)
    put(slice(2, 4), [3, 4])(one)  # in order, and unique only together with what is staged next
    put(4, 5)(one)
    put(slice(5, 7), [6, 6])(one)
    put(slice(0, 2), [0, 0])(other)
    with pytest.raises(ConstraintError) as caught:
        one.commit()
    assert fault_of(caught) == "labels are repeated: 6 at 5, 6"
    put(slice(5, 8), [6, 7, 8])(one)
    one.commit()
    put(slice(0, 2), [4, 5])(other)
    with pytest.raises(ConstraintError) as caught:
        other.commit()
    assert fault_of(caught) == "labels are repeated: 4 at 0, 3; 5 at 1, 4"
    assert fault_of(caught, "order") == "its labels do not ascend: 3 at 2 follows 5 at 1"
    put(slice(0, 2), [1, 2])(other)
    other.commit()
    assert found(repo) == [*range(1, 9)]


def test_rows_that_two_branches_appended(repo):
    commit(repo, labels(TEN))
    repo.constraints["it"] = Unique("x")
    repo.branches["dev"] = repo.head()
    commit(repo, add(20))
    commit(repo, add(20), branch="dev")
    with pytest.raises(ConstraintError, match="20 at 10, 11"):
        repo.merge("dev", append="concatenate")
    commit(repo, put(10, 21), branch="dev")
    repo.merge("dev", append="concatenate")
    assert found(repo) == [*TEN, 20, 21]


# --- by reference
def test_copied_and_moved(repo):
    commit(repo, labels(TEN), labels([3, 1, 3], "bad"), labels([1, 2, 3], "good"))
    repo.constraints["it"], repo.constraints["order"] = Unique("x"), Sorted("x")
    for step in (lambda store: store.copy("bad", "x"), lambda store: store.move("bad", "x")):
        with pytest.raises(ConstraintError) as caught:
            commit(repo, delete("x"), step)
        assert fault_of(caught) == "labels are repeated: 3 at 0, 2"
        assert fault_of(caught, "order").startswith("its labels do not ascend: 1 at 1 follows 3 at 0")
    with repo.transaction() as store:
        delete("x")(store)
        store.move("bad", "x")
        put(slice(0, 3), [1, 2, 3])(store)
    with repo.transaction() as store:
        store.move("x", "elsewhere")
        store.copy("good", "x")
        add(4)(store)
    assert found(repo) == [1, 2, 3, 4]
    with pytest.raises(ConstraintError, match="there is no array"):
        commit(repo, lambda store: store.move("x", "y"))


def test_the_same_bytes_of_another_type(repo):
    """The spans that are remembered of values belong to a type, too."""
    commit(repo, labels([0, 1, 2, 3, 2**31, 2**31 + 1], dtype="u4", compressors=None))
    repo.constraints["it"], repo.constraints["order"] = Unique("x"), Sorted("x")
    with pytest.raises(ConstraintError) as caught:
        commit(repo, edit_document("x/zarr.json", data_type="int32"))
    assert [each.constraint for each in caught.value.violations] == ["order"]
    with pytest.raises(ConstraintError) as caught:
        commit(repo, edit_document("x/zarr.json", data_type="float32", fill_value=0.0))
    assert fault_of(caught).endswith("0.0 at 0, 4")


def test_values_outside(tmp_path, open_repo):
    raw = tmp_path / "raw.bin"
    raw.write_bytes(np.arange(12, dtype="<i4").tobytes())
    repo = open_repo(sources=[str(tmp_path)])
    commit(repo, labels([100, 101, 102, 103], dtype="i4", compressors=None))
    repo.constraints["it"] = Unique("x")

    def refer(offset: int) -> Step:
        def step(store: txstore.TxStore) -> None:
            chunk = array(store).shape[0] // 4
            array(store).resize((4 * chunk + 4,))
            store.set_reference(f"x/c/{chunk}", raw, offset, 16)

        return step

    commit(repo, refer(0))
    with pytest.raises(ConstraintError, match="2 at 6, 8"):
        commit(repo, refer(8))
    commit(repo, refer(16))
    assert found(repo) == [100, 101, 102, 103, *range(8)]


# --- what it costs
def forget() -> None:
    labels_module.VALUES.clear()
    labels_module.TABLES.clear()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each chunk that is decoded for a check, whether it was stored."""
    noted: list[bool] = []
    decode = ChunkDecoder.decode
    forget()

    def counted(self: ChunkDecoder, encoded: Any) -> Any:
        noted.append(encoded is not None)
        return decode(self, encoded)

    monkeypatch.setattr(ChunkDecoder, "decode", counted)
    return noted


def test_a_commit_reads_what_it_changes_and_what_is_beside(repo, decoded):
    count = 1000
    commit(repo, labels([*range(4 * count)]))
    repo.constraints["order"] = Sorted("x")
    assert len(decoded) >= count, "a new constraint is checked everywhere"
    decoded.clear()
    commit(repo, add(*range(4000, 4004)))
    assert len(decoded) == 2
    decoded.clear()
    commit(repo, put(2000, 2000), put(2001, 2001))  # as it was: no change
    commit(repo, put(4003, 5000))
    assert len(decoded) == 2
    decoded.clear()
    commit(repo, lambda store: array(store).attrs.update(a=1), labels([1], "y"))
    assert decoded == []


#: What another process does, and a label that is there then and was not before. Behind the end of x lie 18 and 19.
OF_OTHERS = {
    "a value": (put(0, 500), 500),
    "a chunk": (lambda store: store.__setitem__("x/c/0", store["y/c/0"]), 702),
    "by reference": (lambda store: store.mapping.nodes.take({"x/c/0": "y/c/0"}, store.mapping.base), 702),
    "a chunk more": (add(500, 501, 502), 502),
    "a longer array alone": (resize(20), 19),
    "all of it": (both(delete("x"), labels([500, *range(1, 20)])), 500),
    "all chunks": (both(lambda store: store.mapping.delete_dir("x/c"), put(slice(None), [*range(600, 618)])), 600),
}


@pytest.mark.parametrize("what", OF_OTHERS)
@pytest.mark.parametrize("more", [0, 3])
def test_what_another_process_has_changed_is_looked_up_again(repo, what, more):
    step, label = OF_OTHERS[what]
    commit(repo, labels([*range(20)]), lambda store: array(store).resize((18,)), labels([*range(700, 704)], "y"))
    repo.constraints["it"] = Unique("x")
    commit(repo, put(5, 300))
    commit(repo, put(5, 301))  # what is remembered is of this commit's parent

    def work() -> None:
        commit(txstore.Repository(repo.url), step)
        for number in range(more):
            commit(txstore.Repository(repo.url), put(8, 400 + number))

    with forked(work) as child:
        assert status_of(child) == 0
    assert label in found(repo)
    with pytest.raises(ConstraintError, match=f"{label} at"):
        commit(repo, put(13, label))
    commit(repo, put(13, 900))


def test_a_chunk_that_another_process_has_deleted_with_all_above_it(repo):
    commit(repo, labels([*range(1, 9)], chunks=1))
    repo.constraints["it"] = Unique("x")
    for value in (20, 21):
        commit(repo, put(7, value))

    def clear(store: txstore.TxStore) -> None:
        kept = {key: store[key] for key in map("x/c/{}".format, range(8)) if key != "x/c/3"}
        store.mapping.delete_dir("x/c")
        for key, value in kept.items():
            store[key] = value

    with forked(lambda: commit(txstore.Repository(repo.url), clear)) as child:
        assert status_of(child) == 0
    assert found(repo)[3] == 0
    with pytest.raises(ConstraintError, match="0 at 3, 5"):
        commit(repo, lambda store: store.__delitem__("x/c/5"))
    commit(repo, put(5, 4))


def test_labels_in_no_order_are_compared_a_part_at_a_time(repo, decoded, monkeypatch):
    values = np.random.default_rng(1).permutation(4000)
    commit(repo, labels(values, chunks=50))
    monkeypatch.setattr(labels_module, "_AT_ONCE", 4000)
    repo.constraints["it"] = Unique("x")
    assert len(decoded) == 80 + 8 * 70, "ten chunks are kept, and the others read in each of eight parts"
    values[3000] = values[10]
    with pytest.raises(ConstraintError) as caught:
        commit(repo, put(3000, int(values[10])))
    assert fault_of(caught) == f"labels are repeated: {values[10]} at 10, 3000"
    commit(repo, labels([f"{value}" for value in values[:3000]], overwrite=True, chunks=50, dtype="U4"))
    values[2000] = values[10]
    with pytest.raises(ConstraintError) as caught:
        commit(repo, labels([f"{value}" for value in values[:3000]], overwrite=True, chunks=50, dtype="U4"))
    assert f"'{values[10]}' at 10, 2000" in fault_of(caught)


# --- storage, format


def test_far_away_chunks_are_fetched_together(far, requests):
    repo = txstore.Repository("memory://labels/far.tx")
    commit(repo, labels(np.arange(40_000), chunks=40, compressors=None))
    for constraint in (Sorted("x"), Unique("x")):
        forget()
        other = txstore.Repository(repo.url)
        requests.clear()
        other.constraints[constraint.kind] = constraint
        assert len(requests) < 30, "1,000 chunks were read"
    requests.clear()
    commit(repo, add(40_000))
    assert len(requests) < 10
