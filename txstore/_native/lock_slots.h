/*
 * Which lock word a key has: the structured hash.
 *
 *     position/c/3/17      prefix "position/c/", coordinates 3, 17
 *     position/0.12        prefix "position/", coordinates 0, 12
 *     position/zarr.json   no coordinates: all of it is prefix
 *
 * The coordinates are the integers at the key's end, at most COORDINATES of them: each has 1 to 18 decimal digits
 * without leading zeros, and stands at the start of the key or behind a `/` or `.`. The prefix is what is left before
 * the coordinates.
 *
 *     position on a circle of 2^64 = hash(prefix) + last coordinate * (2^64 / slots) + sum of the others * MULTIPLIERS
 *     slot                         = the upper log2(slots) bits of it
 *
 * Neighbouring chunks along the last axis have neighbouring slots. So the locks of a tile lie in few cache lines, two
 * disjoint runs of chunks never collide, and range locks can cover a run in one call. The multipliers are fractions of
 * the circle whose multiples stay far apart (golden ratio, e, pi, ...), so the rows of an array cover the circle
 * evenly: of 100,000 chunks of one array few share a word, where with a random hash thousands would. The slot depends
 * on the key alone, never on the shape, because arrays grow. tests/locks/test_locktable.py has known answers that every
 * implementation must give.
 */

#ifndef TXS_LOCK_SLOTS_H
#define TXS_LOCK_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { COORDINATES = 8, COORDINATE_DIGITS = 18, LEAST_SLOT_BITS = 6, MOST_SLOT_BITS = 20 };

#define LOCK_SEED UINT64_C(0x5458534c4f434b53)

/* Multipliers of the coordinates before the last one, nearest first. The last coordinate has none. */
static const uint64_t MULTIPLIERS[COORDINATES] = {
    UINT64_C(0x9e3779b97f4a7c15), /* the golden ratio's fraction */
    UINT64_C(0xb7e151628aed2a6b), /* e */
    UINT64_C(0x243f6a8885a308d3), /* pi */
    UINT64_C(0x6a09e667f3bcc909), /* square roots of 2, 3, 7, 11 */
    UINT64_C(0xbb67ae8584caa73b),
    UINT64_C(0xa54ff53a5f1d36f1),
    UINT64_C(0x510e527fade682d1),
};

static inline uint64_t
mix64(uint64_t value)
{
    value ^= value >> 33;
    value *= UINT64_C(0xff51afd7ed558ccd);
    value ^= value >> 33;
    value *= UINT64_C(0xc4ceb9fe1a85ec53);
    return value ^ value >> 33;
}

/* Up to eight bytes as a little-endian integer. */
static inline uint64_t
load_part(const uint8_t *data, size_t length)
{
    uint64_t word = 0;
    for (size_t i = 0; i < length; i++) {
        word |= (uint64_t)data[i] << 8 * i;
    }
    return word;
}

static inline uint64_t
load_whole(const uint8_t *data)
{
    uint64_t word;
    memcpy(&word, data, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static inline uint64_t
fold_word(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0xff51afd7ed558ccd);
    return hash ^ hash >> 32;
}

/* Eight bytes at a time, the last ones padded with zeros; the length keeps "a" and "a\0" apart. */
static inline uint64_t
hash_prefix(const uint8_t *prefix, size_t length)
{
    uint64_t hash = LOCK_SEED ^ (uint64_t)length * UINT64_C(0x9e3779b97f4a7c15);
    for (; length >= 8; prefix += 8, length -= 8) {
        hash = fold_word(hash, load_whole(prefix));
    }
    return mix64(length == 0 ? hash : fold_word(hash, load_part(prefix, length)));
}

/* Reads the coordinates at the end of a key into their part of its position. Returns the length of the prefix. */
static inline size_t
read_coordinates(const uint8_t *key, size_t length, unsigned slot_bits, uint64_t *position)
{
    uint64_t multiplier = UINT64_C(1) << (64 - slot_bits);
    size_t prefix = length, at = length;
    *position = 0;
    for (unsigned number = 0; number < COORDINATES; number++) {
        uint64_t value = 0, scale = multiplier;
        size_t end = at;
        uint8_t digit;
        while (at > 0 && (digit = (uint8_t)(key[at - 1] - '0')) <= 9) {
            at--;
            value += digit * scale;
            scale *= 10;
        }
        size_t digits = end - at;
        if (digits == 0 || digits > COORDINATE_DIGITS || (digits > 1 && key[at] == '0') ||
            (at > 0 && key[at - 1] != '/' && key[at - 1] != '.')) {
            break;
        }
        *position += value;
        prefix = at;
        if (at == 0) {
            break;
        }
        at--; /* the separator */
        multiplier = MULTIPLIERS[number];
    }
    return prefix;
}

/* memcmp costs more than the few bytes of a prefix do. */
static inline bool
same_bytes(const uint8_t *one, const uint8_t *other, size_t length)
{
    if (length < 8) {
        return load_part(one, length) == load_part(other, length);
    }
    for (size_t at = 0; at + 8 < length; at += 8) {
        if (load_whole(one + at) != load_whole(other + at)) {
            return false;
        }
    }
    return load_whole(one + length - 8) == load_whole(other + length - 8);
}

/* The hash of the last key's prefix: the next key is often in the same array. Zeroed: empty. */
typedef struct {
    const uint8_t *prefix; /* in the last key */
    size_t length;
    uint64_t hash;
} prefix_memo;

/* REQUIRES: slot_bits from LEAST_SLOT_BITS to MOST_SLOT_BITS. A memo of NULL: none. */
static inline uint32_t
slot_of_key(const uint8_t *key, size_t length, unsigned slot_bits, prefix_memo *memo)
{
    uint64_t position;
    length = read_coordinates(key, length, slot_bits, &position);
    if (memo == NULL) {
        position += hash_prefix(key, length);
    } else {
        if (memo->prefix == NULL || memo->length != length || !same_bytes(memo->prefix, key, length)) {
            *memo = (prefix_memo){.prefix = key, .length = length, .hash = hash_prefix(key, length)};
        }
        position += memo->hash;
    }
    return (uint32_t)(position >> (64 - slot_bits));
}

#endif
