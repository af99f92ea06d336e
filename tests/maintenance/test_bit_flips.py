"""Every bit of a small repository, turned: found or harmless, never other data; and what a repair makes of it.

A sample by default, another by TXSTORE_BIT_FLIPS=<how many>; all of them by TXSTORE_BIT_FLIPS=all (many minutes), or in
parts: TXSTORE_BIT_FLIPS=0/20 to 19/20.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import txstore
from tests import reliability
from tests.maintenance import small
from txstore.history.opening import open_commits, open_storage
from txstore.maintenance.repair import verify_and_repair
from txstore.maintenance.report import Report
from txstore.maintenance.verify import verify
from txstore.storage import local as storage

pytestmark = pytest.mark.long

SAMPLE = 200
Tree = dict[str, bytes]


def files_of(path: Path) -> Tree:
    found = {}
    for file in sorted(path.rglob("*")):
        name = str(file.relative_to(path))
        if file.is_file() and not name.startswith("locks/"):
            found[name] = file.read_bytes()
    return found


def restore(path: Path, tree: Tree) -> None:
    """Leave the files whose content is right alone: a head cache is of its directory."""
    for name, content in files_of(path).items():
        if name not in tree:
            (path / name).unlink()
        elif content != tree[name]:
            (path / name).write_bytes(tree[name])
    for name, content in tree.items():
        if not (path / name).exists():
            (path / name).write_bytes(content)


def read_all(path: Path, contents: small.Contents) -> tuple[int, bool]:
    """Read and list every commit: what was written, or an error. Returns how many errors; if the head is whole."""
    errors, head_is_whole = 0, True
    for version in [*range(len(contents)), None]:
        content = contents[-1 if version is None else version]
        try:
            snapshot = txstore.Repository(path).mapping(at=version)
        except txstore.TxStoreError:
            errors += 1
            head_is_whole &= version is not None
            continue
        try:
            assert list(snapshot) == sorted(content), version
        except txstore.TxStoreError:
            errors += 1
            head_is_whole &= version is not None
        for key in (*content, "absent", "a/absent"):
            try:
                value = snapshot.get(key)
            except txstore.TxStoreError:
                errors += 1
                head_is_whole &= version is not None
            else:
                assert (None if value is None else bytes(value)) == content.get(key), (version, key)
    try:
        assert txstore.Repository(path).tags["v1"].version == 1
    except txstore.TxStoreError:
        errors += 1
    return errors, head_is_whole


def verified(path: Path) -> Report:
    return verify(open_commits(open_storage(path)))


def flips(tree: Tree) -> Iterator[tuple[str, int, int]]:
    every = [(name, at, bit) for name, content in tree.items() for at in range(len(content)) for bit in range(8)]
    wanted = os.environ.get("TXSTORE_BIT_FLIPS", str(SAMPLE))
    first, part, step = wanted.partition("/")
    if wanted == "all" or part:
        yield from every[int(first) :: int(step)] if part else every
    else:
        yield from random.Random(int(wanted)).sample(every, int(wanted))


def turn(path: Path, tree: Tree, contents: small.Contents, name: str, at: int, bit: int, counts: Counter[str]) -> None:
    """Turn one bit, and look at what becomes of it."""
    content = bytearray(tree[name])
    content[at] ^= 1 << bit
    (path / name).write_bytes(content)
    what = f"bit {bit} of byte {at} of {name}"
    try:
        errors, head_is_whole = read_all(path, contents)
        report = verified(path)
        assert errors == 0 or report.faults, what
        assert head_is_whole or report.faults, what
        kind = "detected by reading" if errors else "found by verify alone" if report.faults else "harmless"
        counts[kind] += 1

        repaired = verify_and_repair(open_storage(path))
        assert not report.ok or repaired.repairs == [], what
        errors_left, _ = read_all(path, contents)
        counts["repaired" if repaired.ok else "not repaired"] += not report.ok
        assert repaired.ok == verified(path).ok, what
        assert errors_left <= errors, what
        for fault in repaired.faults:
            counts[f"not repaired: {fault.part}"] += 1
        assert bytes(content) in files_of(path).values(), what  # nothing is deleted
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error


@pytest.mark.timeout(7200)
def test_every_bit_of_a_small_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data.tx"
    contents = small.build(path)
    monkeypatch.setattr(storage, "_sync", lambda _: None)  # no power is lost here
    monkeypatch.setattr(storage, "sync_directory", lambda _: None)
    tree = files_of(path)
    counts: Counter[str] = Counter()
    with reliability.counting("bit flips") as counted:
        for name, at, bit in flips(tree):
            counted["bits turned"] += 1
            turn(path, tree, contents, name, at, bit, counts)
            restore(path, tree)
        counted.update({kind: counts[kind] for kind in ("harmless", "repaired")})
    print(f"{sum(map(len, tree.values())) * 8:,} bits;", dict(counts))
    assert set(counts) <= {
        "detected by reading", "found by verify alone", "harmless", "repaired", "not repaired", "not repaired: value",
    }  # fmt: skip
    assert verified(path).ok
