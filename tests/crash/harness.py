"""Runs workloads, loses the power after every step of them, and looks at what that may leave."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.crash.checking import look
from tests.crash.disk import Disk, Image, PowerLoss
from tests.crash.system import SYSTEM, Process, forget_all
from tests.crash.workloads import Workload
from tests.crash.world import World

#: The machine was booted anew, or can't tell one boot from another: what was seen may be gone.
_OTHER_BOOTS = (2, 0)


@dataclass
class Recording:
    """A workload that has run, and the disk that knows every step of it."""

    world: World
    disk: Disk
    first: int = 0  # crashes from this step on are of interest


@dataclass
class Counts:
    points: int = 0
    images: int = 0
    equal: int = 0  # images like one that was looked at
    refused: int = 0
    commits: Counter[int] = field(default_factory=Counter)  # how many there were in how many images

    def add(self, other: Counts) -> None:
        self.points += other.points
        self.images += other.images
        self.equal += other.equal
        self.refused += other.refused
        self.commits += other.commits


def record(workload: Workload, *, omitted: frozenset[str] = frozenset(), sites: bool = False) -> Recording:
    """Run a workload. The calls that come from `omitted` sites are not made."""
    start = workload.start() if workload.start is not None else None
    disk = Disk(start)
    SYSTEM.turn_on(disk, boot=1, seed=1)
    SYSTEM.has_noreplace = workload.has_noreplace
    SYSTEM.omitted, SYSTEM.wants_sites = omitted, sites or bool(omitted)
    world = World()
    try:
        with Process():
            workload.run(world)
    finally:
        forget_all()
    return Recording(world, disk)


def after_kill(
    recording: Recording,
    step: int,
    follow_up: Callable[[World], None],
    workload: Workload,
    omitted: frozenset[str] = frozenset(),
) -> Recording:
    """Kill all programs after a step; others go on, on the same disk, in the same boot."""
    disk = Disk(recording.disk.start, recording.disk.steps[:step])
    SYSTEM.turn_on(disk, boot=1, seed=2)
    SYSTEM.has_noreplace = workload.has_noreplace
    SYSTEM.omitted, SYSTEM.wants_sites = omitted, bool(omitted)
    world = recording.world.as_of(step)
    try:
        follow_up(world)
    except BaseException as error:
        error.add_note(_note(recording, step, "killed; then " + follow_up.__name__))
        raise
    finally:
        forget_all()
    return Recording(world, disk, first=step)


def _note(recording: Recording, number: int, what: str) -> str:
    step = recording.disk.steps[number - 1]
    return f"after step {number}, {step.call} {step.path} ({step.site}): {what}"


def images(recording: Recording, counts: Counts, *, seed: int, most: int) -> Iterator[tuple[int, Image, bool]]:
    """Yield what may be left after each step, with the number of steps, and whether only the programs died."""
    chance = random.Random(seed)
    loss = PowerLoss(recording.disk.start)
    seen: set[tuple[int, int, bool]] = set()
    for number, step in enumerate(recording.disk.steps, 1):
        loss.advance(step)
        if number <= recording.first:
            continue
        counts.points += 1
        promised = len(recording.world.as_of(number).commits)
        for image, killed in _of_point(loss, chance, most):
            key = image.identity, promised, killed
            if key in seen:
                counts.equal += 1
                continue
            seen.add(key)
            counts.images += 1
            yield number, image, killed


def _of_point(loss: PowerLoss, chance: random.Random, most: int) -> Iterator[tuple[Image, bool]]:
    yield loss.all_kept(), True
    for image in loss.images(chance, most):
        yield image, False


def explore(recording: Recording, *, seed: int = 1, most: int = 2, share: float = 1.0) -> Counts:
    """Look at a share of the images. Raises at the first that is wrong, with a note on how it came to be."""
    counts = Counts()
    chance = random.Random(seed)
    for number, image, killed in images(recording, counts, seed=seed, most=most):
        if chance.random() > share:
            continue
        world = recording.world.as_of(number)
        boot = 1 if killed else chance.choice(_OTHER_BOOTS)
        try:
            looked = look(image.tree, world, boot=boot, lost_power=not killed)
        except BaseException as error:
            forget_all()
            how = "killed" if killed else f"power lost, boot {boot}; kept: {image.kept}"
            error.add_note(_note(recording, number, how))
            raise
        counts.refused += looked.refused
        counts.commits[looked.commits] += 1
    return counts
