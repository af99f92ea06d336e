/* The header of a commit, from bytes and to bytes.
 *
 *     decode_header       the fields of a header, as a tuple
 *     encode_header       the typed fields of a header
 *
 * A committer reads the headers of other commits and writes its own while other committers wait. In Python that takes
 * as long as syncing a file. There is no fallback: format/commitfile.py does the same in Python, and reports what is
 * wrong with a header. `decode_header` returns None for a header that is not plain: malformed, of a newer format, or
 * with a rare field. Any other answer equals that of format/commitfile.py.
 *
 * THE BYTES (docs/understand/format.md, "Header")
 *
 *     fixed fields        120 bytes
 *     typed fields        type u16 | length u32 | content        this code knows types 1 to 10 and 14 to 16; 11 to 13 are rare
 *
 *     runs                for each: entry length | entry | seq | offset | length | entries | highest seq
 *     entry of a run      kind 1: u8 | id 16 | version | branch          kind 2: u8 | id 16          numbers are
 * varints
 *
 * Every length is checked against the remaining bytes before it is used. The bytes are immutable. */

#ifndef TXS_COMMIT_HEADER_H
#define TXS_COMMIT_HEADER_H

#include "run_writer.h"

enum { FIXED_BYTES = 120, ID_BYTES = 16, FIELD_BYTES = 6, NAME_BYTES = 100 };
enum { HEADER_COMMIT = 1, CHECKSUM_CRC32C = 1, PACK_COMMIT_FILE = 1, PACK_DATA = 2 };
enum { BRANCH = 1, AUTHOR, MESSAGE, PROPERTIES, STATISTICS, SECTIONS, RUNS, PACKS, PENDING, CONSTRAINTS, FORK, MERGED, REACH, GROUP_COMMIT, VIEWS, CURSORS, TYPES };
enum { STATISTICS_KNOWN = 5, RUN_NUMBERS = 5 };
#define DECLARED (7ULL << 32) /* the required features with which CONSTRAINTS, VIEWS and CURSORS count */
enum { MAX_RUNS = 1024, MAX_SECTIONS = 1024 }; /* as in format/commitfile.py: a header that lists more is not plain */

typedef struct {
    const uint8_t *at, *end;
} rest;

/* ---- Decoding. Helpers return NULL without an exception for a field that is not plain, with one if memory ran out. */

static PyObject *
read_number(rest *from)
{
    uint64_t value;
    return read_varint(&from->at, from->end, &value) ? PyLong_FromUnsignedLongLong(value) : NULL;
}

static PyObject *
text_of(rest text)
{
    PyObject *decoded = PyUnicode_DecodeUTF8((const char *)text.at, text.end - text.at, NULL);
    if (decoded == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
        PyErr_Clear();
    return decoded;
}

/* A tuple of a subclass, made of `fields`. Steals the reference to `fields`, which may be NULL after an error. */
static PyObject *
named(PyTypeObject *type, PyObject *fields)
{
    PyObject *arguments = fields == NULL ? NULL : PyTuple_Pack(1, fields);
    Py_XDECREF(fields);
    PyObject *made = arguments == NULL ? NULL : PyTuple_Type.tp_new(type, arguments, NULL);
    Py_XDECREF(arguments);
    return made;
}

/* A tuple whose items from `first` on are the next numbers. */
static PyObject *
numbers_behind(Py_ssize_t first, Py_ssize_t count, rest *from)
{
    PyObject *fields = PyTuple_New(first + count);
    for (Py_ssize_t i = first; fields != NULL && i < first + count; i++) {
        PyObject *number = read_number(from);
        if (number == NULL)
            Py_CLEAR(fields);
        else
            PyTuple_SET_ITEM(fields, i, number);
    }
    return fields;
}

/* As keys.check_name: it becomes a part of a path. */
static int
is_name(rest text)
{
    if (text.at == text.end || text.end - text.at > NAME_BYTES || *text.at == '.' || *text.at == '-')
        return 0;
    for (const uint8_t *at = text.at; at < text.end; at++)
        if (!((*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') || (*at >= '0' && *at <= '9') || *at == '.' ||
              *at == '_' || *at == '-'))
            return 0;
    return 1;
}

/* Most names are the commit's own branch, which the caller passes as bytes and as an object. */
static PyObject *
pack_name(rest entry, rest branch, PyObject *branch_object, PyTypeObject *type)
{
    if (entry.end - entry.at < 1 + ID_BYTES)
        return NULL;
    int kind = *entry.at;
    const uint8_t *id = entry.at + 1;
    entry.at += 1 + ID_BYTES;
    uint64_t version = 0;
    if (kind == PACK_COMMIT_FILE) {
        if (!read_varint(&entry.at, entry.end, &version) || !is_name(entry))
            return NULL;
        if (entry.end - entry.at == branch.end - branch.at &&
            memcmp(entry.at, branch.at, (size_t)(branch.end - branch.at)) == 0)
            Py_INCREF(branch_object);
        else
            branch_object = text_of(entry);
    } else if (kind != PACK_DATA || entry.at != entry.end)
        return NULL;
    else {
        branch_object = Py_None;
        Py_INCREF(branch_object);
    }
    PyObject *fields = PyTuple_New(3), *id_object = PyBytes_FromStringAndSize((const char *)id, ID_BYTES);
    PyObject *version_object = PyLong_FromUnsignedLongLong(version);
    if (fields == NULL || id_object == NULL || version_object == NULL || branch_object == NULL) {
        Py_XDECREF(fields);
        Py_XDECREF(branch_object);
        Py_XDECREF(id_object);
        Py_XDECREF(version_object);
        return NULL;
    }
    PyTuple_SET_ITEM(fields, 0, id_object);
    PyTuple_SET_ITEM(fields, 1, branch_object);
    PyTuple_SET_ITEM(fields, 2, version_object);
    return named(type, fields);
}

static PyObject *
next_run(rest *from, rest branch, PyObject *branch_object, PyTypeObject *pack_type, PyTypeObject *run_type)
{
    uint64_t length;
    if (!read_varint(&from->at, from->end, &length) || length > (uint64_t)(from->end - from->at))
        return NULL;
    rest entry = {from->at, from->at + length};
    from->at = entry.end;
    PyObject *pack = Py_None;
    Py_INCREF(pack);
    if (length) {
        Py_DECREF(pack);
        pack = pack_name(entry, branch, branch_object, pack_type);
        if (pack == NULL)
            return NULL;
    }
    PyObject *fields = numbers_behind(1, RUN_NUMBERS, from);
    if (fields == NULL) {
        Py_DECREF(pack);
        return NULL;
    }
    PyTuple_SET_ITEM(fields, 0, pack);
    return named(run_type, fields);
}

/* Take `item` into the list; -1 if there is none. */
static int
list_append(PyObject *list, PyObject *item)
{
    int failed = item == NULL ? -1 : PyList_Append(list, item);
    Py_XDECREF(item);
    return failed;
}

static PyObject *
tuple_of(PyObject *list, int failed)
{
    PyObject *tuple = list == NULL || failed ? NULL : PyList_AsTuple(list);
    Py_XDECREF(list);
    return tuple;
}

/* The place of a run: the bytes of its pack's entry, and its offset in the pack. */
typedef struct {
    rest entry;
    uint64_t offset;
} place;

static int
is_among(const place *places, Py_ssize_t count, place wanted)
{
    size_t length = (size_t)(wanted.entry.end - wanted.entry.at);
    for (Py_ssize_t i = 0; i < count; i++)
        if (places[i].offset == wanted.offset && (size_t)(places[i].entry.end - places[i].entry.at) == length &&
            memcmp(places[i].entry.at, wanted.entry.at, length) == 0)
            return 1;
    return 0;
}

static PyObject *
all_runs(rest from, rest branch, PyObject *branch_object, PyTypeObject *pack_type, PyTypeObject *run_type)
{
    place places[MAX_RUNS];
    PyObject *list = PyList_New(0);
    int failed = 0;
    while (list != NULL && !failed && from.at < from.end) {
        Py_ssize_t count = PyList_GET_SIZE(list);
        rest next = from;
        uint64_t length = 0, seq;
        PyObject *run = count == MAX_RUNS ? NULL : next_run(&from, branch, branch_object, pack_type, run_type);
        failed = list_append(list, run) < 0;
        if (!failed) { /* the object is valid */
            read_varint(&next.at, next.end, &length);
            places[count].entry = (rest){next.at, next.at + length};
            next.at += length;
            failed = !read_varint(&next.at, next.end, &seq) || !read_varint(&next.at, next.end, &places[count].offset) ||
                     is_among(places, count, places[count]);
        }
    }
    return tuple_of(list, failed);
}

static PyObject *
all_sections(rest from, PyTypeObject *type)
{
    PyObject *list = PyList_New(0);
    int failed = 0;
    while (list != NULL && !failed && from.at < from.end)
        failed = PyList_GET_SIZE(list) == MAX_SECTIONS || list_append(list, named(type, numbers_behind(0, 3, &from))) < 0;
    return tuple_of(list, failed);
}

/* The statistics that this version knows; any that follow must be numbers too. */
static PyObject *
all_statistics(rest from)
{
    PyObject *list = PyList_New(0);
    int failed = 0;
    for (int i = 0; list != NULL && !failed && from.at < from.end; i++) {
        uint64_t value;
        failed = !read_varint(&from.at, from.end, &value) ||
                 (i < STATISTICS_KNOWN && list_append(list, PyLong_FromUnsignedLongLong(value)) < 0);
    }
    return tuple_of(list, failed);
}

/* Finds the typed fields, which ascend by their types. Returns 0 if they are not plain. */
static int
find_fields(rest from, rest fields[TYPES])
{
    for (int64_t last = -1; from.at < from.end;) {
        if (from.end - from.at < FIELD_BYTES)
            return 0;
        uint64_t type = load16(from.at), length = load32(from.at + 2);
        from.at += FIELD_BYTES;
        if (length > (uint64_t)(from.end - from.at) || (type >= FORK && type <= REACH) || (int64_t)type <= last)
            return 0;
        last = (int64_t)type;
        if (type < TYPES)
            fields[type] = (rest){from.at, from.at + length};
        from.at += length;
    }
    return 1;
}

PyDoc_STRVAR(decode_header_doc, "decode_header(header, pack_name, run_name, section, /)\n--\n\n"
                         "Return (repository_id, id, parent_id, parent_hash, version, seq, time, branch, author, message,\n"
                         "properties, statistics, sections, runs, pending, oldest kept version, required, optional, group commit,\n"
                         "constraints, views, cursors); properties and what follows optional are bytes or None. The last three\n"
                         "arguments are subclasses of tuple. None: not plain.");

static PyObject *
decode_header(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *header;
    PyTypeObject *types[3];
    if (!PyArg_ParseTuple(args, "SO!O!O!:decode_header", &header, &PyType_Type, &types[0], &PyType_Type, &types[1],
                          &PyType_Type, &types[2]))
        return NULL;
    for (int i = 0; i < 3; i++)
        if (!PyType_IsSubtype(types[i], &PyTuple_Type)) {
            PyErr_SetString(PyExc_TypeError, "give subclasses of tuple");
            return NULL;
        }
    const uint8_t *data = (const uint8_t *)PyBytes_AS_STRING(header);
    rest all = {data, data + PyBytes_GET_SIZE(header)}, fields[TYPES];
    for (int i = 0; i < TYPES; i++)
        fields[i] = (rest){NULL, NULL};
    if (PyBytes_GET_SIZE(header) < FIXED_BYTES || memcmp(data, "TXHD", 4) != 0 || load16(data + 4) != HEADER_COMMIT ||
        load16(data + 6) != CHECKSUM_CRC32C || (load64(data + 8) & ~DECLARED) != 0 ||
        !find_fields((rest){data + FIXED_BYTES, all.end}, fields) || fields[PACKS].at != NULL)
        Py_RETURN_NONE;
    uint64_t pending = 0;
    rest pending_field = fields[PENDING];
    if (pending_field.at != NULL && !read_varint(&pending_field.at, pending_field.end, &pending))
        Py_RETURN_NONE;

    PyObject *result = NULL, *branch = text_of(fields[BRANCH]);
    PyObject *author = branch == NULL ? NULL : text_of(fields[AUTHOR]);
    PyObject *message = author == NULL ? NULL : text_of(fields[MESSAGE]);
    PyObject *statistics = message == NULL ? NULL : all_statistics(fields[STATISTICS]);
    PyObject *sections = statistics == NULL ? NULL : all_sections(fields[SECTIONS], types[2]);
    PyObject *runs = sections == NULL ? NULL : all_runs(fields[RUNS], fields[BRANCH], branch, types[0], types[1]);
    if (runs != NULL) {
        rest properties = fields[PROPERTIES], group_commit = fields[GROUP_COMMIT], declared[3];
        for (int i = 0; i < 3; i++) {
            static const int types_of[3] = {CONSTRAINTS, VIEWS, CURSORS};
            declared[i] = load64(data + 8) & (1ULL << (32 + i)) ? fields[types_of[i]] : (rest){NULL, NULL};
        }
        result = Py_BuildValue(
            "y#y#y#y#KKKOOOy#OOOKKKKy#y#y#y#", data + 24, (Py_ssize_t)ID_BYTES, data + 40, (Py_ssize_t)ID_BYTES, data + 56,
            (Py_ssize_t)ID_BYTES, data + 72, (Py_ssize_t)ID_BYTES, (unsigned long long)load64(data + 88),
            (unsigned long long)load64(data + 96), (unsigned long long)load64(data + 112), branch, author, message,
            properties.at, (Py_ssize_t)(properties.end - properties.at), statistics, sections, runs,
            (unsigned long long)pending, (unsigned long long)load64(data + 104), (unsigned long long)load64(data + 8),
            (unsigned long long)load64(data + 16), group_commit.at, (Py_ssize_t)(group_commit.end - group_commit.at),
            declared[0].at, (Py_ssize_t)(declared[0].end - declared[0].at), declared[1].at,
            (Py_ssize_t)(declared[1].end - declared[1].at), declared[2].at,
            (Py_ssize_t)(declared[2].end - declared[2].at));
    }
    Py_XDECREF(branch);
    Py_XDECREF(author);
    Py_XDECREF(message);
    Py_XDECREF(statistics);
    Py_XDECREF(sections);
    Py_XDECREF(runs);
    if (result == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return result;
}

/* ---- Encoding. Functions return -1 with an exception set. ---- */

static int
put_varint(growing *g, uint64_t value)
{
    uint8_t bytes[10];
    return growing_append(g, bytes, (size_t)(write_varint(bytes, value) - bytes));
}

/* The items of a tuple from `first` on, which are integers. */
static int
put_numbers(growing *g, PyObject *tuple, Py_ssize_t first)
{
    for (Py_ssize_t i = first; i < PyTuple_GET_SIZE(tuple); i++) {
        uint64_t value = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(tuple, i));
        if ((value == (uint64_t)-1 && PyErr_Occurred()) || put_varint(g, value) < 0)
            return -1;
    }
    return 0;
}

static int
check_tuple(PyObject *object, Py_ssize_t size)
{
    if (PyTuple_Check(object) && (size < 0 || PyTuple_GET_SIZE(object) == size))
        return 0;
    PyErr_Format(PyExc_TypeError, "a tuple of %zd items is wanted", size);
    return -1;
}

static int
put_text(growing *g, PyObject *text)
{
    Py_ssize_t length;
    const char *data = PyUnicode_AsUTF8AndSize(text, &length);
    return data == NULL ? -1 : growing_append(g, data, (size_t)length);
}

/* Length and entry of a pack: an id, a branch or None, and a version. */
static int
put_pack(growing *g, PyObject *pack)
{
    if (pack == Py_None)
        return put_varint(g, 0);
    if (check_tuple(pack, 3) < 0)
        return -1;
    PyObject *id = PyTuple_GET_ITEM(pack, 0), *branch = PyTuple_GET_ITEM(pack, 1);
    if (!PyBytes_Check(id) || PyBytes_GET_SIZE(id) != ID_BYTES) {
        PyErr_SetString(PyExc_TypeError, "a pack's id is 16 bytes");
        return -1;
    }
    uint8_t kind = branch == Py_None ? PACK_DATA : PACK_COMMIT_FILE;
    growing entry = {NULL, 0};
    uint64_t version = 0;
    int failed = growing_append(&entry, &kind, 1) < 0 || growing_append(&entry, PyBytes_AS_STRING(id), ID_BYTES) < 0;
    if (!failed && kind == PACK_COMMIT_FILE) {
        version = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(pack, 2));
        failed = (version == (uint64_t)-1 && PyErr_Occurred()) || put_varint(&entry, version) < 0 ||
                 put_text(&entry, branch) < 0;
    }
    failed = failed || put_varint(g, entry.size) < 0 || growing_append_all(g, &entry) < 0;
    Py_XDECREF(entry.bytes);
    return failed ? -1 : 0;
}

static int
put_runs(growing *g, PyObject *runs)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(runs); i++) {
        PyObject *run = PyTuple_GET_ITEM(runs, i);
        if (check_tuple(run, 1 + RUN_NUMBERS) < 0 || put_pack(g, PyTuple_GET_ITEM(run, 0)) < 0 ||
            put_numbers(g, run, 1) < 0)
            return -1;
    }
    return 0;
}

static int
put_sections(growing *g, PyObject *sections)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sections); i++)
        if (check_tuple(PyTuple_GET_ITEM(sections, i), 3) < 0 || put_numbers(g, PyTuple_GET_ITEM(sections, i), 0) < 0)
            return -1;
    return 0;
}

/* Begins a field; `end_field` writes its length, or removes the field if it is empty. */
static int
begin_field(growing *g, unsigned type)
{
    uint8_t field[FIELD_BYTES] = {(uint8_t)type};
    return growing_append(g, field, FIELD_BYTES);
}

static int
end_field(growing *g, size_t begin)
{
    size_t length = g->size - begin - FIELD_BYTES;
    if (length > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a field of a header is longer than 4 GiB");
        return -1;
    }
    if (length == 0)
        g->size = begin;
    else
        write32((uint8_t *)PyBytes_AS_STRING(g->bytes) + begin + 2, (uint32_t)length);
    return 0;
}

PyDoc_STRVAR(encode_header_doc, "encode_header(branch, author, message, properties, statistics, sections, runs, packs, pending, /)\n"
                         "--\n\nReturn the typed fields. Properties and packs are bytes, empty for none; statistics,\n"
                         "sections and runs are tuples.");

static PyObject *
encode_header(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *texts[3], *properties, *statistics, *sections, *runs, *packs;
    PyObject *pending_object;
    if (!PyArg_ParseTuple(args, "UUUSO!O!O!SO!:encode_header", &texts[0], &texts[1], &texts[2], &properties, &PyTuple_Type,
                          &statistics, &PyTuple_Type, &sections, &PyTuple_Type, &runs, &packs, &PyLong_Type,
                          &pending_object))
        return NULL;
    uint64_t pending = PyLong_AsUnsignedLongLong(pending_object);
    if (pending == (uint64_t)-1 && PyErr_Occurred())
        return NULL;
    growing g = {NULL, 0};
    int failed = 0;
    for (unsigned type = BRANCH; type <= PENDING && !failed; type++) {
        size_t begin = g.size;
        failed = begin_field(&g, type);
        if (failed)
            break;
        switch (type) {
        case BRANCH:
        case AUTHOR:
        case MESSAGE:
            failed = put_text(&g, texts[type - BRANCH]);
            break;
        case PROPERTIES:
            failed = growing_append(&g, PyBytes_AS_STRING(properties), (size_t)PyBytes_GET_SIZE(properties));
            break;
        case STATISTICS:
            failed = put_numbers(&g, statistics, 0);
            break;
        case SECTIONS:
            failed = put_sections(&g, sections);
            break;
        case RUNS:
            failed = put_runs(&g, runs);
            break;
        case PACKS:
            failed = growing_append(&g, PyBytes_AS_STRING(packs), (size_t)PyBytes_GET_SIZE(packs));
            break;
        case PENDING:
            failed = pending ? put_varint(&g, pending) : 0;
            break;
        }
        failed = failed ? failed : end_field(&g, begin);
    }
    if (failed)
        Py_CLEAR(g.bytes);
    else if (g.bytes != NULL)
        _PyBytes_Resize(&g.bytes, (Py_ssize_t)g.size);
    else
        g.bytes = PyBytes_FromStringAndSize(NULL, 0);
    return g.bytes;
}

#endif
