/*
 * One lock word, shared by processes: its states, and every change of it. Knows nothing of files or Python.
 *
 *      31        30        29 ........ 19   18 ................. 1   0
 *     +---------+---------+--------------+-------------------------+--------+
 *     | waiters | hungry  | member       | transaction             | parked |
 *     +---------+---------+--------------+-------------------------+--------+
 *                          `-------------- the owner -------------------------'
 *
 *     member 0                free; "dirty" if the rest of the owner is not 0: the last holder died holding it
 *     parked 0                held by that transaction
 *     parked 1                kept for that transaction: only its sibling processes may take it
 *     waiters                 a thread may sleep on the word: the releaser wakes one
 *     hungry                  a waiter has waited for PATIENCE: newcomers must not overtake it
 *
 * A thread that finds a word busy sleeps on it (futex) in slices, and wakes at the end of each slice by itself: a
 * killed holder wakes no waiter, and a waiter killed after it was woken passes no wake-up on. After each slice the
 * thread checks whether the holder is alive. Then the caller gets control, to check for signals.
 *
 * FAIRNESS. A word released with `hungry` set stays reserved (free, with waiters and hungry set), and the releaser
 * wakes one hungry waiter. That waiter clears `hungry` as it takes the word. A hungry waiter may be dead, so the
 * reservation stops a newcomer for at most PATIENCE: then the newcomer is hungry itself. A caller that only tries may
 * overtake: otherwise a dead waiter would make it fail for ever.
 *
 * Three rules that must hold: a word is taken from an owner only by compare-and-swap; only the process that holds a
 * dead member's LIVE byte changes that member's words (lock_members.h); a waiter that stops waiting passes on the
 * wake-up that it may have received.
 */

#ifndef TXS_LOCK_WORDS_H
#define TXS_LOCK_WORDS_H

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WORD_WAITERS 0x80000000u
#define WORD_HUNGRY 0x40000000u
#define WORD_OWNER 0x3fffffffu
#define WORD_PARKED 1u
#define WORD_FREE 0u
#define WORD_DIRTY 1u

enum { MEMBER_SHIFT = 19, NUMBERS = 1 << (MEMBER_SHIFT - 1) };

/* Nanoseconds of CLOCK_MONOTONIC. */
#define MILLISECOND INT64_C(1000000)
#define FOR_EVER INT64_MAX
#define PATIENCE (2 * MILLISECOND)
#define FIRST_SLICE (2 * MILLISECOND)
#define LAST_SLICE (20 * MILLISECOND)

/* About the time that a holder needs just to release: less than a waiter needs to go to sleep. */
enum { SPINS = 40 };

/* The kind of sleeper that a wake-up is for. */
enum { SLEEPS_PATIENT = 1u, SLEEPS_HUNGRY = 2u, SLEEPS_ANY = ~0u };

typedef enum {
    WORD_TAKEN, /* it is ours now */
    WORD_HELD,  /* it was ours already */
    WORD_BUSY,  /* another owner holds it */
    WORD_AGAIN, /* a slice is over, or a signal came: call again, or give up */
    WORD_LATE,  /* the deadline has passed */
} word_outcome;

/* The owner that asks for words: its owner bits, and the bits under which its transaction may have parked words. */
typedef struct {
    uint32_t me;
    const uint32_t *siblings;
    size_t sibling_count;
} word_asker;

/* Checks whether the owner seen in a word is gone, and if so makes the word dirty. True: the caller should read the
 * word again. */
typedef bool (*word_recover)(void *context, uint32_t *word, uint32_t seen);

/* One wait, over all of its slices. */
typedef struct {
    uint32_t *word;
    const word_asker *asker;
    word_recover recover;
    void *context;
    int64_t deadline;
    int64_t began, slice;
    uint32_t taken_from; /* the owner before us */
    bool hungry, slept, woken;
} word_wait;

static inline int64_t
now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline uint32_t
word_load(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* On failure, `*seen` is the word's actual value. */
static inline bool
word_swap(uint32_t *word, uint32_t *seen, uint32_t value)
{
    return __atomic_compare_exchange_n(word, seen, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static inline uint32_t
member_of(uint32_t value)
{
    return (value & WORD_OWNER) >> MEMBER_SHIFT;
}

/* The number, within its member, of the transaction that owns the word. */
static inline uint32_t
number_of(uint32_t value)
{
    return (value >> 1) & (NUMBERS - 1);
}

static inline bool
is_free(uint32_t value)
{
    return member_of(value) == 0;
}

static inline bool
is_dirty(uint32_t owner)
{
    return owner != WORD_FREE && is_free(owner);
}

static inline bool
may_take(const word_asker *asker, uint32_t value)
{
    if (is_free(value)) {
        return true;
    }
    uint32_t owner = value & WORD_OWNER;
    if ((owner & WORD_PARKED) == 0) {
        return false;
    }
    if (owner == (asker->me | WORD_PARKED)) {
        return true;
    }
    for (size_t i = 0; i < asker->sibling_count; i++) {
        if (owner == asker->siblings[i]) {
            return true;
        }
    }
    return false;
}

/* Returns 0 if woken, else the errno: EAGAIN (the word has changed), ETIMEDOUT, EINTR. */
static inline int
word_sleep(const uint32_t *word, uint32_t value, int64_t until, uint32_t sleeps)
{
    struct timespec when = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    return syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, &when, NULL, sleeps) == 0 ? 0 : errno;
}

/* Returns the number of threads that it woke. */
static inline long
word_wake(const uint32_t *word, int count, uint32_t sleeps)
{
    return syscall(SYS_futex, word, FUTEX_WAKE_BITSET, count, NULL, NULL, sleeps);
}

static inline void
word_spin(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Takes a word without waiting. `overtake`: also a word that is reserved for a hungry waiter. */
static inline word_outcome
word_take(uint32_t *word, const word_asker *asker, bool overtake, uint32_t *taken_from)
{
    uint32_t value = word_load(word);
    for (;;) {
        uint32_t owner = value & WORD_OWNER;
        if (owner == asker->me) {
            return WORD_HELD;
        }
        if (!may_take(asker, value) || (!overtake && (value & WORD_HUNGRY) != 0)) {
            return WORD_BUSY;
        }
        if (word_swap(word, &value, asker->me | (value & ~WORD_OWNER))) {
            *taken_from = owner;
            return WORD_TAKEN;
        }
    }
}

/* Releases a word: sets it to `left`, WORD_FREE or WORD_DIRTY. False if `owner` no longer holds it. */
static inline bool
word_release(uint32_t *word, uint32_t owner, uint32_t left)
{
    uint32_t value = word_load(word), reserved = left | WORD_WAITERS | WORD_HUNGRY;
    do {
        if ((value & WORD_OWNER) != owner) {
            return false;
        }
    } while (!word_swap(word, &value, (value & WORD_HUNGRY) != 0 ? reserved : left));
    if ((value & WORD_HUNGRY) != 0) {
        if (word_wake(word, 1, SLEEPS_HUNGRY) > 0) {
            return true;
        }
        /* No hungry waiter sleeps: each has stopped waiting, has died, or is about to see that the word changed. */
        if (!word_swap(word, &reserved, left)) {
            return true;
        }
    }
    if ((value & (WORD_HUNGRY | WORD_WAITERS)) != 0) {
        word_wake(word, 1, SLEEPS_ANY);
    }
    return true;
}

/* Releases a word to the owners that may take words parked as `parked`. Wakes all sleepers: each checks if it may. */
static inline bool
word_park(uint32_t *word, uint32_t owner, uint32_t parked)
{
    uint32_t value = word_load(word);
    do {
        if ((value & WORD_OWNER) != owner) {
            return false;
        }
    } while (!word_swap(word, &value, parked | (value & ~WORD_OWNER)));
    if ((value & WORD_WAITERS) != 0) {
        word_wake(word, INT_MAX, SLEEPS_ANY);
    }
    return true;
}

/* Stops waiting. If we were woken to take the word, no other waiter was: wake another one. */
static inline void
word_give_up(const word_wait *wait)
{
    if (!wait->slept) {
        return;
    }
    uint32_t value = word_load(wait->word);
    while (is_free(value)) {
        if ((value & ~WORD_OWNER) == 0 || word_swap(wait->word, &value, value & WORD_OWNER)) {
            word_wake(wait->word, 1, SLEEPS_ANY);
            return;
        }
    }
}

static inline void
word_wait_begin(word_wait *wait, uint32_t *word, const word_asker *asker, int64_t deadline)
{
    *wait = (word_wait){.word = word, .asker = asker, .deadline = deadline, .slice = FIRST_SLICE};
}

/* Waits for the word, one slice at most. Never returns WORD_BUSY. After WORD_AGAIN, a caller that stops waiting must
 * call word_give_up. */
static inline word_outcome
word_wait_slice(word_wait *wait)
{
    uint32_t *word = wait->word;
    uint32_t value = word_load(word);
    int spins = SPINS;
    int64_t until = 0;
    for (;;) {
        uint32_t owner = value & WORD_OWNER;
        if (owner == wait->asker->me) {
            return WORD_HELD;
        }
        bool takeable = may_take(wait->asker, value);
        if (takeable && ((value & WORD_HUNGRY) == 0 || wait->hungry)) {
            /* Other threads may still sleep: the releaser cleared the waiters bit to wake this one. */
            uint32_t waiters = wait->slept ? WORD_WAITERS : value & WORD_WAITERS;
            if (word_swap(word, &value, wait->asker->me | waiters)) {
                wait->taken_from = owner;
                return WORD_TAKEN;
            }
            continue;
        }
        if (spins > 0) {
            spins--;
            word_spin();
            value = word_load(word);
            continue;
        }
        int64_t now = now_ns();
        if (now >= wait->deadline) {
            word_give_up(wait);
            return WORD_LATE;
        }
        if (wait->began == 0) {
            wait->began = now;
        }
        if (until == 0) {
            until = now + wait->slice < wait->deadline ? now + wait->slice : wait->deadline;
        } else if (now >= until) {
            return WORD_AGAIN;
        }
        if (now - wait->began >= PATIENCE) {
            wait->hungry = true;
        }
        if (!takeable) {
            /* A word parked for other owners is free when their transaction ends: hunger can't make that sooner. */
            bool for_others = (owner & WORD_PARKED) != 0;
            uint32_t wanted = value | WORD_WAITERS | (wait->hungry && !for_others ? WORD_HUNGRY : 0);
            if (wanted != value && !word_swap(word, &value, wanted)) {
                continue;
            }
            value = wanted;
            /* A living process has just woken us. */
            if (!wait->woken && wait->recover(wait->context, word, value)) {
                value = word_load(word);
                continue;
            }
        } else if (wait->hungry) {
            continue; /* this thread has just become hungry: it may take a reserved word */
        }
        int error = word_sleep(word, value, until, wait->hungry ? SLEEPS_HUNGRY : SLEEPS_PATIENT);
        wait->slept = true;
        wait->woken = error == 0;
        if (error == ETIMEDOUT && wait->slice < LAST_SLICE) {
            wait->slice *= 2;
        }
        if (error == EINTR) {
            return WORD_AGAIN;
        }
        value = word_load(word);
    }
}

#endif
