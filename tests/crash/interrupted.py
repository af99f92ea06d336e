"""Looks at what is left after each step of something, if it is killed or loses power there."""

import random
from collections.abc import Callable

from tests.crash.disk import Disk, Image, PowerLoss


def after_every_step(disk: Disk, check: Callable[[Image, int], None], most: int) -> int:
    """Call `check` with an image and its number of boots, `most` times. Return how many different images there were."""
    chance = random.Random(7)
    loss, images = PowerLoss(disk.start), []
    for number, step in enumerate(disk.steps, 1):
        loss.advance(step)
        images.append((number, loss.all_kept(), 1))
        images += [(number, loss.image(choice, chance), 2) for choice in loss.choices(chance, 2)]
    seen: set[int] = set()
    for number, image, boot in chance.sample(images, min(len(images), most)):
        if image.identity in seen:
            continue
        seen.add(image.identity)
        try:
            check(image, boot)
        except BaseException as error:
            step = disk.steps[number - 1]
            error.add_note(f"after step {number}, {step.call} {step.path}: boot {boot}, {image.kept}")
            raise
    return len(seen)
