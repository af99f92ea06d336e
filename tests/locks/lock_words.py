"""What the file of a lock table tells of those who wait (`lock_words.h` draws the word of a slot)."""

import struct
from pathlib import Path

from tests.tools.lock_clients import native

_WAITERS, _HUNGRY = 1 << 31, 1 << 30


def is_waited_for(path: Path, key: str) -> bool:
    """Tell whether somebody waits for the key's word, or has done so a moment ago."""
    return bool(_word(path, key) & _WAITERS)


def is_wanted_badly(path: Path, key: str) -> bool:
    """Tell whether somebody has waited for so long that it goes first."""
    return bool(_word(path, key) & _HUNGRY)


def _word(path: Path, key: str) -> int:
    c = native()
    with open(path, "rb") as file:
        file.seek(c.WORDS_OFFSET + 4 * c.slot_of(key, 1 << 20))
        (word,) = struct.unpack("=I", file.read(4))
    return int(word)
