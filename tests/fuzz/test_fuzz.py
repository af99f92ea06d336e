"""Every decoder on hostile bytes: a value, or an error of its own; never a crash, a hang, or another value."""

from __future__ import annotations

import os

import pytest

from tests import reliability
from tests.fuzz.fuzzing import CORPUS, fuzz, look_at, target_named
from tests.fuzz.targets import TARGETS, Target

#: So many for each decoder; `python -m tests.fuzz` does as many as it is told.
INPUTS = int(os.environ.get("TXSTORE_FUZZ_INPUTS", "3000"))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_seeds_are_valid(target: Target) -> None:
    for seed in target.seeds:
        target.decode(seed)
        assert look_at(target, seed) is None


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_mutated(target: Target) -> None:
    with reliability.counting("fuzz") as counts:
        counts["inputs"] += INPUTS
        assert next(fuzz(target, INPUTS, seed=1), None) is None


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_once(path: os.PathLike[str]) -> None:
    with open(path, "rb") as file:
        assert look_at(target_named(os.path.basename(os.path.dirname(path))), file.read()) is None
