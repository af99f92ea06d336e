/* A cursor: a position in one run; and the loop that merges several.
 *
 * A cursor checks every block that it enters, and every entry that it reads: lengths, kinds, numbers, order. It stays
 * in its block as long as it can, so that it checks a block once for all successive entries in it.
 *
 * Functions return 1: at an entry; 0: no entry; -1: fault, exception set. After 0 or -1 the caller may only call
 * cursor_seek. REQUIRES: the GIL; the run and `stop` outlive the cursor. */

#ifndef TXS_RUN_CURSOR_H
#define TXS_RUN_CURSOR_H

#include "run_reader.h"

typedef struct {
    const run *run;
    span stop;      /* ends before the first key >= stop; data NULL: never */
    uint64_t since; /* skips entries with seq <= since, and blocks without newer entries */

    int64_t index; /* number of the block entered; NONE: none */
    block_record record;
    const uint8_t *block, *at, *end; /* its begin, the next entry, the end of the entries and begin of the restarts */
    uint32_t restarts;

    uint64_t seq, pack, offset, length; /* the current entry; its seq is effective */
    uint32_t checksum, shared, key_length;
    uint32_t chained; /* successive entries, up to this one, with shortened keys: fewer than RESTART_EVERY */
    uint8_t kind;
    uint8_t key[KEY_BYTES];
} cursor;

static void
cursor_init(cursor *c, const run *r, span stop, uint64_t since)
{
    c->run = r;
    c->stop = stop;
    c->since = since;
    c->index = NONE;
    c->block = c->at = c->end = NULL;
    c->restarts = 0;
    c->key_length = c->chained = 0;
}

static inline span
cursor_key(const cursor *c)
{
    return (span){c->key, c->key_length};
}

static int
cursor_fault(const cursor *c, const char *what)
{
    return fault("block", c->record.offset, what);
}

/* Enter block `i`, before its first entry; keeps the key, so that the order is checked from block to block. */
static int
cursor_load(cursor *c, uint32_t i)
{
    c->index = NONE;
    if (read_block_record(c->run, i, &c->record) < 0)
        return -1;
    c->block = c->run->data + c->record.offset;
    if (txs_crc32c(0, c->block, c->record.length) != c->record.checksum)
        return cursor_fault(c, "checksum mismatch");
    uint64_t length = c->record.length;
    uint64_t count = length >= 4 ? load32(c->block + length - 4) : 0;
    if (count == 0 || 4 + 4 * count >= length || load32(c->block + length - 4 - 4 * count) != 0)
        return cursor_fault(c, "bad restart points");
    c->restarts = (uint32_t)count;
    c->at = c->block;
    c->end = c->block + (length - 4 - 4 * count);
    c->index = i;
    return 0;
}

/* Read the entry at `at`, whose key extends a prefix of the current key. */
static int
cursor_decode(cursor *c)
{
    const uint8_t *at = c->at, *end = c->end;
    uint64_t shared, unshared, seq, pack = 0, offset = 0, length = 0;
    uint32_t checksum = 0;
    if (!read_varint(&at, end, &shared) || !read_varint(&at, end, &unshared) || shared > c->key_length ||
        (c->at == c->block && shared) || unshared > (uint64_t)(end - at) || shared + unshared < 1 ||
        shared + unshared > KEY_BYTES)
        return cursor_fault(c, "bad entry");
    /* Otherwise every entry of a few bytes could expand to a key of 4,096 bytes, through the whole block. */
    uint32_t chained = shared ? c->chained + 1 : 0;
    if (chained == RESTART_EVERY)
        return cursor_fault(c, "bad restart points");
    span suffix = {at, (size_t)unshared};
    if (compare(suffix, (span){c->key + shared, c->key_length - shared}) <= 0)
        return cursor_fault(c, "keys out of order");
    if (c->at == c->block) {
        /* Without this check a seek could end below its target key, and a merge would seek for ever. */
        span first;
        if (read_first_key(c->run, (uint32_t)c->index, &first) < 0)
            return -1;
        if (compare(suffix, first))
            return cursor_fault(c, "first key differs from the index");
    }
    at += unshared;
    if (at == end)
        return cursor_fault(c, "bad entry");
    uint8_t kind = *at++;
    if (!is_ref_kind(kind))
        return unknown("block", c->record.offset, "ref kind", kind);
    if (!read_varint(&at, end, &seq) || (seq == 0) != (c->run->max_seq == 0) || seq > c->record.max_seq)
        return cursor_fault(c, "bad entry");
    if (kind != KIND_TOMBSTONE) {
        if (!read_varint(&at, end, &pack) || !read_varint(&at, end, &offset) || !read_varint(&at, end, &length) ||
            end - at < 4)
            return cursor_fault(c, "bad entry");
        if (pack > c->run->packs)
            return cursor_fault(c, "pack number out of range");
        checksum = load32(at);
        at += 4;
    }
    memcpy(c->key + shared, suffix.data, suffix.length);
    c->key_length = (uint32_t)(shared + unshared);
    c->shared = (uint32_t)shared;
    c->chained = chained;
    c->kind = kind;
    c->seq = seq ? seq : c->run->seq;
    c->pack = pack;
    c->offset = offset;
    c->length = length;
    c->checksum = checksum;
    c->at = at;
    return 0;
}

/* Go to the entry of a restart point of the block entered. */
static int
cursor_restart(cursor *c, uint32_t number)
{
    uint32_t at = load32(c->end + 4 * (size_t)number);
    if (at >= (uint64_t)(c->end - c->block))
        return cursor_fault(c, "bad restart points");
    c->at = c->block + at;
    c->key_length = 0;
    return cursor_decode(c);
}

/* Go to the first entry of block `i` whose key is >= `key`. 0: none, and the block is exhausted. */
static int
cursor_search(cursor *c, uint32_t i, span key)
{
    if (c->index != i && cursor_load(c, i) < 0)
        return -1;
    uint32_t low = 0, high = c->restarts - 1;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (cursor_restart(c, middle) < 0)
            return -1;
        if (compare(cursor_key(c), key) <= 0)
            low = middle;
        else
            high = middle - 1;
    }
    if (cursor_restart(c, low) < 0)
        return -1;
    while (compare(cursor_key(c), key) < 0) {
        if (c->at == c->end)
            return 0;
        if (cursor_decode(c) < 0)
            return -1;
    }
    return 1;
}

static inline int
reaches_stop(const cursor *c, span key)
{
    return c->stop.data && compare(key, c->stop) >= 0;
}

static inline int
is_block_newer(const run *r, uint32_t i, uint64_t since)
{
    block_record record;
    if (read_block_record(r, i, &record) < 0)
        return -1;
    return (record.max_seq ? record.max_seq : r->seq) > since;
}

static int
cursor_wants(const cursor *c, uint32_t i)
{
    return is_block_newer(c->run, i, c->since);
}

/* Enter block `i`, or the next block after it with newer entries. */
static int
cursor_enter(cursor *c, int64_t i)
{
    int wanted = 0;
    for (; i < c->run->blocks; i++)
        if ((wanted = cursor_wants(c, (uint32_t)i)))
            break;
    if (wanted <= 0)
        return wanted;
    span first;
    if (read_first_key(c->run, (uint32_t)i, &first) < 0)
        return -1;
    if (reaches_stop(c, first))
        return 0;
    return cursor_load(c, (uint32_t)i) < 0 ? -1 : 1;
}

/* Go to the entry after this one. */
static int
cursor_advance(cursor *c)
{
    for (;;) {
        if (c->at == c->end) {
            int entered = cursor_enter(c, c->index + 1);
            if (entered <= 0)
                return entered;
        }
        if (cursor_decode(c) < 0)
            return -1;
        if (reaches_stop(c, cursor_key(c)))
            return 0;
        if (c->seq > c->since)
            return 1;
    }
}

/* Go to the first entry whose key is >= `key`. */
static int
cursor_seek(cursor *c, span key)
{
    if (reaches_stop(c, key))
        return 0;
    int64_t i = find_block(c->run, key);
    if (i == FAULT)
        return -1;
    int wanted = i == NONE ? 0 : cursor_wants(c, (uint32_t)i);
    if (wanted < 0)
        return -1;
    if (!wanted) {
        c->key_length = 0;
        int entered = cursor_enter(c, i + 1);
        return entered > 0 ? cursor_advance(c) : entered;
    }
    int found = cursor_search(c, (uint32_t)i, key);
    if (found < 0)
        return -1;
    if (!found)
        return cursor_advance(c);
    if (reaches_stop(c, cursor_key(c)))
        return 0;
    return c->seq > c->since ? 1 : cursor_advance(c);
}

/* The newest entry of each key that no prefix tombstone of a newer run hides, ascending, over runs newest first. */

typedef struct {
    cursor cursor;
    int live;     /* the cursor is at an entry */
    int standing; /* the cursor is at the key handed out last */
} source;

typedef struct {
    Py_ssize_t count;
    source *sources; /* one for each run */
    Py_ssize_t newest;
} merger;

static int
merger_open(merger *m, const run *const *runs, Py_ssize_t count, span start, span stop)
{
    *m = (merger){count, PyMem_New(source, count), 0};
    if (m->sources == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        source *s = &m->sources[i];
        cursor_init(&s->cursor, runs[i], stop, 0);
        s->live = cursor_seek(&s->cursor, start);
        s->standing = 0;
        if (s->live < 0)
            return -1;
    }
    return 0;
}

static void
merger_close(merger *m)
{
    PyMem_Free(m->sources);
}

/* If a run newer than `newest` hides its key, moves the cursors of all runs older than that one past the prefix. It
 * seeks, because a deleted subtree may be large. 1: the key was hidden. */
static int
merger_pass_hidden(merger *m, Py_ssize_t newest)
{
    span key = cursor_key(&m->sources[newest].cursor);
    for (Py_ssize_t hider = 0; hider < newest; hider++) {
        prefix_walk walk = {.key = key};
        int hidden = next_prefix_over(m->sources[hider].cursor.run, &walk);
        if (hidden < 0)
            return -1;
        if (!hidden)
            continue;
        uint8_t after[KEY_BYTES]; /* the first key above all keys with the prefix: its last / becomes 0 */
        span past = {after, walk.length};
        if (walk.length) {
            memcpy(after, key.data, walk.length);
            after[walk.length - 1] = '/' + 1;
        }
        for (Py_ssize_t i = hider + 1; i < m->count; i++) {
            source *s = &m->sources[i];
            if (!s->live)
                continue;
            if (walk.length == 0)
                s->live = 0;
            else if (compare(cursor_key(&s->cursor), past) < 0 && (s->live = cursor_seek(&s->cursor, past)) < 0)
                return -1;
        }
        return 1;
    }
    return 0;
}

/* 1: sources[newest].cursor is at the entry. */
static int
merger_next(merger *m)
{
    for (;;) {
        Py_ssize_t newest = NONE;
        for (Py_ssize_t i = 0; i < m->count; i++) {
            source *s = &m->sources[i];
            if (s->standing) {
                s->standing = 0;
                if ((s->live = cursor_advance(&s->cursor)) < 0)
                    return -1;
            }
            if (s->live &&
                (newest == NONE || compare(cursor_key(&s->cursor), cursor_key(&m->sources[newest].cursor)) < 0))
                newest = i;
        }
        if (newest == NONE)
            return 0;
        int hidden = merger_pass_hidden(m, newest);
        if (hidden < 0)
            return -1;
        if (hidden)
            continue;
        span key = cursor_key(&m->sources[newest].cursor);
        for (Py_ssize_t i = newest; i < m->count; i++)
            m->sources[i].standing = m->sources[i].live && compare(cursor_key(&m->sources[i].cursor), key) == 0;
        m->newest = newest;
        return 1;
    }
}

#endif
