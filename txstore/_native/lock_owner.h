/*
 * Owner: the locks that one transaction holds in a LockTable.
 */

#ifndef TXS_LOCK_OWNER_H
#define TXS_LOCK_OWNER_H

#include "lock_grants.h"

/* ---- Acquiring --------------------------------------------------------------------------------------------------- */

/* Undoes a call for the first `end` keys of its order: their words become free, dirty or parked, as they were before.
 * Keeps a pending exception. */
static void
roll_back(owner_object *self, const lock_call *call, Py_ssize_t end)
{
    Py_ssize_t next;
    for (Py_ssize_t at = 0; at < end; at = next) {
        next = group_end(call, at);
        (void)drop_grants(self, call->order[at].slot, (uint32_t)(next - at), call->order[at].taken_from);
    }
}

/* Raises timed_out(keys, pid): the keys that other owners hold now, and the process that holds the first one. */
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

/* The call's keys whose words were dirty, as a tuple. */
static PyObject *
dirty_keys(const lock_call *call, Py_ssize_t dirty)
{
    PyObject *keys = PyTuple_New(dirty);
    Py_ssize_t filled = 0, next;
    for (Py_ssize_t at = 0; keys != NULL && filled < dirty; at = next) {
        next = group_end(call, at);
        for (Py_ssize_t each = at; is_dirty(call->order[at].taken_from) && each < next; each++) {
            PyTuple_SET_ITEM(keys, filled++, Py_NewRef(call_item(call, each)));
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
        word_outcome outcome = grant_slot(self, call, at, (uint32_t)(next - at), &asker, timeout, &deadline);
        if (!is_granted(outcome)) {
            if (self->forks == fork_count()) {
                roll_back(self, call, at);
            }
            if (outcome != WORD_AGAIN) {
                raise_timed_out(self, call, at, &asker);
            }
            return NULL;
        }
        if (is_dirty(call->order[at].taken_from)) {
            all_dirty += next - at;
        }
    }
    PyObject *keys = dirty_keys(call, all_dirty);
    if (keys == NULL) {
        roll_back(self, call, call->count);
    }
    return keys;
}

PyDoc_STRVAR(owner_acquire_doc,
             "acquire($self, keys, timeout=None, siblings=())\n--\n\n"
             "Lock all of the keys, or none; return the keys whose last holder died while it held them.\n\n"
             "One str is one key. `timeout` is in seconds: None waits for ever, 0 tries once. A key that this owner\n"
             "holds already is granted again and counted; a key that a call names twice counts once. The owner may\n"
             "also take words that one of the `siblings` parked.\n\n"
             "Raises the exceptions that timed_out and forked return, OSError, and ValueError if it is closed.");

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
        /* `keys` may be any sequence, so Python code may have run. */
        dirty = owner_is_usable(self) < 0 ? NULL : acquire_call(self, &call, &siblings, timeout);
        if (dirty != NULL) {
            call_keep(&self->last, &call);
        } else {
            call_end(&call);
        }
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

/* Releases the keys: their words become `left`. Then raises for the keys that it could not release. */
static PyObject *
drop_keys(owner_object *self, PyObject *keys, uint32_t left)
{
    lock_call call;
    if (owner_is_ours(self) < 0) {
        return NULL;
    }
    if (!call_resume(&call, &self->last, keys) && call_begin(&call, &self->owned_by->table, keys) < 0) {
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

PyDoc_STRVAR(owner_release_doc,
             "release($self, keys)\n--\n\n"
             "Release the keys, once per acquire. If it raises, it has released the keys that it could.\n\n"
             "Raises ValueError for keys that the owner does not hold, and what lost and forked return.");

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

PyDoc_STRVAR(owner_park_doc,
             "park($self, keys, to=None)\n--\n\n"
             "Release the keys, but only to this transaction: their words are kept under `to`, a sibling's `parked`,\n"
             "or else under our own. `to` must be the `parked` of an open owner. Raises as release does.");

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

PyDoc_STRVAR(owner_fence_doc,
             "fence($self, /)\n--\n\n"
             "Return if this owner still holds every key, in the file that all processes of the machine use.\n\n"
             "Raises lost(keys) for the keys that it has lost: all, if the file was removed or replaced.");

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

/* Empties the set, and releases the words that `owner` still holds; releases none if `owner` is 0. */
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
    if (self->last.keys != NULL) {
        call_end(&self->last);
    }
    drop_all(self, &self->held, ours ? self->identity : 0);
    drop_all(self, &self->parked, ours ? parked : 0);
    for (uint32_t slot = 0; ours && sweep && slot < table->table.slots; slot++) {
        if ((__atomic_load_n(word_at(self, slot), __ATOMIC_RELAXED) & WORD_OWNER) == parked) {
            (void)word_release(word_at(self, slot), parked, WORD_FREE);
        }
    }
    if (ours) {
        end_number(table, number_of(self->identity));
    }
}

PyDoc_STRVAR(owner_close_doc,
             "close($self, sweep=False)\n--\n\n"
             "Release every word that this owner holds, and every word that it parked under its own `parked`.\n\n"
             "`sweep`: also the words that siblings parked there. That reads the whole table (about 1 ms).");

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
        Py_DECREF(self->owned_by);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

/* Casts through void (*)(void): compilers warn about a cast between two other function types. */
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
    {Py_tp_doc, "The locks that one transaction holds in a LockTable. Closed when it is freed."},
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
