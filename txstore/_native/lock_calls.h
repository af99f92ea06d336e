/*
 * The arguments of a call: its keys as slots, sorted in the order in which every process takes words, and its owners.
 *
 * A call's keys are a set: a key named twice counts once. Keys that share a slot are adjacent in the order. One change
 * of their word takes or releases all of them.
 *
 * Functions return -1 with the exception set. REQUIRES: Python.h.
 */

#ifndef TXS_LOCK_CALLS_H
#define TXS_LOCK_CALLS_H

#include "lock_members.h"

enum { FEW_KEYS = 16, FEW_SIBLINGS = 16, DIGIT_BITS = 11 };

typedef struct {
    uint32_t slot;
    uint32_t index;      /* in the keys as given */
    uint32_t taken_from; /* set when the slot is taken: the previous owner, WORD_FREE if we held it already */
} call_key;

typedef struct {
    PyObject *keys; /* a str, or a tuple or list of them */
    PyObject **items;
    Py_ssize_t given; /* number of keys */
    Py_ssize_t count; /* number of distinct keys: the length of the order */
    call_key *order;
    call_key few[FEW_KEYS];
} lock_call;

typedef struct {
    const uint32_t *words;
    size_t count;
    uint32_t *allocated;
    uint32_t few[FEW_SIBLINGS];
} sibling_list;

static inline int
slot_of(const lock_table *table, PyObject *key, prefix_memo *memo, uint32_t *slot)
{
    if (!PyUnicode_Check(key)) {
        PyErr_Format(PyExc_TypeError, "a key must be a str, not %.200s", Py_TYPE(key)->tp_name);
        return -1;
    }
    Py_ssize_t length;
    const char *text;
    if (PyUnicode_IS_COMPACT_ASCII(key)) {
        text = PyUnicode_DATA(key);
        length = PyUnicode_GET_LENGTH(key);
    } else {
        text = PyUnicode_AsUTF8AndSize(key, &length);
    }
    if (text == NULL) {
        return -1;
    }
    *slot = slot_of_key((const uint8_t *)text, (size_t)length, table->slot_bits, memo);
    return 0;
}

/* ---- Ordering ---------------------------------------------------------------------------------------------------- */

/* Both sorts are stable. */
static inline void
sort_few(call_key *order, Py_ssize_t count)
{
    for (Py_ssize_t i = 1; i < count; i++) {
        call_key moving = order[i];
        Py_ssize_t at = i;
        for (; at > 0 && order[at - 1].slot > moving.slot; at--) {
            order[at] = order[at - 1];
        }
        order[at] = moving;
    }
}

/* Radix sort. The rows of an array arrive as presorted runs; a comparison sort takes several times longer on them. */
static inline int
sort_many(call_key *order, Py_ssize_t count, unsigned slot_bits)
{
    call_key *other = PyMem_Malloc((size_t)count * sizeof *other);
    if (other == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    call_key *from = order, *to = other;
    for (unsigned shift = 0; shift < slot_bits; shift += DIGIT_BITS) {
        uint32_t starts[1 << DIGIT_BITS] = {0};
        const uint32_t mask = (1u << DIGIT_BITS) - 1;
        for (Py_ssize_t i = 0; i < count; i++) {
            starts[(from[i].slot >> shift) & mask]++;
        }
        uint32_t start = 0;
        for (uint32_t digit = 0; digit <= mask; digit++) {
            uint32_t size = starts[digit];
            starts[digit] = start;
            start += size;
        }
        for (Py_ssize_t i = 0; i < count; i++) {
            to[starts[(from[i].slot >> shift) & mask]++] = from[i];
        }
        call_key *swapped = from;
        from = to;
        to = swapped;
    }
    if (from != order) {
        memcpy(order, from, (size_t)count * sizeof *order);
    }
    PyMem_Free(other);
    return 0;
}

/* REQUIRES: sorted. */
static inline int
drop_repeated(lock_call *call)
{
    Py_ssize_t kept = 0, group = 0; /* index of the current slot's first key */
    for (Py_ssize_t i = 0; i < call->count; i++) {
        call_key each = call->order[i];
        if (kept > 0 && call->order[kept - 1].slot != each.slot) {
            group = kept;
        }
        bool repeated = false;
        for (Py_ssize_t other = group; other < kept && !repeated; other++) {
            int compared = PyUnicode_Compare(call->items[call->order[other].index], call->items[each.index]);
            if (compared == -1 && PyErr_Occurred()) {
                return -1;
            }
            repeated = compared == 0;
        }
        if (!repeated) {
            call->order[kept++] = each;
        }
    }
    call->count = kept;
    return 0;
}

static PyObject *
call_item(const lock_call *call, Py_ssize_t at)
{
    return call->items[call->order[at].index];
}

/* The index of the first key of the next slot. */
static inline Py_ssize_t
group_end(const lock_call *call, Py_ssize_t at)
{
    Py_ssize_t end = at + 1;
    while (end < call->count && call->order[end].slot == call->order[at].slot) {
        end++;
    }
    return end;
}

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

static inline void
call_end(lock_call *call)
{
    if (call->order != call->few) {
        PyMem_Free(call->order);
    }
    Py_CLEAR(call->keys);
}

static inline int
call_order(lock_call *call, const lock_table *table)
{
    bool ascends = true;
    prefix_memo memo = {0};
    for (Py_ssize_t i = 0; i < call->count; i++) {
        if (slot_of(table, call->items[i], &memo, &call->order[i].slot) < 0) {
            return -1;
        }
        call->order[i].index = (uint32_t)i;
        call->order[i].taken_from = WORD_FREE;
        ascends = ascends && (i == 0 || call->order[i - 1].slot < call->order[i].slot);
    }
    if (ascends) {
        return 0;
    }
    if (call->count <= FEW_KEYS) {
        sort_few(call->order, call->count);
    } else if (sort_many(call->order, call->count, table->slot_bits) < 0) {
        return -1;
    }
    return drop_repeated(call);
}

/* On success, the caller must call call_end. */
static inline int
call_begin(lock_call *call, const lock_table *table, PyObject *keys)
{
    call->order = call->few;
    if (PyUnicode_Check(keys)) {
        call->keys = Py_NewRef(keys);
        call->items = &call->keys;
        call->given = 1;
    } else {
        call->keys = PySequence_Fast(keys, "keys must be a str or a sequence of them");
        if (call->keys == NULL) {
            return -1;
        }
        call->items = PySequence_Fast_ITEMS(call->keys);
        call->given = PySequence_Fast_GET_SIZE(call->keys);
    }
    call->count = call->given;
    if (call->count > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "too many keys in one call");
        call_end(call);
        return -1;
    }
    if (call->count > FEW_KEYS) {
        call->order = PyMem_Malloc((size_t)call->count * sizeof *call->order);
        if (call->order == NULL) {
            PyErr_NoMemory();
            call_end(call);
            return -1;
        }
    }
    if (call_order(call, table) < 0) {
        call_end(call);
        return -1;
    }
    return 0;
}

/* Must be called before any Python code runs, because that code may change the caller's list. */
static inline int
call_keep_keys(lock_call *call)
{
    if (!PyList_Check(call->keys)) {
        return 0;
    }
    PyObject *kept = PyList_AsTuple(call->keys);
    if (kept == NULL) {
        return -1;
    }
    Py_SETREF(call->keys, kept);
    call->items = PySequence_Fast_ITEMS(kept);
    return 0;
}

/* Keeps a call of many keys for the next call: a transaction mostly releases the keys that it acquired last, and they
 * are sorted already. Drops the call that `kept` holds, if any. Takes ownership of `call`, or ends it. */
static inline void
call_keep(lock_call *kept, lock_call *call)
{
    if (call->order == call->few) {
        call_end(call);
    } else if (call_keep_keys(call) < 0) {
        PyErr_Clear(); /* the cache is optional */
        call_end(call);
    } else {
        lock_call dropped = *kept;
        *kept = *call;
        if (dropped.keys != NULL) {
            call_end(&dropped);
        }
    }
}

/* Begins a call from the kept one, if its keys are the same objects: strings are immutable. */
static inline bool
call_resume(lock_call *call, lock_call *kept, PyObject *keys)
{
    if (kept->keys == NULL || !(PyList_Check(keys) || PyTuple_Check(keys)) ||
        PySequence_Fast_GET_SIZE(keys) != kept->given ||
        memcmp(PySequence_Fast_ITEMS(keys), kept->items, (size_t)kept->given * sizeof *kept->items) != 0) {
        return false;
    }
    *call = *kept;
    kept->keys = NULL;
    return true;
}

/* An owner's `parked`. */
static inline int
parked_word(PyObject *object, uint32_t *word)
{
    unsigned long value = PyLong_AsUnsignedLong(object);
    if (value == (unsigned long)-1 && PyErr_Occurred()) {
        return -1;
    }
    if (value > WORD_OWNER || is_free((uint32_t)value) || (value & WORD_PARKED) == 0) {
        PyErr_Format(PyExc_ValueError, "%lu is no owner's `parked`", value);
        return -1;
    }
    *word = (uint32_t)value;
    return 0;
}

static inline void
siblings_end(sibling_list *siblings)
{
    PyMem_Free(siblings->allocated);
}

/* `object` may be NULL: no siblings. On success, the caller must call siblings_end. */
static inline int
siblings_begin(sibling_list *siblings, PyObject *object)
{
    siblings->words = siblings->few;
    siblings->count = 0;
    siblings->allocated = NULL;
    if (object == NULL) {
        return 0;
    }
    PyObject *given = PySequence_Tuple(object);
    if (given == NULL) {
        return -1;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(given);
    uint32_t *words = siblings->few;
    if (count > FEW_SIBLINGS) {
        words = siblings->allocated = PyMem_Malloc((size_t)count * sizeof *words);
        if (words == NULL) {
            Py_DECREF(given);
            PyErr_NoMemory();
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (parked_word(PyTuple_GET_ITEM(given, i), &words[i]) < 0) {
            Py_DECREF(given);
            siblings_end(siblings);
            return -1;
        }
    }
    Py_DECREF(given);
    siblings->words = words;
    siblings->count = (size_t)count;
    return 0;
}

/* Converts seconds to nanoseconds. FOR_EVER for None or a value too large; 0 (try once) also for a timeout shorter than
 * a check whether the holder is alive. */
static inline int
timeout_ns(PyObject *object, int64_t *timeout)
{
    *timeout = FOR_EVER;
    if (object == NULL || object == Py_None) {
        return 0;
    }
    double seconds = PyFloat_AsDouble(object);
    if (seconds == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    if (seconds != seconds) {
        PyErr_SetString(PyExc_ValueError, "timeout must be a number of seconds or None, not NaN");
        return -1;
    }
    if (seconds < 50e-6) {
        *timeout = 0;
    } else if (seconds < 1e9) {
        *timeout = (int64_t)(seconds * 1e9);
    }
    return 0;
}

/* Sorts the arguments of a METH_FASTCALL | METH_KEYWORDS function into `values`, by parameter name. An argument that
 * the caller did not pass is NULL. The first `required` arguments are mandatory. */
static inline int
sort_arguments(const char *function, const char *const *parameters, Py_ssize_t most, Py_ssize_t required,
               PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **values)
{
    if (count > most) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %zd arguments, %zd given", function, most, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < most; i++) {
        values[i] = i < count ? args[i] : NULL;
    }
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        Py_ssize_t at = 0;
        while (at < most && PyUnicode_CompareWithASCIIString(name, parameters[at]) != 0) {
            at++;
        }
        if (at == most || values[at] != NULL) {
            const char *which = at == most ? "an unexpected" : "a second";
            PyErr_Format(PyExc_TypeError, "%s() got %s argument '%U'", function, which, name);
            return -1;
        }
        values[at] = args[count + i];
    }
    for (Py_ssize_t i = 0; i < required; i++) {
        if (values[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() misses its argument '%s'", function, parameters[i]);
            return -1;
        }
    }
    return 0;
}

#endif
