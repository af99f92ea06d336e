/*
 * Opening the lock file: this process may use it, reset it, or must leave it alone. No Python.
 *
 * A process changes anything but words only while it holds the INIT byte and has checked the LIVE bytes. So a file is
 * reset only while it has no living member, and no process becomes a member meanwhile.
 *
 * If the header names another device and inode, within one boot, no process resets the file in place. It may be a copy.
 * Or this process sees it through an overlay, whose views share the pages but not the locks, so that living members are
 * invisible. This process removes the file and creates a new one. That is right for a copy; with an overlay, the other
 * processes find at their next fence that their file is gone.
 *
 * Another program may have put a different file there, or linked one under this name. So a process never writes to a
 * file that is neither empty nor a lock file, nor to one with several names, unless living members use it.
 */

#ifndef TXS_LOCK_OPEN_H
#define TXS_LOCK_OPEN_H

#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>

#include "lock_recovery.h"
#include "lock_slots.h"

typedef struct {
    int error;        /* 0: none */
    char reason[200]; /* "": the errno's own message */
} lock_fault;

/* Sleeps briefly. Returns 0, or the errno with which the caller stops waiting. */
typedef int (*lock_pause)(void *context);

/* How long another process may hold INIT to open or join. That takes milliseconds, unless the process was stopped. */
#define INIT_PATIENCE (10000 * MILLISECOND)

enum { TRY_AGAIN = -1 }; /* no errno: the file has been replaced */
enum { ATTEMPTS = 100 };  /* if every attempt finds a new file, its device and inode numbers are unreliable */

__attribute__((format(printf, 3, 4))) static inline int
refuse(lock_fault *fault, int error, const char *reason, ...)
{
    va_list arguments;
    va_start(arguments, reason);
    fault->error = error;
    (void)vsnprintf(fault->reason, sizeof fault->reason, reason, arguments);
    va_end(arguments);
    return error;
}

static inline int
refuse_stale(lock_fault *fault)
{
    return refuse(fault, ESTALE,
                  "the lock file was removed or replaced since it was opened: open the repository again");
}

static inline bool
path_leads_to(const char *path, uint64_t device, uint64_t inode)
{
    struct stat status;
    return lstat(path, &status) == 0 && (uint64_t)status.st_dev == device && (uint64_t)status.st_ino == inode;
}

/* Empty if /proc is missing: then all boots count as the same. */
static inline void
read_boot_id(char boot[40])
{
    memset(boot, 0, 40);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, boot, BOOT_ID_LENGTH) != BOOT_ID_LENGTH) {
            memset(boot, 0, 40);
        }
        close(fd);
    }
}

static inline bool
slots_are_possible(uint64_t slots)
{
    return slots >= UINT64_C(1) << LEAST_SLOT_BITS && slots <= UINT64_C(1) << MOST_SLOT_BITS &&
           (slots & (slots - 1)) == 0;
}

static inline size_t
length_of_table(uint32_t slots)
{
    return WORDS_OFFSET + (size_t)slots * sizeof(uint32_t);
}

static inline int
take_init_byte(int fd, lock_pause pause, void *context, lock_fault *fault)
{
    int64_t deadline = now_ns() + INIT_PATIENCE;
    for (;;) {
        int error = take_byte(fd, INIT_BYTE);
        if (error != EAGAIN) {
            return error;
        }
        if (now_ns() >= deadline) {
            return refuse(fault, ETIMEDOUT, "another process has been opening the lock file for 10 s: was it stopped?");
        }
        error = pause(context);
        if (error != 0) {
            return error;
        }
    }
}

typedef enum { FILE_FITS, FILE_IS_VACANT, FILE_IS_FOREIGN, FILE_IS_REFUSED } file_verdict;

/* May this process write to the file, even if it is damaged? A lock file with a damaged magic still has its seed. */
static inline bool
is_empty_or_ours(const lock_header *header, const struct stat *status)
{
    return status->st_size == 0 || header->magic == magic_of(LOCK_MAGIC) ||
           header->magic == magic_of(UNFINISHED_MAGIC) || header->seed == LOCK_SEED;
}

/* Reads the header and decides whether to use, reset, replace or refuse the file. REQUIRES: the INIT byte. */
static inline file_verdict
examine_file(const tracked_fd *file, lock_header *header, lock_fault *fault)
{
    char boot[40];
    struct stat status;
    read_boot_id(boot);
    memset(header, 0, sizeof *header);
    if (pread(file->fd, header, sizeof *header, 0) < 0 || fstat(file->fd, &status) != 0) {
        fault->error = errno;
        return FILE_IS_REFUSED;
    }
    bool vacant = !bytes_are_held(file->fd, LIVE_BYTE(1), MEMBERS);
    if (!is_empty_or_ours(header, &status)) {
        refuse(fault, EINVAL, vacant ? "this is no lock file, and it is not empty: remove it"
                                     : "processes are using this file, but it is no lock file any more");
        return FILE_IS_REFUSED;
    }
    if (vacant && status.st_nlink > 1) {
        return FILE_IS_FOREIGN;
    }
    file_verdict vacant_as = FILE_IS_VACANT;
    int error = 0;
    if (header->magic != magic_of(LOCK_MAGIC)) {
        error = refuse(fault, EINVAL, "processes are using this file, but it is no lock file any more");
    } else if (header->version != LOCK_VERSION) {
        error = refuse(fault, EPROTO,
                       "processes are using this lock file in version %u, this one knows version %u: "
                       "use one release of txstore, or wait until they have ended",
                       header->version, LOCK_VERSION);
    } else if (header->kind != KIND_TABLE) {
        error = refuse(fault, EAGAIN, "processes are using this lock file as kind %u, not as a table (kind %u)",
                       header->kind, KIND_TABLE);
    } else if (memcmp(header->boot, boot, sizeof boot) != 0) {
        error = refuse(fault, EXDEV,
                       "processes of another machine are using this lock file: locks work on one machine only");
    } else if (header->device != file->device || header->inode != file->inode) {
        error = refuse(fault, EXDEV,
                       "processes are using this lock file by way of another mount: an overlay shares memory, not "
                       "locks. Use one path to the repository everywhere");
        vacant_as = FILE_IS_FOREIGN;
    } else if (header->seed != LOCK_SEED || !slots_are_possible(header->slots) ||
               (uint64_t)status.st_size < length_of_table(header->slots)) {
        /* With another seed a key would have another word, and two processes one lock. */
        error = refuse(fault, EINVAL, "processes are using this lock file, but it was cut off or overwritten");
    }
    if (error == 0) {
        return FILE_FITS;
    }
    if (vacant) {
        memset(fault, 0, sizeof *fault);
        return vacant_as;
    }
    return FILE_IS_REFUSED;
}

/* Marks the file as a lock file before it has any other content. */
static inline int
mark_unfinished(int fd)
{
    ssize_t written;
    do {
        written = pwrite(fd, UNFINISHED_MAGIC, sizeof(uint64_t), 0);
    } while (written < 0 && errno == EINTR);
    return written == sizeof(uint64_t) ? 0 : written < 0 ? errno : ENOSPC;
}

/* Removes by name, even if the name now leads to another file, but never through a link. */
static inline int
remove_file(const char *path)
{
    int fd, error = open_above(root_of(path), below_root(path), &fd);
    if (error == 0) {
        error = unlinkat(fd, last_segment(path), 0) == 0 || errno == ENOENT ? 0 : errno;
        close(fd);
    }
    return error;
}

/* Makes an empty table of the mapping. REQUIRES: the INIT byte, and no living member. */
static inline void
reset_file(lock_table *table, uint64_t epoch)
{
    lock_header *header = table->header;
    /* The magic is written last: a crash before that leaves a vacant file. */
    (void)__atomic_exchange_n(&header->magic, magic_of(UNFINISHED_MAGIC), __ATOMIC_ACQ_REL);
    /* Incarnations continue from their old values: they only have to differ. */
    for (uint32_t member = 0; member <= MEMBERS; member++) {
        table->members[member].in_use = table->members[member].pid = 0;
    }
    for (uint32_t slot = 0; slot < table->slots; slot++) {
        if (table->words[slot] != 0) { /* reading does not make a page dirty */
            table->words[slot] = 0;
        }
    }
    header->version = LOCK_VERSION;
    header->kind = KIND_TABLE;
    header->slots = table->slots;
    header->reserved = 0;
    header->seed = LOCK_SEED;
    header->epoch = epoch;
    header->device = table->device;
    header->inode = table->inode;
    read_boot_id(header->boot);
    __atomic_store_n(&header->magic, magic_of(LOCK_MAGIC), __ATOMIC_RELEASE);
}

/* Allocates disk space for the whole file: otherwise access to the mapping on a full disk would raise SIGBUS. */
static inline int
allocate_file(int fd, size_t length)
{
    static const uint8_t zeros[65536];
    struct stat status;
    int error;
    if (fstat(fd, &status) != 0) {
        return errno;
    }
    if ((uint64_t)status.st_size >= length && (uint64_t)status.st_blocks * 512 >= length) {
        return 0; /* a full disk may refuse even space that is already allocated */
    }
    do {
        error = fallocate(fd, 0, 0, (off_t)length) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error != EOPNOTSUPP && error != ENOSYS) {
        return error;
    }
    for (size_t at = (size_t)status.st_size; at < length;) {
        size_t part = length - at < sizeof zeros ? length - at : sizeof zeros;
        ssize_t written = pwrite(fd, zeros, part, (off_t)at);
        if (written < 0 && errno != EINTR) {
            return errno;
        }
        at += written < 0 ? 0 : (size_t)written;
    }
    return 0;
}

static inline int
map_file(lock_table *table)
{
    tracked_fd file = {.fd = -1};
    int error = tracked_open(&file, table->path, 0, 0);
    if (error != 0) {
        return error;
    }
    if (file.device != table->device || file.inode != table->inode) {
        error = TRY_AGAIN;
    }
    if (error == 0) {
        error = allocate_file(file.fd, table->length);
    }
    if (error == 0) {
        uint8_t *base = mmap(NULL, table->length, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
        error = base == MAP_FAILED ? errno : 0;
        if (error == 0) {
            table->header = (lock_header *)base;
            table->members = (member_record *)(base + MEMBERS_OFFSET);
            table->words = (uint32_t *)(base + WORDS_OFFSET);
        }
    }
    tracked_close(&file);
    return error;
}

/* REQUIRES: the INIT byte of `file`. */
static inline int
open_examined(lock_table *table, const tracked_fd *file, uint32_t slots, unsigned mode, lock_fault *fault)
{
    lock_header header;
    file_verdict verdict = examine_file(file, &header, fault);
    if (verdict == FILE_IS_REFUSED) {
        return fault->error;
    }
    if (verdict == FILE_IS_FOREIGN) {
        int removed = remove_file(table->path);
        return removed == 0 ? TRY_AGAIN : removed;
    }
    bool fits = verdict == FILE_FITS;
    table->slots = fits ? header.slots : slots;
    table->slot_bits = (unsigned)__builtin_ctz(table->slots);
    table->length = length_of_table(table->slots);
    table->device = file->device;
    table->inode = file->inode;
    if (!fits && header.magic == 0) {
        /* A new file: set its mode, so that other users can open it under any umask. Only its creator may do this. */
        (void)fchmod(file->fd, mode);
    }
    int error = fits ? 0 : mark_unfinished(file->fd);
    if (error == 0) {
        error = map_file(table);
    }
    if (error == 0 && !fits) {
        reset_file(table, header.epoch + 1);
    }
    return error;
}

/* Opens the file, and creates it if it is missing. Returns 0, or the errno in `fault`. */
static inline int
lock_table_open(lock_table *table, const char *path, uint32_t slots, unsigned mode, lock_pause pause, void *context,
                lock_fault *fault)
{
    memset(fault, 0, sizeof *fault);
    *table = (lock_table){.path = path, .live.fd = -1};
    int error;
    int attempts = 0;
    do {
        tracked_fd file = {.fd = -1};
        error = tracked_open(&file, path, 0, 0);
        if (error == ENOENT) { /* not earlier: the kernel may refuse O_CREAT on another user's existing file */
            error = tracked_open(&file, path, O_CREAT, mode);
        }
        if (error == 0) {
            error = take_init_byte(file.fd, pause, context, fault);
            if (error == 0) {
                error = path_leads_to(path, file.device, file.inode)
                            ? open_examined(table, &file, slots, mode, fault)
                            : TRY_AGAIN;
                give_byte(file.fd, INIT_BYTE);
            }
            tracked_close(&file);
        }
    } while (error == TRY_AGAIN && ++attempts < ATTEMPTS);
    fault->error = error == TRY_AGAIN ? refuse_stale(fault) : error;
    return fault->error;
}

/* REQUIRES: this process is not a member, and no thread uses the table. */
static inline void
lock_table_unmap(lock_table *table)
{
    if (table->header != NULL) {
        munmap(table->header, table->length);
        table->header = NULL;
    }
}

#endif
