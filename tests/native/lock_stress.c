/*
 * The lock table's plain C under stress: processes of several threads that lock, write, unlock, park, give up, fork,
 * are stopped and are killed. Meant to be built with a sanitizer (make sanitize); it fails by itself, too.
 *
 *     lock_stress FILE SECONDS [SEED]
 *
 * Who holds a word's lock writes his stamp into its place of a shared array, with ordinary stores, so that the thread
 * sanitizer sees whether the locks order them. A place that is stamped when its word is granted was left by one who
 * died: the grant must be dirty. Every system call and every compare-and-swap of the code under test is delayed at
 * random: without that, processes are hardly ever killed between two steps that have to stay apart.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void delay(void);

/* Macros do not expand within themselves: what is called here is the real thing. */
#define DELAYED(type, call) \
    __extension__({ \
        delay(); \
        type result_ = call; \
        int error_ = errno; \
        delay(); \
        errno = error_; \
        result_; \
    })
#define fcntl(...) DELAYED(int, fcntl(__VA_ARGS__))
#define syscall(...) DELAYED(long, syscall(__VA_ARGS__))
#define __atomic_compare_exchange_n(...) (delay(), __atomic_compare_exchange_n(__VA_ARGS__))

#include "lock_held.h"
#include "lock_members.h"

enum { PLACES = 16, SLOTS = 4096, PROCESSES = 4, THREADS = 3, MOST_WORDS = 6, FREE_MEMBERS = 6 };

enum { GRANTS, DIRTY, DIRTY_AND_STAMPED, LATE, PARKED, FORKS, KILLS, STOPS, WRONG, COUNTERS };
static const char *const COUNTER_NAMES[COUNTERS] = {"grants", "dirty", "dirty and stamped", "late", "parked", "forks",
                                                    "kills", "stops", "wrong"};

typedef struct {
    uint64_t counters[COUNTERS];
    uint64_t stamps[PLACES];
} shared_state;

static shared_state *shared;
static lock_table table;
static __thread uint64_t random_state;
static __thread bool is_slow;

static uint64_t
draw(uint64_t bound)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % bound;
}

/* A few threads are slow at everything: what they leave half done, the quick ones run into. */
static void
delay(void)
{
    if (random_state == 0 || draw(is_slow ? 6 : 50) != 0) {
        return;
    }
    if (draw(3) != 0) {
        sched_yield();
    } else {
        struct timespec some = {0, (long)draw(is_slow ? 3000000 : 100000)};
        nanosleep(&some, NULL);
    }
}

static void
count(int counter, uint64_t many)
{
    __atomic_fetch_add(&shared->counters[counter], many, __ATOMIC_RELAXED);
}

static void
complain(const char *what, uint32_t place)
{
    count(WRONG, 1);
    fprintf(stderr, "process %d, place %u: %s\n", (int)getpid(), place, what);
}

static int
no_pause(void *context)
{
    (void)context;
    usleep(500);
    return 0;
}

static void
check(int error, const lock_fault *fault, const char *what)
{
    if (error != 0) {
        fprintf(stderr, "%s: %s (%s)\n", what, strerror(error), fault->reason);
        count(WRONG, 1);
        _exit(3);
    }
}

static void
join(void)
{
    lock_fault fault;
    tracked_fd file = {.fd = -1};
    uint32_t member = 0;
    int error;
    bool was_slow = is_slow;
    is_slow = false; /* it asks for thousands of bytes, while others wait for INIT */
    while ((error = lock_table_join(&table, &file, &member, no_pause, NULL, &fault)) == EUSERS) {
        usleep(500);
    }
    check(error, &fault, "join");
    is_slow = was_slow;
    lock_table_enter(&table, &file, member);
    publish_numbers(&table, numbers_between(1, 2 * THREADS + 1)); /* of all that threads and siblings use */
}

/* Numbers of members are to be taken anew all the time: so all but a few are taken, by locks of ours. */
static void
leave_few_members(const char *path)
{
    lock_fault fault;
    check(lock_table_open(&table, path, SLOTS, 0600, no_pause, NULL, &fault), &fault, "open");
    lock_table_unmap(&table);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    for (uint32_t member = 1; member <= MEMBERS; member++) {
        if (member % (MEMBERS / FREE_MEMBERS) != 1 && take_byte(fd, LIVE_BYTE(member)) != 0) {
            complain("the place of a member is taken", member);
        }
    }
}

/* ---- A transaction ----------------------------------------------------------------------------------------------- */

/* Spread over the table, two to a cache line. */
static uint32_t *
word_of(uint32_t place)
{
    return &table.words[place * 37 / 2];
}

static bool
wait_for(uint32_t place, const word_asker *asker, int64_t deadline, uint32_t *taken_from)
{
    word_outcome outcome = word_take(word_of(place), asker, false, taken_from);
    if (outcome == WORD_BUSY) {
        word_wait wait;
        word_wait_begin(&wait, word_of(place), asker, deadline);
        wait.recover = recover_holder;
        wait.context = &table;
        do {
            outcome = word_wait_slice(&wait);
            if (outcome == WORD_AGAIN && draw(200) == 0) { /* as if a signal's handler had raised */
                word_give_up(&wait);
                outcome = WORD_LATE;
            }
        } while (outcome == WORD_AGAIN);
        *taken_from = wait.taken_from;
    }
    if (outcome == WORD_HELD) {
        complain("held already, says the word", place);
    }
    return outcome == WORD_TAKEN;
}

static void
enter_place(uint32_t place, uint64_t stamp, bool dirty)
{
    if (shared->stamps[place] != 0) {
        if (dirty) {
            count(DIRTY_AND_STAMPED, 1);
        } else {
            complain("granted as clean, but stamped", place);
        }
    }
    shared->stamps[place] = stamp;
}

static void
check_stamp(uint32_t place, uint64_t stamp)
{
    if (shared->stamps[place] != stamp) {
        complain("written to while it was locked", place);
    }
}

static void
park_and_take_back(uint32_t place, const word_asker *asker, uint64_t stamp)
{
    uint32_t parked = asker->me | WORD_PARKED, other_parked = parked + 2, taken_from;
    word_asker other = {.me = asker->me + 2, .siblings = &parked, .sibling_count = 1};
    count(PARKED, 1);
    if (!word_park(word_of(place), asker->me, parked)) {
        complain("lost before it was parked", place);
    }
    if (!wait_for(place, &other, FOR_EVER, &taken_from)) {
        return; /* given up: it stays parked */
    }
    check_stamp(place, stamp);
    if (is_dirty(taken_from) || !word_park(word_of(place), other.me, other_parked)) {
        complain("lost while a sibling had it", place);
    }
    word_asker back = {.me = asker->me, .siblings = &other_parked, .sibling_count = 1};
    while (!wait_for(place, &back, FOR_EVER, &taken_from)) {
    }
    check_stamp(place, stamp);
}

static void
transact(uint32_t number)
{
    word_asker asker = {.me = own_member(&table) << MEMBER_SHIFT | number * 4};
    uint64_t stamp = (uint64_t)getpid() << 32 | asker.me;
    int64_t patience = draw(4) == 0 ? (int64_t)draw(3 * MILLISECOND) : 60000 * MILLISECOND;
    int64_t deadline = now_ns() + patience;
    uint32_t wanted = 1 + (uint32_t)draw(MOST_WORDS), got = 0, places[PLACES];
    for (uint32_t place = 0; place < PLACES && got < wanted; place++) {
        if (draw(3) != 0) {
            continue;
        }
        uint32_t taken_from = WORD_FREE;
        if (!wait_for(place, &asker, deadline, &taken_from)) {
            count(LATE, 1);
            if (patience > 1000 * MILLISECOND && now_ns() >= deadline) {
                complain("waited for ever", place);
            }
            break;
        }
        count(GRANTS, 1);
        count(DIRTY, is_dirty(taken_from));
        enter_place(place, stamp, is_dirty(taken_from));
        places[got++] = place;
    }
    delay();
    for (uint32_t i = 0; i < got; i++) {
        uint32_t owner = asker.me;
        if (draw(8) == 0) {
            park_and_take_back(places[i], &asker, stamp);
            owner = word_load(word_of(places[i])) & WORD_OWNER; /* ours, or parked */
        }
        check_stamp(places[i], stamp);
        shared->stamps[places[i]] = 0;
        if (!word_release(word_of(places[i]), owner, WORD_FREE)) {
            complain("lost before it was released", places[i]);
        }
    }
}

/* ---- Processes --------------------------------------------------------------------------------------------------- */

static void
seed_thread(uint64_t seed)
{
    random_state = mix64(seed) | 1;
    is_slow = draw(5) == 0;
}

static void *
run_thread(void *argument)
{
    uint32_t number = (uint32_t)(uintptr_t)argument;
    seed_thread((uint64_t)now_ns() + number);
    for (;;) {
        transact(number);
    }
    return NULL;
}

/* What waits for ever is to end all the same, and is no SIGKILL of ours. */
static void
limit_life(void)
{
    alarm(300);
}

static void
run_child(void)
{
    limit_life();
    if (own_member(&table) != 0) {
        complain("a child inherited the membership", 0);
    }
    seed_thread((uint64_t)now_ns());
    join();
    for (uint64_t i = draw(10); i > 0; i--) {
        transact(1);
    }
    if (draw(2) == 0) { /* holding a lock, as if killed */
        word_asker asker = {.me = own_member(&table) << MEMBER_SHIFT | 4};
        uint32_t place = (uint32_t)draw(PLACES), taken_from = WORD_FREE;
        if (wait_for(place, &asker, now_ns() + MILLISECOND, &taken_from)) {
            enter_place(place, (uint64_t)getpid() << 32 | asker.me, is_dirty(taken_from));
        }
    }
    _exit(0);
}

static void
run_process(const char *path)
{
    lock_fault fault;
    limit_life();
    seed_thread((uint64_t)now_ns() ^ (uint64_t)getpid() << 20);
    check(lock_table_open(&table, path, SLOTS, 0600, no_pause, NULL, &fault), &fault, "open");
    join();
    for (uintptr_t number = 2; number <= THREADS; number++) {
        pthread_t thread;
        pthread_create(&thread, NULL, run_thread, (void *)number);
    }
    for (;;) {
        for (int i = 0; i < 10; i++) {
            transact(1);
        }
        for (uint32_t member = 1; member <= MEMBERS; member++) {
            recover_member(&table, table.live.fd, member);
        }
        if (!is_still_member(&table)) {
            complain("not a member any more", 0);
        }
        if (draw(2) == 0) {
            count(FORKS, 1);
            if (fork() == 0) {
                run_child();
            }
        }
    }
}

static pid_t
start_process(const char *path)
{
    pid_t child = fork();
    if (child == 0) {
        run_process(path);
    }
    return child;
}

/* Nobody ends but by our signal: what a sanitizer reports ends a process otherwise. */
static void
check_status(int status)
{
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
        count(WRONG, 1);
        fprintf(stderr, "a process ended by itself, with status 0x%x\n", (unsigned)status);
    }
}

static void
torment(const char *path, int64_t end)
{
    pid_t processes[PROCESSES];
    int status;
    for (int i = 0; i < PROCESSES; i++) {
        processes[i] = start_process(path);
    }
    while (now_ns() < end && __atomic_load_n(&shared->counters[WRONG], __ATOMIC_RELAXED) == 0) {
        usleep((useconds_t)(5000 + draw(draw(4) == 0 ? 200000 : 30000)));
        pid_t *chosen = &processes[draw(PROCESSES)];
        if (draw(8) == 0) {
            count(STOPS, 1);
            kill(*chosen, SIGSTOP);
            usleep(50000);
            kill(*chosen, SIGCONT);
            continue;
        }
        count(KILLS, 1);
        kill(*chosen, SIGKILL);
        waitpid(*chosen, &status, 0);
        check_status(status);
        *chosen = start_process(path);
    }
    for (int i = 0; i < PROCESSES; i++) {
        kill(processes[i], SIGKILL);
        waitpid(processes[i], &status, 0);
        check_status(status);
    }
}

/* The children of the killed have become ours, and end by themselves. */
static void
await_orphans(void)
{
    int status;
    while (waitpid(-1, &status, 0) > 0) {
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            count(WRONG, 1);
            fprintf(stderr, "a child ended with status 0x%x\n", (unsigned)status);
        }
    }
}

/* Every word is to be had. */
static void
check_the_end(const char *path)
{
    lock_fault fault;
    check(lock_table_open(&table, path, SLOTS, 0600, no_pause, NULL, &fault), &fault, "open at the end");
    join();
    word_asker asker = {.me = own_member(&table) << MEMBER_SHIFT | 2};
    for (uint32_t place = 0; place < PLACES; place++) {
        uint32_t taken_from = WORD_FREE;
        int64_t deadline = now_ns() + 60000 * MILLISECOND;
        while (!wait_for(place, &asker, deadline, &taken_from)) {
            if (now_ns() >= deadline) {
                complain("not to be had at the end", place);
                return;
            }
        }
        enter_place(place, 0, is_dirty(taken_from));
        word_release(word_of(place), asker.me, WORD_FREE);
    }
    lock_table_leave(&table);
    lock_table_unmap(&table);
}

/* ---- What one process uses alone --------------------------------------------------------------------------------- */

static void
check_held_set(void)
{
    enum { RANGE = 3000 };
    static uint32_t expected[RANGE];
    held_set set = {0};
    for (int i = 0; i < 300000; i++) {
        uint32_t slot = (uint32_t)draw(i % 1000 < 500 ? RANGE : 50);
        held_entry *entry = held_find(&set, slot);
        if ((entry != NULL) != (expected[slot] != 0) || (entry != NULL && entry->count != expected[slot])) {
            complain("the set of slots is wrong", slot);
            return;
        }
        if (entry == NULL && held_reserve(&set, 1)) {
            expected[slot] = held_insert(&set, slot, &set)->count = 1 + (uint32_t)draw(9);
        } else if (entry != NULL) {
            held_remove(&set, entry);
            expected[slot] = 0;
        }
    }
    free(set.entries);
}

static void
check_slots(void)
{
    static const char letters[] = "0123456789/./ac";
    for (int i = 0; i < 300000; i++) {
        size_t length = draw(40);
        uint8_t *key = malloc(length); /* of just this length: reading beyond it is reported */
        for (size_t at = 0; at < length; at++) {
            key[at] = (uint8_t)letters[draw(sizeof letters - 1)];
        }
        unsigned bits = LEAST_SLOT_BITS + (unsigned)draw(MOST_SLOT_BITS - LEAST_SLOT_BITS + 1);
        prefix_memo memo = {0};
        uint32_t slot = slot_of_key(key, length, bits, &memo);
        if (slot >> bits != 0 || slot != slot_of_key(key, length, bits, &memo) ||
            slot != slot_of_key(key, length, bits, NULL)) {
            complain("a key has no slot, or two", slot);
        }
        free(key);
    }
}

/* What a sanitizer reports ends the process at once, and is seen by who waits for it. */
const char *__tsan_default_options(void);
const char *
__tsan_default_options(void)
{
    return "halt_on_error=1:exitcode=66";
}

int
main(int count_of_arguments, char **arguments)
{
    if (count_of_arguments < 3) {
        fprintf(stderr, "usage: lock_stress FILE SECONDS [SEED]\n");
        return 2;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    seed_thread(count_of_arguments > 3 ? strtoull(arguments[3], NULL, 10) : (uint64_t)now_ns());
    int error = shared == MAP_FAILED || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 ? errno : handle_forks();
    if (error != 0) {
        fprintf(stderr, "%s\n", strerror(error));
        return 2;
    }
    check_held_set();
    check_slots();
    leave_few_members(arguments[1]);
    torment(arguments[1], now_ns() + (int64_t)(atof(arguments[2]) * 1e9));
    await_orphans();
    check_the_end(arguments[1]);
    for (int i = 0; i < COUNTERS; i++) {
        printf("%s %llu%s", COUNTER_NAMES[i], (unsigned long long)shared->counters[i], i + 1 < COUNTERS ? ", " : "\n");
    }
    return shared->counters[WRONG] != 0;
}
