/*
 * The slots that one owner holds: each with a count, and the first key that named it.
 *
 * A hash table with open addressing. Neighbouring chunks have neighbouring slots. The hash multiplies a slot by the
 * golden ratio, which spreads neighbours out: probe sequences stay short, and so does the shift that closes a gap after
 * a removal. A pointer to an entry is valid until the next insertion or removal.
 */

#ifndef TXS_LOCK_HELD_H
#define TXS_LOCK_HELD_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
    void *key; /* NULL: no entry */
    uint32_t slot;
    uint32_t count;
} held_entry;

typedef struct {
    held_entry *entries;
    unsigned bits; /* 2^bits entries, at most three quarters of them used */
    size_t used;
} held_set;

enum { HELD_LEAST_BITS = 4 };

static inline size_t
held_size(const held_set *set)
{
    return set->entries == NULL ? 0 : (size_t)1 << set->bits;
}

static inline size_t
held_home(const held_set *set, uint32_t slot)
{
    return (uint32_t)(slot * 0x9e3779b1u) >> (32 - set->bits);
}

/* The entry of a slot, or the place for it. REQUIRES: the set has entries. */
static inline held_entry *
held_place(const held_set *set, uint32_t slot)
{
    size_t mask = held_size(set) - 1;
    size_t at = held_home(set, slot);
    while (set->entries[at].key != NULL && set->entries[at].slot != slot) {
        at = (at + 1) & mask;
    }
    return &set->entries[at];
}

static inline held_entry *
held_find(const held_set *set, uint32_t slot)
{
    if (set->used == 0) {
        return NULL;
    }
    held_entry *entry = held_place(set, slot);
    return entry->key == NULL ? NULL : entry;
}

/* Makes room for that many more entries. False if there is no memory: the set is unchanged. */
static inline bool
held_reserve(held_set *set, size_t more)
{
    if ((set->used + more) * 4 <= held_size(set) * 3) {
        return true;
    }
    held_set larger = {.bits = HELD_LEAST_BITS, .used = set->used};
    while ((set->used + more) * 4 > ((size_t)1 << larger.bits) * 3) {
        larger.bits++;
    }
    larger.entries = calloc((size_t)1 << larger.bits, sizeof *larger.entries);
    if (larger.entries == NULL) {
        return false;
    }
    for (size_t at = 0; at < held_size(set); at++) {
        if (set->entries[at].key != NULL) {
            *held_place(&larger, set->entries[at].slot) = set->entries[at];
        }
    }
    free(set->entries);
    *set = larger;
    return true;
}

/* REQUIRES: there is room, and no entry of the slot. */
static inline held_entry *
held_insert(held_set *set, uint32_t slot, void *key)
{
    held_entry *entry = held_place(set, slot);
    *entry = (held_entry){.key = key, .slot = slot};
    set->used++;
    return entry;
}

static inline void
held_remove(held_set *set, held_entry *entry)
{
    size_t mask = held_size(set) - 1;
    size_t gap = (size_t)(entry - set->entries);
    for (size_t at = (gap + 1) & mask; set->entries[at].key != NULL; at = (at + 1) & mask) {
        /* The entry may move into the gap unless the gap lies before its home position. */
        if (((at - held_home(set, set->entries[at].slot)) & mask) >= ((at - gap) & mask)) {
            set->entries[gap] = set->entries[at];
            gap = at;
        }
    }
    set->entries[gap].key = NULL;
    set->used--;
}

#endif
