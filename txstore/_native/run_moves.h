/* Gives entries of chunks other numbers, and sorts them by their new keys. Semantics: txstore/format/chunk_moves.py.
 *
 * It holds all entries in memory, about 64 bytes and the key for each: numbers in decimal have another order when they
 * change. Functions return -1 with the exception set. */

#ifndef TXS_RUN_MOVES_H
#define TXS_RUN_MOVES_H

#include "run_writer.h"

enum {
    MOST_AXES = 64,
    MOST_DIGITS = 18,
    MOVED_MORE = 20 * MOST_AXES, /* bytes by which a name may get longer: digits and separators */
};

typedef struct {
    const uint8_t *key; /* while entries are added: NULL; the keys move when their memory grows */
    size_t key_at;
    uint64_t offset, length;
    uint32_t key_length, pack, checksum;
    uint8_t kind;
} moved_entry;

/* What is compared first: the beginning of a key behind what all keys share, as a number. */
typedef struct {
    uint64_t begin;
    const moved_entry *entry;
} moved_place;

typedef struct {
    span lead;
    uint8_t separator;
    Py_ssize_t axes;
    Py_buffer targets[MOST_AXES]; /* int64 each: the new number of each old one, -1: none */

    growing keys;
    moved_entry *entries;
    size_t count, room;
} chunk_moves;

/* REQUIRES: `m` is zeroed. `given` is (lead, separator, numbers of the first axis, ...). */
static int
moves_init(chunk_moves *m, PyObject *given)
{
    Py_ssize_t count = PyTuple_Check(given) ? PyTuple_GET_SIZE(given) : 0;
    if (count < 3 || count > MOST_AXES + 2 || !PyBytes_Check(PyTuple_GET_ITEM(given, 0)) ||
        !PyBytes_Check(PyTuple_GET_ITEM(given, 1)) || PyBytes_GET_SIZE(PyTuple_GET_ITEM(given, 1)) != 1) {
        PyErr_SetString(PyExc_TypeError, "moves are a lead, a separator of one byte, and numbers for 1 to 64 axes");
        return -1;
    }
    m->lead = span_of(PyTuple_GET_ITEM(given, 0));
    m->separator = span_of(PyTuple_GET_ITEM(given, 1)).data[0];
    for (Py_ssize_t i = 2; i < count; i++) {
        Py_buffer *targets = &m->targets[m->axes];
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(given, i), targets, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0)
            return -1;
        m->axes++;
        if (targets->itemsize != 8 || targets->ndim != 1 || targets->format == NULL ||
            strchr("lq", targets->format[0]) == NULL) {
            PyErr_SetString(PyExc_TypeError, "the numbers of an axis are int64, in one row");
            return -1;
        }
    }
    return 0;
}

static void
moves_clear(chunk_moves *m)
{
    for (Py_ssize_t i = 0; i < m->axes; i++)
        PyBuffer_Release(&m->targets[i]);
    Py_CLEAR(m->keys.bytes);
    PyMem_Free(m->entries);
}

static int
begins_with(span text, span begin)
{
    return text.length >= begin.length && memcmp(text.data, begin.data, begin.length) == 0;
}

static uint8_t *
write_decimal(uint8_t *at, uint64_t number)
{
    uint8_t digits[20];
    size_t count = 0;
    do
        digits[count++] = (uint8_t)('0' + number % 10);
    while (number /= 10);
    while (count)
        *at++ = digits[--count];
    return at;
}

/* Writes what becomes of a name into `to`, and its length into `length`. 0: it goes away. REQUIRES: `to` has room for
 * MOVED_MORE bytes more than the name has. */
static int
moved_name(const chunk_moves *m, span name, uint8_t *to, size_t *length)
{
    const uint8_t *at = name.data, *end = name.data + name.length;
    int64_t numbers[MOST_AXES];
    int is_chunk = begins_with(name, m->lead), is_kept = 1;
    at += is_chunk ? m->lead.length : 0;
    for (Py_ssize_t i = 0; is_chunk && i < m->axes; i++) {
        const uint8_t *begin = at;
        uint64_t number = 0;
        while (at < end && *at >= '0' && *at <= '9' && at - begin <= MOST_DIGITS)
            number = number * 10 + (uint64_t)(*at++ - '0');
        is_chunk = at > begin && at - begin <= MOST_DIGITS && (*begin != '0' || at - begin == 1);
        if (is_chunk && i + 1 < m->axes) {
            is_chunk = at < end && *at == m->separator;
            at++;
        }
        uint64_t known = (uint64_t)m->targets[i].len / 8;
        numbers[i] = number < known ? (int64_t)load64((const uint8_t *)m->targets[i].buf + 8 * number) : -1;
        is_kept &= numbers[i] >= 0;
    }
    if (!is_chunk || at != end) {
        memcpy(to, name.data, name.length);
        *length = name.length;
        return 1;
    }
    if (!is_kept)
        return 0;
    uint8_t *out = to;
    memcpy(out, m->lead.data, m->lead.length);
    out += m->lead.length;
    for (Py_ssize_t i = 0; i < m->axes; i++) {
        if (i)
            *out++ = m->separator;
        out = write_decimal(out, (uint64_t)numbers[i]);
    }
    *length = (size_t)(out - to);
    return 1;
}

/* Adds an entry under its new key. */
static int
moves_add(chunk_moves *m, span key, uint8_t kind, uint32_t pack, uint64_t offset, uint64_t length, uint32_t checksum)
{
    if (m->count == m->room) {
        size_t room = m->room ? 2 * m->room : 1024;
        moved_entry *entries = PyMem_Resize(m->entries, moved_entry, room);
        if (entries == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        m->entries = entries;
        m->room = room;
    }
    m->entries[m->count++] =
        (moved_entry){NULL, m->keys.size, offset, length, (uint32_t)key.length, pack, checksum, kind};
    return growing_append(&m->keys, key.data, key.length);
}

static int
compare_places(const void *one, const void *other)
{
    const moved_place *a = one, *b = other;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return compare((span){a->entry->key, a->entry->key_length}, (span){b->entry->key, b->entry->key_length});
}

/* Writes the entries in the order of their keys, each of which begins with `shared` bytes that all have in common. */
static int
moves_write(chunk_moves *m, size_t shared, writer *w)
{
    moved_place *places = PyMem_New(moved_place, m->count);
    if (places == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < m->count; i++) {
        moved_entry *entry = &m->entries[i];
        entry->key = (const uint8_t *)PyBytes_AS_STRING(m->keys.bytes) + entry->key_at;
        uint64_t begin = 0;
        for (size_t n = 0; n < 8; n++)
            begin = begin << 8 | (shared + n < entry->key_length ? entry->key[shared + n] : 0);
        places[i] = (moved_place){begin, entry};
    }
    if (m->count) /* without entries there is no memory, which qsort does not take */
        qsort(places, m->count, sizeof *places, compare_places);
    int failed = 0;
    for (size_t i = 0; !failed && i < m->count; i++) {
        const moved_entry *e = places[i].entry;
        span key = {e->key, e->key_length};
        if (i && compare((span){places[i - 1].entry->key, places[i - 1].entry->key_length}, key) == 0) {
            PyErr_SetString(PyExc_ValueError, "two chunks move to one place");
            failed = -1;
        } else
            failed = writer_add(w, key, e->kind, 0, e->pack, e->offset, e->length, e->checksum);
    }
    PyMem_Free(places);
    return failed;
}

#endif
