"""What is done to valid bytes, at random, before they are decoded again."""

import json
from collections.abc import Callable, Sequence
from random import Random

#: Numbers at which arithmetic on lengths and offsets goes wrong, if it does.
NUMBERS = sorted({(1 << bits) + step for bits in (0, 3, 7, 8, 15, 16, 31, 32, 47, 63, 64) for step in (-2, -1, 0, 1)})


def mutated(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Return `data` after one to four changes; `others` are what parts are taken from."""
    changed = bytearray(data)
    for _ in range(1 + random.getrandbits(2)):
        random.choice(_MUTATIONS)(changed, others, random)
    return bytes(changed)


def mutated_json(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Return a document with members exchanged for other values, or, now and then, with its bytes mutated."""
    if random.random() < 0.3:
        return mutated(data, others, random)
    members = json.loads(data)
    for _ in range(1 + random.getrandbits(1)):
        name = random.choice(list(members))
        if random.random() < 0.1:
            del members[name]
            if not members:
                break
        else:
            members[name] = random.choice(_VALUES)
    return json.dumps(members).encode()


_VALUES = (
    None, True, 0, -1, 1 << 70, 1.5, float("inf"), "", "x", "main", "../..", "\0", "a" * 5000, "0" * 32, "fsync",
    [], [1], [0, "0" * 32], [None, None], ["1", 2, 3], {}, {"a": {}},
)  # fmt: skip


def _flip_a_bit(data: bytearray, _: Sequence[bytes], random: Random) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set_a_byte(data: bytearray, _: Sequence[bytes], random: Random) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))


def _set_a_number(data: bytearray, _: Sequence[bytes], random: Random) -> None:
    width = random.choice((2, 4, 8))
    if len(data) >= width:
        at = random.randrange(len(data) - width + 1)
        at -= at % width if random.random() < 0.5 else 0
        data[at : at + width] = (random.choice(NUMBERS) % (1 << 8 * width)).to_bytes(width, "little")


def _cut_off(data: bytearray, _: Sequence[bytes], random: Random) -> None:
    del data[random.randrange(len(data) + 1) :]


def _cut_out(data: bytearray, _: Sequence[bytes], random: Random) -> None:
    at = random.randrange(len(data) + 1)
    del data[at : at + random.randrange(16)]


def _insert(data: bytearray, _: Sequence[bytes], random: Random) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.randbytes(random.randrange(16))


def _splice(data: bytearray, others: Sequence[bytes], random: Random) -> None:
    other = random.choice(others)
    begin, at = random.randrange(len(other) + 1), random.randrange(len(data) + 1)
    part = other[begin : begin + random.randrange(64)]
    data[at : at + len(part)] = part


_MUTATIONS: tuple[Callable[[bytearray, Sequence[bytes], Random], None], ...] = (
    _flip_a_bit, _flip_a_bit, _set_a_byte, _set_a_byte, _set_a_number, _set_a_number,
    _cut_off, _cut_out, _insert, _splice,
)  # fmt: skip
