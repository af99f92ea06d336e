"""Every decoder on hostile bytes: a value, or an error of its own; never a crash, a hang, or another value. And whole
repositories that lie, with right checksums: an answer or one of our errors, in time and in memory."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests import reliability
from tests.fuzz import repositories
from tests.fuzz.forging import Forged
from tests.fuzz.fuzzing import CORPUS, fuzz, look_at, target_named
from tests.fuzz.targets import TARGETS, Target

#: So many for each decoder; `python -m tests.fuzz` does as many as it is told.
INPUTS = int(os.environ.get("TXSTORE_FUZZ_INPUTS", "3000"))
REPOSITORIES = int(os.environ.get("TXSTORE_FUZZ_REPOSITORIES", "500"))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_seeds_are_valid(target: Target) -> None:
    for seed in target.seeds:
        target.decode(seed)
        assert look_at(target, seed) is None


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_mutated(target: Target) -> None:
    with reliability.counting("fuzz") as counts:
        counts["inputs"] += INPUTS
        assert next(fuzz(target, INPUTS, seed=1), None) is None


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_once(path: os.PathLike[str]) -> None:
    with open(path, "rb") as file:
        assert look_at(target_named(os.path.basename(os.path.dirname(path))), file.read()) is None


@pytest.mark.long
def test_repositories_that_lie() -> None:
    # In a process of its own, whose memory nothing else takes.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(repositories.batch, 1, 0, REPOSITORIES).result()
    with reliability.counting("fuzz") as counts:
        counts["inputs"] += REPOSITORIES
    assert not found, "\n".join(map(str, found))


def test_what_is_not_made_to_lie_is_as_it_was(tmp_path: Path) -> None:
    for number, forged in enumerate(repositories.build(tmp_path)):
        true = tmp_path / f"good-{number}.tx"
        for name, content in forged.files().items():
            assert (true / name).read_bytes().startswith(content)  # a staged pack is preallocated
        forged.write(tmp_path / f"copy-{number}.tx")
        assert repositories.txstore.Repository(tmp_path / f"copy-{number}.tx").verify().faults == []
    assert Forged.read(true).files() == forged.files()
