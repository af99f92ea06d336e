/*
 * txstore._native._locktable: locks of chunk keys between processes, in one mapped file of 32-bit words.
 *
 *     LockTable    the file as one process sees it: opened once, a member from its first owner on
 *     Owner        the locks of one transaction; owners of one process exclude each other
 *
 *     lock_slots.h     which word a key has              lock_held.h      a set of slots
 *     lock_words.h     one word: states, waiting         lock_calls.h     arguments: a call's keys as slots
 *     lock_file.h      byte locks, descriptors, fork     lock_grants.h    how an owner's grants come and go
 *     lock_recovery.h  recovery of dead members          lock_owner.h     Owner
 *     lock_open.h      opening and resetting the file    lock_table.h     LockTable
 *     lock_members.h   joining it as a member            this file        the module
 *
 * The headers on the left do not use Python: tests/native/lock_stress.c tests them alone, under sanitizers.
 *
 * THE FILE, `locks/chunks`
 *
 * Integers and words are in the machine's byte order: the file is used only on the machine that its boot id names.
 *
 *          0  +---------------------------------------------------------+
 *             | header                                                  |
 *          0  |   8  magic "TXSLOCKS"; "TXSLOCK-" while it is being made |
 *          8  |   4  version, 2                                          |
 *         12  |   4  kind: 1 table, 2 ranges (the fallback: no words)    |
 *         16  |   4  slots, a power of two from 2^6 to 2^20              |
 *         20  |   4  0                                                   |
 *         24  |   8  seed of the hash: the same everywhere               |
 *         32  |   8  epoch: how often the file was reset                 |
 *         40  |   8  device \ of the file itself, as stat() tells: a copy |
 *         48  |   8  inode  / does not match, nor a view by an overlay    |
 *         56  |  40  boot id: 36 characters, 4 zero bytes                |
 *         96  |      0                                                   |
 *      4,096  +---------------------------------------------------------+
 *             | members 0 to 2,047, 64 bytes each; 0 is never used       |
 *          0  |   4  in use: 0 once its words have been swept            |
 *          4  |   4  process id, in its own namespace: for people only   |
 *          8  |   8  incarnation: another one each time the place is taken |
 *         16  |   4  newest \ of the numbers of its transactions: all that |
 *         20  |   4  oldest / live lie between them; 0: none lives       |
 *         24  |  40  0: reserved                                        |
 *    135,168  +---------------------------------------------------------+
 *             | words, 4 bytes each, one a slot: lock_words.h            |
 *             +---------------------------------------------------------+
 *
 *       2^40  INIT: held to open, join or reset             byte locks, far behind
 *   2^40 + m  LIVE(m): held by member m as long as it lives    the file's end
 *
 * A process allocates the whole file before it maps it, so a full disk is an OSError, never a SIGBUS. It never makes
 * the file shorter, because another process's mapping would then have no pages behind it. It writes the complete magic
 * last, and clears it first.
 *
 * LIFE. Only the kernel knows which members live: a member lives while its LIVE byte is locked. Process ids are not
 * trusted, and the words of a member say nothing about its life. A living member publishes the range of its
 * transactions in its record. A word outside of that range is damaged, or was parked for a transaction that has ended
 * since: it is as free as a dead member's word. So the table works between containers that share a volume, and only the
 * end of a process frees its locks: a stopped process keeps them.
 *
 * RESET. A process that holds INIT resets the file if no LIVE byte is locked and the magic, version, kind, seed, boot
 * id or size is wrong. Then it sets every word to 0. It never writes to a file that is neither empty nor a lock file.
 * If the header is right it resets nothing, even if no member lives: the words of dead members tell the next holder
 * that they are dirty. If device or inode do not match (within one boot), it does not write to the file, but removes it
 * and creates a new one. While any member lives, it raises OSError in each of these cases: EAGAIN (BlockingIOError) for
 * another kind, EPROTO for another version, EXDEV for another boot or mount, EINVAL for damage.
 *
 * DESCRIPTORS. Two while a table is being opened, none afterwards, one once it has joined.
 *
 * THREADS. This module needs the GIL: it guards the fields, which have no locks. Words change by compare-and-swap
 * anyway.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "lock_table.h"

/* ---- The module -------------------------------------------------------------------------------------------------- */

static int
locktable_exec(PyObject *module)
{
    locktable_state *state = PyModule_GetState(module);
    int error = handle_forks();
    if (error != 0) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    state->table_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &table_spec, NULL);
    if (state->table_type == NULL || PyModule_AddType(module, state->table_type) < 0) {
        return -1;
    }
    state->owner_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &owner_spec, NULL);
    if (state->owner_type == NULL || PyModule_AddType(module, state->owner_type) < 0) {
        return -1;
    }
    return 0;
}

static int
locktable_traverse(PyObject *module, visitproc visit, void *arg)
{
    locktable_state *state = PyModule_GetState(module);
    Py_VISIT(state->table_type);
    Py_VISIT(state->owner_type);
    return 0;
}

static int
locktable_clear(PyObject *module)
{
    locktable_state *state = PyModule_GetState(module);
    Py_CLEAR(state->table_type);
    Py_CLEAR(state->owner_type);
    return 0;
}

static void
locktable_free(void *module)
{
    (void)locktable_clear(module);
}

static PyModuleDef_Slot locktable_slots[] = {
    {Py_mod_exec, locktable_exec},
    {0, NULL},
};

static struct PyModuleDef locktable_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "txstore._native._locktable",
    .m_doc = "Locks of chunk keys between processes.",
    .m_size = sizeof(locktable_state),
    .m_slots = locktable_slots,
    .m_traverse = locktable_traverse,
    .m_clear = locktable_clear,
    .m_free = locktable_free,
};

PyMODINIT_FUNC
PyInit__locktable(void)
{
    return PyModuleDef_Init(&locktable_module);
}
