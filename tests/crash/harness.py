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
_HEAD_CACHE = "data.tx/heads/main"
#: How often others go on with an image, which costs more than to read it.
_GO_ON = 0.5
#: How often an image is looked at of a second loss of power, after the first.
_AGAIN = 0.2
#: About so many choices lead to one image that differs from the others.
_EQUAL = 3


@dataclass
class Recording:
    """A workload that has run, and the disk that knows every step of it."""

    world: World
    disk: Disk
    first: int = 0  # crashes from this step on are of interest


@dataclass
class Counts:
    points: int = 0  # steps after which the power was lost
    images: int = 0
    looked: int = 0  # those that were not like another one
    again: int = 0  # of these, images of a second loss of power, while the first was being recovered from
    refused: int = 0  # images in which scratch data is damaged, and says so
    commits: Counter[int] = field(default_factory=Counter)  # how many there were in how many images

    def add(self, other: Counts) -> None:
        self.points += other.points
        self.images += other.images
        self.looked += other.looked
        self.again += other.again
        self.refused += other.refused
        self.commits += other.commits

    def as_numbers(self) -> Counter[str]:
        return Counter(
            {
                "crash points": self.points,
                "images made": self.images,
                "images looked at": self.looked,
                "after a second loss": self.again,
                "scratch data refused": self.refused,
            }
        )


def record(workload: Workload, *, omitted: tuple[str, ...] = (), sites: bool = False) -> Recording:
    """Run a workload. The calls that come from `omitted` sites are not made."""
    SYSTEM.headers.clear()
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
    return Recording(world, disk, first=world.begun)


def after_kill(
    recording: Recording,
    step: int,
    follow_up: Callable[[World], None],
    workload: Workload,
    omitted: tuple[str, ...] = (),
) -> Recording:
    """Kill all programs after a step; others go on, on the same disk, in the same boot."""
    disk = Disk(recording.disk.start, recording.disk.steps[:step])
    SYSTEM.turn_on(disk, boot=1, seed=2)
    SYSTEM.has_noreplace = workload.has_noreplace
    SYSTEM.omitted, SYSTEM.wants_sites = omitted, bool(omitted)
    world = recording.world.as_of(step)
    try:
        if world.torn:
            world.open().verify(repair=True)
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


def explore(
    recording: Recording, *, seed: int = 1, most: int = 2, about: int | None = None, go_on: float = _GO_ON
) -> Counts:
    """Look at what may be left after each step, or at a sample of `about` so many images.

    In a share `go_on` of them other processes go on.

    Raises at the first that is wrong, with a note that says which it is.
    """
    counts = Counts()
    chance = random.Random(seed)
    share = 1.0
    if about is not None:
        total, points = _count(recording, most)
        share = _EQUAL * about / max(1, total)
        most += round(max(0.0, share - 1) * total / max(1, points))
    loss = PowerLoss(recording.disk.start)
    seen: set[tuple[int, int, bool]] = set()
    for number, step in enumerate(recording.disk.steps, 1):
        loss.advance(step)
        if number <= recording.first:
            continue
        counts.points += 1
        world = recording.world.as_of(number)
        for image, killed in _sample(loss, chance, most, share):
            counts.images += 1
            key = image.identity, len(world.commits), killed
            if key not in seen:
                seen.add(key)
                _look_at(recording, number, image, killed, chance, counts, go_on)
    return counts


def _count(recording: Recording, most: int) -> tuple[int, int]:
    """Return how many choices there are, and after how many steps."""
    loss = PowerLoss(recording.disk.start)
    total = 0
    for number, step in enumerate(recording.disk.steps, 1):
        loss.advance(step)
        if number > recording.first:
            total += 3 + len(loss.choices(random.Random(0), most))
    return total, len(recording.disk.steps) - recording.first


def _sample(loss: PowerLoss, chance: random.Random, most: int, share: float) -> Iterator[tuple[Image, bool]]:
    """Yield images, and whether only the programs were killed."""
    if chance.random() < share:
        yield loss.all_kept(), True
    # Readers believe little of the head cache: neither an older one, nor half of one, nor none may lead anybody astray.
    for content in chance.sample(head_caches := [*loss.versions_of(_HEAD_CACHE), b"", None], min(2, len(head_caches))):
        if chance.random() < share:
            yield loss.all_kept(replaced={_HEAD_CACHE: content}), True
    for choice in loss.choices(chance, most):
        if chance.random() < share:
            yield loss.image(choice, chance), False


def _look_at(
    recording: Recording, number: int, image: Image, killed: bool, chance: random.Random, counts: Counts, share: float
) -> None:
    boot = 1 if killed else chance.choice(_OTHER_BOOTS)
    how = "killed" if killed else f"power lost, boot {boot}"
    try:
        world = recording.world.as_of(number).rebased()
        go_on = chance.random() < share
        looked = look(image.tree, world, boot=boot, lost_power=not killed, go_on=go_on)
        if go_on and not looked.refused and chance.random() < _AGAIN:
            _lose_again(Recording(world, SYSTEM.disk), chance, counts)
    except BaseException as error:
        forget_all()
        error.add_note(_note(recording, number, f"{how}; kept: {image.kept}"))
        raise
    counts.looked += 1
    counts.refused += looked.refused
    counts.commits[looked.commits] += 1


def _lose_again(recording: Recording, chance: random.Random, counts: Counts) -> None:
    """Lose the power once more, at some moment while others go on after the first time."""
    loss = PowerLoss(recording.disk.start)
    if not recording.disk.steps:
        return
    number = chance.randint(1, len(recording.disk.steps))
    for step in recording.disk.steps[:number]:
        loss.advance(step)
    image = loss.image(chance.choice(loss.choices(chance, 3)), chance)
    try:
        look(image.tree, recording.world.as_of(number).rebased(), boot=3, lost_power=True)
    except BaseException as error:
        error.add_note(_note(recording, number, f"power lost for the second time; kept: {image.kept}"))
        raise
    counts.looked += 1
    counts.again += 1
