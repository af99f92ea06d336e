"""Decoding what random changes have made of valid bytes, and looking at what comes of it."""

import hashlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.targets import TARGETS, Target

CORPUS = Path(__file__).parent / "corpus"
#: One in so many inputs is also given to the Python fallback.
FALLBACK_EVERY = 20
_HANG = 20  # seconds of processor time, for one input: one that waits its turn does not hang


@dataclass(frozen=True)
class Finding:
    target: str
    data: bytes
    what: str

    def save(self, directory: Path = CORPUS) -> Path:
        """Keep the input, to be tried again by every run of the tests."""
        path = directory / self.target / hashlib.sha256(self.data).hexdigest()[:16]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data)
        return path


def outcome(decode: Any, data: bytes, allowed: tuple[type[Exception], ...]) -> Any:
    """Return what a decoder answers, or the exception class that says no."""
    try:
        return decode(data)
    except allowed:
        return ValueError


def look_at(target: Target, data: bytes, *, original: bytes | None = None, ask_fallback: bool = True) -> Finding | None:
    """Decode one input. `original`: what it was before it was mutated, if its checksum still is that one's."""
    try:
        said = outcome(target.decode, data, target.allowed)
        if said is not ValueError and not target.is_sound(said):
            return Finding(target.name, data, f"unsound: {said!r:.200}")
        if original is not None and said is not ValueError and said != target.decode(original):
            return Finding(target.name, data, "damaged, and decoded as something else")
        if (
            ask_fallback
            and target.fallback is not None
            and (other := outcome(target.fallback, data, target.allowed)) != said
        ):
            return Finding(target.name, data, f"C says {said!r:.200}, Python {other!r:.200}")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what we look for
        return Finding(target.name, data, f"{type(error).__name__}: {error}")
    return None


def fuzz(target: Target, count: int, seed: int) -> Iterator[Finding]:
    """Try `count` inputs; yield what is found."""
    random = Random(f"{target.name} {seed}")
    for number in range(count):
        original = random.choice(target.seeds)
        data = target.mutate(original, target.seeds, random)
        resealed = target.reseal is not None and random.random() < 0.8
        if resealed and target.reseal is not None:
            data = target.reseal(data)
        compared = original if target.is_sealed and not resealed else None
        with no_hang():
            finding = look_at(target, data, original=compared, ask_fallback=number % FALLBACK_EVERY == 0)
        if finding is not None:
            yield finding


def batch(name: str, count: int, seed: int) -> list[Finding]:
    return list(fuzz(target_named(name), count, seed))


@contextmanager
def no_hang() -> Iterator[None]:
    if not hasattr(signal, "setitimer"):
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, _HANG)  # kills the process: C that hangs lets no handler run
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def target_named(name: str) -> Target:
    return next(target for target in TARGETS if target.name == name)
