/*
 * The lock file: its layout, its byte locks, and descriptors that a forked child gives up.
 *
 * The layout is drawn at the top of _locktable.c. All here is plain C: no Python, no threads of its own.
 *
 * BYTE LOCKS are OFD locks (open file description): they belong to one opening of the file, vanish with its last
 * descriptor, however its process ended, and are the kernel's own truth in every container that shares the volume. Two
 * threads that use one descriptor do not exclude each other by them.
 *
 * FORK duplicates descriptors: an OFD lock outlives its holder in a child that keeps its copy. So every descriptor here
 * is tracked, from its birth on, and closed in the child before fork() returns there. Closed, never unlocked: the lock
 * is the parent's. For the same reason no mapping is made from such a descriptor: a mapping keeps the open file
 * description, too.
 */

#ifndef TXS_LOCK_FILE_H
#define TXS_LOCK_FILE_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "open_below.h"

enum {
    LOCK_VERSION = 2,
    KIND_TABLE = 1,
    KIND_RANGES = 2,
    MEMBERS = 2047,
    MEMBERS_OFFSET = 4096,
    MEMBER_SIZE = 64,
    WORDS_OFFSET = MEMBERS_OFFSET + (MEMBERS + 1) * MEMBER_SIZE,
    BOOT_ID_LENGTH = 36,
};

/* Far behind the end of the file: byte locks need no bytes. */
#define LOCK_BASE (INT64_C(1) << 40)
#define INIT_BYTE LOCK_BASE
#define LIVE_BYTE(member) (LOCK_BASE + (int64_t)(member))

#define LOCK_MAGIC "TXSLOCKS"
/* Of a file that is being made or reset. */
#define UNFINISHED_MAGIC "TXSLOCK-"

typedef struct {
    uint64_t magic;
    uint32_t version, kind, slots, reserved;
    uint64_t seed, epoch, device, inode;
    char boot[40];
} lock_header;

typedef struct {
    uint32_t in_use, pid;
    uint64_t incarnation;
    uint64_t numbers; /* of its transactions: lock_recovery.h */
    uint8_t reserved[40];
} member_record;

_Static_assert(sizeof(lock_header) == 96 && offsetof(lock_header, boot) == 56, "see _locktable.c");
_Static_assert(sizeof(member_record) == MEMBER_SIZE && offsetof(member_record, numbers) == 16, "see _locktable.c");

static inline uint64_t
magic_of(const char *text)
{
    uint64_t magic;
    memcpy(&magic, text, sizeof magic);
    return magic;
}

/* ---- Byte locks -------------------------------------------------------------------------------------------------- */

static inline int
byte_lock_call(int fd, int command, struct flock *lock)
{
    int result;
    do {
        result = fcntl(fd, command, lock);
    } while (result < 0 && errno == EINTR);
    return result < 0 ? errno : 0;
}

/* Takes a byte without waiting. Returns 0, EAGAIN if another description holds it, or another errno. */
static inline int
take_byte(int fd, int64_t byte)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int error = byte_lock_call(fd, F_OFD_SETLK, &lock);
    return error == EACCES ? EAGAIN : error;
}

static inline void
give_byte(int fd, int64_t byte)
{
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    (void)byte_lock_call(fd, F_OFD_SETLK, &lock);
}

/* Does another description hold one of these bytes? If that can't be known: yes, which is the safe answer. */
static inline bool
bytes_are_held(int fd, int64_t first, int64_t count)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = first, .l_len = count};
    return byte_lock_call(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

typedef struct tracked_fd {
    int fd;                 /* -1: not in use */
    uint64_t device, inode; /* of what it was opened on: the number may be closed and reused behind our back */
    struct tracked_fd *previous, *next;
} tracked_fd;

/* A fork handler takes no argument: what it goes through has to be global. `fork_mutex` guards all of these. */
static pthread_mutex_t fork_mutex = PTHREAD_MUTEX_INITIALIZER;
static tracked_fd tracked = {.fd = -1, .previous = &tracked, .next = &tracked};
static unsigned forks; /* between this process and the one that loaded the module; changes only in a new child */
static bool forks_are_handled;

static inline unsigned
fork_count(void)
{
    return __atomic_load_n(&forks, __ATOMIC_RELAXED);
}

static inline bool
is_file(int fd, uint64_t device, uint64_t inode)
{
    struct stat status;
    return fd >= 0 && fstat(fd, &status) == 0 && (uint64_t)status.st_dev == device && (uint64_t)status.st_ino == inode;
}

/* REQUIRES: it is in use. */
static void
close_locked(tracked_fd *self)
{
    if (is_file(self->fd, self->device, self->inode)) {
        close(self->fd);
    }
    self->fd = -1;
    self->previous->next = self->next;
    self->next->previous = self->previous;
}

static void
fork_prepares(void)
{
    pthread_mutex_lock(&fork_mutex);
}

static void
fork_in_parent(void)
{
    pthread_mutex_unlock(&fork_mutex);
}

static void
fork_in_child(void)
{
    while (tracked.next != &tracked) {
        close_locked(tracked.next);
    }
    __atomic_store_n(&forks, forks + 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&fork_mutex);
}

/* Returns 0 or an errno. To be called before anything is opened. */
static inline int
handle_forks(void)
{
    pthread_mutex_lock(&fork_mutex);
    int error = forks_are_handled ? 0 : pthread_atfork(fork_prepares, fork_in_parent, fork_in_child);
    forks_are_handled = error == 0;
    pthread_mutex_unlock(&fork_mutex);
    return error;
}

/* Where a path is taken to begin by open_below: no part of it may be a symbolic link. */
static inline const char *
root_of(const char *path)
{
    return *path == '/' ? "/" : ".";
}

static inline const char *
below_root(const char *path)
{
    return path + (*path == '/');
}

/* Opens and tracks. Returns 0 or an errno. REQUIRES: `self` is not in use, and stays where it is until it is closed. */
static inline int
tracked_open(tracked_fd *self, const char *path, int flags, unsigned mode)
{
    struct stat status;
    pthread_mutex_lock(&fork_mutex);
    int error = open_below(root_of(path), below_root(path), flags | O_RDWR, mode, &self->fd);
    if (error == 0 && fstat(self->fd, &status) != 0) {
        error = errno;
    }
    if (error == 0) {
        self->device = (uint64_t)status.st_dev;
        self->inode = (uint64_t)status.st_ino;
        self->previous = &tracked;
        self->next = tracked.next;
        tracked.next->previous = self;
        tracked.next = self;
    } else if (self->fd >= 0) {
        close(self->fd);
        self->fd = -1;
    }
    pthread_mutex_unlock(&fork_mutex);
    return error;
}

static inline void
tracked_close(tracked_fd *self)
{
    pthread_mutex_lock(&fork_mutex);
    if (self->fd >= 0) {
        close_locked(self);
    }
    pthread_mutex_unlock(&fork_mutex);
}

/* Makes `self` what `other` was. False, and nothing happens, if `self` is in use already or `other` is not. */
static inline bool
tracked_move(tracked_fd *self, tracked_fd *other)
{
    pthread_mutex_lock(&fork_mutex);
    bool moves = self->fd < 0 && other->fd >= 0;
    if (moves) {
        *self = *other;
        self->previous->next = self;
        self->next->previous = self;
        other->fd = -1;
    }
    pthread_mutex_unlock(&fork_mutex);
    return moves;
}

#endif
