"""What is counted of a commit: to find out which arrays it touches, no path is looked at twice."""

import json
from typing import Any, cast

from txstore.format import packfile
from txstore.transactions.draft import _Counter

GRID = {"name": "regular", "configuration": {"chunk_shape": [1]}}
NODE = json.dumps({"zarr_format": 3, "node_type": "array", "shape": [1], "chunk_grid": GRID}).encode()


class View:
    """Arrays, and what was asked for."""

    def __init__(self, *arrays: str) -> None:
        self.arrays = arrays
        self.asked: list[str] = []

    def get_view(self, key: str) -> memoryview | None:
        self.asked.append(key)
        return memoryview(NODE) if key.removesuffix("/zarr.json") in self.arrays else None


def counted(view: View, *keys: str) -> _Counter:
    counter = _Counter(cast("Any", view))
    list(counter.counted((key, packfile.REF_PACK, 0, 1, 0, 0) for key in keys))
    return counter


def test_that_there_is_no_node_is_found_out_once() -> None:
    view = View()
    keys = [f"a/b/c/{row}/{column}" for row in range(20) for column in range(20)]
    assert counted(view, *keys).statistics(0).arrays == 0
    assert len(view.asked) == len(set(view.asked))


def test_arrays_are_counted() -> None:
    keys = ["a/c/0/0", "a/c/1/0", "a/zarr.json", "b/c/0", "none/c/0", "none/d/0", "z/y/c/0"]
    assert counted(View("a", "b", "z/y"), *keys).statistics(0).arrays == 3
