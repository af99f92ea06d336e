/*
 * txstore._native._chunks: many chunks of one array at once, between stored values and an array in memory.
 *
 *     load     finds the compressors in numcodecs' libraries: chunk_codecs.h
 *     Batch    the rows that zarr passes to a codec pipeline for one operation, parsed once
 *       .read    checks, decodes and places stored chunks
 *       .encode  gathers, encodes and frames chunks for a pack
 *
 * chunks_fallback.py does the same in Python, without compressors; tests/native/test_chunks.py runs every test on both.
 *
 * A ROW is (byte getter, spec, chunk selection, out selection, is complete); this module reads only the selections. A
 * row is `odd` if a selection has anything but integers and forward slices. Zarr's own pipeline then handles it, and
 * each row that fails, so that users see zarr's usual errors.
 *
 * SHARDS. With `inner` in the spec a value is a shard: encoded inner chunks and an index of (offset, length), 16 bytes
 * each, little-endian, in C order, followed by a CRC-32C. Only selected inner chunks are decoded.
 *
 * THREADS. A call starts threads, which take rows from a shared counter, and joins them, all without the GIL. No thread
 * outlives the call: a fork can't lose a pool, and exit need not stop one. Threads write to different parts of `out`,
 * because the out selections of one operation do not overlap. A thread places a frame under a mutex, which it holds for
 * arithmetic alone: so the sequence of frames is their order in the pack.
 *
 * MEMORY. Each thread has buffers for one decoded and one encoded chunk. Stored bytes are hostile: the code checks each
 * offset and length against the pack or shard, passes decoders the size of their buffer, and rejects a chunk that
 * decodes to another length.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <stdatomic.h>

#include "chunk_boxes.h"
#include "chunk_codecs.h"

#define MAX_THREADS 64
#define FRAME_BYTES 32 /* docs/understand/format.md, "Frames" */
#define ALIGNED_FROM 1024
#define ALIGNMENT 64
#define FRAME_VALUE 1
#define INDEX_ENTRY 16
#define NO_CHUNK UINT64_MAX
#define LARGEST_CHUNK INT32_MAX /* in bytes: Blosc counts in 32 bits; sums of bounds don't overflow */
#define SEEN_ODD 255 /* the writer has seen more than this byte can say */

enum { ROW_READ = 0, ROW_MISSING = 1, ROW_ODD = 2 };                         /* of read */
enum { ROW_WAITS = 0, ROW_PLACED = 1, ROW_EMPTY = 2, ROW_ORDINARY = 3, ROW_IN_BASE = 4 }; /* of encode */
enum { KEEP_EMPTY = 0, ELIDE_EQUAL = 1, ELIDE_NAN = 2 };

typedef struct {
    libraries libraries;
    PyTypeObject *batch_type;
} chunks_state;

/* The selection along one axis of a chunk, and the stride in bytes in the caller's array. */
typedef struct {
    int64_t start, step, count, stride;
} picked;

typedef struct {
    int64_t at; /* offset of the first element in the caller's array, in bytes */
    int status;
    int64_t offset, length;
    uint64_t sequence;
    uint32_t checksum;
    uint8_t *held; /* the encoded value, if it did not fit into the arena */
} row;

typedef struct {
    int axes;
    int64_t shape[MAX_AXES], strides[MAX_AXES]; /* of a decoded chunk; strides in bytes */
    int64_t size;                               /* in bytes */
} layout;

typedef struct {
    PyObject_HEAD
    Py_buffer array;
    atomic_flag in_use;  /* by a call of read or encode */
    layout chunk, inner; /* without shards the same */
    int is_sharded, index_at_start, index_is_checked;
    int64_t inner_count[MAX_AXES], inner_chunks;
    int64_t itemsize;
    codec_chain chain;
    uint8_t *fill; /* one element */
    int empties;
    Py_ssize_t count;
    row *rows;
    picked *picks; /* `axes` for each row */
} batch;

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

static int
as_shape(PyObject *tuple, int64_t *numbers, int *axes)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) > MAX_AXES) {
        PyErr_Format(PyExc_ValueError, "a shape is a tuple of at most %d integers", MAX_AXES);
        return -1;
    }
    *axes = (int)PyTuple_GET_SIZE(tuple);
    for (int i = 0; i < *axes; i++) {
        numbers[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (numbers[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* A (shape, strides) of decoded chunks, which fill a buffer without holes. */
static int
as_layout(PyObject *shape, PyObject *strides, int64_t itemsize, layout *l)
{
    int also;
    if (as_shape(shape, l->shape, &l->axes) < 0 || as_shape(strides, l->strides, &also) < 0)
        return -1;
    l->size = itemsize;
    int64_t last = 0, reach;
    for (int i = 0; i < l->axes && i < also && l->size > 0; i++)
        if (l->shape[i] < 1 || l->strides[i] < 0 || __builtin_mul_overflow(l->size, l->shape[i], &l->size) ||
            l->size > LARGEST_CHUNK || __builtin_mul_overflow(l->shape[i] - 1, l->strides[i], &reach) ||
            __builtin_add_overflow(last, reach, &last))
            l->size = -1;
    if (also != l->axes || l->size < 0 || last != l->size - itemsize) {
        PyErr_SetString(PyExc_ValueError, "the strides of a chunk do not fit its shape");
        return -1;
    }
    return 0;
}

static int
as_codec(PyObject *tuple, const libraries *found, codec *c)
{
    const char *kind, *name = "";
    int level = 0, flag = 0;
    Py_ssize_t typesize = 0, blocksize = 0;
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "a codec is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(tuple, "s|iinns", &kind, &level, &flag, &typesize, &blocksize, &name))
        return -1;
    *c = (codec){CODEC_CRC32C, level, flag, (size_t)typesize, (size_t)blocksize, ""};
    strncpy(c->name, name, sizeof c->name - 1);
    if (strcmp(kind, "crc32c") == 0)
        return 0;
    if (strcmp(kind, "zstd") == 0 && found->zstd_decode != NULL) {
        c->kind = CODEC_ZSTD;
        return 0;
    }
    if (strcmp(kind, "blosc") == 0 && found->blosc_decode != NULL) {
        c->kind = CODEC_BLOSC;
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "no codec %s is loaded", kind);
    return -1;
}

static int
as_chain(PyObject *tuple, const libraries *found, codec_chain *chain)
{
    int compressors = 0;
    chain->libraries = found;
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) > MAX_CODECS) {
        PyErr_Format(PyExc_ValueError, "codecs are a tuple of at most %d", MAX_CODECS);
        return -1;
    }
    chain->count = (int)PyTuple_GET_SIZE(tuple);
    for (int i = 0; i < chain->count; i++) {
        if (as_codec(PyTuple_GET_ITEM(tuple, i), found, &chain->codecs[i]) < 0)
            return -1;
        compressors += chain->codecs[i].kind != CODEC_CRC32C;
    }
    if (compressors > 1) {
        PyErr_SetString(PyExc_ValueError, "at most one of the codecs compresses");
        return -1;
    }
    return 0;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* Parses one axis of a chunk selection. Returns 1 for a slice, 0 for an integer (no axis in the array), -1 if odd. */
static int
pick(PyObject *item, int64_t extent, picked *p)
{
    Py_ssize_t start, stop, step;
    if (PySlice_Check(item)) {
        if (PySlice_Unpack(item, &start, &stop, &step) < 0) {
            PyErr_Clear();
            return -1;
        }
        Py_ssize_t count = PySlice_AdjustIndices((Py_ssize_t)extent, &start, &stop, step);
        if (step < 1 || count < 1)
            return -1;
        /* The step of several elements is less than the extent: no product or sum of it overflows. One has no step. */
        *p = (picked){start, count == 1 ? 1 : step, count, 0};
        return 1;
    }
    if (!PyLong_Check(item))
        return -1;
    start = PyLong_AsSsize_t(item);
    if (start < 0 || start >= extent) {
        PyErr_Clear();
        return -1;
    }
    *p = (picked){start, 1, 1, 0};
    return 0;
}

/* The selections of a row; returns 0 if it is odd. */
static int
parse_selections(batch *b, PyObject *chunk, PyObject *out, row *r, picked *p)
{
    if (!PyTuple_Check(chunk) || !PyTuple_Check(out) || PyTuple_GET_SIZE(chunk) != b->chunk.axes)
        return 0;
    int is_scalar = b->array.ndim == 0;
    Py_ssize_t axis = 0;
    r->at = 0;
    for (int i = 0; i < b->chunk.axes; i++) {
        int has_axis = pick(PyTuple_GET_ITEM(chunk, i), b->chunk.shape[i], &p[i]);
        if (has_axis < 0)
            return 0;
        if (!has_axis || is_scalar)
            continue;
        if (axis >= PyTuple_GET_SIZE(out) || axis >= b->array.ndim)
            return 0;
        picked to;
        int64_t stride = b->array.strides[axis];
        if (pick(PyTuple_GET_ITEM(out, axis), b->array.shape[axis], &to) != 1 || to.count != p[i].count)
            return 0;
        r->at += to.start * stride;
        p[i].stride = to.step * stride;
        axis++;
    }
    return is_scalar || (axis == PyTuple_GET_SIZE(out) && axis == b->array.ndim);
}

static int
parse_rows(batch *b, PyObject *list)
{
    b->count = PyList_GET_SIZE(list);
    b->rows = PyMem_Calloc((size_t)b->count + 1, sizeof *b->rows);
    b->picks = PyMem_Calloc((size_t)(b->count * b->chunk.axes) + 1, sizeof *b->picks);
    if (b->rows == NULL || b->picks == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < b->count; i++) {
        PyObject *item = PyList_GET_ITEM(list, i);
        if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 5) {
            PyErr_SetString(PyExc_TypeError, "a row has five members");
            return -1;
        }
        row *r = &b->rows[i];
        if (!parse_selections(b, PyTuple_GET_ITEM(item, 2), PyTuple_GET_ITEM(item, 3), r, b->picks + i * b->chunk.axes))
            r->status = -1;
    }
    return 0;
}

/* ---- Batch ------------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(batch_doc,
             "Batch(rows, array, chunk, inner, itemsize, codecs, fill, empties, writable, /)\n--\n\n"
             "The rows of one operation. `array`: the buffer to read into, or to write. `chunk`: (shape, strides) of\n"
             "a decoded chunk. `inner`: None, or (shape, strides, index at start, index has a checksum) of the chunks\n"
             "of a shard. `fill`: the bytes of one element. `empties`: 0, chunks of fill values are stored; 1, they\n"
             "are not; 2, the fill value is NaN, and chunks of any NaN are not stored.");

static PyObject *
batch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    chunks_state *state = PyType_GetModuleState(type);
    PyObject *rows, *array, *shape, *strides, *inner, *codecs;
    const char *fill;
    Py_ssize_t itemsize, fill_size;
    int empties, writable;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Batch() takes no keywords");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O(OO)OnOy#ip:Batch", &PyList_Type, &rows, &array, &shape, &strides, &inner, &itemsize,
                          &codecs, &fill, &fill_size, &empties, &writable))
        return NULL;
    batch *b = (batch *)type->tp_alloc(type, 0);
    if (b == NULL)
        return NULL;
    b->itemsize = itemsize;
    b->empties = empties;
    if (itemsize < 1 || fill_size != itemsize) {
        PyErr_SetString(PyExc_ValueError, "the fill value is one element");
        goto failed;
    }
    if ((b->fill = PyMem_Malloc((size_t)itemsize)) == NULL) {
        PyErr_NoMemory();
        goto failed;
    }
    memcpy(b->fill, fill, (size_t)itemsize);
    if (as_layout(shape, strides, itemsize, &b->chunk) < 0 || as_chain(codecs, &state->libraries, &b->chain) < 0 ||
        PyObject_GetBuffer(array, &b->array, PyBUF_STRIDES | (writable ? PyBUF_WRITABLE : 0)) < 0)
        goto failed;
    if (b->array.itemsize != itemsize) {
        PyErr_SetString(PyExc_ValueError, "the array has elements of another size");
        goto failed;
    }
    b->inner = b->chunk;
    if (inner != Py_None) {
        if (!PyTuple_Check(inner)) {
            PyErr_SetString(PyExc_TypeError, "the inner chunks are None, or a tuple");
            goto failed;
        }
        if (!PyArg_ParseTuple(inner, "OOpp", &shape, &strides, &b->index_at_start, &b->index_is_checked) ||
            as_layout(shape, strides, itemsize, &b->inner) < 0)
            goto failed;
        b->is_sharded = 1;
        b->inner_chunks = 1;
        int fills = b->inner.axes == b->chunk.axes;
        for (int i = 0; fills && i < b->chunk.axes; i++) {
            fills = b->chunk.shape[i] % b->inner.shape[i] == 0;
            b->inner_count[i] = b->chunk.shape[i] / b->inner.shape[i];
            b->inner_chunks *= b->inner_count[i];
        }
        if (!fills) {
            PyErr_SetString(PyExc_ValueError, "inner chunks do not fill a shard");
            goto failed;
        }
    }
    if (parse_rows(b, rows) < 0)
        goto failed;
    return (PyObject *)b;
failed:
    Py_DECREF(b);
    return NULL;
}

static void
batch_dealloc(PyObject *object)
{
    batch *b = (batch *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (b->array.obj != NULL)
        PyBuffer_Release(&b->array);
    for (Py_ssize_t i = 0; b->rows != NULL && i < b->count; i++)
        free(b->rows[i].held);
    PyMem_Free(b->fill);
    PyMem_Free(b->rows);
    PyMem_Free(b->picks);
    type->tp_free(object);
    Py_DECREF(type);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

typedef struct call call;

struct call {
    batch *batch;
    void (*do_row)(call *, worker *, Py_ssize_t);
    atomic_llong next;
    atomic_int stopped;
    /* where the rows are stored; of encode, in the base */
    const Py_buffer *packs;
    const int64_t *table;
    Py_ssize_t pack_count;
    /* of encode */
    pthread_mutex_t placing;
    PyObject *const *keys;
    const uint8_t *seen;
    uint8_t *arena;
    int64_t arena_size, position, used;
    uint64_t sequence, placed;
};

static void *
work(void *argument)
{
    call *c = argument;
    worker w = {0};
    while (!atomic_load_explicit(&c->stopped, memory_order_relaxed)) {
        Py_ssize_t i = (Py_ssize_t)atomic_fetch_add(&c->next, 1);
        if (i >= c->batch->count)
            break;
        c->do_row(c, &w, i);
    }
    worker_clear(&w, c->batch->chain.libraries);
    return NULL;
}

/* Processes all rows, on this thread and up to `threads` - 1 others. Returns -1, and sets an error, if another call works
 * on the batch: its rows belong to one call at a time. */
static int
run(call *c, int threads)
{
    if (atomic_flag_test_and_set(&c->batch->in_use)) {
        PyErr_SetString(PyExc_RuntimeError, "another thread reads or encodes this batch");
        return -1;
    }
    pthread_t others[MAX_THREADS];
    int started = 0;
    Py_BEGIN_ALLOW_THREADS
    if (threads > MAX_THREADS)
        threads = MAX_THREADS;
    if (threads > c->batch->count)
        threads = (int)c->batch->count;
    while (started < threads - 1 && pthread_create(&others[started], NULL, work, c) == 0)
        started++; /* if a thread can't be started, the call uses fewer */
    work(c);
    for (int i = 0; i < started; i++)
        pthread_join(others[i], NULL);
    Py_END_ALLOW_THREADS
    atomic_flag_clear(&c->batch->in_use);
    return 0;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* The part of a row's selection in the chunk at `corner` (in elements; zeros for a chunk outside of shards). Returns 0
 * if that part is empty. `from` of the box is the chunk, `to` the array. */
static int
selected_box(const batch *b, const row *r, const picked *p, const layout *l, const int64_t *corner, box *found)
{
    found->from = 0;
    found->to = r->at;
    found->axes = l->axes;
    for (int i = 0; i < l->axes; i++) {
        int64_t begin = corner ? corner[i] : 0, end = begin + l->shape[i];
        int64_t first = p[i].start >= begin ? 0 : (begin - p[i].start + p[i].step - 1) / p[i].step;
        int64_t behind = p[i].start >= end ? 0 : (end - p[i].start + p[i].step - 1) / p[i].step;
        if (behind > p[i].count)
            behind = p[i].count;
        if (first >= behind)
            return 0;
        found->from += (p[i].start + first * p[i].step - begin) * l->strides[i];
        found->to += first * p[i].stride;
        found->axis[i] = (axis){behind - first, p[i].step * l->strides[i], p[i].stride};
    }
    box_simplify(found, b->itemsize);
    return 1;
}

static int
read_chunk(const batch *b, worker *w, const layout *l, const uint8_t *data, int64_t length, const box *where)
{
    uint8_t *out = b->array.buf, *into;
    const uint8_t *plain;
    int in_place = box_is_stretch(where, b->itemsize, l->size);
    into = in_place ? out + where->to : NULL;
    if (!in_place && b->chain.count > 0 && (into = room(&w->plain, &w->plain_size, (size_t)l->size)) == NULL)
        return -1;
    if (decode(w, &b->chain, data, length, into, (size_t)l->size, &plain) < 0)
        return -1;
    if (plain != into || !in_place)
        box_copy(where, out, plain, b->itemsize);
    return 0;
}

static uint64_t
load_number(const uint8_t *at)
{
    uint64_t number;
    memcpy(&number, at, sizeof number);
    return number;
}

static int
selects_all(const batch *b, const picked *p)
{
    for (int i = 0; i < b->chunk.axes; i++)
        if (p[i].count != b->chunk.shape[i])
            return 0;
    return 1;
}

/* The index of a shard, or NULL if its checksum is wrong. */
static const uint8_t *
shard_index(const batch *b, const uint8_t *data, int64_t length)
{
    int64_t bytes = b->inner_chunks * INDEX_ENTRY, whole = bytes + (b->index_is_checked ? CHECKSUM_BYTES : 0);
    if (length < whole)
        return NULL;
    const uint8_t *index = b->index_at_start ? data : data + length - whole;
    return !b->index_is_checked || without_checksum(index, whole) == bytes ? index : NULL;
}

static int
read_inner(const batch *b, worker *w, const row *r, const picked *p, const uint8_t *data, int64_t length,
           const uint8_t *entry, const int64_t *corner)
{
    box where;
    if (!selected_box(b, r, p, &b->inner, corner, &where))
        return 0;
    uint64_t offset = load_number(entry), bytes = load_number(entry + 8);
    if (offset == NO_CHUNK && bytes == NO_CHUNK) {
        box_fill(&where, b->array.buf, b->fill, b->itemsize);
        return 0;
    }
    if (offset > (uint64_t)length || bytes > (uint64_t)length - offset)
        return -1;
    return read_chunk(b, w, &b->inner, data + offset, (int64_t)bytes, &where);
}

static int
read_shard(const batch *b, worker *w, const row *r, const picked *p, const uint8_t *data, int64_t length)
{
    const uint8_t *index = shard_index(b, data, length);
    int64_t at[MAX_AXES], first[MAX_AXES], last[MAX_AXES], corner[MAX_AXES];
    if (index == NULL)
        return -1;
    for (int i = 0; i < b->chunk.axes; i++) {
        at[i] = first[i] = p[i].start / b->inner.shape[i];
        last[i] = (p[i].start + (p[i].count - 1) * p[i].step) / b->inner.shape[i];
    }
    for (;;) {
        int64_t number = 0;
        for (int i = 0; i < b->chunk.axes; i++) {
            number = number * b->inner_count[i] + at[i];
            corner[i] = at[i] * b->inner.shape[i];
        }
        if (read_inner(b, w, r, p, data, length, index + number * INDEX_ENTRY, corner) < 0)
            return -1;
        int i = b->chunk.axes - 1;
        while (i >= 0 && at[i] == last[i]) {
            at[i] = first[i];
            i--;
        }
        if (i < 0)
            return 0;
        at[i]++;
    }
}

#define PIECE ((int64_t)128 << 10) /* fits in a processor's own cache */

/* Copies a value, and returns the CRC-32C of the copy: another thread may change the original. Each piece is read from
 * memory once. */
static uint32_t
copy_checked(uint8_t *to, const uint8_t *data, int64_t length)
{
    uint32_t checksum = 0;
    for (int64_t at = 0; at < length; at += PIECE) {
        size_t size = (size_t)(length - at < PIECE ? length - at : PIECE);
        memcpy(to + at, data + at, size);
        checksum = txs_crc32c(checksum, to + at, size);
    }
    return checksum;
}

static void
read_row(call *c, worker *w, Py_ssize_t i)
{
    batch *b = c->batch;
    row *r = &b->rows[i];
    const picked *p = b->picks + i * b->chunk.axes;
    const int64_t *ref = c->table + i * 4; /* pack, offset, length, checksum */
    box where;
    if (r->status < 0)
        return; /* for ever: its selections were not parsed */
    if (ref[0] < -1 || ref[0] >= c->pack_count) {
        r->status = ROW_ODD;
        return;
    }
    if (ref[0] == -1) {
        selected_box(b, r, p, &b->chunk, NULL, &where);
        box_fill(&where, b->array.buf, b->fill, b->itemsize);
        r->status = ROW_MISSING;
        return;
    }
    const Py_buffer *pack = &c->packs[ref[0]];
    int64_t offset = ref[1], length = ref[2];
    r->status = ROW_ODD;
    if (offset < 0 || length < 0 || offset > pack->len || length > pack->len - offset)
        return;
    const uint8_t *data = (const uint8_t *)pack->buf + offset;
    if (!b->is_sharded && b->chain.count == 0 && length == b->chunk.size) {
        selected_box(b, r, p, &b->chunk, NULL, &where);
        if (box_is_stretch(&where, b->itemsize, b->chunk.size)) {
            if (copy_checked((uint8_t *)b->array.buf + where.to, data, length) == (uint32_t)ref[3])
                r->status = ROW_READ;
            return;
        }
    }
    int failed;
    if (b->is_sharded)
        failed = read_shard(b, w, r, p, data, length);
    else {
        selected_box(b, r, p, &b->chunk, NULL, &where);
        failed = read_chunk(b, w, &b->chunk, data, length, &where);
    }
    if (failed)
        return;
    /* The checksum comes last: an erasure writes zeros to mapped files, also while they are read. For a partial read of
     * a shard, only the index's checksum is checked. */
    if ((b->is_sharded && b->index_is_checked && !selects_all(b, p)) ||
        txs_crc32c(0, data, (size_t)length) == (uint32_t)ref[3])
        r->status = ROW_READ;
}

static void
close_packs(Py_buffer *packs, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++)
        PyBuffer_Release(&packs[i]);
    PyMem_Free(packs);
}

/* Returns the buffers in which a table locates the rows, or NULL with an exception. */
static Py_buffer *
open_packs(const batch *b, PyObject *list, const Py_buffer *table)
{
    Py_ssize_t opened = 0, count = PyList_GET_SIZE(list);
    if (table->len != b->count * 4 * (Py_ssize_t)sizeof(int64_t)) {
        PyErr_SetString(PyExc_ValueError, "the table has four numbers for each row");
        return NULL;
    }
    Py_buffer *packs = PyMem_Calloc((size_t)count + 1, sizeof *packs);
    if (packs == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (; opened < count; opened++)
        if (PyObject_GetBuffer(PyList_GET_ITEM(list, opened), &packs[opened], PyBUF_SIMPLE) < 0) {
            close_packs(packs, opened);
            return NULL;
        }
    return packs;
}

PyDoc_STRVAR(read_doc, "read(packs, table, threads, /)\n--\n\n"
                       "Read the rows into the array. `table`: four int64 for each row: the number of the buffer in\n"
                       "`packs` (-1: no value, -2: skip the row), offset, length, CRC-32C.\n\n"
                       "Returns a byte for each row: 0, it was read; 1, it is missing, and was set to the fill value;\n"
                       "2, it was skipped, or could not be read: zarr's own pipeline then reports the error.");

static PyObject *
batch_read(PyObject *self, PyObject *args)
{
    batch *b = (batch *)self;
    PyObject *list, *result = NULL;
    Py_buffer table, *packs;
    int threads;
    if (!PyArg_ParseTuple(args, "O!y*i:read", &PyList_Type, &list, &table, &threads))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(list);
    if ((packs = open_packs(b, list, &table)) == NULL)
        goto done;
    call c = {.batch = b, .do_row = read_row, .packs = packs, .pack_count = count, .table = table.buf};
    if (run(&c, threads) == 0 && (result = PyBytes_FromStringAndSize(NULL, b->count)) != NULL)
        for (Py_ssize_t i = 0; i < b->count; i++)
            PyBytes_AS_STRING(result)[i] = (char)(b->rows[i].status < 0 ? ROW_ODD : b->rows[i].status);
    close_packs(packs, count);
done:
    PyBuffer_Release(&table);
    return result;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static int
is_nan(const uint8_t *item, int64_t itemsize)
{
    if (itemsize == 8) {
        uint64_t bits;
        memcpy(&bits, item, sizeof bits);
        return (bits & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
    }
    if (itemsize == 4) {
        uint32_t bits;
        memcpy(&bits, item, sizeof bits);
        return (bits & 0x7fffffffu) > 0x7f800000u;
    }
    uint16_t bits;
    memcpy(&bits, item, sizeof bits);
    return (bits & 0x7fffu) > 0x7c00u;
}

/* Does a chunk contain only the fill value, so that it is not stored? */
static int
is_empty(const batch *b, const uint8_t *plain, int64_t size)
{
    int64_t item = b->itemsize;
    if (b->empties == KEEP_EMPTY)
        return 0;
    if (b->empties == ELIDE_NAN) {
        for (int64_t at = 0; at < size; at += item)
            if (!is_nan(plain + at, item))
                return 0;
        return 1;
    }
    /* The first element equals the fill value, and each element equals the one before. */
    return memcmp(plain, b->fill, (size_t)item) == 0 && memcmp(plain, plain + item, (size_t)(size - item)) == 0;
}

/*
 * Gathers the elements that a row writes to the chunk at `corner`; the others get the fill value. Returns the chunk: in
 * the caller's array, if it is contiguous there and need not be changed, or else in the worker's buffer, with spare
 * room.
 */
static const uint8_t *
gather(const batch *b, worker *w, const row *r, const picked *p, const layout *l, const int64_t *corner)
{
    box where;
    const uint8_t *array = b->array.buf;
    int any = selected_box(b, r, p, l, corner, &where);
    /* A compressor only reads its input; a checksum is appended to it. */
    int is_kept = b->chain.count == 0 || b->chain.codecs[0].kind != CODEC_CRC32C;
    if (any && is_kept && box_is_stretch(&where, b->itemsize, l->size))
        return array + where.to;
    uint8_t *plain = room(&w->plain, &w->plain_size, (size_t)l->size + MAX_CODECS * CHECKSUM_BYTES);
    if (plain == NULL)
        return NULL;
    if (!any || box_elements(&where) * b->itemsize != l->size)
        fill_items(plain, l->size, b->fill, b->itemsize);
    if (any) {
        /* The other way round. */
        box back = {where.to, where.from, where.axes, {{0}}};
        for (int i = 0; i < where.axes; i++)
            back.axis[i] = (axis){where.axis[i].count, where.axis[i].to, where.axis[i].from};
        box_copy(&back, plain, array, b->itemsize);
    }
    return plain;
}

/* Encodes a chunk to `to`; returns its length, 0 if it is empty, or -1. */
static int64_t
write_chunk(const batch *b, worker *w, const row *r, const picked *p, const layout *l, const int64_t *corner, uint8_t *to)
{
    const uint8_t *plain = gather(b, w, r, p, l, corner);
    if (plain == NULL)
        return -1;
    if (is_empty(b, plain, l->size))
        return 0;
    if (b->chain.count == 0) {
        memcpy(to, plain, (size_t)l->size);
        return l->size;
    }
    return encode(w, &b->chain, (uint8_t *)plain, (size_t)l->size, to);
}

static void
store_number(uint8_t *at, uint64_t number)
{
    memcpy(at, &number, sizeof number);
}

static int64_t
write_shard(const batch *b, worker *w, const row *r, const picked *p, uint8_t *to)
{
    int64_t index_size = b->inner_chunks * INDEX_ENTRY, checksum = b->index_is_checked ? CHECKSUM_BYTES : 0;
    int64_t used = b->index_at_start ? index_size + checksum : 0, kept = 0;
    uint8_t *index = malloc((size_t)(index_size + checksum));
    if (index == NULL)
        return -1;
    for (int64_t number = 0; number < b->inner_chunks; number++) {
        int64_t corner[MAX_AXES], left = number;
        for (int i = b->chunk.axes - 1; i >= 0; i--) {
            corner[i] = left % b->inner_count[i] * b->inner.shape[i];
            left /= b->inner_count[i];
        }
        int64_t length = write_chunk(b, w, r, p, &b->inner, corner, to + used);
        if (length < 0) {
            free(index);
            return -1;
        }
        kept += length > 0;
        store_number(index + number * INDEX_ENTRY, length ? (uint64_t)used : NO_CHUNK);
        store_number(index + number * INDEX_ENTRY + 8, length ? (uint64_t)length : NO_CHUNK);
        used += length;
    }
    if (checksum) {
        uint32_t crc = txs_crc32c(0, index, (size_t)index_size);
        memcpy(index + index_size, &crc, sizeof crc);
    }
    if (b->index_at_start)
        memcpy(to, index, (size_t)(index_size + checksum));
    else {
        memcpy(to + used, index, (size_t)(index_size + checksum));
        used += index_size + checksum;
    }
    free(index);
    return kept ? used : 0;
}

/* The largest length of a stored value, in bytes. */
static size_t
value_bound(const batch *b)
{
    if (!b->is_sharded)
        return encoded_bound(&b->chain, (size_t)b->chunk.size);
    return (size_t)b->inner_chunks * (encoded_bound(&b->chain, (size_t)b->inner.size) + INDEX_ENTRY) + CHECKSUM_BYTES;
}

/* The offset of the value in the frame at `start`, and the offset of the next frame. */
static int64_t
frame_layout(int64_t start, int64_t key, int64_t length, int64_t *value)
{
    *value = start + FRAME_BYTES + key;
    if (length >= ALIGNED_FROM)
        *value = (*value + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return (*value + length + 7) / 8 * 8;
}

static void
put_frame(const call *c, Py_ssize_t i, int64_t start, int64_t end, const uint8_t *payload)
{
    row *r = &c->batch->rows[i];
    const char *key = PyBytes_AS_STRING(c->keys[i]);
    size_t key_length = (size_t)PyBytes_GET_SIZE(c->keys[i]);
    uint8_t *frame = c->arena + (start - c->position), *value = c->arena + (r->offset - c->position);
    uint16_t short_length = (uint16_t)key_length;
    r->checksum = copy_checked(value, payload, r->length);
    memset(value + r->length, 0, (size_t)(end - r->offset - r->length));
    memcpy(frame, "TXFR", 4);
    frame[4] = FRAME_VALUE;
    frame[5] = c->seen[i];
    memcpy(frame + 6, &short_length, sizeof short_length);
    store_number(frame + 8, r->sequence);
    store_number(frame + 16, (uint64_t)r->length);
    memcpy(frame + 24, &r->checksum, sizeof r->checksum);
    uint32_t checksum = txs_crc32c(txs_crc32c(0, frame, 28), key, key_length);
    memcpy(frame + 28, &checksum, sizeof checksum);
    memcpy(frame + FRAME_BYTES, key, key_length);
    memset(frame + FRAME_BYTES + key_length, 0, (size_t)(value - frame) - FRAME_BYTES - key_length);
}

/* Does the base have this value at the row's key? */
static int
is_in_base(const call *c, Py_ssize_t i, const uint8_t *payload, int64_t length)
{
    const int64_t *ref = c->table == NULL ? NULL : c->table + i * 4; /* pack, offset, length, checksum */
    if (ref == NULL || ref[0] < 0 || ref[0] >= c->pack_count || ref[2] != length)
        return 0;
    const Py_buffer *pack = &c->packs[ref[0]];
    return ref[1] >= 0 && ref[1] <= pack->len - length && txs_crc32c(0, payload, (size_t)length) == (uint32_t)ref[3] &&
           memcmp(payload, (const uint8_t *)pack->buf + ref[1], (size_t)length) == 0;
}

static void
encode_row(call *c, worker *w, Py_ssize_t i)
{
    batch *b = c->batch;
    row *r = &b->rows[i];
    const picked *p = b->picks + i * b->chunk.axes;
    const uint8_t *payload;
    int64_t length;
    if (r->status != ROW_WAITS)
        return;
    if (r->held != NULL) {
        payload = r->held;
        length = r->length;
    } else if (!b->is_sharded && b->chain.count == 0) {
        payload = gather(b, w, r, p, &b->chunk, NULL);
        length = payload == NULL ? -1 : is_empty(b, payload, b->chunk.size) ? 0 : b->chunk.size;
    } else {
        uint8_t *to = room(&w->packed, &w->packed_size, value_bound(b));
        payload = to;
        length = to == NULL ? -1 : b->is_sharded ? write_shard(b, w, r, p, to) : write_chunk(b, w, r, p, &b->chunk, NULL, to);
    }
    if (length <= 0) {
        r->status = length < 0 ? ROW_ORDINARY : ROW_EMPTY;
        return;
    }
    r->length = length;
    if (is_in_base(c, i, payload, length)) {
        r->status = ROW_IN_BASE;
        free(r->held);
        r->held = NULL;
        return;
    }
    pthread_mutex_lock(&c->placing);
    int64_t start = c->position + c->used;
    int64_t end = frame_layout(start, PyBytes_GET_SIZE(c->keys[i]), length, &r->offset);
    int fits = end - c->position <= c->arena_size;
    if (fits) {
        c->used = end - c->position;
        r->sequence = c->sequence + c->placed++;
    }
    pthread_mutex_unlock(&c->placing);
    if (!fits) {
        atomic_store_explicit(&c->stopped, 1, memory_order_relaxed);
        if (payload == w->packed) { /* encoding was expensive: keep the result for the next call */
            uint8_t *shorter = realloc(w->packed, (size_t)length);
            r->held = shorter != NULL ? shorter : w->packed;
            w->packed = NULL;
            w->packed_size = 0;
        }
        return;
    }
    put_frame(c, i, start, end, payload);
    r->status = ROW_PLACED;
    free(r->held);
    r->held = NULL;
}

PyDoc_STRVAR(encode_doc,
             "encode(keys, seen, arena, position, sequence, threads, packs=[], table=b'', /)\n--\n\n"
             "Encode rows that write whole chunks into frames in `arena`, until it is full. Call it again for the rest.\n"
             "`keys`: bytes for each row; `seen`: a byte for each, the state of the key that the writer had seen.\n"
             "`position`: the arena's offset in the pack; `sequence`: that of the first frame. A row with `seen` 255 is\n"
             "not encoded here. `packs`, `table`: where the base has the rows, as of `read`: a value that is there\n"
             "already gets no frame.\n\n"
             "Returns the number of bytes used in the arena, and the number of frames in it.");

static PyObject *
batch_encode(PyObject *self, PyObject *args)
{
    batch *b = (batch *)self;
    PyObject *keys, *list = NULL, *result = NULL;
    Py_buffer seen, arena, table = {0}, *packs = NULL;
    long long position;
    unsigned long long sequence;
    int threads;
    if (!PyArg_ParseTuple(args, "O!y*w*LKi|O!y*:encode", &PyTuple_Type, &keys, &seen, &arena, &position, &sequence, &threads,
                          &PyList_Type, &list, &table))
        return NULL;
    if (PyTuple_GET_SIZE(keys) != b->count || seen.len != b->count || position < 0 || position % 8) {
        PyErr_SetString(PyExc_ValueError, "a key and what was seen of it for each row; frames begin at multiples of 8");
        goto done;
    }
    for (Py_ssize_t i = 0; i < b->count; i++)
        if (!PyBytes_Check(PyTuple_GET_ITEM(keys, i)) || PyBytes_GET_SIZE(PyTuple_GET_ITEM(keys, i)) > UINT16_MAX) {
            PyErr_SetString(PyExc_TypeError, "a key is at most 65535 bytes");
            goto done;
        }
    for (Py_ssize_t i = 0; i < b->count; i++)
        if (b->rows[i].status < 0 || ((const uint8_t *)seen.buf)[i] == SEEN_ODD)
            b->rows[i].status = ROW_ORDINARY;
    Py_ssize_t count = table.len ? PyList_GET_SIZE(list) : 0;
    if (table.len && (packs = open_packs(b, list, &table)) == NULL)
        goto done;
    call c = {.batch = b,
              .do_row = encode_row,
              .packs = packs,
              .pack_count = count,
              .table = packs == NULL ? NULL : table.buf,
              .keys = ((PyTupleObject *)keys)->ob_item,
              .seen = seen.buf,
              .arena = arena.buf,
              .arena_size = arena.len,
              .position = position,
              .sequence = sequence};
    pthread_mutex_init(&c.placing, NULL);
    if (run(&c, threads) == 0)
        result = Py_BuildValue("(LK)", (long long)c.used, (unsigned long long)c.placed);
    pthread_mutex_destroy(&c.placing);
    close_packs(packs, count);
done:
    PyBuffer_Release(&table);
    PyBuffer_Release(&seen);
    PyBuffer_Release(&arena);
    return result;
}

PyDoc_STRVAR(placed_doc, "placed()\n--\n\n"
                         "Five int64 for each row: 0, not encoded yet; 1, a frame, with offset, length, CRC-32C and\n"
                         "sequence of the value; 2, only fill value, not stored; 3, zarr's own pipeline must encode it;\n"
                         "4, the base has it.");

static PyObject *
batch_placed(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    batch *b = (batch *)self;
    PyObject *result = PyBytes_FromStringAndSize(NULL, b->count * 5 * (Py_ssize_t)sizeof(int64_t));
    if (result == NULL)
        return NULL;
    char *to = PyBytes_AS_STRING(result);
    for (Py_ssize_t i = 0; i < b->count; i++, to += 5 * sizeof(int64_t)) {
        const row *r = &b->rows[i];
        int64_t numbers[5] = {r->status, r->offset, r->length, r->checksum, (int64_t)r->sequence};
        memcpy(to, numbers, sizeof numbers);
    }
    return result;
}

static PyObject *
batch_bound(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(value_bound((batch *)self) + FRAME_BYTES + ALIGNMENT + 8);
}

static PyMethodDef batch_methods[] = {
    {"read", batch_read, METH_VARARGS, read_doc},
    {"encode", batch_encode, METH_VARARGS, encode_doc},
    {"placed", batch_placed, METH_NOARGS, placed_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef batch_getset[] = {
    {"bound", batch_bound, NULL, "The largest length of a frame in bytes, without its key.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot batch_slots[] = {
    {Py_tp_doc, (void *)batch_doc},
    {Py_tp_new, batch_new},
    {Py_tp_dealloc, batch_dealloc},
    {Py_tp_methods, batch_methods},
    {Py_tp_getset, batch_getset},
    {0, NULL},
};

static PyType_Spec batch_spec = {
    .name = "txstore._native._chunks.Batch",
    .basicsize = sizeof(batch),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = batch_slots,
};

/* ---- The module -------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(load_doc, "load(zstd, blosc, /)\n--\n\n"
                       "Find compressors in shared libraries, given by path or None. Returns the names found.");

static PyObject *
load(PyObject *module, PyObject *args)
{
    chunks_state *state = PyModule_GetState(module);
    const char *zstd, *blosc;
    if (!PyArg_ParseTuple(args, "zz:load", &zstd, &blosc))
        return NULL;
    libraries found = {0};
    const uint16_t probe = 1;
    int little = *(const uint8_t *)&probe; /* big-endian machines use the fallback */
    int has_zstd = little && zstd != NULL && load_zstd(&found, zstd);
    int has_blosc = little && blosc != NULL && load_blosc(&found, blosc);
    state->libraries = found;
    PyObject *names = PyTuple_New(has_zstd + has_blosc);
    if (names == NULL)
        return NULL;
    if (has_zstd)
        PyTuple_SET_ITEM(names, 0, PyUnicode_FromString("zstd"));
    if (has_blosc)
        PyTuple_SET_ITEM(names, has_zstd, PyUnicode_FromString("blosc"));
    return names;
}

static PyMethodDef chunks_methods[] = {
    {"load", load, METH_VARARGS, load_doc},
    {NULL, NULL, 0, NULL},
};

static int
chunks_exec(PyObject *module)
{
    chunks_state *state = PyModule_GetState(module);
    state->batch_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &batch_spec, NULL);
    if (state->batch_type == NULL || PyModule_AddType(module, state->batch_type) < 0)
        return -1;
    if (PyModule_AddIntConstant(module, "READ", ROW_READ) < 0 || PyModule_AddIntConstant(module, "MISSING", ROW_MISSING) < 0 ||
        PyModule_AddIntConstant(module, "PLACED", ROW_PLACED) < 0 || PyModule_AddIntConstant(module, "EMPTY", ROW_EMPTY) < 0 ||
        PyModule_AddIntConstant(module, "IN_BASE", ROW_IN_BASE) < 0)
        return -1;
    return PyModule_AddStringConstant(module, "IMPLEMENTATION", "c");
}

static int
chunks_traverse(PyObject *module, visitproc visit, void *arg)
{
    chunks_state *state = PyModule_GetState(module);
    Py_VISIT(state->batch_type);
    return 0;
}

static int
chunks_clear(PyObject *module)
{
    chunks_state *state = PyModule_GetState(module);
    Py_CLEAR(state->batch_type);
    return 0;
}

static void
chunks_free(void *module)
{
    (void)chunks_clear(module);
}

static PyModuleDef_Slot chunks_slots[] = {
    {Py_mod_exec, chunks_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef chunks_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "txstore._native._chunks",
    .m_doc = "Many chunks of one array at once, between stored values and an array in memory.",
    .m_size = sizeof(chunks_state),
    .m_methods = chunks_methods,
    .m_slots = chunks_slots,
    .m_traverse = chunks_traverse,
    .m_clear = chunks_clear,
    .m_free = chunks_free,
};

PyMODINIT_FUNC
PyInit__chunks(void)
{
    return PyModuleDef_Init(&chunks_module);
}
