/* Opens a run, and finds blocks and prefixes in it. Layout: docs/understand/format.md, "Runs".
 *
 * REQUIRES: the GIL, to raise faults as ValueError. Functions return -1 (or FAULT) with the exception set. */

#ifndef TXS_RUN_READER_H
#define TXS_RUN_READER_H

#include "crc32c.h"

enum {
    BLOCK_BYTES = 4096,
    BLOCK_MOST = 16384, /* bytes: entries before the last, the last entry, and restart points each have fewer */
    RESTART_EVERY = 16,
    KEY_BYTES = 4096,
    RECORD_BYTES = 32,
    PREFIX_BYTES = 16,
    TRAILER_BYTES = 64,
    RUN_KIND_BLOCK_TABLE = 1,
    BLOCK_CODEC_NONE = 0,
};
/* Ref kinds; every kind but the first points to a pack. The value of KIND_ERASED no longer exists: its key is neither
 * live nor deleted. */
enum { KIND_TOMBSTONE = 0, KIND_PACK = 1, KIND_FOREIGN = 3, KIND_ERASED = 5 };
enum { NONE = -1, FAULT = -2 };             /* instead of the number of a block or prefix */

typedef struct {
    const uint8_t *data;
    uint64_t seq;     /* the meaning of a stored seq of 0 */
    uint64_t max_seq; /* as stored: 0 in a commit's run */
    uint64_t entries;
    uint32_t blocks, prefixes, packs;
    uint64_t index_at, prefixes_at, packs_at, trailer_at;
} run;

/* One record of the index. The pointers are into the run; everything was checked against its container. */
typedef struct {
    uint64_t offset, max_seq;
    uint32_t length, checksum;
} block_record;

typedef struct {
    const uint8_t *data;
    size_t length;
} span;

static inline span
span_of(PyObject *bytes)
{
    return (span){(const uint8_t *)PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes)};
}

static inline uint16_t
load16(const uint8_t *data)
{
    uint16_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

static inline uint32_t
load32(const uint8_t *data)
{
    uint32_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

static inline uint64_t
load64(const uint8_t *data)
{
    uint64_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

static inline int
is_ref_kind(uint64_t kind)
{
    return kind == KIND_PACK || kind == KIND_TOMBSTONE || kind == KIND_FOREIGN || kind == KIND_ERASED;
}

static inline int
is_live(uint8_t kind)
{
    return kind != KIND_TOMBSTONE && kind != KIND_ERASED;
}

static int
fault(const char *part, uint64_t at, const char *what)
{
    PyErr_Format(PyExc_ValueError, "%s at %llu: %s", part, (unsigned long long)at, what);
    return -1;
}

static int
unknown(const char *part, uint64_t at, const char *registry, unsigned value)
{
    PyErr_Format(PyExc_ValueError, "%s at %llu: unknown %s %u", part, (unsigned long long)at, registry, value);
    return -1;
}

/* Like memcmp, then by length. Compares words, because for short keys a call of memcmp takes longer. */
static inline int
compare(span a, span b)
{
    size_t n = a.length < b.length ? a.length : b.length, at = 0;
    if (n >= 8)
        for (;;) {
            uint64_t x = load64(a.data + at), y = load64(b.data + at);
            if (x != y)
                return __builtin_bswap64(x) < __builtin_bswap64(y) ? -1 : 1;
            if (at == n - 8)
                break;
            at = at + 8 < n - 8 ? at + 8 : n - 8; /* the last word may overlap the one before */
        }
    else
        for (; at < n; at++)
            if (a.data[at] != b.data[at])
                return a.data[at] < b.data[at] ? -1 : 1;
    return (a.length > b.length) - (a.length < b.length);
}

static int
read_long_varint(const uint8_t **at, const uint8_t *end, uint64_t *value)
{
    const uint8_t *next = *at;
    uint64_t result = 0;
    for (int shift = 0; next < end; shift += 7) {
        uint64_t byte = *next++;
        if (shift == 63 && byte > 1)
            return 0;
        result |= (byte & 127) << shift;
        if (byte < 128) {
            *at = next;
            *value = result;
            return byte || !shift;
        }
    }
    return 0;
}

/* Returns 1 and moves `*at` past the varint, or 0 if it is truncated, longer than necessary, or above 64 bits. */
static inline int
read_varint(const uint8_t **at, const uint8_t *end, uint64_t *value)
{
    if (*at == end || **at >= 128)
        return read_long_varint(at, end, value);
    *value = *(*at)++;
    return 1;
}

/* run_open checked the bounds of the records. Their content is checked at each use, because a mapped file can change.
 * */

static inline int
read_first_key(const run *r, uint32_t i, span *key)
{
    const uint8_t *record = r->data + r->index_at + (uint64_t)i * RECORD_BYTES;
    uint64_t at = load32(record + 24), length = load32(record + 28);
    uint64_t keys_at = r->index_at + (uint64_t)r->blocks * RECORD_BYTES;
    if (length < 1 || length > KEY_BYTES || at + length > r->prefixes_at - keys_at)
        return fault("index", r->index_at + (uint64_t)i * RECORD_BYTES, "first key out of bounds");
    *key = (span){r->data + keys_at + at, length};
    return 0;
}

static inline int
read_block_record(const run *r, uint32_t i, block_record *block)
{
    const uint8_t *record = r->data + r->index_at + (uint64_t)i * RECORD_BYTES;
    *block = (block_record){load64(record), load64(record + 16), load32(record + 8), load32(record + 12)};
    if (block->offset > r->index_at || block->length > r->index_at - block->offset)
        return fault("index", r->index_at + (uint64_t)i * RECORD_BYTES, "block out of place");
    return 0;
}

static inline int
read_prefix(const run *r, uint32_t i, span *prefix, uint64_t *seq)
{
    const uint8_t *record = r->data + r->prefixes_at + (uint64_t)i * PREFIX_BYTES;
    uint64_t at = load32(record), length = load32(record + 4);
    uint64_t keys_at = r->prefixes_at + (uint64_t)r->prefixes * PREFIX_BYTES;
    if (length > KEY_BYTES || at + length > r->packs_at - keys_at)
        return fault("prefixes", r->prefixes_at + (uint64_t)i * PREFIX_BYTES, "prefix out of bounds");
    *prefix = (span){r->data + keys_at + at, length};
    *seq = load64(record + 8);
    return 0;
}

/* Returns the pack entry at `*at`, an offset in the run, and moves `*at` past it. */
static int
read_pack(const run *r, uint64_t *at, span *pack)
{
    const uint8_t *next = r->data + *at, *end = r->data + r->trailer_at;
    uint64_t length;
    if (!read_varint(&next, end, &length) || length > (uint64_t)(end - next))
        return fault("packs", *at, "pack out of bounds");
    *pack = (span){next, (size_t)length};
    *at = (uint64_t)(next - r->data) + length;
    return 0;
}

static int
is_bad_seq(const run *r, uint64_t seq)
{
    return seq > r->max_seq || (seq == 0) != (r->max_seq == 0);
}

static int
check_index(const run *r)
{
    uint64_t expected = 0;
    span key, previous = {NULL, 0};
    if ((uint64_t)r->blocks * RECORD_BYTES > r->prefixes_at - r->index_at)
        return fault("index", r->index_at, "too short for its blocks");
    const uint8_t *next_key = r->data + r->index_at + (uint64_t)r->blocks * RECORD_BYTES;
    for (uint32_t i = 0; i < r->blocks; i++) {
        uint64_t at = r->index_at + (uint64_t)i * RECORD_BYTES;
        block_record block;
        if (read_block_record(r, i, &block) < 0)
            return -1;
        if (block.offset != expected)
            return fault("index", at, "block out of place");
        if (block.length > BLOCK_MOST)
            return fault("index", at, "block too long");
        if (read_first_key(r, i, &key) < 0)
            return -1;
        if (key.data != next_key)
            return fault("index", at, "first key out of place");
        if (is_bad_seq(r, block.max_seq))
            return fault("index", at, "bad seq");
        if (compare(key, previous) <= 0)
            return fault("index", at, "keys out of order");
        expected += block.length;
        next_key += key.length;
        previous = key;
    }
    if (expected != r->index_at)
        return fault("index", r->index_at, "blocks do not end where the index begins");
    if (next_key != r->data + r->prefixes_at)
        return fault("index", r->index_at, "first keys do not end where the prefixes begin");
    return 0;
}

static int
check_prefixes(const run *r)
{
    span prefix, previous = {NULL, 0};
    uint64_t seq;
    if ((uint64_t)r->prefixes * PREFIX_BYTES > r->packs_at - r->prefixes_at)
        return fault("prefixes", r->prefixes_at, "too short for their count");
    const uint8_t *next_prefix = r->data + r->prefixes_at + (uint64_t)r->prefixes * PREFIX_BYTES;
    for (uint32_t i = 0; i < r->prefixes; i++) {
        uint64_t at = r->prefixes_at + (uint64_t)i * PREFIX_BYTES;
        if (read_prefix(r, i, &prefix, &seq) < 0)
            return -1;
        if (prefix.data != next_prefix)
            return fault("prefixes", at, "prefix out of place");
        if (is_bad_seq(r, seq))
            return fault("prefixes", at, "bad seq");
        if (prefix.length && prefix.data[prefix.length - 1] != '/')
            return fault("prefixes", at, "prefix does not end in /");
        if (i && compare(prefix, previous) <= 0)
            return fault("prefixes", at, "prefixes out of order");
        next_prefix += prefix.length;
        previous = prefix;
    }
    if (next_prefix != r->data + r->packs_at)
        return fault("prefixes", r->prefixes_at, "prefixes do not end where the packs begin");
    return 0;
}

static int
check_packs(const run *r)
{
    uint64_t at = r->packs_at;
    span pack;
    for (uint32_t i = 0; i < r->packs; i++)
        if (read_pack(r, &at, &pack) < 0)
            return -1;
    return at == r->trailer_at ? 0 : fault("packs", at, "packs do not end where the trailer begins");
}

static int
run_open(run *r, const uint8_t *data, size_t size, uint64_t seq)
{
    if (size < TRAILER_BYTES)
        return fault("trailer", 0, "the run is shorter than a trailer");
    uint64_t at = size - TRAILER_BYTES;
    const uint8_t *trailer = data + at;
    if (memcmp(trailer, "TXRN", 4))
        return fault("trailer", at, "not a run");
    if (load16(trailer + 4) != RUN_KIND_BLOCK_TABLE)
        return unknown("trailer", at, "run kind", load16(trailer + 4));
    if (load16(trailer + 6) != BLOCK_CODEC_NONE)
        return unknown("trailer", at, "block codec", load16(trailer + 6));
    *r = (run){
        .data = data,
        .seq = seq,
        .blocks = load32(trailer + 8),
        .prefixes = load32(trailer + 12),
        .packs = load32(trailer + 16),
        .entries = load64(trailer + 20),
        .max_seq = load64(trailer + 28),
        .index_at = load64(trailer + 36),
        .prefixes_at = load64(trailer + 44),
        .packs_at = load64(trailer + 52),
        .trailer_at = at,
    };
    if (r->index_at > r->prefixes_at || r->prefixes_at > r->packs_at || r->packs_at > at)
        return fault("trailer", at, "offsets out of order");
    if (txs_crc32c(0, data + r->index_at, size - 4 - r->index_at) != load32(trailer + 60))
        return fault("index", r->index_at, "checksum mismatch");
    return check_index(r) < 0 || check_prefixes(r) < 0 || check_packs(r) < 0 ? -1 : 0;
}

/* The last block whose first key is <= `key`. */
static int64_t
find_block(const run *r, span key)
{
    uint32_t low = 0, high = r->blocks;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        span first;
        if (read_first_key(r, middle, &first) < 0)
            return FAULT;
        if (compare(first, key) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return (int64_t)low - 1;
}

static int64_t
find_prefix(const run *r, span wanted, uint64_t *seq)
{
    uint32_t low = 0, high = r->prefixes;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        span prefix;
        if (read_prefix(r, middle, &prefix, seq) < 0)
            return FAULT;
        int order = compare(prefix, wanted);
        if (order == 0)
            return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NONE;
}

/* Iterates over the prefix tombstones that cover a key, shortest first: start with {key, 0}, call until it returns 0.
 * */
typedef struct {
    span key;
    size_t next; /* length of the next prefix to try; the walk ends above the key's length */
    size_t length;
    uint64_t seq; /* of the prefix found, effective */
} prefix_walk;

static int
next_prefix_over(const run *r, prefix_walk *walk)
{
    while (r->prefixes && walk->next <= walk->key.length) {
        size_t length = walk->next, rest = walk->key.length - length;
        const uint8_t *slash = rest ? memchr(walk->key.data + length, '/', rest) : NULL;
        walk->next = slash ? (size_t)(slash - walk->key.data) + 1 : walk->key.length + 1;
        int64_t found = find_prefix(r, (span){walk->key.data, length}, &walk->seq);
        if (found == FAULT)
            return -1;
        if (found != NONE) {
            walk->length = length;
            walk->seq = walk->seq ? walk->seq : r->seq;
            return 1;
        }
    }
    return 0;
}

#endif
