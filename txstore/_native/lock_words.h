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
 *     waiters                 a thread may sleep on it: its holder wakes one as it gives it up
 *     hungry                  somebody has waited for PATIENCE: who comes now must not overtake
 *
 * A thread that finds a word busy sleeps on it (futex) in slices that never depend on being woken: a holder that was
 * killed wakes no thread, a waiter that was woken and killed passes nothing on. After each slice the holder's life is probed.
 * At the end of a slice the caller gets control, to look at its signals.
 *
 * FAIRNESS. A word given up with `hungry` set stays reserved (free, waiters and hungry set), and one of the hungry is
 * woken. It clears `hungry` as it takes the word. The reservation binds no thread for longer than PATIENCE, after which a
 * newcomer is hungry itself: a hungry waiter may be dead. A mere try may overtake: else such a corpse would fail it for
 * ever.
 *
 * What may not be weakened: a word is taken from an owner only by compare-and-swap; a dead member's words are only
 * touched by who holds its LIVE byte (lock_members.h); a waiter that gives up passes on the wake-up that it may have
 * swallowed.
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

/* About the time that a holder needs for nothing but to give up: less than it takes to go to sleep. */
enum { SPINS = 40 };

/* Which of the sleepers a wake-up is for. */
enum { SLEEPS_PATIENT = 1u, SLEEPS_HUNGRY = 2u, SLEEPS_ANY = ~0u };

typedef enum {
    WORD_TAKEN, /* it is ours now */
    WORD_HELD,  /* it was ours already */
    WORD_BUSY,  /* it is somebody else's */
    WORD_AGAIN, /* a slice is over, or a signal came: call again, or give up */
    WORD_LATE,  /* the deadline has passed */
} word_outcome;

/* Who asks for words: the owner bits, and under which others its transaction may have parked them. */
typedef struct {
    uint32_t me;
    const uint32_t *siblings;
    size_t sibling_count;
} word_asker;

/* Asks whether the owner that a word was seen to have is gone, and makes it dirty if so: true if it is worth looking at
 * the word again. */
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

/* On failure, `*seen` is what is there instead. */
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

/* Of the transaction that owns it, in its member. */
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

/* Returns how many were woken. */
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

/* Takes a word without waiting. `overtake`: also one that is reserved for the hungry. */
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

/* Gives a word up: makes it `left`, WORD_FREE or WORD_DIRTY. False if it is no longer `owner`'s. */
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
        /* None of the hungry sleeps: they gave up, or died, or are about to find the word changed. */
        if (!word_swap(word, &reserved, left)) {
            return true;
        }
    }
    if ((value & (WORD_HUNGRY | WORD_WAITERS)) != 0) {
        word_wake(word, 1, SLEEPS_ANY);
    }
    return true;
}

/* Gives a word up to threads that may take what is parked as `parked`. All sleepers check whether they may. */
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

/* Stops waiting. Had we been woken to take the word, no other thread was: wake one. */
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

/* Waits for the word, one slice at most. Never returns WORD_BUSY. On WORD_AGAIN, who stops asking calls
 * word_give_up. */
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
            /* There may be other sleepers, whose bit was cleared to wake this one. */
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
            /* What is parked for others waits for a transaction to end: nothing that hunger could speed up. */
            bool for_others = (owner & WORD_PARKED) != 0;
            uint32_t wanted = value | WORD_WAITERS | (wait->hungry && !for_others ? WORD_HUNGRY : 0);
            if (wanted != value && !word_swap(word, &value, wanted)) {
                continue;
            }
            value = wanted;
            /* Who has just been woken was woken by somebody alive. */
            if (!wait->woken && wait->recover(wait->context, word, value)) {
                value = word_load(word);
                continue;
            }
        } else if (wait->hungry) {
            continue; /* hunger came just now, and takes what is reserved */
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
