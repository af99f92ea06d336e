/*
 * Joining the lock table as a member, and checking that this process still is one. No Python.
 */

#ifndef TXS_LOCK_MEMBERS_H
#define TXS_LOCK_MEMBERS_H

#include "lock_open.h"

/* Locks the LIVE byte of an unused member number. REQUIRES: the INIT byte of `file`. */
static inline int
claim_member(lock_table *table, const tracked_fd *file, uint32_t *member, lock_fault *fault)
{
    uint32_t first = (uint32_t)(((uint64_t)getpid() * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
    for (uint32_t number = 0; number < MEMBERS; number++) {
        *member = 1 + (first + number) % MEMBERS;
        int error = take_byte(file->fd, LIVE_BYTE(*member));
        if (error == EAGAIN) {
            continue;
        }
        if (error != 0) {
            return error;
        }
        member_record *record = &table->members[*member];
        if (__atomic_load_n(&record->in_use, __ATOMIC_ACQUIRE) != 0) {
            sweep_words(table, *member);
        }
        __atomic_store_n(&record->numbers, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&record->pid, (uint32_t)getpid(), __ATOMIC_RELAXED);
        __atomic_add_fetch(&record->incarnation, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&record->in_use, 1, __ATOMIC_RELEASE);
        return 0;
    }
    return refuse(fault, EUSERS, "all %d places for processes in the lock file are taken: wait until some have ended",
                  MEMBERS);
}

/* REQUIRES: the INIT byte of `file`. */
static inline int
join_examined(lock_table *table, const tracked_fd *file, uint32_t *member, lock_fault *fault)
{
    lock_header header;
    file_verdict verdict = examine_file(file, &header, fault);
    if (verdict == FILE_IS_REFUSED) {
        return fault->error;
    }
    if (verdict == FILE_IS_VACANT) {
        /* The file may have been truncated: access to the mapping beyond its end would raise SIGBUS. */
        int error = mark_unfinished(file->fd);
        if (error == 0) {
            error = allocate_file(file->fd, table->length);
        }
        if (error != 0) {
            return error;
        }
        reset_file(table, header.epoch + 1);
    } else if (verdict == FILE_IS_FOREIGN || header.slots != table->slots) {
        return refuse_stale(fault);
    }
    return claim_member(table, file, member, fault);
}

/* Reserves a member number for lock_table_enter. Returns 0, or the errno in `fault`: ESTALE if the table must be opened
 * again. REQUIRES: `file` is not in use. */
static inline int
lock_table_join(lock_table *table, tracked_fd *file, uint32_t *member, lock_pause pause, void *context,
                lock_fault *fault)
{
    memset(fault, 0, sizeof *fault);
    int error = tracked_open(file, table->path, 0, 0);
    if (error == 0 && (file->device != table->device || file->inode != table->inode)) {
        error = ENOENT;
    }
    if (error == 0) {
        error = take_init_byte(file->fd, pause, context, fault);
    }
    if (error == 0) {
        bool there = path_leads_to(table->path, file->device, file->inode);
        error = there ? join_examined(table, file, member, fault) : ENOENT;
        give_byte(file->fd, INIT_BYTE);
    }
    if (error != 0) {
        tracked_close(file);
    }
    fault->error = error == ENOENT ? refuse_stale(fault) : error;
    return fault->error;
}

/* Makes this process the member that lock_table_join reserved, if it is not a member yet. Otherwise (two threads joined
 * at once, or this is a child forked meanwhile) the number is left for recovery. Two threads must not call this at
 * once. */
static inline void
lock_table_enter(lock_table *table, tracked_fd *file, uint32_t member)
{
    if (tracked_move(&table->live, file)) {
        table->member = member;
        table->incarnation = __atomic_load_n(&table->members[member].incarnation, __ATOMIC_RELAXED);
        __atomic_store_n(&table->recovering, false, __ATOMIC_RELEASE);
    }
    tracked_close(file);
}

/* Is the file still the one at the path, and the descriptor still ours? */
static inline bool
is_still_there(const lock_table *table)
{
    return is_file(table->live.fd, table->device, table->inode) &&
           path_leads_to(table->path, table->device, table->inode);
}

/* Is our LIVE byte still locked, and was it locked all the time? Locking it again answers that, and restores a lost
 * lock that no other member has noticed. If a member noticed and made our words dirty, the words themselves show it. */
static inline bool
is_still_member(const lock_table *table)
{
    const member_record *record = &table->members[table->member];
    return is_still_there(table) && take_byte(table->live.fd, LIVE_BYTE(table->member)) == 0 &&
           __atomic_load_n(&record->in_use, __ATOMIC_ACQUIRE) != 0 &&
           __atomic_load_n(&record->incarnation, __ATOMIC_RELAXED) == table->incarnation;
}

/* Ends the membership. Other members recover the words that we still hold, as if we had died. */
static inline void
lock_table_leave(lock_table *table)
{
    tracked_close(&table->live);
}

#endif
