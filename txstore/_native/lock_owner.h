/*
 * LockTable's fields, and Owner: what one transaction holds. LockTable's methods are in _locktable.c.
 *
 * The GIL guards every field of both. It is given up to sleep, and to ask the kernel something; whatever a thread had read
 * before is read again after that, and `busy` keeps a closed table's descriptor open as long as a thread uses it.
 *
 * Two threads may use one owner. When one gives up a word that the other waits for, as `awaited` tells, it leaves it to
 * their owner, and so to the one that waits.
 */

#ifndef TXS_LOCK_OWNER_H
#define TXS_LOCK_OWNER_H

#include "lock_calls.h"
#include "lock_held.h"

enum { NUMBERS = 1 << (MEMBER_SHIFT - 1) };

typedef struct {
    PyObject_HEAD
    lock_table table;
    PyObject *path;       /* bytes: table.path lies in it */
    PyObject *shown_path; /* as given, for errors */
    PyObject *timed_out, *lost, *forked;
    uint64_t *numbers; /* a bit for each number of a transaction: in use */
    uint32_t next_number;
    unsigned numbers_forks; /* the numbers are those of this process's membership: a child's begin anew */
    long busy;              /* threads that use the descriptor without the GIL */
    bool closed;
} table_object;

typedef struct {
    PyObject_HEAD
    table_object *owned_by;
    uint32_t identity;
    unsigned forks; /* the fork_count of the process that it belongs to */
    bool closed, ever_held;
    held_set held;    /* the count: how often it was granted */
    held_set parked;  /* under our own `parked`, as far as we parked it */
    held_set awaited; /* the count: threads that wait for it */
} owner_object;

typedef enum { DROPPED, NOT_HELD, HELD_NO_LONGER } drop_outcome;

/* ---- Exceptions -------------------------------------------------------------------------------------------------- */

/* Raises what the callable makes of the arguments, which are stolen. */
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

/* Gives up the descriptor of a closed table once no thread uses it. */
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

/* ---- Giving up --------------------------------------------------------------------------------------------------- */

static uint32_t *
word_at(const owner_object *self, uint32_t slot)
{
    return &self->owned_by->table.words[slot];
}

/* The entry of a slot, made if it is missing; NULL with MemoryError. A subclass of str could run code when it goes. */
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

/* Takes back `count` grants of a slot. With the last one the word becomes `left`: WORD_FREE, WORD_DIRTY or parked. */
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
    uint32_t *word = word_at(self, slot);
    bool was_ours;
    if (held_find(&self->awaited, slot) != NULL) {
        was_ours = (word_load(word) & WORD_OWNER) == self->identity;
        word_wake(word, INT_MAX, SLEEPS_ANY);
    } else if (is_free(left)) {
        was_ours = word_release(word, self->identity, left);
    } else {
        was_ours = word_park(word, self->identity, left);
    }
    return was_ours ? DROPPED : HELD_NO_LONGER;
}

/* Takes back what a call had got in the first `end` keys of its order. Leaves a pending exception alone. */
static void
roll_back(owner_object *self, const lock_call *call, Py_ssize_t end)
{
    Py_ssize_t next;
    for (Py_ssize_t at = 0; at < end; at = next) {
        next = group_end(call, at);
        uint32_t left = (call->order[at].index & KEY_WAS_DIRTY) != 0 ? WORD_DIRTY : WORD_FREE;
        (void)drop_grants(self, call->order[at].slot, (uint32_t)(next - at), left);
    }
}

/* ---- Taking ------------------------------------------------------------------------------------------------------ */

/* What keeps a thread from waiting on: -1 with the exception. */
static int
check_waiting(owner_object *self)
{
    return PyErr_CheckSignals() < 0 || owner_is_usable(self) < 0 ? -1 : 0;
}

/* Waits for a word with its slot's entry in place. Returns WORD_AGAIN if an exception is set. */
static word_outcome
wait_for_word(owner_object *self, uint32_t slot, const word_asker *asker, int64_t deadline, uint32_t *taken_from)
{
    table_object *table = self->owned_by;
    word_wait wait;
    word_wait_begin(&wait, word_at(self, slot), asker, deadline);
    wait.recover = recover_holder;
    wait.context = &table->table;
    word_outcome outcome;
    table->busy++;
    do {
        Py_BEGIN_ALLOW_THREADS
        outcome = word_wait_slice(&wait);
        Py_END_ALLOW_THREADS
    } while (outcome == WORD_AGAIN && check_waiting(self) == 0);
    if (self->forks != fork_count()) {
        return WORD_AGAIN; /* forked by a signal's handler: this is the child */
    }
    table->busy--;
    if (outcome == WORD_AGAIN) {
        word_give_up(&wait);
    } else if (outcome != WORD_LATE && owner_is_usable(self) < 0) {
        /* Another thread closed it just then. */
        (void)word_release(wait.word, self->identity, is_dirty(wait.taken_from) ? WORD_DIRTY : WORD_FREE);
        outcome = WORD_AGAIN;
    }
    leave_if_idle(table);
    *taken_from = wait.taken_from;
    return outcome;
}

/* One more try, if the holder turns out to be dead. */
static word_outcome
try_again(owner_object *self, uint32_t slot, const word_asker *asker, uint32_t *taken_from)
{
    table_object *table = self->owned_by;
    uint32_t *word = word_at(self, slot);
    uint32_t holder = member_of(word_load(word));
    bool recovered;
    table->busy++;
    Py_BEGIN_ALLOW_THREADS
    recovered = recover_holder(&table->table, holder);
    Py_END_ALLOW_THREADS
    table->busy--;
    leave_if_idle(table);
    if (owner_is_usable(self) < 0) {
        return WORD_AGAIN;
    }
    return recovered ? word_take(word, asker, true, taken_from) : WORD_BUSY;
}

/* What to do about a slot that is not to be had at once: `deadline` 0 is to try. */
static word_outcome
insist_on_slot(owner_object *self, uint32_t slot, PyObject *key, const word_asker *asker, int64_t deadline,
               uint32_t *taken_from)
{
    held_entry *entry = remember(&self->awaited, slot, key);
    if (entry == NULL) {
        return WORD_AGAIN;
    }
    entry->count++;
    word_outcome outcome = deadline == 0 ? try_again(self, slot, asker, taken_from)
                                         : wait_for_word(self, slot, asker, deadline, taken_from);
    entry = held_find(&self->awaited, slot);
    entry->count--;
    if (entry->count == 0) {
        forget(&self->awaited, entry);
        bool granted = outcome == WORD_TAKEN || outcome == WORD_HELD;
        if (!granted && held_find(&self->held, slot) == NULL && self->forks == fork_count()) {
            /* Another thread of this owner may have left it to us. */
            (void)word_release(word_at(self, slot), self->identity, WORD_FREE);
        }
    }
    return outcome;
}

/* Takes a slot for `count` keys. Returns WORD_TAKEN, WORD_HELD, WORD_BUSY or WORD_LATE if it timed out, WORD_AGAIN if an
 * exception is set. `*deadline` is 0 until there is something to wait for. */
static word_outcome
grant_slot(owner_object *self, lock_call *call, Py_ssize_t at, uint32_t count, const word_asker *asker,
           int64_t timeout, int64_t *deadline, bool *dirty)
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
        outcome = insist_on_slot(self, slot, call_item(call, at), asker, *deadline, &taken_from);
    }
    if (outcome != WORD_TAKEN && outcome != WORD_HELD) {
        return outcome;
    }
    entry = remember(&self->held, slot, call_item(call, at)); /* by now another thread may have done so */
    if (entry == NULL) {
        (void)word_release(word_at(self, slot), self->identity, is_dirty(taken_from) ? WORD_DIRTY : WORD_FREE);
        return WORD_AGAIN;
    }
    entry->count += count;
    self->ever_held = true;
    *dirty = outcome == WORD_TAKEN && is_dirty(taken_from);
    held_entry *parked = taken_from == WORD_FREE ? NULL : held_find(&self->parked, slot);
    if (parked != NULL) {
        forget(&self->parked, parked);
    }
    return outcome;
}

/* Raises what timed_out makes of the keys that are somebody else's now, and of who holds the first one. */
static void
raise_timed_out(owner_object *self, const lock_call *call, Py_ssize_t failed, const word_asker *asker)
{
    const lock_table *table = &self->owned_by->table;
    uint32_t holder = member_of(word_load(word_at(self, call->order[failed].slot)));
    unsigned long pid = __atomic_load_n(&table->members[holder].pid, __ATOMIC_RELAXED);
    Py_ssize_t own_end = group_end(call, failed);
    PyObject *keys = PyList_New(0);
    for (Py_ssize_t at = failed; keys != NULL && at < call->count; at++) {
        uint32_t value = word_load(word_at(self, call->order[at].slot));
        bool busy = (value & WORD_OWNER) != self->identity && !may_take(asker, value);
        if ((at < own_end || busy) && PyList_Append(keys, call_item(call, at)) < 0) {
            Py_CLEAR(keys);
        }
    }
    raise_made(self->owned_by->timed_out, keys == NULL ? NULL : Py_BuildValue("(Nk)", keys, holder == 0 ? 0 : pid));
}

/* The keys of the call that came dirty, as a tuple. */
static PyObject *
dirty_keys(const lock_call *call, Py_ssize_t dirty)
{
    PyObject *keys = PyTuple_New(dirty);
    Py_ssize_t filled = 0;
    for (Py_ssize_t at = 0; keys != NULL && filled < dirty; at++) {
        if ((call->order[at].index & KEY_WAS_DIRTY) != 0) {
            PyTuple_SET_ITEM(keys, filled++, Py_NewRef(call_item(call, at)));
        }
    }
    return keys;
}

static PyObject *
acquire_call(owner_object *self, lock_call *call, const sibling_list *siblings, int64_t timeout)
{
    word_asker asker = {.me = self->identity, .siblings = siblings->words, .sibling_count = siblings->count};
    int64_t deadline = 0;
    Py_ssize_t all_dirty = 0, next;
    for (Py_ssize_t at = 0; at < call->count; at = next) {
        next = group_end(call, at);
        bool dirty = false;
        word_outcome outcome = grant_slot(self, call, at, (uint32_t)(next - at), &asker, timeout, &deadline, &dirty);
        if (outcome != WORD_TAKEN && outcome != WORD_HELD) {
            if (self->forks == fork_count()) {
                roll_back(self, call, at);
            }
            if (outcome != WORD_AGAIN) {
                raise_timed_out(self, call, at, &asker);
            }
            return NULL;
        }
        for (Py_ssize_t each = at; dirty && each < next; each++) {
            call->order[each].index |= KEY_WAS_DIRTY;
            all_dirty++;
        }
    }
    return dirty_keys(call, all_dirty);
}

PyDoc_STRVAR(owner_acquire_doc,
             "acquire($self, keys, timeout=None, siblings=())\n--\n\n"
             "Take the locks of the keys, all or none; return those whose last holder died holding them.\n\n"
             "One str is one key. `timeout` in seconds: None waits for ever, 0 tries. A key that this owner holds already is\n"
             "granted and counted; what a call names twice counts once. `siblings`: what they parked may be taken.\n\n"
             "Raises what timed_out and forked make, OSError, ValueError if closed.");

static PyObject *
owner_acquire(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const parameters[] = {"keys", "timeout", "siblings"};
    owner_object *self = (owner_object *)object;
    PyObject *values[3];
    if (sort_arguments("acquire", parameters, 3, 1, args, count, names, values) < 0 || owner_is_usable(self) < 0) {
        return NULL;
    }
    int64_t timeout;
    sibling_list siblings;
    lock_call call;
    if (timeout_ns(values[1], &timeout) < 0 || siblings_begin(&siblings, values[2]) < 0) {
        return NULL;
    }
    PyObject *dirty = NULL;
    if (call_begin(&call, &self->owned_by->table, values[0]) == 0) {
        /* Python code may have run: keys may be any sequence. */
        dirty = owner_is_usable(self) < 0 ? NULL : acquire_call(self, &call, &siblings, timeout);
        call_end(&call);
    }
    siblings_end(&siblings);
    return dirty;
}

/* ---- Releasing and parking --------------------------------------------------------------------------------------- */

static int
append_keys(PyObject **list, const lock_call *call, Py_ssize_t at, Py_ssize_t end)
{
    if (*list == NULL && (*list = PyList_New(0)) == NULL) {
        return -1;
    }
    for (; at < end; at++) {
        if (PyList_Append(*list, call_item(call, at)) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Gives up the keys, which become `left`, and raises afterwards for those that could not be. */
static PyObject *
drop_keys(owner_object *self, PyObject *keys, uint32_t left)
{
    lock_call call;
    if (owner_is_ours(self) < 0 || call_begin(&call, &self->owned_by->table, keys) < 0) {
        return NULL;
    }
    PyObject *missing = NULL, *gone = NULL;
    bool remembers = left == (self->identity | WORD_PARKED), failed = false;
    Py_ssize_t next;
    for (Py_ssize_t at = 0; at < call.count && !failed; at = next) {
        next = group_end(&call, at);
        uint32_t slot = call.order[at].slot;
        if (remembers && remember(&self->parked, slot, call_item(&call, at)) == NULL) {
            failed = true;
            break;
        }
        drop_outcome outcome = drop_grants(self, slot, (uint32_t)(next - at), left);
        failed = outcome != DROPPED && append_keys(outcome == NOT_HELD ? &missing : &gone, &call, at, next) < 0;
    }
    call_end(&call);
    if (!failed && gone != NULL) {
        raise_made(self->owned_by->lost, Py_BuildValue("(O)", gone));
        failed = true;
    } else if (!failed && missing != NULL) {
        PyErr_Format(PyExc_ValueError, "this owner does not hold %R", missing);
        failed = true;
    }
    Py_XDECREF(missing);
    Py_XDECREF(gone);
    return failed ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(owner_release_doc, "release($self, keys)\n--\n\n"
                                "Give the keys up, as often as they were acquired. Those that can be are, whatever is raised.\n\n"
                                "Raises ValueError for keys that are not held, and what lost and forked make.");

static PyObject *
owner_release(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const parameters[] = {"keys"};
    PyObject *keys;
    if (sort_arguments("release", parameters, 1, 1, args, count, names, &keys) < 0) {
        return NULL;
    }
    return drop_keys((owner_object *)object, keys, WORD_FREE);
}

PyDoc_STRVAR(owner_park_doc, "park($self, keys, to=None)\n--\n\n"
                             "Give the keys up, but only to this transaction: they are kept under `to`, a sibling's `parked`,\n"
                             "or else under our own. Raises as release does.");

static PyObject *
owner_park(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const parameters[] = {"keys", "to"};
    owner_object *self = (owner_object *)object;
    PyObject *values[2];
    uint32_t left = self->identity | WORD_PARKED;
    if (sort_arguments("park", parameters, 2, 1, args, count, names, values) < 0 || owner_is_usable(self) < 0 ||
        (values[1] != NULL && values[1] != Py_None && parked_word(values[1], &left) < 0)) {
        return NULL;
    }
    return drop_keys(self, values[0], left);
}

/* ---- The fence, and the end -------------------------------------------------------------------------------------- */

PyDoc_STRVAR(owner_fence_doc, "fence($self, /)\n--\n\n"
                              "Return if every key is still held, as far as the whole machine is concerned.\n\n"
                              "Raises what lost makes of those that are not: if the file was removed or replaced, all.");

static PyObject *
owner_fence(PyObject *object, PyObject *Py_UNUSED(none))
{
    owner_object *self = (owner_object *)object;
    table_object *table = self->owned_by;
    if (owner_is_usable(self) < 0) {
        return NULL;
    }
    if (!self->ever_held) {
        Py_RETURN_NONE;
    }
    bool all_ours;
    table->busy++;
    Py_BEGIN_ALLOW_THREADS
    all_ours = is_still_member(&table->table);
    Py_END_ALLOW_THREADS
    table->busy--;
    leave_if_idle(table);
    PyObject *gone = PyList_New(0);
    for (size_t at = 0; gone != NULL && at < held_size(&self->held); at++) {
        held_entry *entry = &self->held.entries[at];
        bool ours = all_ours && (word_load(word_at(self, entry->slot)) & WORD_OWNER) == self->identity;
        if (entry->key != NULL && entry->count > 0 && !ours && PyList_Append(gone, entry->key) < 0) {
            Py_CLEAR(gone);
        }
    }
    if (gone != NULL && (!all_ours || PyList_GET_SIZE(gone) > 0)) {
        raise_made(table->lost, Py_BuildValue("(N)", gone));
        return NULL;
    }
    Py_XDECREF(gone);
    return gone == NULL ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(owner_holds_doc, "holds($self, key)\n--\n\nDoes this owner hold the key's lock?");

static PyObject *
owner_holds(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const parameters[] = {"key"};
    owner_object *self = (owner_object *)object;
    PyObject *key;
    uint32_t slot;
    if (sort_arguments("holds", parameters, 1, 1, args, count, names, &key) < 0 ||
        slot_of(&self->owned_by->table, key, NULL, &slot) < 0) {
        return NULL;
    }
    const held_entry *entry = held_find(&self->held, slot);
    return PyBool_FromLong(self->forks == fork_count() && entry != NULL && entry->count > 0);
}

/* Empties the set, and gives up the words that are still `owner`'s, or none if `owner` is 0. */
static void
drop_all(owner_object *self, held_set *set, uint32_t owner)
{
    held_set dropped = *set;
    *set = (held_set){0};
    for (size_t at = 0; at < held_size(&dropped); at++) {
        if (dropped.entries[at].key != NULL) {
            if (owner != 0) {
                (void)word_release(word_at(self, dropped.entries[at].slot), owner, WORD_FREE);
            }
            Py_DECREF((PyObject *)dropped.entries[at].key);
        }
    }
    free(dropped.entries);
}

static void
owner_end(owner_object *self, bool sweep)
{
    table_object *table = self->owned_by;
    bool ours = self->forks == fork_count() && !self->closed;
    uint32_t parked = self->identity | WORD_PARKED;
    self->closed = true;
    drop_all(self, &self->held, ours ? self->identity : 0);
    drop_all(self, &self->parked, ours ? parked : 0);
    for (uint32_t slot = 0; ours && sweep && slot < table->table.slots; slot++) {
        if ((__atomic_load_n(word_at(self, slot), __ATOMIC_RELAXED) & WORD_OWNER) == parked) {
            (void)word_release(word_at(self, slot), parked, WORD_FREE);
        }
    }
    if (ours) {
        uint32_t number = (self->identity >> 1) & (NUMBERS - 1);
        table->numbers[number / 64] &= ~(UINT64_C(1) << number % 64);
    }
}

PyDoc_STRVAR(owner_close_doc, "close($self, sweep=False)\n--\n\n"
                              "Give up all that is held, and what was parked here under our own `parked`.\n\n"
                              "`sweep`: also what siblings parked there, for which the whole table is read (about 1 ms).");

static PyObject *
owner_close(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const parameters[] = {"sweep"};
    PyObject *sweep;
    if (sort_arguments("close", parameters, 1, 0, args, count, names, &sweep) < 0) {
        return NULL;
    }
    int sweeps = sweep == NULL ? 0 : PyObject_IsTrue(sweep);
    if (sweeps < 0) {
        return NULL;
    }
    owner_end((owner_object *)object, sweeps == 1);
    Py_RETURN_NONE;
}

/* ---- The type ---------------------------------------------------------------------------------------------------- */

static PyObject *
owner_identity(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLong(((owner_object *)object)->identity);
}

static PyObject *
owner_parked(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLong(((owner_object *)object)->identity | WORD_PARKED);
}

static int
owner_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((owner_object *)object)->owned_by);
    return 0;
}

static void
owner_dealloc(PyObject *object)
{
    owner_object *self = (owner_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->owned_by != NULL) {
        owner_end(self, false);
        drop_all(self, &self->awaited, 0);
        Py_DECREF(self->owned_by);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

/* By way of void (*)(void), as a cast between two other function types draws a warning. */
#define WITH_NAMES(function) ((PyCFunction)(void (*)(void))(function)), METH_FASTCALL | METH_KEYWORDS

static PyMethodDef owner_methods[] = {
    {"acquire", WITH_NAMES(owner_acquire), owner_acquire_doc},
    {"release", WITH_NAMES(owner_release), owner_release_doc},
    {"park", WITH_NAMES(owner_park), owner_park_doc},
    {"fence", owner_fence, METH_NOARGS, owner_fence_doc},
    {"holds", WITH_NAMES(owner_holds), owner_holds_doc},
    {"close", WITH_NAMES(owner_close), owner_close_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef owner_attributes[] = {
    {"identity", owner_identity, NULL, "The 30 bits under which it holds words.", NULL},
    {"parked", owner_parked, NULL, "The 30 bits under which it parks words.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot owner_slots[] = {
    {Py_tp_doc, "What one transaction holds of a LockTable. Closed when it goes."},
    {Py_tp_dealloc, owner_dealloc},
    {Py_tp_traverse, owner_traverse},
    {Py_tp_methods, owner_methods},
    {Py_tp_getset, owner_attributes},
    {0, NULL},
};

static PyType_Spec owner_spec = {
    .name = "txstore._native._locktable.Owner",
    .basicsize = sizeof(owner_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = owner_slots,
};

#endif
