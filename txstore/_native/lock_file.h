/*
 * The lock file: its layout, its byte locks, and the descriptors that a forked child closes.
 *
 * The top of _locktable.c draws the layout. This header is plain C: it uses no Python and starts no threads.
 *
 * BYTE LOCKS are OFD locks (open file description). They belong to one opening of the file, and the kernel drops them
 * with its last descriptor, however the process ended. Every container that shares the volume sees the same locks. They
 * do not exclude two threads that use one descriptor.
 *
 * FORK duplicates descriptors: if a child keeps its copy, an OFD lock outlives its holder. So this file tracks every
 * descriptor from the moment it is opened, and closes it in the child before fork() returns there. It never unlocks it,
 * because the lock belongs to the parent. For the same reason nothing maps such a descriptor: a mapping also keeps the
 * open file description alive.
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
    MEMBERS = 2047,
    MEMBERS_OFFSET = 4096,
    MEMBER_SIZE = 64,
    WORDS_OFFSET = MEMBERS_OFFSET + (MEMBERS + 1) * MEMBER_SIZE,
    BOOT_ID_LENGTH = 36,
};

/* Far beyond the end of the file: a byte lock does not need the byte to exist. */
#define LOCK_BASE (INT64_C(1) << 40)
#define INIT_BYTE LOCK_BASE
#define LIVE_BYTE(member) (LOCK_BASE + (int64_t)(member))

#define LOCK_MAGIC "TXSLOCKS"
/* The magic of a file that a process is creating or resetting. */
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
    uint64_t numbers; /* range of its transaction numbers: lock_recovery.h */
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

/* Does another open file description lock one of these bytes? If the kernel can't tell: yes, the safe answer. */
static inline bool
bytes_are_held(int fd, int64_t first, int64_t count)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = first, .l_len = count};
    return byte_lock_call(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

typedef struct tracked_fd {
    int fd;                 /* -1: not in use */
    uint64_t device, inode; /* of the opened file: other code in this process may close and reuse the number */
    struct tracked_fd *previous, *next;
} tracked_fd;

/* A fork handler takes no argument, so its state has to be global. `fork_mutex` guards these variables. */
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

/* Returns 0 or an errno. Must be called before any descriptor is opened. */
static inline int
handle_forks(void)
{
    pthread_mutex_lock(&fork_mutex);
    int error = forks_are_handled ? 0 : pthread_atfork(fork_prepares, fork_in_parent, fork_in_child);
    forks_are_handled = error == 0;
    pthread_mutex_unlock(&fork_mutex);
    return error;
}

/* The directory at which open_below starts for a path: no component of the path may be a symbolic link. */
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

/* Opens and tracks. Returns 0 or an errno. REQUIRES: `self` is not in use, and is not moved until it is closed. */
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

/* Moves `other` to `self`. Returns false and changes nothing if `self` is in use or `other` is not. */
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
