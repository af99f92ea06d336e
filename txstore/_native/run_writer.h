/* Writes a run: entries in ascending order of key, then prefixes, then packs, then writer_finish.
 *
 * The writer puts blocks straight into the bytes object that it returns at the end, which grows by a quarter at a time.
 * It collects the index (about 60 bytes for each block of 4 KiB), the prefixes and the packs separately. A sink
 * receives the blocks whenever PIECE_BYTES are complete, so that only the index, prefixes and packs grow with the run.
 *
 * Functions return -1 with the exception set. After an error, and after writer_finish, the caller calls writer_clear.
 * */

#ifndef TXS_RUN_WRITER_H
#define TXS_RUN_WRITER_H

#include "run_reader.h"

typedef struct {
    PyObject *bytes; /* size bytes of it are filled; NULL while empty */
    size_t size;
} growing;

enum { PIECE_BYTES = 1 << 20 };

typedef struct {
    growing out;
    PyObject *sink;   /* borrowed; NULL: the run is returned as one object */
    uint64_t handed;  /* bytes passed to the sink; the content of `out` follows them */
    growing records, first_keys;       /* the future index */
    growing prefixes, prefix_keys;     /* the future prefixes */
    growing packs;
    uint64_t entries, max_seq;
    uint32_t prefix_count, pack_count;

    size_t block_at; /* offset of the open block in `out` */
    uint32_t block_entries;
    uint64_t block_seq;
    uint32_t restart_count;
    uint32_t restarts[BLOCK_BYTES / RESTART_EVERY + 1];

    size_t first_length, key_length;
    uint8_t first[KEY_BYTES]; /* the first key of the open block */
    uint8_t key[KEY_BYTES];   /* the previous key */
} writer;

/* Returns room for n more bytes. The caller fills them and adds their number to `size`. */
static inline uint8_t *
growing_room(growing *g, size_t n)
{
    size_t room = g->bytes ? (size_t)PyBytes_GET_SIZE(g->bytes) : 0;
    if (n > room - g->size) {
        size_t want = g->size + g->size / 4 + n;
        if (want > (size_t)PY_SSIZE_T_MAX - 64) {
            PyErr_NoMemory();
            return NULL;
        }
        if (g->bytes == NULL)
            g->bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)want);
        else
            _PyBytes_Resize(&g->bytes, (Py_ssize_t)want);
        if (g->bytes == NULL)
            return NULL;
    }
    return (uint8_t *)PyBytes_AS_STRING(g->bytes) + g->size;
}

static int
growing_append(growing *g, const void *data, size_t n)
{
    if (n == 0)
        return 0;
    uint8_t *room = growing_room(g, n);
    if (room == NULL)
        return -1;
    memcpy(room, data, n);
    g->size += n;
    return 0;
}

static int
growing_append_all(growing *g, const growing *other)
{
    return other->size ? growing_append(g, PyBytes_AS_STRING(other->bytes), other->size) : 0;
}

static inline uint8_t *
write_varint(uint8_t *at, uint64_t value)
{
    for (; value >= 128; value >>= 7)
        *at++ = (uint8_t)(value | 128);
    *at++ = (uint8_t)value;
    return at;
}

static inline uint8_t *
write16(uint8_t *at, uint16_t value)
{
    memcpy(at, &value, sizeof value);
    return at + sizeof value;
}

static inline uint8_t *
write32(uint8_t *at, uint32_t value)
{
    memcpy(at, &value, sizeof value);
    return at + sizeof value;
}

static inline uint8_t *
write64(uint8_t *at, uint64_t value)
{
    memcpy(at, &value, sizeof value);
    return at + sizeof value;
}

static int
too_large(void)
{
    PyErr_SetString(PyExc_OverflowError, "run too large");
    return -1;
}

static void
writer_init(writer *w, PyObject *sink)
{
    memset(w, 0, offsetof(writer, first));
    w->sink = sink;
}

/* Returns the content of `out` and empties it. */
static PyObject *
writer_take(writer *w)
{
    if (_PyBytes_Resize(&w->out.bytes, (Py_ssize_t)w->out.size) < 0)
        return NULL;
    PyObject *taken = w->out.bytes;
    w->handed += w->out.size;
    w->out = (growing){0};
    return taken;
}

/* REQUIRES: a sink, and content in `out` that ends with a block. */
static int
writer_hand_over(writer *w)
{
    PyObject *piece = writer_take(w);
    if (piece == NULL)
        return -1;
    w->block_at = 0;
    PyObject *answer = PyObject_CallOneArg(w->sink, piece);
    Py_DECREF(piece);
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 0;
}

static void
writer_clear(writer *w)
{
    Py_CLEAR(w->out.bytes);
    Py_CLEAR(w->records.bytes);
    Py_CLEAR(w->first_keys.bytes);
    Py_CLEAR(w->prefixes.bytes);
    Py_CLEAR(w->prefix_keys.bytes);
    Py_CLEAR(w->packs.bytes);
}

static int
writer_close_block(writer *w)
{
    if (w->block_entries == 0)
        return 0;
    if (w->first_keys.size > UINT32_MAX)
        return too_large();
    uint8_t *at = growing_room(&w->out, 4 * (size_t)w->restart_count + 4);
    if (at == NULL)
        return -1;
    for (uint32_t i = 0; i < w->restart_count; i++)
        at = write32(at, w->restarts[i]);
    at = write32(at, w->restart_count);
    const uint8_t *block = (const uint8_t *)PyBytes_AS_STRING(w->out.bytes) + w->block_at;
    size_t length = (size_t)(at - block);
    uint8_t *record = growing_room(&w->records, RECORD_BYTES);
    if (record == NULL)
        return -1;
    record = write64(record, w->handed + w->block_at);
    record = write32(record, (uint32_t)length);
    record = write32(record, txs_crc32c(0, block, length));
    record = write64(record, w->block_seq);
    record = write32(record, (uint32_t)w->first_keys.size);
    write32(record, (uint32_t)w->first_length);
    w->records.size += RECORD_BYTES;
    if (growing_append(&w->first_keys, w->first, w->first_length) < 0)
        return -1;
    w->entries += w->block_entries;
    w->max_seq = w->block_seq > w->max_seq ? w->block_seq : w->max_seq;
    w->block_at = w->out.size = w->block_at + length;
    w->block_entries = w->restart_count = 0;
    w->block_seq = 0;
    return w->sink && w->out.size >= PIECE_BYTES ? writer_hand_over(w) : 0;
}

/* REQUIRES: a key of 1 to KEY_BYTES bytes, above the previous key. A tombstone has only a seq. */
static int
writer_add(writer *w, span key, uint8_t kind, uint64_t seq, uint64_t pack, uint64_t offset, uint64_t length,
           uint32_t checksum)
{
    uint8_t *begin = growing_room(&w->out, KEY_BYTES + 64);
    if (begin == NULL)
        return -1;
    size_t shared = 0;
    if (w->block_entries % RESTART_EVERY == 0) {
        w->restarts[w->restart_count++] = (uint32_t)(w->out.size - w->block_at);
        if (w->block_entries == 0) {
            memcpy(w->first, key.data, key.length);
            w->first_length = key.length;
        }
    } else {
        size_t most = key.length < w->key_length ? key.length : w->key_length;
        while (shared < most && key.data[shared] == w->key[shared])
            shared++;
    }
    uint8_t *at = write_varint(begin, shared);
    at = write_varint(at, key.length - shared);
    memcpy(at, key.data + shared, key.length - shared);
    at += key.length - shared;
    *at++ = kind;
    at = write_varint(at, seq);
    if (kind != KIND_TOMBSTONE) {
        at = write_varint(at, pack);
        at = write_varint(at, offset);
        at = write_varint(at, length);
        at = write32(at, checksum);
    }
    w->out.size += (size_t)(at - begin);
    memcpy(w->key + shared, key.data + shared, key.length - shared);
    w->key_length = key.length;
    w->block_entries++;
    w->block_seq = seq > w->block_seq ? seq : w->block_seq;
    return w->out.size - w->block_at >= BLOCK_BYTES ? writer_close_block(w) : 0;
}

/* REQUIRES: ascending order. */
static int
writer_add_prefix(writer *w, span prefix, uint64_t seq)
{
    if (w->prefix_keys.size > UINT32_MAX || w->prefix_count == UINT32_MAX)
        return too_large();
    uint8_t *record = growing_room(&w->prefixes, PREFIX_BYTES);
    if (record == NULL)
        return -1;
    record = write32(record, (uint32_t)w->prefix_keys.size);
    record = write32(record, (uint32_t)prefix.length);
    write64(record, seq);
    w->prefixes.size += PREFIX_BYTES;
    w->prefix_count++;
    w->max_seq = seq > w->max_seq ? seq : w->max_seq;
    return growing_append(&w->prefix_keys, prefix.data, prefix.length);
}

static int
writer_add_pack(writer *w, span pack)
{
    uint8_t *begin = growing_room(&w->packs, pack.length + 10);
    if (begin == NULL)
        return -1;
    uint8_t *at = write_varint(begin, pack.length);
    memcpy(at, pack.data, pack.length);
    w->packs.size += (size_t)(at - begin) + pack.length;
    w->pack_count++;
    return 0;
}

/* Returns the run, or None if a sink has received it. */
static PyObject *
writer_finish(writer *w)
{
    if (writer_close_block(w) < 0)
        return NULL;
    uint64_t blocks = w->records.size / RECORD_BYTES;
    if (blocks > UINT32_MAX) {
        too_large();
        return NULL;
    }
    growing *out = &w->out;
    size_t meta = out->size;
    if (growing_append_all(out, &w->records) < 0 || growing_append_all(out, &w->first_keys) < 0)
        return NULL;
    uint64_t prefixes_at = w->handed + out->size;
    if (growing_append_all(out, &w->prefixes) < 0 || growing_append_all(out, &w->prefix_keys) < 0)
        return NULL;
    uint64_t packs_at = w->handed + out->size;
    if (growing_append_all(out, &w->packs) < 0)
        return NULL;
    uint8_t *trailer = growing_room(out, TRAILER_BYTES);
    if (trailer == NULL)
        return NULL;
    memcpy(trailer, "TXRN", 4);
    uint8_t *at = write16(trailer + 4, RUN_KIND_BLOCK_TABLE);
    at = write16(at, BLOCK_CODEC_NONE);
    at = write32(at, (uint32_t)blocks);
    at = write32(at, w->prefix_count);
    at = write32(at, w->pack_count);
    at = write64(at, w->entries);
    at = write64(at, w->max_seq);
    at = write64(at, w->handed + meta);
    at = write64(at, prefixes_at);
    at = write64(at, packs_at);
    const uint8_t *checked = (const uint8_t *)PyBytes_AS_STRING(out->bytes) + meta;
    write32(at, txs_crc32c(0, checked, (size_t)(at - checked)));
    out->size += TRAILER_BYTES;
    if (w->sink == NULL)
        return writer_take(w);
    return writer_hand_over(w) < 0 ? NULL : Py_NewRef(Py_None);
}

#endif
