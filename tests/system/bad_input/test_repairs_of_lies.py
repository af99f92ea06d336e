"""Repairs of repositories that are damaged, and lie: what can't be told stays a fault, and nothing ends the repair."""

import pytest

import txstore
from tests.fuzz.forging import Entry, Forged, Pack, Run


def head_of(parts: Forged) -> Pack:
    return parts.packs[parts.commits[-1]]


def run_of(pack: Pack) -> Run:
    run = pack.sections[0]
    assert isinstance(run, Run)
    return run


def packs_that_are_none(parts: Forged) -> None:
    run_of(head_of(parts)).packs = [b"\xff" * 3]


def a_pack_that_is_not_listed(parts: Forged) -> None:
    run = run_of(head_of(parts))
    run.entries = [Entry(entry.key, entry.kind, pack=7, length=100) for entry in run.entries]


def no_runs(parts: Forged) -> None:
    head_of(parts).runs = []


def places_beyond_the_file(parts: Forged) -> None:
    run = run_of(head_of(parts))
    run.entries = [Entry(entry.key, entry.kind, offset=1 << 40, length=100) for entry in run.entries]


@pytest.mark.parametrize("damage", ["frame", "header"])
@pytest.mark.parametrize("lie", [packs_that_are_none, a_pack_that_is_not_listed, no_runs, places_beyond_the_file])
def test_a_repair_comes_to_its_end(forged, lie, damage):
    path = forged(lie)
    head = max((path / "commits/main").iterdir())
    content = bytearray(head.read_bytes())
    at = content.index(b"a/c/0") if damage == "frame" else content.rindex(b"commit 2")
    content[at] ^= 0x55
    head.write_bytes(content)
    report = txstore.Repository(path).verify(repair=True)
    assert report.faults if damage == "frame" else report.repairs  # the commit is moved away
