/*
 * The fields of LockTable and Owner, and how an owner takes and releases one slot.
 *
 * The GIL guards every field of both. A thread drops it to sleep and for system calls, and afterwards reads again every
 * field that it had read before. `busy` keeps a closed table's descriptor open while a thread uses it.
 *
 * Two threads may use one owner. Suppose the first gets a word while it waits without the GIL. Before it has the GIL
 * again, the second may find the word held, use it and release it. So the first thread checks the word again once it
 * has the GIL, and goes on waiting if it has lost it.
 */

#ifndef TXS_LOCK_GRANTS_H
#define TXS_LOCK_GRANTS_H

#include "lock_calls.h"
#include "lock_held.h"

typedef struct {
    PyObject_HEAD
    lock_table table;
    PyObject *path;       /* bytes: table.path lies in it */
    PyObject *shown_path; /* as given, for errors */
    PyObject *timed_out, *lost, *forked;
    uint64_t *numbers; /* one bit per transaction number: in use */
    uint32_t next_number;
    uint32_t oldest, newest; /* every number in use lies between them; 0: none is in use */
    long busy;      /* threads that use the descriptor without the GIL */
    unsigned forks; /* the fork_count of the process whose threads they are */
    bool closed;
} table_object;

typedef struct {
    PyObject_HEAD
    table_object *owned_by;
    uint32_t identity;
    unsigned forks; /* the fork_count of the process that owns it */
    bool closed, ever_held;
    held_set held;   /* count: the number of grants */
    held_set parked; /* every slot that we parked under our own `parked`; another owner may hold it now */
    lock_call last;  /* the last acquire, if it had many keys; keys NULL: none */
} owner_object;

typedef enum { DROPPED, NOT_HELD, HELD_NO_LONGER } drop_outcome;

/* ---- Exceptions -------------------------------------------------------------------------------------------------- */

/* Raises the exception that the callable returns for the arguments. Steals the references to them. */
static void
raise_made(PyObject *callable, PyObject *arguments)
{
    if (arguments == NULL) {
        return;
    }
    PyObject *exception = callable == NULL ? NULL : PyObject_CallObject(callable, arguments);
    Py_DECREF(arguments);
    if (callable == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the lock table is being destroyed");
    } else if (exception != NULL && !PyExceptionInstance_Check(exception)) {
        PyErr_Format(PyExc_TypeError, "%R made no exception", callable);
    } else if (exception != NULL) {
        PyErr_SetObject(PyExceptionInstance_Class(exception), exception);
    }
    Py_XDECREF(exception);
}

/* Closes the descriptor of a closed table once no thread uses it. */
static void
leave_if_idle(table_object *self)
{
    if (self->closed && self->busy == 0) {
        lock_table_leave(&self->table);
    }
}

static int
table_is_usable(table_object *self)
{
    if (self->forks != fork_count()) {
        self->forks = fork_count();
        self->busy = 0; /* a child has none of its parent's threads */
    }
    if (self->closed) {
        PyErr_SetString(PyExc_ValueError, "the lock table is closed");
        return -1;
    }
    return 0;
}

static int
owner_is_ours(owner_object *self)
{
    if (self->forks != fork_count()) {
        raise_made(self->owned_by->forked, PyTuple_New(0));
        return -1;
    }
    return 0;
}

static int
owner_is_usable(owner_object *self)
{
    if (owner_is_ours(self) < 0) {
        return -1;
    }
    if (self->closed) {
        PyErr_SetString(PyExc_ValueError, "the owner of the locks is closed");
        return -1;
    }
    return table_is_usable(self->owned_by);
}

/* ---- Numbers of transactions ------------------------------------------------------------------------------------- */

static bool
is_in_use(const table_object *self, uint32_t number)
{
    return (self->numbers[number / 64] >> number % 64 & 1) != 0;
}

/* REQUIRES: the table is a member, and the number holds no word yet. */
static void
begin_number(table_object *self, uint32_t number)
{
    self->numbers[number / 64] |= UINT64_C(1) << number % 64;
    if (self->oldest == 0) {
        self->oldest = self->newest = number;
    } else if (!is_between(numbers_between(self->oldest, self->newest), number)) {
        self->newest = number;
    }
    publish_numbers(&self->table, numbers_between(self->oldest, self->newest));
}

/* REQUIRES: the number no longer holds a word. */
static void
end_number(table_object *self, uint32_t number)
{
    self->numbers[number / 64] &= ~(UINT64_C(1) << number % 64);
    while (self->oldest != 0 && !is_in_use(self, self->oldest)) {
        if (self->oldest == self->newest) {
            self->oldest = self->newest = 0;
        } else {
            self->oldest = self->oldest + 1 == NUMBERS ? 1 : self->oldest + 1;
        }
    }
    if (own_member(&self->table) != 0) {
        publish_numbers(&self->table, numbers_between(self->oldest, self->newest));
    }
}

/* ---- Releasing --------------------------------------------------------------------------------------------------- */

static uint32_t *
word_at(const owner_object *self, uint32_t slot)
{
    return &self->owned_by->table.words[slot];
}

/* The entry of a slot, created if missing; NULL with MemoryError. A subclass of str may run code when it is freed. */
static held_entry *
remember(held_set *set, uint32_t slot, PyObject *key)
{
    held_entry *entry = held_find(set, slot);
    if (entry == NULL && !held_reserve(set, 1)) {
        PyErr_NoMemory();
    } else if (entry == NULL) {
        PyObject *kept = PyUnicode_CheckExact(key) ? Py_NewRef(key) : PyUnicode_FromObject(key);
        entry = kept == NULL ? NULL : held_insert(set, slot, kept);
    }
    return entry;
}

static void
forget(held_set *set, held_entry *entry)
{
    PyObject *key = entry->key;
    held_remove(set, entry);
    Py_DECREF(key);
}

/* Sets a word of ours to `left`: free, dirty, or parked. False if the word is no longer ours. */
static bool
leave_word(owner_object *self, uint32_t slot, uint32_t left)
{
    uint32_t *word = word_at(self, slot);
    return is_free(left) ? word_release(word, self->identity, left) : word_park(word, self->identity, left);
}

/* Takes back `count` grants of a slot. With the last one the word becomes `left`. */
static drop_outcome
drop_grants(owner_object *self, uint32_t slot, uint32_t count, uint32_t left)
{
    held_entry *entry = held_find(&self->held, slot);
    if (entry == NULL || entry->count < count) {
        return NOT_HELD;
    }
    entry->count -= count;
    if (entry->count > 0) {
        return DROPPED;
    }
    forget(&self->held, entry);
    return leave_word(self, slot, left) ? DROPPED : HELD_NO_LONGER;
}

/* ---- Taking ------------------------------------------------------------------------------------------------------ */

/* Checks whether the thread may go on waiting: -1 with the exception if not. */
static int
check_waiting(owner_object *self)
{
    return PyErr_CheckSignals() < 0 || owner_is_usable(self) < 0 ? -1 : 0;
}

static bool
is_granted(word_outcome outcome)
{
    return outcome == WORD_TAKEN || outcome == WORD_HELD;
}

/* Waits for a word. Returns WORD_AGAIN if an exception is set. */
static word_outcome
wait_for_slot(owner_object *self, uint32_t slot, const word_asker *asker, int64_t deadline, uint32_t *taken_from)
{
    table_object *table = self->owned_by;
    word_wait wait;
    word_wait_begin(&wait, word_at(self, slot), asker, deadline);
    wait.recover = recover_holder;
    wait.context = &table->table;
    word_outcome outcome;
    bool waits_on;
    table->busy++;
    do {
        Py_BEGIN_ALLOW_THREADS
        outcome = word_wait_slice(&wait);
        Py_END_ALLOW_THREADS
        if (outcome == WORD_TAKEN && !is_dirty(*taken_from)) {
            *taken_from = wait.taken_from; /* once dirty, it stays dirty for us, even if another owner had it since */
        }
        if (outcome == WORD_AGAIN) {
            waits_on = check_waiting(self) == 0;
        } else {
            waits_on = is_granted(outcome) && (word_load(wait.word) & WORD_OWNER) != self->identity;
        }
    } while (waits_on);
    if (self->forks != fork_count()) {
        return WORD_AGAIN; /* a signal handler forked: this is the child */
    }
    table->busy--;
    if (outcome == WORD_AGAIN) {
        word_give_up(&wait);
    } else if (is_granted(outcome) && owner_is_usable(self) < 0) {
        /* Another thread closed the owner meanwhile. A word that was parked for a sibling stays parked. */
        bool was_own = *taken_from == (self->identity | WORD_PARKED);
        (void)leave_word(self, slot, was_own ? WORD_FREE : *taken_from);
        outcome = WORD_AGAIN;
    }
    leave_if_idle(table);
    return outcome;
}

/* One more try, if the holder turns out to be dead. */
static word_outcome
try_again(owner_object *self, uint32_t slot, const word_asker *asker, uint32_t *taken_from)
{
    table_object *table = self->owned_by;
    uint32_t *word = word_at(self, slot);
    uint32_t seen = word_load(word);
    bool recovered;
    table->busy++;
    Py_BEGIN_ALLOW_THREADS
    recovered = recover_holder(&table->table, word, seen);
    Py_END_ALLOW_THREADS
    table->busy--;
    leave_if_idle(table);
    if (owner_is_usable(self) < 0) {
        return WORD_AGAIN;
    }
    return recovered ? word_take(word, asker, true, taken_from) : WORD_BUSY;
}

/* Takes the slot of the call's key `at`, for `count` keys. Returns WORD_TAKEN or WORD_HELD; WORD_BUSY or WORD_LATE
 * if it timed out; WORD_AGAIN if an exception is set. `*deadline` is 0 until there is something to wait for. */
static word_outcome
grant_slot(owner_object *self, lock_call *call, Py_ssize_t at, uint32_t count, const word_asker *asker,
           int64_t timeout, int64_t *deadline)
{
    uint32_t slot = call->order[at].slot, taken_from = WORD_FREE;
    held_entry *entry = held_find(&self->held, slot);
    if (entry != NULL) {
        entry->count += count;
        return WORD_HELD;
    }
    word_outcome outcome = word_take(word_at(self, slot), asker, timeout == 0, &taken_from);
    if (outcome == WORD_BUSY) {
        if (call_keep_keys(call) < 0) {
            return WORD_AGAIN;
        }
        if (*deadline == 0 && timeout > 0) {
            *deadline = timeout == FOR_EVER ? FOR_EVER : now_ns() + timeout;
        }
        outcome = timeout == 0 ? try_again(self, slot, asker, &taken_from)
                               : wait_for_slot(self, slot, asker, *deadline, &taken_from);
    }
    if (!is_granted(outcome)) {
        return outcome;
    }
    entry = remember(&self->held, slot, call_item(call, at)); /* another thread may have added the entry */
    if (entry == NULL) {
        (void)leave_word(self, slot, taken_from);
        return WORD_AGAIN;
    }
    entry->count += count;
    self->ever_held = true;
    call->order[at].taken_from = taken_from;
    return outcome;
}

#endif
