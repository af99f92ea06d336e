"""Computes the lock slot of a key: the structured hash that `_native/lock_slots.h` defines, in Python.

Neighbours along the last axis of an array have neighbouring slots, so the chunks of a region make few ranges. The slot
of a key is therefore the slot of its row, which is cached, plus its last coordinate.
"""

from __future__ import annotations

from collections.abc import Sequence

_COORDINATES = 8
_DIGITS = 18
_MULTIPLIERS = (
    0x9E3779B97F4A7C15,
    0xB7E151628AED2A6B,
    0x243F6A8885A308D3,
    0x6A09E667F3BCC909,
    0xBB67AE8584CAA73B,
    0xA54FF53A5F1D36F1,
    0x510E527FADE682D1,
)
_64_BITS = 0xFFFFFFFFFFFFFFFF
_REMEMBERED = 1 << 16


class SlotHash:
    """Hashes keys to slots, for a number of slots (a power of two) and a seed. Safe in threads."""

    def __init__(self, slots: int, seed: int) -> None:
        self._mask = slots - 1
        self._shift = 64 - self._mask.bit_length()
        self._seed = seed
        self._rows: dict[str, int] = {}  # key up to the last "/" -> slot of coordinate 0
        self._dotted_rows: dict[str, int] = {}  # the same up to and with the last "."
        self._numbers: dict[str, int] = {}  # last coordinates

    def slot_of(self, key: str) -> int:
        """Return the slot of a key. Raises `UnicodeEncodeError` for a key that can't be stored."""
        row, _, last = key.rpartition("/")
        try:
            return (self._rows[row] + self._numbers[last]) & self._mask
        except KeyError:
            return self._compute(key, row, last)

    def slots_of(self, keys: Sequence[str]) -> list[int]:
        rows, numbers, mask = self._rows, self._numbers, self._mask
        slots = []
        for key in keys:
            row, _, last = key.rpartition("/")
            try:
                slots.append((rows[row] + numbers[last]) & mask)
            except KeyError:
                slots.append(self._compute(key, row, last))
        return slots

    def _compute(self, key: str, row: str, last: str) -> int:
        rows, name = self._rows, row
        if "." in last:
            rows = self._dotted_rows
            last = last.rpartition(".")[2]
            name = key[: len(key) - len(last)]
        number = _coordinate(last)
        if number is None or not name:  # "5" and "/5" would get the same slot
            return self._position(key.encode()) >> self._shift
        _remember(self._numbers, last, number)
        slot = rows.get(name)
        if slot is None:
            slot = self._position(key.encode()) - (number << self._shift) >> self._shift
            _remember(rows, name, slot)
        return (slot + number) & self._mask

    def _position(self, key: bytes) -> int:
        """Return the position of a key on the circle of 2^64."""
        coordinates = 0
        for number in range(_COORDINATES):
            rest, text = _split(key[:-1] if number else key)
            value = _coordinate(text)
            if value is None:
                break
            coordinates += value * (_MULTIPLIERS[number - 1] if number else 1 << self._shift)
            key = rest
            if not key:
                break
        return (_hash_prefix(key, self._seed) + coordinates) & _64_BITS


def _remember(table: dict[str, int], name: str, value: int) -> None:
    if len(table) >= _REMEMBERED:
        table.clear()
    table[name] = value


def _split(key: bytes) -> tuple[bytes, str]:
    """Split a key after its last separator."""
    end = max(key.rfind(b"/"), key.rfind(b".")) + 1
    return key[:end], key[end:].decode()


def _coordinate(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS or (text[0] == "0" and len(text) > 1):
        return None
    return int(text)


def _hash_prefix(prefix: bytes, seed: int) -> int:
    value = seed ^ (len(prefix) * 0x9E3779B97F4A7C15 & _64_BITS)
    for start in range(0, len(prefix), 8):
        value = (value ^ int.from_bytes(prefix[start : start + 8], "little")) * 0xFF51AFD7ED558CCD & _64_BITS
        value ^= value >> 32
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & _64_BITS
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & _64_BITS
    return value ^ value >> 33
