"""Listing the names right below a path, by pages of keys."""

from bisect import bisect_left
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txstore.format.keys import directory_prefix
from txstore.format.mapping import Hierarchy


class Keys(Hierarchy):
    """Keys without values. Counts how often somebody looks some up, and how many."""

    def __init__(self, keys: list[str]) -> None:
        self.all = sorted(keys)
        self.pages = self.looked_up = 0

    def get_view(self, key: str) -> memoryview | None:
        return memoryview(b"") if key in self.all else None

    def size_of(self, key: str) -> int | None:
        self.pages += 1
        return 0 if key in self.all else None

    def keys_between(self, start: str, stop: str | None, *, batch: int = 256) -> Iterator[str]:
        position = bisect_left(self.all, start)
        end = len(self.all) if stop is None else bisect_left(self.all, stop)
        while page := self.all[position : min(end, position + batch)]:
            self.pages += 1
            self.looked_up += len(page)
            yield from page
            position += len(page)


def names_below(keys: list[str], path: str) -> list[str]:
    prefix = directory_prefix(path)
    return sorted({key[len(prefix) :].partition("/")[0] for key in keys if key.startswith(prefix)})


# Names that begin with other names, and characters below and above "/".
NAMES = st.sampled_from(["a", "a-", "a.b", "a-b", "a0", "ab", "b", "c", "zarr.json", "é"])
KEYS = st.lists(st.lists(NAMES, min_size=1, max_size=3).map("/".join), unique=True, max_size=200)


@given(KEYS, st.sampled_from(["", "a", "a/b", "c"]), st.integers(0, 70), st.integers(0, 70))
def test_each_name_is_listed_once(keys: list[str], path: str, few: int, many: int) -> None:
    keys += [f"a/{number}/c/{chunk}" for number in range(few) for chunk in range(2)]
    keys += [f"a/b/{number}" for number in range(many)]
    assert sorted(Keys(keys).list_dir(path)) == names_below(keys, path)


@pytest.mark.parametrize("long", [0, 1, 100, 5000])
def test_a_group_is_listed_by_the_page(long: int) -> None:
    keys = Keys([f"v{number}/{key}" for number in range(2000) for key in ("c/0", "zarr.json")] + ["zarr.json"])
    keys.all = sorted(keys.all + [f"v700/c/{number + 1}" for number in range(long)])
    assert len(list(keys.list_dir(""))) == 2001
    assert keys.pages < 20


def test_what_has_many_keys_is_skipped() -> None:
    keys = Keys([f"v{number}/c/{chunk}" for number in range(50) for chunk in range(2000)])
    assert len(list(keys.list_dir(""))) == 50
    assert keys.looked_up < 1000
