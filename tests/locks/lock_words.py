"""What the file of a lock table tells of those who wait (`lock_words.h` draws the word of a slot)."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from txstore.locks.lock_file import MEMBER, MEMBERS, MEMBERS_OFFSET, SEED, SLOTS
from txstore.locks.slot_hash import SlotHash

WORDS_OFFSET = MEMBERS_OFFSET + (MEMBERS + 1) * MEMBER.size
_WAITERS, _HUNGRY = 1 << 31, 1 << 30
HASHED = SlotHash(SLOTS, SEED)


def word_offset(key: str) -> int:
    """Return where the key's word lies in a file of the usual size."""
    return WORDS_OFFSET + 4 * HASHED.slot_of(key)


def words_of(path: Path) -> npt.NDArray[np.uint32]:
    """Return the words of the file, as they change."""
    return np.memmap(path, np.uint32, "r", WORDS_OFFSET)


def has_slot(words: npt.NDArray[np.uint32], owner: Any, key: str, slot: int) -> bool:
    """Tell whether the C takes this word for a key that the owner does not hold."""
    owner.acquire(key)
    try:
        return bool(words[slot] == owner.identity)
    finally:
        owner.release(key)


def is_waited_for(path: Path, key: str) -> bool:
    """Tell whether somebody waits for the key's word, or has done so a moment ago."""
    return bool(_word(path, key) & _WAITERS)


def is_wanted_badly(path: Path, key: str) -> bool:
    """Tell whether somebody has waited for so long that it goes first."""
    return bool(_word(path, key) & _HUNGRY)


def _word(path: Path, key: str) -> int:
    with open(path, "rb") as file:
        file.seek(word_offset(key))
        (word,) = struct.unpack("=I", file.read(4))
    return int(word)
