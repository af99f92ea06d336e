/*
 * LockTable: opens the file for Python, joins it, makes owners.
 */

#ifndef TXS_LOCK_TABLE_H
#define TXS_LOCK_TABLE_H

#include "lock_owner.h"

typedef struct {
    PyTypeObject *table_type, *owner_type;
} locktable_state;

/* ---- Opening and joining ----------------------------------------------------------------------------------------- */

/* A lock_pause. The context stores the thread state while the thread runs without the GIL. */
static int
pause_for_signals(void *context)
{
    PyThreadState **saved = context;
    usleep(1000);
    PyEval_RestoreThread(*saved);
    int signalled = PyErr_CheckSignals();
    *saved = PyEval_SaveThread();
    return signalled < 0 ? EINTR : 0;
}

/* Raises the fault as an OSError, or keeps the exception that a signal handler raised. */
static void
raise_fault(table_object *self, const lock_fault *fault)
{
    if (PyErr_Occurred()) {
        return;
    }
    if (fault->reason[0] == '\0') {
        errno = fault->error;
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, self->shown_path);
        return;
    }
    PyObject *exception = PyObject_CallFunction(PyExc_OSError, "isO", fault->error, fault->reason, self->shown_path);
    if (exception != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception); /* OSError chose the class by the errno */
        Py_DECREF(exception);
    }
}

/* Each membership starts its numbers at a random place. A sibling may remember the number of a dead process; it is then
 * unlikely that a living transaction has it. */
static int
renew_numbers(table_object *self)
{
    if (self->numbers == NULL) {
        self->numbers = PyMem_Malloc(NUMBERS / 8);
        if (self->numbers == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    memset(self->numbers, 0, NUMBERS / 8);
    self->oldest = self->newest = 0;
    self->next_number = (uint32_t)mix64((uint64_t)now_ns() ^ self->table.incarnation << 32) % NUMBERS;
    return 0;
}

/* Makes this process a member if it is not one, and checks that the file is still the one at its path. */
static int
ensure_member(table_object *self)
{
    while (table_is_usable(self) == 0) {
        lock_fault fault = {0};
        if (own_member(&self->table) != 0) {
            bool there;
            self->busy++;
            Py_BEGIN_ALLOW_THREADS
            there = is_still_there(&self->table);
            Py_END_ALLOW_THREADS
            self->busy--;
            leave_if_idle(self);
            if (there) {
                return 0;
            }
            refuse_stale(&fault);
        } else {
            tracked_fd file = {.fd = -1};
            uint32_t member = 0;
            PyThreadState *saved = PyEval_SaveThread();
            int error = lock_table_join(&self->table, &file, &member, pause_for_signals, &saved, &fault);
            PyEval_RestoreThread(saved);
            if (error == 0) {
                bool fresh = own_member(&self->table) == 0;
                lock_table_enter(&self->table, &file, member);
                if (fresh && renew_numbers(self) < 0) {
                    lock_table_leave(&self->table);
                    return -1;
                }
                continue; /* a signal handler or another thread may have forked, or closed the table, meanwhile */
            }
        }
        raise_fault(self, &fault);
        return -1;
    }
    return -1;
}

PyDoc_STRVAR(table_doc,
             "LockTable(path, *, slots=1048576, mode=0o666, timed_out, lost, forked)\n--\n\n"
             "The lock file at `path`. If missing, it is created with permission bits `mode`, under any umask.\n\n"
             "`slots` is for a new file; an existing file keeps its number. Callables make the exceptions to raise:\n"
             "timed_out(keys, pid of the holder or 0), lost(keys), forked().\n\n"
             "Raises OSError: EAGAIN if other processes use the file as another kind, EPROTO in another version,\n"
             "EXDEV on another machine or mount, ETIMEDOUT if another process was stopped while it opened the file,\n"
             "and the errors of the system.");

static PyObject *
table_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *parameters[] = {"path", "slots", "mode", "timed_out", "lost", "forked", NULL};
    PyObject *path, *timed_out = NULL, *lost = NULL, *forked = NULL;
    unsigned long long slots = 1 << 20;
    unsigned int mode = 0666;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O|$KIOOO:LockTable", parameters, &path, &slots, &mode, &timed_out,
                                     &lost, &forked)) {
        return NULL;
    }
    if (timed_out == NULL || lost == NULL || forked == NULL) {
        PyErr_SetString(PyExc_TypeError, "LockTable() needs timed_out, lost and forked");
        return NULL;
    }
    if (!slots_are_possible(slots) || mode > 0777) {
        PyErr_SetString(PyExc_ValueError, "slots must be a power of two from 64 to 1,048,576, mode permission bits");
        return NULL;
    }
    table_object *self = (table_object *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->table.live.fd = -1;
    self->forks = fork_count();
    self->shown_path = Py_NewRef(path);
    self->timed_out = Py_NewRef(timed_out);
    self->lost = Py_NewRef(lost);
    self->forked = Py_NewRef(forked);
    if (!PyUnicode_FSConverter(path, &self->path)) {
        self->path = NULL;
        Py_DECREF(self);
        return NULL;
    }
    lock_fault fault;
    PyThreadState *saved = PyEval_SaveThread();
    int error = lock_table_open(&self->table, PyBytes_AS_STRING(self->path), (uint32_t)slots, mode, pause_for_signals,
                                &saved, &fault);
    PyEval_RestoreThread(saved);
    if (error != 0) {
        raise_fault(self, &fault);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* ---- Owners ------------------------------------------------------------------------------------------------------ */

PyDoc_STRVAR(table_owner_doc,
             "owner($self, /)\n--\n\n"
             "Begin an owner: one transaction.\n\n"
             "Raises OSError: EUSERS if 2,047 processes are members or this one has 262,143 owners, ESTALE if the\n"
             "file was removed or replaced: make a new LockTable.");

static PyObject *
table_owner(PyObject *object, PyObject *Py_UNUSED(none))
{
    table_object *self = (table_object *)object;
    locktable_state *state = PyType_GetModuleState(Py_TYPE(object));
    if (state == NULL || ensure_member(self) < 0) {
        return NULL;
    }
    owner_object *owner = (owner_object *)state->owner_type->tp_alloc(state->owner_type, 0);
    if (owner == NULL) {
        return NULL;
    }
    uint32_t number = 0;
    for (uint32_t tried = 0; tried < NUMBERS && number == 0; tried++) {
        self->next_number = (self->next_number + 1) % NUMBERS;
        if (self->next_number != 0 && !is_in_use(self, self->next_number)) {
            number = self->next_number;
        }
    }
    if (number == 0) {
        lock_fault fault;
        refuse(&fault, EUSERS, "this process has %d owners of locks: close the ones that are done", NUMBERS - 1);
        raise_fault(self, &fault);
        Py_DECREF(owner);
        return NULL;
    }
    begin_number(self, number);
    owner->owned_by = (table_object *)Py_NewRef(object);
    owner->identity = self->table.member << MEMBER_SHIFT | number << 1;
    owner->forks = fork_count();
    return (PyObject *)owner;
}

PyDoc_STRVAR(table_close_doc,
             "close($self, /)\n--\n\n"
             "End the membership. Other members recover what owners still hold, as if this process had died.");

static PyObject *
table_close(PyObject *object, PyObject *Py_UNUSED(none))
{
    table_object *self = (table_object *)object;
    self->closed = true;
    leave_if_idle(self);
    Py_RETURN_NONE;
}

/* ---- The type ---------------------------------------------------------------------------------------------------- */

static PyObject *
table_member(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLong(own_member(&((table_object *)object)->table));
}

static PyObject *
table_slots(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLong(((table_object *)object)->table.slots);
}

static int
table_traverse(PyObject *object, visitproc visit, void *arg)
{
    table_object *self = (table_object *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->timed_out);
    Py_VISIT(self->lost);
    Py_VISIT(self->forked);
    return 0;
}

static int
table_clear(PyObject *object)
{
    table_object *self = (table_object *)object;
    Py_CLEAR(self->timed_out);
    Py_CLEAR(self->lost);
    Py_CLEAR(self->forked);
    return 0;
}

static void
table_dealloc(PyObject *object)
{
    table_object *self = (table_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    (void)table_clear(object);
    lock_table_leave(&self->table);
    lock_table_unmap(&self->table);
    PyMem_Free(self->numbers);
    Py_XDECREF(self->path);
    Py_XDECREF(self->shown_path);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef table_methods[] = {
    {"owner", table_owner, METH_NOARGS, table_owner_doc},
    {"close", table_close, METH_NOARGS, table_close_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef table_attributes[] = {
    {"member", table_member, NULL, "This process's member number; 0: not joined yet.", NULL},
    {"slots", table_slots, NULL, "The number of words in the file.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot table_slots_of_type[] = {
    {Py_tp_doc, (void *)table_doc},
    {Py_tp_new, table_new},
    {Py_tp_dealloc, table_dealloc},
    {Py_tp_traverse, table_traverse},
    {Py_tp_clear, table_clear},
    {Py_tp_methods, table_methods},
    {Py_tp_getset, table_attributes},
    {0, NULL},
};

static PyType_Spec table_spec = {
    .name = "txstore._native._locktable.LockTable",
    .basicsize = sizeof(table_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = table_slots_of_type,
};

#endif
