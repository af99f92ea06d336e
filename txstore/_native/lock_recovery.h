/*
 * The lock table as one process sees it, and how it recovers dead members. No Python.
 *
 * To recover a member: lock its LIVE byte, make its words dirty, clear `in_use`, unlock the byte. A process must hold
 * the byte while it changes the words: if it only tested the byte, a new member could take the number in between. If
 * the recovering process is killed, the member is still dead and in use, and another process starts over.
 *
 * A word can name a living member and a transaction that this member does not have, either through damage or because a
 * sibling parked the word for a transaction that has just ended. So each member publishes the range of the numbers of
 * its living transactions: before it begins one, and after it has released all that one held. Numbers are handed out in
 * a circle of NUMBERS.
 */

#ifndef TXS_LOCK_RECOVERY_H
#define TXS_LOCK_RECOVERY_H

#include "lock_file.h"
#include "lock_words.h"

typedef struct {
    const char *path; /* owned by the caller */
    uint32_t slots;
    unsigned slot_bits;
    uint64_t device, inode;
    size_t length;
    lock_header *header; /* the mapping */
    member_record *members;
    uint32_t *words;
    tracked_fd live; /* holds our LIVE byte; not in use: not a member, or no longer one, after a fork */
    uint32_t member;
    uint64_t incarnation;
    bool recovering; /* excludes threads: they share a descriptor, so byte locks can't */
} lock_table;

static inline uint32_t
own_member(const lock_table *table)
{
    return table->live.fd < 0 ? 0 : table->member;
}

/* Makes a dead member's words dirty. REQUIRES: the caller holds its LIVE byte. */
static inline void
sweep_words(lock_table *table, uint32_t dead)
{
    for (uint32_t slot = 0; slot < table->slots; slot++) {
        uint32_t *word = &table->words[slot];
        uint32_t value = __atomic_load_n(word, __ATOMIC_RELAXED);
        while (member_of(value) == dead) {
            if (word_swap(word, &value, WORD_DIRTY)) {
                if ((value & WORD_WAITERS) != 0) {
                    word_wake(word, INT_MAX, SLEEPS_ANY);
                }
                break;
            }
        }
    }
}

static inline bool
is_alive(const lock_table *table, int fd, uint32_t member)
{
    return member == own_member(table) || bytes_are_held(fd, LIVE_BYTE(member), 1);
}

/* Recovers a member if it is dead. False: it lives, or another thread or process is recovering a member. */
static inline bool
recover_member(lock_table *table, int fd, uint32_t member)
{
    if (!is_file(fd, table->device, table->inode)) {
        return false; /* other code closed and reused the descriptor: every member would seem to be dead */
    }
    if (__atomic_exchange_n(&table->recovering, true, __ATOMIC_ACQUIRE)) {
        return false;
    }
    bool is_dead = !is_alive(table, fd, member) && take_byte(fd, LIVE_BYTE(member)) == 0;
    if (is_dead) {
        sweep_words(table, member);
        __atomic_store_n(&table->members[member].in_use, 0, __ATOMIC_RELEASE);
        give_byte(fd, LIVE_BYTE(member));
    }
    __atomic_store_n(&table->recovering, false, __ATOMIC_RELEASE);
    return is_dead;
}

/* The range of transaction numbers in a member's record: 0 if it has none, because no number is 0. */
static inline uint64_t
numbers_between(uint32_t oldest, uint32_t newest)
{
    return (uint64_t)oldest << 32 | newest;
}

static inline bool
is_between(uint64_t numbers, uint32_t number)
{
    uint32_t oldest = (uint32_t)(numbers >> 32), newest = (uint32_t)numbers;
    return number != 0 && numbers != 0 && ((number - oldest) & (NUMBERS - 1)) <= ((newest - oldest) & (NUMBERS - 1));
}

/* REQUIRES: this process is a member. */
static inline void
publish_numbers(lock_table *table, uint64_t numbers)
{
    __atomic_store_n(&table->members[table->member].numbers, numbers, __ATOMIC_SEQ_CST);
}

/* Makes a word dirty that names a living member but none of its transactions. True: the caller reads it again. */
static inline bool
recover_word(lock_table *table, uint32_t *word, uint32_t seen)
{
    uint32_t owner = seen & WORD_OWNER;
    if (is_between(__atomic_load_n(&table->members[member_of(seen)].numbers, __ATOMIC_SEQ_CST), number_of(seen))) {
        return false;
    }
    while ((seen & WORD_OWNER) == owner) {
        if (word_swap(word, &seen, WORD_DIRTY)) {
            if ((seen & WORD_WAITERS) != 0) {
                word_wake(word, INT_MAX, SLEEPS_ANY);
            }
            break;
        }
    }
    return true;
}

/* A word_recover. REQUIRES: this process is a member. */
static inline bool
recover_holder(void *context, uint32_t *word, uint32_t seen)
{
    lock_table *table = context;
    uint32_t member = member_of(seen);
    if (member == 0) {
        return false;
    }
    if (member != own_member(table)) {
        if (recover_member(table, table->live.fd, member)) {
            return true;
        }
        if (!is_alive(table, table->live.fd, member)) {
            return false; /* another process is recovering it */
        }
    }
    return recover_word(table, word, seen);
}

#endif
