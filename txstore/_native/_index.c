/* txstore._native._index: look up, scan, build and merge runs. index_fallback.py is the same in Python. Also decodes and
 * encodes the headers of commits (commit_header.h).
 *
 * A run is one immutable sorted table of key -> ref, a section of a pack. docs/understand/format.md, "Runs", is the
 * normative description. This is its layout in memory:
 *
 *     0            offset of the index    of the prefixes  of the packs
 *     | block | block | ... | block | index           | prefixes        | packs    | trailer |
 *     |  ~4 KiB each, no gaps       | records, first  | records, then   | varint   | 64 B    |
 *                                   | keys            | prefixes        | length + |         |
 *                                                                       | entry    |         |
 *
 *     block  | entry | entry | ... | restart[0] | restart[1] | ... | n |
 *            ^ shared = 0            ^ offset of every 16th entry
 *     entry  | shared | unshared | suffix | kind | seq | pack | offset | length | checksum |
 *              varint   varint              u8    varint varint varint   varint   u32
 *
 * A run is never unpacked: a Run holds the caller's buffer (usually a view of a mapped file) and eleven integers from
 * the trailer. A lookup is
 *
 *     1. binary search over the first keys in the index:   log2(blocks) steps; a key below the first one is missing
 *     2. the block's checksum, 4 KiB at 28 GB/s:           0.15 us, always: wrong data is never returned
 *     3. binary search over its restart points:            3 or 4 entries decoded
 *     4. a walk from there:                                at most 16 entries decoded
 *
 * A cursor (run_cursor.h) is a block and an entry in it, decoded into fixed fields. It rebuilds the key in a buffer for
 * the longest key, so it allocates nothing. Scan and merge are one loop over one cursor for each run: the smallest key
 * is next, and of equal keys the newest run's entry counts. Geometric compaction bounds the number of runs, so the loop
 * finds the smallest key by comparing all cursors.
 *
 * The bytes are hostile. The trailer, the index, the prefixes and the packs are checked when the run is opened; but a
 * mapped file can change under us, so every use checks bounds again. Sizes are compared by subtraction from the known
 * size, in 64 bits, so that no sum can overflow. Integers are read by memcpy.
 *
 * For a run on remote storage, the buffer must contain only the part after the blocks. window() returns the blocks that
 * a query will read, and the caller loads them into the buffer first.
 *
 * A Run never changes once it is made, the module has no state but its types, and cursors live on the stack or in one
 * call's memory: so nothing needs a lock, with or without the GIL. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "commit_header.h"
#include "run_cursor.h"
#include "run_moves.h"
#include "run_reader.h"
#include "run_writer.h"

enum { PREFIX_TOMBSTONE = 4 }; /* the answer of lookup() for a key that only a prefix tombstone hides */

typedef struct {
    PyTypeObject *run_type;
} module_state;

typedef struct {
    PyObject_HEAD
    Py_buffer view;
    run run;
} RunObject;

static PyObject *
bytes_of(span s)
{
    return PyBytes_FromStringAndSize((const char *)s.data, (Py_ssize_t)s.length);
}

static int
as_unsigned(PyObject *number, uint64_t most, uint64_t *value)
{
    *value = PyLong_AsUnsignedLongLong(number);
    if (*value == (uint64_t)-1 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return -1;
        PyErr_Clear();
    } else if (*value <= most)
        return 0;
    PyErr_SetString(PyExc_OverflowError, "integer out of range");
    return -1;
}

static int
as_stop(PyObject *stop, span *out)
{
    if (stop != Py_None && !PyBytes_Check(stop)) {
        PyErr_SetString(PyExc_TypeError, "stop is bytes or None");
        return -1;
    }
    *out = stop == Py_None ? (span){NULL, 0} : span_of(stop);
    return 0;
}

/* Steals the reference to `item`, which is NULL after an error. */
static int
put(PyObject *tuple, Py_ssize_t *at, PyObject *item)
{
    if (item == NULL)
        return -1;
    PyTuple_SET_ITEM(tuple, (*at)++, item);
    return 0;
}

/* ([key,] [i,] kind, seq, pack, offset, length, checksum) of the entry that the cursor stands on; i < 0: left out. */
static PyObject *
entry_tuple(const cursor *c, int with_key, Py_ssize_t i)
{
    Py_ssize_t at = 0;
    PyObject *tuple = PyTuple_New(6 + (with_key != 0) + (i >= 0));
    if (tuple == NULL)
        return NULL;
    if ((with_key && put(tuple, &at, bytes_of(cursor_key(c))) < 0) ||
        (i >= 0 && put(tuple, &at, PyLong_FromSsize_t(i)) < 0) ||
        put(tuple, &at, PyLong_FromLong(c->kind)) < 0 || put(tuple, &at, PyLong_FromUnsignedLongLong(c->seq)) < 0 ||
        put(tuple, &at, PyLong_FromUnsignedLongLong(c->pack)) < 0 ||
        put(tuple, &at, PyLong_FromUnsignedLongLong(c->offset)) < 0 ||
        put(tuple, &at, PyLong_FromUnsignedLongLong(c->length)) < 0 ||
        put(tuple, &at, PyLong_FromUnsignedLong(c->checksum)) < 0) {
        Py_DECREF(tuple);
        return NULL;
    }
    PyObject_GC_UnTrack(tuple); /* of integers and bytes: a million of them need no walks by the collector */
    return tuple;
}

static int
append_entry(PyObject *list, const cursor *c, Py_ssize_t i)
{
    PyObject *tuple = entry_tuple(c, 1, i);
    if (tuple == NULL)
        return -1;
    int failed = PyList_Append(list, tuple);
    Py_DECREF(tuple);
    return failed;
}

/* ---- Run ---- */

static PyObject *
run_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"buffer", "seq", NULL};
    PyObject *buffer, *number;
    uint64_t seq;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:Run", (char **)names, &buffer, &number) ||
        as_unsigned(number, UINT64_MAX, &seq) < 0)
        return NULL;
    RunObject *self = (RunObject *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    if (PyObject_GetBuffer(buffer, &self->view, PyBUF_SIMPLE) < 0 ||
        run_open(&self->run, self->view.buf, (size_t)self->view.len, seq) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
run_traverse(RunObject *self, visitproc visit, void *arg)
{
    /* Not view.obj: before 3.11.9 and 3.12.3 the collector clears a memoryview in a cycle although a buffer of it is in
       use (gh-77894). The object never refers back to this one, so it is not visited, and lives until we are freed. */
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void
run_dealloc(RunObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    PyBuffer_Release(&self->view);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
run_get_seq(RunObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(self->run.seq);
}

static PyObject *
run_get_entries(RunObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(self->run.entries);
}

static PyObject *
run_get_blocks(RunObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLong(self->run.blocks);
}

static PyObject *
run_get_max_seq(RunObject *self, void *Py_UNUSED(closure))
{
    const run *r = &self->run;
    int own = r->max_seq == 0 && (r->entries || r->prefixes);
    return PyLong_FromUnsignedLongLong(own ? r->seq : r->max_seq);
}

static PyObject *
run_get_prefixes(RunObject *self, void *Py_UNUSED(closure))
{
    const run *r = &self->run;
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < r->prefixes; i++) {
        span prefix;
        uint64_t seq;
        PyObject *pair = NULL;
        if (read_prefix(r, i, &prefix, &seq) == 0)
            pair = Py_BuildValue("(y#K)", (const char *)prefix.data, (Py_ssize_t)prefix.length,
                                 (unsigned long long)(seq ? seq : r->seq));
        if (pair == NULL || PyList_Append(list, pair) < 0)
            Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

static PyObject *
run_get_packs(RunObject *self, void *Py_UNUSED(closure))
{
    const run *r = &self->run;
    uint64_t at = r->packs_at;
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < r->packs; i++) {
        span pack;
        PyObject *bytes = read_pack(r, &at, &pack) < 0 ? NULL : bytes_of(pack);
        if (bytes == NULL || PyList_Append(list, bytes) < 0)
            Py_CLEAR(list);
        Py_XDECREF(bytes);
    }
    return list;
}

static PyObject *
run_scan(RunObject *self, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"start", "stop", "limit", "since", NULL};
    PyObject *start, *stop, *since_number = NULL;
    Py_ssize_t limit;
    uint64_t since = 0;
    span stop_key;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "SOn|O:scan", (char **)names, &start, &stop, &limit,
                                     &since_number) ||
        as_stop(stop, &stop_key) < 0 || (since_number && as_unsigned(since_number, UINT64_MAX, &since) < 0))
        return NULL;
    PyObject *list = PyList_New(0);
    if (list == NULL || limit == 0)
        return list;
    cursor c;
    cursor_init(&c, &self->run, stop_key, since);
    int more = cursor_seek(&c, span_of(start));
    while (more > 0) {
        if (append_entry(list, &c, NONE) < 0)
            more = -1;
        else
            more = PyList_GET_SIZE(list) == limit ? 0 : cursor_advance(&c);
    }
    if (more < 0)
        Py_CLEAR(list);
    return list;
}

/* The offset of block `i`; for the number after the last block, the end of the blocks. */
static int
block_begin(const run *r, uint64_t i, uint64_t *begin)
{
    block_record record = {.offset = r->index_at};
    if (i < r->blocks && read_block_record(r, (uint32_t)i, &record) < 0)
        return -1;
    *begin = record.offset;
    return 0;
}

/* The blocks [*first, *last) of a window: see run_window_doc. */
static int
find_window(const run *r, span start, uint64_t at_least, uint64_t since, uint64_t *first, uint64_t *last)
{
    int64_t holds = find_block(r, start);
    if (holds == FAULT)
        return -1;
    uint64_t i = holds == NONE ? 0 : (uint64_t)holds, begin, end;
    int newer = 1;
    *first = *last = i;
    if (holds == NONE && at_least == 0)
        return 0;
    for (; since && i < r->blocks; i++)
        if ((newer = is_block_newer(r, (uint32_t)i, since)))
            break;
    *first = i;
    if (newer < 0 || block_begin(r, i, &begin) < 0)
        return -1;
    for (end = begin; i < r->blocks && (i == *first || end - begin < at_least);) {
        if (since && (newer = is_block_newer(r, (uint32_t)i, since)) <= 0)
            break;
        if (block_begin(r, ++i, &end) < 0)
            return -1;
    }
    *last = i;
    return newer < 0 ? -1 : 0;
}

static PyObject *
run_window(RunObject *self, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"start", "at_least", "since", NULL};
    const run *r = &self->run;
    PyObject *start, *at_least_number, *since_number = NULL, *next;
    uint64_t at_least, since = 0, first, last, begin, end;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "SO|O:window", (char **)names, &start, &at_least_number,
                                     &since_number) ||
        as_unsigned(at_least_number, UINT64_MAX, &at_least) < 0 ||
        (since_number && as_unsigned(since_number, UINT64_MAX, &since) < 0) ||
        find_window(r, span_of(start), at_least, since, &first, &last) < 0 || block_begin(r, first, &begin) < 0 ||
        block_begin(r, last, &end) < 0)
        return NULL;
    if (last < r->blocks) {
        span key;
        next = read_first_key(r, (uint32_t)last, &key) < 0 ? NULL : bytes_of(key);
    } else
        next = Py_NewRef(Py_None);
    return next == NULL ? NULL : Py_BuildValue("(KKN)", (unsigned long long)begin, (unsigned long long)end, next);
}

/* Reads all of block `i`. The cursor comes from the previous block, so that the order across blocks is checked too. */
static int
verify_block(cursor *c, uint32_t i, uint64_t *entries)
{
    uint64_t count = 0, max_seq = 0;
    if (cursor_load(c, i) < 0)
        return -1;
    for (; c->at < c->end; count++) {
        int at_restart = count % RESTART_EVERY == 0;
        uint64_t restart = count / RESTART_EVERY;
        if (at_restart && (restart >= c->restarts || load32(c->end + 4 * restart) != (uint64_t)(c->at - c->block)))
            return cursor_fault(c, "bad restart points");
        if (cursor_decode(c) < 0)
            return -1;
        if (at_restart && c->shared)
            return cursor_fault(c, "bad restart points");
        max_seq = c->seq > max_seq ? c->seq : max_seq;
    }
    if (c->restarts != (count + RESTART_EVERY - 1) / RESTART_EVERY)
        return cursor_fault(c, "bad restart points");
    if (c->run->max_seq && max_seq != c->record.max_seq)
        return cursor_fault(c, "wrong highest seq");
    *entries += count;
    return 0;
}

static PyObject *
run_verify(RunObject *self, PyObject *Py_UNUSED(ignored))
{
    const run *r = &self->run;
    uint64_t entries = 0, max_seq = 0, seq;
    span prefix;
    cursor c;
    cursor_init(&c, r, (span){NULL, 0}, 0);
    for (uint32_t i = 0; i < r->prefixes; i++) {
        if (read_prefix(r, i, &prefix, &seq) < 0)
            return NULL;
        max_seq = seq > max_seq ? seq : max_seq;
    }
    for (uint32_t i = 0; i < r->blocks; i++) {
        if (verify_block(&c, i, &entries) < 0)
            return NULL;
        max_seq = c.record.max_seq > max_seq ? c.record.max_seq : max_seq;
    }
    if (entries != r->entries)
        fault("trailer", r->trailer_at, "wrong number of entries");
    else if (max_seq != r->max_seq)
        fault("trailer", r->trailer_at, "wrong highest seq");
    else
        Py_RETURN_NONE;
    return NULL;
}

static PyGetSetDef run_getset[] = {
    {"seq", (getter)run_get_seq, NULL, "The meaning of a stored seq of 0.", NULL},
    {"entries", (getter)run_get_entries, NULL, "Number of entries.", NULL},
    {"blocks", (getter)run_get_blocks, NULL, "Number of blocks.", NULL},
    {"max_seq", (getter)run_get_max_seq, NULL, "Highest seq of entries and prefixes; 0: there are none.", NULL},
    {"prefixes", (getter)run_get_prefixes, NULL, "Prefix tombstones: [(prefix, seq)].", NULL},
    {"packs", (getter)run_get_packs, NULL, "Pack entries; number 1 is first.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(run_scan_doc, "scan($self, /, start, stop, limit, since=0)\n--\n\n"
                           "Entries of this run alone, tombstones included, with start <= key < stop and seq > since:\n"
                           "[(key, kind, seq, pack, offset, length, checksum)].");
PyDoc_STRVAR(run_window_doc, "window($self, /, start, at_least, since=0)\n--\n\n"
                             "The bytes to load before a query: (begin, end, first key after them or None).\n\n"
                             "The window starts with the block that may contain `start`, or the first block after it.\n"
                             "It has enough blocks for `at_least` bytes, and at least one if any exists. With 0 it has\n"
                             "only the block that may contain `start`: none if `start` is below all keys. With `since`,\n"
                             "a block without newer entries is skipped at the start, and ends the window later. Reads\n"
                             "no block.");
PyDoc_STRVAR(run_verify_doc, "verify($self, /)\n--\n\nRead every block; ValueError on the first fault.");
PyDoc_STRVAR(run_doc, "Run(buffer, seq)\n--\n\n"
                      "One run over `buffer`, which is exactly its section. `seq` is what a stored seq of 0 stands\n"
                      "for.");

static PyMethodDef run_methods[] = {
    {"scan", (PyCFunction)(void (*)(void))run_scan, METH_VARARGS | METH_KEYWORDS, run_scan_doc},
    {"window", (PyCFunction)(void (*)(void))run_window, METH_VARARGS | METH_KEYWORDS, run_window_doc},
    {"verify", (PyCFunction)run_verify, METH_NOARGS, run_verify_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot run_slots[] = {
    {Py_tp_doc, (void *)run_doc},
    {Py_tp_new, run_new},
    {Py_tp_dealloc, run_dealloc},
    {Py_tp_traverse, run_traverse},
    {Py_tp_getset, run_getset},
    {Py_tp_methods, run_methods},
    {0, NULL},
};

static PyType_Spec run_spec = {
    .name = "txstore._native._index.Run",
    .basicsize = sizeof(RunObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = run_slots,
};

/* ---- functions ---- */

static const run *
as_run(PyObject *module, PyObject *object)
{
    module_state *state = PyModule_GetState(module);
    if (Py_IS_TYPE(object, state->run_type))
        return &((RunObject *)object)->run;
    PyErr_SetString(PyExc_TypeError, "runs is a tuple of Run");
    return NULL;
}

/* The runs of a tuple, to be freed with PyMem_Free; they live as long as the tuple. */
static const run **
as_runs(PyObject *module, PyObject *tuple)
{
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    const run **runs = PyMem_New(const run *, count);
    if (runs == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; runs && i < count; i++)
        if ((runs[i] = as_run(module, PyTuple_GET_ITEM(tuple, i))) == NULL) {
            PyMem_Free(runs);
            return NULL;
        }
    return runs;
}

/* 1 and the seq of the newest prefix tombstone of this run over the key; 0: there is none. */
static int
covering_seq(const run *r, span key, uint64_t *seq)
{
    prefix_walk walk = {.key = key};
    int found, any = 0;
    *seq = 0;
    while ((found = next_prefix_over(r, &walk)) > 0) {
        any = 1;
        *seq = walk.seq > *seq ? walk.seq : *seq;
    }
    return found < 0 ? -1 : any;
}

PyDoc_STRVAR(lookup_doc, "lookup(runs, key, /)\n--\n\n"
                         "The entry of `key` in the newest run that has one; runs are newest first:\n"
                         "(run, kind, seq, pack, offset, length, checksum), or None.");

enum { NOT_FOUND = 0, FOUND_ENTRY = 1, FOUND_PREFIX = 2 };

/* Finds the newest entry of a key: the cursor stands on it; or the run with a prefix tombstone that covers the key, and
 * its seq. -1: an exception. */
static int
find_newest(PyObject *module, PyObject *runs, span key, cursor *c, Py_ssize_t *number, uint64_t *seq)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(runs); i++) {
        const run *r = as_run(module, PyTuple_GET_ITEM(runs, i));
        if (r == NULL)
            return -1;
        int64_t block = find_block(r, key);
        if (block == FAULT)
            return -1;
        *number = i;
        if (block != NONE) {
            cursor_init(c, r, (span){NULL, 0}, 0);
            int found = cursor_search(c, (uint32_t)block, key);
            if (found < 0)
                return -1;
            if (found && compare(cursor_key(c), key) == 0)
                return FOUND_ENTRY;
        }
        int covered = covering_seq(r, key, seq);
        if (covered)
            return covered < 0 ? -1 : FOUND_PREFIX;
    }
    return NOT_FOUND;
}

static PyObject *
index_lookup(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyTuple_Check(args[0]) || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "lookup() takes a tuple of Run and a key of bytes");
        return NULL;
    }
    cursor c;
    Py_ssize_t i;
    uint64_t seq;
    switch (find_newest(module, args[0], span_of(args[1]), &c, &i, &seq)) {
    case FOUND_ENTRY:
        return entry_tuple(&c, 0, i);
    case FOUND_PREFIX:
        return Py_BuildValue("(niKiiii)", i, PREFIX_TOMBSTONE, (unsigned long long)seq, 0, 0, 0, 0);
    case NOT_FOUND:
        Py_RETURN_NONE;
    default:
        return NULL;
    }
}

PyDoc_STRVAR(locate_doc, "locate($module, runs, keys, /)\n--\n\n"
                         "The newest entry of each key over runs (newest first): six int64 for each, kind, run, pack,\n"
                         "offset, length, checksum. A kind of -1: the key has no entry, or a tombstone.");

static PyObject *
index_locate(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "locate() takes a tuple of Run and a tuple of keys");
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(args[1]);
    PyObject *table = PyBytes_FromStringAndSize(NULL, count * 6 * (Py_ssize_t)sizeof(int64_t));
    if (table == NULL)
        return NULL;
    char *to = PyBytes_AS_STRING(table);
    for (Py_ssize_t k = 0; k < count; k++, to += 6 * sizeof(int64_t)) {
        PyObject *key = PyTuple_GET_ITEM(args[1], k);
        cursor c;
        Py_ssize_t i;
        uint64_t seq;
        int found = -1;
        if (!PyBytes_Check(key))
            PyErr_SetString(PyExc_TypeError, "a key is bytes");
        else
            found = find_newest(module, args[0], span_of(key), &c, &i, &seq);
        if (found < 0) {
            Py_DECREF(table);
            return NULL;
        }
        int64_t entry[6] = {-1, 0, 0, 0, 0, 0};
        if (found == FOUND_ENTRY && c.kind != KIND_TOMBSTONE) {
            entry[0] = c.kind;
            entry[1] = i;
            entry[2] = (int64_t)c.pack;
            entry[3] = (int64_t)c.offset;
            entry[4] = (int64_t)c.length;
            entry[5] = c.checksum;
        }
        memcpy(to, entry, sizeof entry);
    }
    return table;
}

PyDoc_STRVAR(scan_doc, "scan($module, /, runs, start, stop, limit)\n--\n\n"
                       "The live entries with start <= key < stop over all runs (newest first), at most `limit`\n"
                       "unless it is negative: [(key, run, kind, seq, pack, offset, length, checksum)].");

static PyObject *
index_scan(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"runs", "start", "stop", "limit", NULL};
    PyObject *tuple, *start, *stop;
    Py_ssize_t limit;
    span stop_key;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!SOn:scan", (char **)names, &PyTuple_Type, &tuple, &start, &stop,
                                     &limit) ||
        as_stop(stop, &stop_key) < 0)
        return NULL;
    const run **runs = as_runs(module, tuple);
    if (runs == NULL)
        return NULL;
    PyObject *list = PyList_New(0);
    if (list && limit != 0) {
        merger m;
        int more = merger_open(&m, runs, PyTuple_GET_SIZE(tuple), span_of(start), stop_key);
        while (more >= 0 && PyList_GET_SIZE(list) != limit && (more = merger_next(&m)) > 0) {
            const cursor *c = &m.sources[m.newest].cursor;
            if (is_live(c->kind) && append_entry(list, c, m.newest) < 0)
                more = -1;
        }
        if (more < 0)
            Py_CLEAR(list);
        merger_close(&m);
    }
    PyMem_Free(runs);
    return list;
}

/* One entry given to build(). */
static int
build_entry(writer *w, PyObject *entry)
{
    Py_ssize_t size = PyTuple_Check(entry) ? PyTuple_GET_SIZE(entry) : 0;
    if (size < 5 || size > 7) {
        PyErr_SetString(PyExc_TypeError, "an entry is (key, kind, offset, length, checksum) and perhaps a pack and a seq");
        return -1;
    }
    PyObject *bytes = PyTuple_GET_ITEM(entry, 0);
    if (!PyBytes_Check(bytes)) {
        PyErr_SetString(PyExc_TypeError, "a key is bytes");
        return -1;
    }
    span key = span_of(bytes);
    const char *wrong = key.length < 1 || key.length > KEY_BYTES                   ? "a key has 1 to 4096 bytes"
                        : compare(key, (span){w->key, w->key_length}) <= 0 ? "keys out of order"
                                                                           : NULL;
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, wrong);
        return -1;
    }
    uint64_t kind, offset = 0, length = 0, checksum = 0, pack = 0, seq = 0;
    if (as_unsigned(PyTuple_GET_ITEM(entry, 1), UINT64_MAX, &kind) < 0)
        return -1;
    if (!is_ref_kind(kind)) {
        PyErr_Format(PyExc_ValueError, "unknown ref kind %llu", (unsigned long long)kind);
        return -1;
    }
    if (kind != KIND_TOMBSTONE && (as_unsigned(PyTuple_GET_ITEM(entry, 2), UINT64_MAX, &offset) < 0 ||
                                   as_unsigned(PyTuple_GET_ITEM(entry, 3), UINT64_MAX, &length) < 0 ||
                                   as_unsigned(PyTuple_GET_ITEM(entry, 4), UINT32_MAX, &checksum) < 0 ||
                                   (size >= 6 && as_unsigned(PyTuple_GET_ITEM(entry, 5), UINT64_MAX, &pack) < 0)))
        return -1;
    if (size == 7 && as_unsigned(PyTuple_GET_ITEM(entry, 6), UINT64_MAX, &seq) < 0)
        return -1;
    if (pack > w->pack_count) {
        PyErr_Format(PyExc_ValueError, "there is no pack %llu", (unsigned long long)pack);
        return -1;
    }
    return writer_add(w, key, (uint8_t)kind, seq, (uint32_t)pack, offset, length, (uint32_t)checksum);
}

static int
build_entries(writer *w, PyObject *entries)
{
    PyObject *entry, *iterator = PyObject_GetIter(entries);
    if (iterator == NULL)
        return -1;
    while ((entry = PyIter_Next(iterator)) != NULL) {
        int failed = build_entry(w, entry);
        Py_DECREF(entry);
        if (failed)
            break;
    }
    Py_DECREF(iterator);
    return PyErr_Occurred() ? -1 : 0;
}

static int
build_prefix(writer *w, PyObject *bytes)
{
    if (!PyBytes_Check(bytes)) {
        PyErr_SetString(PyExc_TypeError, "a prefix is bytes");
        return -1;
    }
    span prefix = span_of(bytes);
    if (prefix.length > KEY_BYTES || (prefix.length && prefix.data[prefix.length - 1] != '/')) {
        PyErr_SetString(PyExc_ValueError, "a prefix is empty or ends in /, and has at most 4096 bytes");
        return -1;
    }
    return writer_add_prefix(w, prefix, 0);
}

static int
build_prefixes(writer *w, PyObject *prefixes)
{
    PyObject *unique = PySet_New(prefixes);
    PyObject *list = unique ? PySequence_List(unique) : NULL;
    Py_XDECREF(unique);
    int failed = list == NULL || PyList_Sort(list) < 0 ? -1 : 0;
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(list); i++)
        failed = build_prefix(w, PyList_GET_ITEM(list, i));
    Py_XDECREF(list);
    return failed;
}

static int
build_packs(writer *w, PyObject *packs)
{
    PyObject *list = PySequence_List(packs);
    int failed = list == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(list); i++) {
        PyObject *entry = PyList_GET_ITEM(list, i);
        if (!PyBytes_Check(entry)) {
            PyErr_SetString(PyExc_TypeError, "a pack entry is bytes");
            failed = -1;
        } else
            failed = writer_add_pack(w, span_of(entry));
    }
    Py_XDECREF(list);
    return failed;
}

/* None counts as no sink. */
static int
as_sink(PyObject **sink)
{
    if (*sink == Py_None)
        *sink = NULL;
    if (*sink == NULL || PyCallable_Check(*sink))
        return 0;
    PyErr_SetString(PyExc_TypeError, "a sink is called with bytes");
    return -1;
}

PyDoc_STRVAR(build_doc, "build($module, /, entries, prefixes, packs=(), sink=None)\n--\n\n"
                        "A commit's run of (key, kind, offset, length, checksum) in ascending order of key, read one at\n"
                        "a time. A sixth member is the number of the value's pack in `packs`, from 1; 0: the run's own\n"
                        "file. A seventh is the seq; 0: the seq of the commit whose file will contain the run.\n\n"
                        "If `sink` is given, it receives the run piece by piece, and the function returns None.");

static PyObject *
index_build(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"entries", "prefixes", "packs", "sink", NULL};
    PyObject *entries, *prefixes, *packs = NULL, *sink = NULL, *result = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|OO:build", (char **)names, &entries, &prefixes, &packs, &sink) ||
        as_sink(&sink) < 0)
        return NULL;
    writer w;
    writer_init(&w, sink);
    if ((packs == NULL || build_packs(&w, packs) == 0) && build_entries(&w, entries) == 0 &&
        build_prefixes(&w, prefixes) == 0)
        result = writer_finish(&w);
    writer_clear(&w);
    return result;
}

/* The packs of one input of merge(): its entries call entries[n] pack n, and the result calls it numbers[n]. */
typedef struct {
    PyObject *entries; /* a tuple of bytes */
    uint32_t *numbers; /* 0: not used so far */
} pack_table;

static int
pack_table_init(pack_table *table, const run *r, PyObject *entries)
{
    if (r->seq == 0 && r->max_seq == 0 && (r->entries || r->prefixes)) {
        PyErr_SetString(PyExc_ValueError, "a run of unknown seq can not be merged");
        return -1;
    }
    if ((table->entries = PySequence_Tuple(entries)) == NULL)
        return -1;
    Py_ssize_t count = PyTuple_GET_SIZE(table->entries);
    if ((uint64_t)count != (uint64_t)r->packs + 1) {
        PyErr_SetString(PyExc_ValueError, "a table is the pack that the run lies in, then the packs of the run");
        return -1;
    }
    for (Py_ssize_t n = 0; n < count; n++)
        if (!PyBytes_Check(PyTuple_GET_ITEM(table->entries, n))) {
            PyErr_SetString(PyExc_TypeError, "a pack entry is bytes");
            return -1;
        }
    if ((table->numbers = PyMem_Calloc((size_t)count, sizeof *table->numbers)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

/* The number in the result of pack `n` of a table; a new pack gets the next number. `known`: entry -> number. An empty
 * entry is the file that will contain the result: number 0. */
static int
merged_pack_number(writer *w, PyObject *known, pack_table *table, uint64_t n, uint32_t *number)
{
    *number = table->numbers[n];
    if (*number)
        return 0;
    PyObject *entry = PyTuple_GET_ITEM(table->entries, (Py_ssize_t)n);
    if (PyBytes_GET_SIZE(entry) == 0)
        return 0;
    PyObject *value = PyDict_GetItemWithError(known, entry); /* borrowed; the dict is this call's own */
    if (value == NULL) {
        if (PyErr_Occurred() || writer_add_pack(w, span_of(entry)) < 0)
            return -1;
        PyObject *next = PyLong_FromUnsignedLong(w->pack_count);
        int failed = next == NULL || PyDict_SetItem(known, entry, next) < 0;
        Py_XDECREF(next);
        if (failed)
            return -1;
        *number = w->pack_count;
    } else
        *number = (uint32_t)PyLong_AsUnsignedLong(value);
    table->numbers[n] = *number;
    return 0;
}

/* Drops tombstones up to seq `forgotten`. `own`: the result stores no seq for its entries. */
static int
merge_entries(writer *w, const run *const *runs, Py_ssize_t count, PyObject *known, pack_table *tables,
              uint64_t forgotten, int own)
{
    merger m;
    int more = merger_open(&m, runs, count, (span){(const uint8_t *)"", 0}, (span){NULL, 0});
    while (more >= 0 && (more = merger_next(&m)) > 0) {
        const cursor *c = &m.sources[m.newest].cursor;
        uint32_t pack = 0;
        if (c->kind == KIND_TOMBSTONE && c->seq <= forgotten)
            continue;
        if ((c->kind != KIND_TOMBSTONE && merged_pack_number(w, known, &tables[m.newest], c->pack, &pack) < 0) ||
            writer_add(w, cursor_key(c), c->kind, own ? 0 : c->seq, pack, c->offset, c->length, c->checksum) < 0)
            more = -1;
    }
    merger_close(&m);
    return more;
}

/* Every prefix above seq `forgotten` once, with its highest seq. `next` has a zero for each run. */
static int
merge_prefixes(writer *w, const run *const *runs, Py_ssize_t count, uint32_t *next, uint64_t forgotten, int own)
{
    for (;;) {
        span smallest = {NULL, 0}, prefix;
        uint64_t highest = 0, seq;
        int any = 0;
        for (Py_ssize_t i = 0; i < count; i++) {
            if (next[i] == runs[i]->prefixes)
                continue;
            if (read_prefix(runs[i], next[i], &prefix, &seq) < 0)
                return -1;
            seq = seq ? seq : runs[i]->seq;
            int order = any ? compare(prefix, smallest) : -1;
            if (order < 0 || (order == 0 && seq > highest))
                highest = seq;
            if (order < 0)
                smallest = prefix;
            any = 1;
        }
        if (!any)
            return 0;
        for (Py_ssize_t i = 0; i < count; i++) {
            if (next[i] == runs[i]->prefixes)
                continue;
            if (read_prefix(runs[i], next[i], &prefix, &seq) < 0)
                return -1;
            next[i] += compare(prefix, smallest) == 0;
        }
        if (highest > forgotten && writer_add_prefix(w, smallest, own ? 0 : highest) < 0)
            return -1;
    }
}

/* The arguments of merge() and reflink(), except the runs. */
typedef struct {
    uint64_t forgotten;
    int own;
    PyObject *sink;
    span start, stop, to; /* of reflink(); `to` is NULL in merge() */
    chunk_moves *moves;   /* of reflink(); NULL: none */
} request;

static int
key_too_long(void)
{
    PyErr_SetString(PyExc_OverflowError, "a key would have more than 4096 bytes");
    return -1;
}

/* The live entries with start <= key < stop, with `to` in place of `start` in their keys, and with chunks moved, as
 * entries of a commit's run. */
static int
reflink_entries(writer *w, const run *const *runs, Py_ssize_t count, PyObject *known, pack_table *tables,
                const request *r)
{
    uint8_t key[KEY_BYTES + MOVED_MORE];
    merger m;
    memcpy(key, r->to.data, r->to.length);
    int more = merger_open(&m, runs, count, r->start, r->stop);
    while (more >= 0 && (more = merger_next(&m)) > 0) {
        const cursor *c = &m.sources[m.newest].cursor;
        uint32_t pack = 0;
        if (!is_live(c->kind))
            continue;
        span from = cursor_key(c);
        size_t rest = from.length - r->start.length, length = r->to.length + rest;
        if (!begins_with(from, r->start)) {
            PyErr_SetString(PyExc_ValueError, "a key does not begin with what is to be replaced");
            more = -1;
        } else if (length > KEY_BYTES || length == 0)
            more = key_too_long();
        else {
            span name = {from.data + r->start.length, rest};
            if (r->moves == NULL)
                memcpy(key + r->to.length, name.data, rest);
            else if (!moved_name(r->moves, name, key + r->to.length, &rest))
                continue;
            span new = {key, r->to.length + rest};
            if (new.length > KEY_BYTES)
                more = key_too_long();
            else if (merged_pack_number(w, known, &tables[m.newest], c->pack, &pack) < 0)
                more = -1;
            else if (r->moves != NULL)
                more = moves_add(r->moves, new, c->kind, pack, c->offset, c->length, c->checksum);
            else
                more = writer_add(w, new, c->kind, 0, pack, c->offset, c->length, c->checksum);
        }
    }
    merger_close(&m);
    return more < 0 || r->moves == NULL ? more : moves_write(r->moves, r->to.length, w);
}

/* The result of merge() or reflink(), once the arguments are checked and `tables` and `next` are zeroed memory for each
 * run. */
static PyObject *
merge_runs(const run *const *runs, Py_ssize_t count, PyObject *packs, pack_table *tables, uint32_t *next,
           const request *r)
{
    PyObject *result = NULL, *known = PyDict_New();
    if (known == NULL)
        return NULL;
    writer w;
    writer_init(&w, r->sink);
    int failed = 0;
    for (Py_ssize_t i = 0; !failed && i < count; i++)
        failed = pack_table_init(&tables[i], runs[i], PyTuple_GET_ITEM(packs, i));
    if (!failed && r->to.data != NULL)
        failed = reflink_entries(&w, runs, count, known, tables, r);
    else if (!failed)
        failed = merge_entries(&w, runs, count, known, tables, r->forgotten, r->own) < 0 ||
                 merge_prefixes(&w, runs, count, next, r->forgotten, r->own) < 0;
    if (!failed)
        result = writer_finish(&w);
    writer_clear(&w);
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_XDECREF(tables[i].entries);
        PyMem_Free(tables[i].numbers);
    }
    Py_DECREF(known);
    return result;
}

static PyObject *
merge_tuple(PyObject *module, PyObject *tuple, PyObject *tables_object, const request *r)
{
    PyObject *packs = PySequence_Tuple(tables_object), *result = NULL;
    if (packs == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    const run **runs = as_runs(module, tuple);
    pack_table *tables = PyMem_Calloc((size_t)count, sizeof *tables);
    uint32_t *next = PyMem_Calloc((size_t)count, sizeof *next);
    if (runs && PyTuple_GET_SIZE(packs) != count)
        PyErr_SetString(PyExc_ValueError, "there is one table of packs for each run");
    else if (runs && tables && next)
        result = merge_runs(runs, count, packs, tables, next, r);
    else if (runs)
        PyErr_NoMemory();
    PyMem_Free(next);
    PyMem_Free(tables);
    PyMem_Free(runs);
    Py_DECREF(packs);
    return result;
}

PyDoc_STRVAR(merge_doc, "merge($module, /, runs, tables, forgotten=0, own=False, sink=None)\n--\n\n"
                        "One compacted run of `runs`, newest first. tables[i] is the pack that contains run i, then the\n"
                        "packs that run i lists; an empty entry is the file that will contain the result. Tombstones up\n"
                        "to seq `forgotten` are dropped. REQUIRES: no older run has entries for them to hide, and no\n"
                        "reader needs to learn of the deletion. `own`: the result has the seq of the commit whose file\n"
                        "contains it. `sink`: as in build().");

static PyObject *
index_merge(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"runs", "tables", "forgotten", "own", "sink", NULL};
    unsigned long long forgotten = 0;
    PyObject *tuple, *tables;
    request r = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O|KpO:merge", (char **)names, &PyTuple_Type, &tuple, &tables,
                                     &forgotten, &r.own, &r.sink) ||
        as_sink(&r.sink) < 0)
        return NULL;
    r.forgotten = forgotten;
    return merge_tuple(module, tuple, tables, &r);
}

PyDoc_STRVAR(reflink_doc, "reflink($module, /, runs, tables, start, stop, to, sink=None, moves=None)\n--\n\n"
                        "A commit's run of the live entries of `runs`, newest first, with start <= key < stop. Every\n"
                        "key begins with `start`; the result has `to` instead. Values are not copied. `sink`: as in\n"
                        "build(). `moves`: the lead and the separator of the keys of chunks, and for each axis the new\n"
                        "number of each chunk, as int64; -1: it is left out.");

static PyObject *
index_reflink(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"runs", "tables", "start", "stop", "to", "sink", "moves", NULL};
    PyObject *tuple, *tables, *start, *stop, *to, *sink = NULL, *given = Py_None, *result = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OSOS|OO:reflink", (char **)names, &PyTuple_Type, &tuple, &tables,
                                     &start, &stop, &to, &sink, &given))
        return NULL;
    request r = {.start = span_of(start), .to = span_of(to), .sink = sink};
    if (as_sink(&r.sink) < 0 || as_stop(stop, &r.stop) < 0)
        return NULL;
    if (r.to.length > KEY_BYTES) {
        key_too_long();
        return NULL;
    }
    if (given == Py_None)
        return merge_tuple(module, tuple, tables, &r);
    chunk_moves moves = {0};
    r.moves = &moves;
    if (moves_init(&moves, given) == 0)
        result = merge_tuple(module, tuple, tables, &r);
    moves_clear(&moves);
    return result;
}

/* ---- module ---- */

static int
index_exec(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    state->run_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &run_spec, NULL);
    if (state->run_type == NULL || PyModule_AddType(module, state->run_type) < 0)
        return -1;
    return PyModule_AddStringConstant(module, "IMPLEMENTATION", "c");
}

static int
index_traverse(PyObject *module, visitproc visit, void *arg)
{
    module_state *state = PyModule_GetState(module);
    Py_VISIT(state->run_type);
    return 0;
}

static int
index_clear(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->run_type);
    return 0;
}

static PyMethodDef index_methods[] = {
    {"lookup", (PyCFunction)(void (*)(void))index_lookup, METH_FASTCALL, lookup_doc},
    {"locate", (PyCFunction)(void (*)(void))index_locate, METH_FASTCALL, locate_doc},
    {"scan", (PyCFunction)(void (*)(void))index_scan, METH_VARARGS | METH_KEYWORDS, scan_doc},
    {"build", (PyCFunction)(void (*)(void))index_build, METH_VARARGS | METH_KEYWORDS, build_doc},
    {"merge", (PyCFunction)(void (*)(void))index_merge, METH_VARARGS | METH_KEYWORDS, merge_doc},
    {"reflink", (PyCFunction)(void (*)(void))index_reflink, METH_VARARGS | METH_KEYWORDS, reflink_doc},
    {"decode_header", decode_header, METH_VARARGS, decode_header_doc},
    {"encode_header", encode_header, METH_VARARGS, encode_header_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot index_slots[] = {
    {Py_mod_exec, index_exec},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static PyModuleDef index_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "txstore._native._index",
    .m_doc = "Runs: look up, scan, build, merge. docs/understand/format.md, \"Runs\", is the layout.",
    .m_size = sizeof(module_state),
    .m_methods = index_methods,
    .m_slots = index_slots,
    .m_traverse = index_traverse,
    .m_clear = index_clear,
};

PyMODINIT_FUNC
PyInit__index(void)
{
    return PyModuleDef_Init(&index_module);
}
