"""Staged keys that are sealed in runs: they are the same as those that are all in one dictionary."""

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import txstore
from tests.tools.faults import always, watch
from txstore._native import index
from txstore.format import packfile
from txstore.format.packfile import SEEN_BASE, SEEN_NOTHING, Predecessor
from txstore.storage import interface
from txstore.transactions import staged_keys
from txstore.transactions.participants.chains import Link
from txstore.transactions.staged_keys import StagedKeys

GROUP = b'{"zarr_format": 3, "node_type": "group"}'
ME, OTHER = 0, 3
KEYS = ["a", "a/b", "a/c/0", "a/c/1", "a/c/10", "a0", "b/zarr.json", "b/c/0", "é/x", "\U0001f600/y", "zarr.json"]
PREFIXES = ["", "a/", "a/c/", "b/", "é/", "nothing/"]
SEEN = [SEEN_NOTHING, SEEN_BASE, Predecessor(OTHER, 1), Predecessor(ME, 2)]

FRAMES = st.tuples(
    st.sampled_from(["value", "value", "value", "tombstone", "foreign", "many"]),
    st.sampled_from(KEYS),
    st.sampled_from([ME, ME, OTHER]),
    st.sampled_from(SEEN),
)
STEPS = st.lists(
    st.one_of(
        FRAMES,
        st.tuples(st.just("hide"), st.sampled_from(PREFIXES), st.sampled_from([ME, ME, OTHER]), st.just(SEEN_NOTHING)),
        st.tuples(st.just("read"), st.sampled_from(KEYS), st.just(ME), st.just(SEEN_NOTHING)),
    ),
    max_size=40,
)
KINDS = {"value": packfile.FRAME_VALUE, "tombstone": packfile.FRAME_TOMBSTONE, "foreign": packfile.FRAME_FOREIGN}


def take(staged: StagedKeys, steps: list[tuple[str, str, int, Any]]) -> None:
    for sequence, (what, key, participant, seen) in enumerate(steps, 1):
        if what == "hide":
            staged.hide(key, participant, sequence, seen)
        elif what == "read":
            staged.was_read_again(key)
        elif what == "many":
            staged.add_values(packfile.FRAME_VALUE, [(key, SEEN_NOTHING, [sequence * 8, 7, sequence, sequence])])
        else:
            is_empty = what == "tombstone"
            place = (0, 0, 0) if is_empty else (sequence * 8, 7, sequence)
            staged.add(key, Link(participant, sequence, seen, KINDS[what], *place))


def told(staged: StagedKeys) -> Any:
    """Return all that there is to be asked."""
    return {
        "length": len(staged),
        "items": [(key, _short(link)) for key, link in staged.items()],
        "between": {(a, b): list(staged.between(a, b)) for a in ("", "a/", "b") for b in (None, "a0", "b/d")},
        "keys": {
            key: (
                _short(staged.get(key)),
                _short(staged.present(key)),
                key in staged,
                staged.is_set(key),
                staged.seen(key, was_read=False),
                staged.seen(key, was_read=True),
                [_short(link) for link in staged.links(key)],
                staged.writers(key),
                staged.layers(key),
                staged.is_below_deleted(key),
            )
            for key in KEYS
        },
        "others": {prefix: sorted(staged.written_by_others(prefix)) for prefix in PREFIXES},
        "lost": staged.lost_keys({OTHER: 4}),
        "knows": staged.knows_anything,
        "foreign": staged.may_be_foreign,
    }


def _short(link: Link | None) -> Any:
    """Leave out of a tombstone what it has none of."""
    return link if link is None or link.kind != packfile.FRAME_TOMBSTONE else link[:4]


@pytest.fixture
def sealing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seal nearly everything, and put it into files."""
    monkeypatch.setattr(staged_keys, "SEALED_FROM", 2)
    monkeypatch.setattr(interface, "IN_MEMORY", 0)


@settings(max_examples=400, deadline=None)
@given(STEPS, st.integers(1, 4))
def test_sealed_keys_are_the_same_keys(steps: list[Any], threshold: int) -> None:
    plain, sealed = StagedKeys(ME), StagedKeys(ME)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged_keys, "SEALED_FROM", threshold)
        sealed.clear()
        for step in range(0, len(steps), 5):
            for staged in (plain, sealed):
                take(staged, [("read", "nobody", ME, SEEN_NOTHING)] * step + steps[step : step + 5])
            assert told(sealed) == told(plain)
        for staged in (plain, sealed):
            staged.arrange()
        assert sealed.settle({OTHER: 6}, lambda *_: False) == plain.settle({OTHER: 6}, lambda *_: False)
        assert told(sealed) == told(plain)
        assert sealed.settle({}, lambda *_: True) == plain.settle({}, lambda *_: True)
        assert told(sealed) == told(plain)


def test_a_walk_goes_on_over_what_there_was(sealing: None) -> None:
    staged = StagedKeys(ME)
    for number in range(20):
        staged.add(f"{number:03}", Link(ME, number, 0, packfile.FRAME_VALUE, 0, 1, 1))
    walk = staged.between("", None)
    found = [next(walk) for _ in range(3)]
    staged.add("0000", Link(ME, 99, 0, packfile.FRAME_VALUE, 0, 1, 1))
    staged.hide("5/", ME, 100)
    assert found + list(walk) == [f"{number:03}" for number in range(20)]


# --- in transactions
def staged_files(repo: txstore.Repository) -> list[str]:
    return sorted(path.name for path in Path(repo.url, ".staging").iterdir())


def test_a_transaction_whose_keys_are_sealed_is_committed_like_others(sealing: None, repo: txstore.Repository) -> None:
    with repo.begin("base") as transaction:
        for number in range(30):
            transaction[f"old/c/{number}"] = b"old"
        transaction["zarr.json"] = transaction["old/zarr.json"] = GROUP
    transaction = repo.begin("sealed")
    for number in range(50):
        transaction[f"new/c/{number}"] = b"%d" % number
    for number in range(0, 50, 3):
        transaction[f"new/c/{number}"] = b"again"
    for number in range(0, 30, 2):
        del transaction[f"old/c/{number}"]
    transaction["old/c/1"] = b"old"  # as it was
    transaction.delete_dir("new/c/4")
    transaction.nodes.move("old", "moved")
    assert transaction.staging.staged._refs.sealed is not None
    assert staged_files(repo) == []  # files have no names, and what is in the pack is not enough for a file
    expected = {f"new/c/{number}": b"again" if number % 3 == 0 else b"%d" % number for number in range(50)}
    expected |= {f"moved/c/{number}": b"old" for number in range(1, 30, 2)}
    expected |= {"zarr.json": GROUP, "moved/zarr.json": GROUP}
    assert {key: bytes(transaction[key]) for key in transaction} == expected
    transaction.commit()
    assert {key: bytes(value) for key, value in repo.mapping().items()} == expected
    assert staged_files(repo) == []


def test_a_rollback_leaves_nothing_of_sealed_keys(sealing: None, repo: txstore.Repository) -> None:
    transaction = repo.begin("dropped")
    for number in range(20):
        transaction[f"a/c/{number}"] = b"1"
    transaction.rollback()
    assert transaction.staged_count == 0
    assert staged_files(repo) == []


@pytest.mark.parametrize("call", ["create", "file.write"])
def test_a_disk_that_is_full_keeps_nobody_from_sealing(sealing, repo, monkeypatch, call):
    with repo.begin("base") as transaction:
        transaction["zarr.json"] = b"{}"
    watched = watch(repo)
    transaction = repo.begin("sealed")
    transaction["a/c/first"] = b"1"
    transaction.staging.part.writer.create()
    watched.before[call] = always(OSError(28, "No space left on device"))
    for number in range(20):
        transaction[f"a/c/{number}"] = b"1"
    assert transaction.staging.staged._refs.sealed is not None
    assert watched.named(call)
    del watched.before[call]
    transaction.commit()
    assert len(repo.mapping()) == 22
    assert staged_files(repo) == []


KILLED = """
import os, signal, sys
import txstore
from txstore.storage import interface
from txstore.storage.local import LocalStorage
from txstore.transactions import staged_keys

staged_keys.SEALED_FROM, interface.IN_MEMORY = 2, 0
transaction = txstore.Repository(sys.argv[1]).begin()
transaction.get("what maps the base")
LocalStorage.map = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
for number in range(20):
    transaction[f"a/c/{number}"] = b"1"
"""


def test_a_writer_that_is_killed_while_it_seals_leaves_nothing_behind(repo: txstore.Repository) -> None:
    with repo.begin("base") as transaction:
        transaction["zarr.json"] = b"{}"
    child = subprocess.run([sys.executable, "-c", KILLED, repo.url], check=False)
    assert child.returncode == -9
    assert any(name.endswith(".new") for name in staged_files(repo))
    again = txstore.Repository(repo.url)
    with again.begin("next") as transaction:
        transaction["a/c/0"] = b"2"
    assert staged_files(again) == []
    assert sorted(again.mapping()) == ["a/c/0", "zarr.json"]


@pytest.mark.skipif(index.IMPLEMENTATION != "c", reason="the fallback merges runs in memory")
@pytest.mark.long
def test_memory_does_not_grow_with_the_number_of_keys(repo, monkeypatch):
    monkeypatch.setattr(staged_keys, "SEALED_FROM", 4096)
    keys, peaks = 100_000, {}

    def fill(count: int) -> None:
        with repo.begin("fill") as transaction:
            for number in range(count):
                transaction[f"{count}/c/{number}"] = number.to_bytes(8, "little")

    fill(100)
    for count in (keys // 2, keys):
        tracemalloc.start()
        try:
            fill(count)
            peaks[count] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peaks[keys] < 100 * keys, f"{peaks[keys] / keys:.0f} bytes a key"
    assert peaks[keys] - peaks[keys // 2] < 20 * keys // 2, f"{peaks}"
