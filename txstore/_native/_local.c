/*
 * txstore._native._local: system calls of the local storage that Python does not offer.
 *
 *     open_below          a file or directory below a root, without following a link: open_below.h. Returns a
 * Descriptor,
 *                         which closes itself: with a plain number, an interrupt between the call and the caller's
 * `try`
 *                         would lose the number
 *     list_directory      the names in a directory
 *     map_file            one whole file mapped read-only, without keeping a descriptor
 *     view, crc32c        a checked slice of any buffer; the checksum by itself
 *     rename_noreplace    a rename that refuses to replace: how a commit takes its version (I2)
 *     allocate            disk space for a pack, before it is written
 *     start_writeback     begin writing dirty pages, so that the sync to come finds little left to do
 *     open_watch          a descriptor that tells of new names in a directory: watch.h
 *
 * local_fallback.py does the same in Python; tests/native/test_local.py runs every test on both.
 *
 * MEMORY
 *
 *     MappedFile               the mapping, PROT_READ, MAP_SHARED
 *     +--------+               +---------------------------------------------+
 *     | base   | ------------> | the file, as long as it was when it was     |
 *     | length |               | mapped; nothing here is ever written to     |
 *     +--------+               +---------------------------------------------+
 *         ^                                      ^
 *         | owns a reference                     | points into
 *     memoryview <--- slice: the result of view(), which becomes a NumPy array
 *
 * Python's buffer protocol counts references: each exported view holds one to its MappedFile. So the file is unmapped
 * when the last view is freed, and no caller can close it too early. A MappedFile never changes once it is made.
 * The descriptor is closed as soon as the mapping stands: thousands of packs cost no descriptors. An empty file can't
 * be mapped; it is a MappedFile without a mapping. A file that another process truncates turns into SIGBUS: packs are
 * never truncated once they are published.
 *
 * HOT PATH
 *
 * view() runs once for every value that is read: bounds, checksum, slice. It makes its own memoryview of the buffer
 * first and works on that alone: another thread can release the caller's memoryview at any time, but not this one, so
 * the bytes stay where they are while the checksum is computed without the GIL. A slice of a writable buffer is handed
 * out read-only. Offsets and lengths come from disk and are hostile: a range that does not fit is out of bounds, and so
 * is an integer too large for the machine.
 *
 * THREADS
 *
 * No state but the type object, no statics that change: free threading needs nothing more. The GIL is dropped around
 * every system call that may wait for a disk or a server, and around checksums of GIL_THRESHOLD bytes or more; below
 * that, dropping the GIL and waiting for it costs more than the work (about 3 us for 64 KiB).
 *
 * ERRORS
 *
 * The int functions below return 0 or an errno, touch no Python object and run without the GIL; their callers raise
 * OSError with the file names, `root`/`path`. A call that a signal interrupts is made again once Python's handlers have
 * run (PEP 475), except a rename: on a network file system it may have happened, so the caller must look (I3).
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include "crc32c.h"
#include "open_below.h"
#include "watch.h"

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1u
#endif

#define GIL_THRESHOLD ((Py_ssize_t)64 * 1024)

typedef struct {
    PyTypeObject *descriptor_type;
    PyTypeObject *mapped_file_type;
} local_state;

typedef struct {
    PyObject_HEAD
    int fd; /* -1: closed */
} descriptor;

typedef struct {
    PyObject_HEAD
    void *base; /* NULL: an empty file */
    Py_ssize_t length;
} mapped_file;

/* ---- Errors and arguments ---------------------------------------------------------------------------------------- */

/* Returns true if a signal interrupted the call and Python's handlers have run without raising: make the call again. */
static int
should_retry(int error)
{
    return error == EINTR && PyErr_CheckSignals() == 0;
}

/* Raises OSError, or keeps the exception of a signal handler. Either name may be NULL. */
static PyObject *
raise_os_error(int error, PyObject *name, PyObject *second_name)
{
    if (!PyErr_Occurred()) {
        errno = error;
        PyErr_SetFromErrnoWithFilenameObjects(PyExc_OSError, name, second_name);
    }
    return NULL;
}

/* The same with the name of `path` below `root`, and of a second path below it, if given. */
static PyObject *
raise_below(int error, PyObject *root, PyObject *path, PyObject *second_path)
{
    if (PyErr_Occurred()) {
        return NULL;
    }
    PyObject *name = PyUnicode_GET_LENGTH(path) ? PyUnicode_FromFormat("%U/%U", root, path) : Py_NewRef(root);
    PyObject *second = second_path == NULL ? NULL : PyUnicode_FromFormat("%U/%U", root, second_path);
    if (name != NULL && (second != NULL || second_path == NULL)) {
        raise_os_error(error, name, second);
    }
    Py_XDECREF(name);
    Py_XDECREF(second);
    return NULL;
}

static int
check_count(const char *function, Py_ssize_t count, Py_ssize_t least, Py_ssize_t most)
{
    if (count < least || count > most) {
        PyErr_Format(PyExc_TypeError, "%s() takes %zd to %zd positional arguments, %zd given", function, least, most, count);
        return -1;
    }
    return 0;
}

static int
as_checksum(PyObject *object, uint32_t *checksum)
{
    long long value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (value < 0 || value > (long long)UINT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "a CRC-32C has 32 bits, not %S", object);
        return -1;
    }
    *checksum = (uint32_t)value;
    return 0;
}

/* Encodes a root and paths below it for the file system. The caller must free `encoded` with free_paths. */
static int
as_paths(PyObject *const *args, PyObject **encoded, int count)
{
    memset(encoded, 0, sizeof *encoded * (size_t)count);
    for (int i = 0; i < count; i++) {
        if (!PyUnicode_Check(args[i])) {
            PyErr_Format(PyExc_TypeError, "a path is a str, not %s", Py_TYPE(args[i])->tp_name);
            return -1;
        }
        if (!PyUnicode_FSConverter(args[i], &encoded[i])) {
            encoded[i] = NULL;
            return -1;
        }
    }
    return 0;
}

static void
free_paths(PyObject **encoded, int count)
{
    for (int i = 0; i < count; i++) {
        Py_XDECREF(encoded[i]);
    }
}

/* An offset or length read from disk. A value that fits no buffer becomes -1 or LLONG_MAX, not an error. */
static int
as_extent(PyObject *object, long long *extent)
{
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (value == -1 && !overflow && PyErr_Occurred()) {
        return -1;
    }
    *extent = overflow > 0 ? LLONG_MAX : overflow < 0 ? -1 : value;
    return 0;
}

/* The arguments (fd, offset, length) of allocate and start_writeback. */
static int
as_file_range(const char *function, PyObject *const *args, Py_ssize_t count, int *fd, long long *offset, long long *length)
{
    if (check_count(function, count, 3, 3) < 0) {
        return -1;
    }
    *fd = PyObject_AsFileDescriptor(args[0]);
    if (*fd < 0) {
        return -1;
    }
    *offset = PyLong_AsLongLong(args[1]);
    if (*offset == -1 && PyErr_Occurred()) {
        return -1;
    }
    *length = PyLong_AsLongLong(args[2]);
    if (*length == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (*offset < 0 || *length <= 0) {
        PyErr_SetString(PyExc_ValueError, "offset must be at least 0 and length at least 1");
        return -1;
    }
    return 0;
}

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

/* Takes the number out: only one thread closes it. */
static int
take_fd(PyObject *self)
{
    return __atomic_exchange_n(&((descriptor *)self)->fd, -1, __ATOMIC_ACQ_REL);
}

static PyObject *
descriptor_fileno(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLong(__atomic_load_n(&((descriptor *)self)->fd, __ATOMIC_ACQUIRE));
}

static PyObject *
descriptor_detach(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLong(take_fd(self));
}

static PyObject *
descriptor_close(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    int fd = take_fd(self), error = 0;
    if (fd >= 0) {
        Py_BEGIN_ALLOW_THREADS
        error = close(fd) == 0 ? 0 : errno;
        Py_END_ALLOW_THREADS
    }
    if (error != 0 && error != EINTR) { /* after EINTR it is closed, too */
        return raise_os_error(error, NULL, NULL);
    }
    Py_RETURN_NONE;
}

static PyObject *
descriptor_exit(PyObject *self, PyObject *Py_UNUSED(args))
{
    return descriptor_close(self, NULL);
}

static void
descriptor_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    int fd = take_fd(object);
    if (fd >= 0) {
        close(fd);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef descriptor_methods[] = {
    {"fileno", descriptor_fileno, METH_NOARGS, "fileno()\n--\n\nThe number; -1 once it is closed."},
    {"close", descriptor_close, METH_NOARGS, "close()\n--\n\nClose it, unless it is closed."},
    {"detach", descriptor_detach, METH_NOARGS, "detach()\n--\n\nThe number, which the caller closes from now on."},
    {"__enter__", descriptor_fileno, METH_NOARGS, NULL},
    {"__exit__", descriptor_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot descriptor_slots[] = {
    {Py_tp_doc, "An open file, which is closed at the end of a `with` block, or when no object refers to it any more."},
    {Py_tp_dealloc, descriptor_dealloc},
    {Py_tp_methods, descriptor_methods},
    {0, NULL},
};

static PyType_Spec descriptor_spec = {
    .name = "txstore._native._local.Descriptor",
    .basicsize = sizeof(descriptor),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = descriptor_slots,
};

/* ---- Opening below a root ---------------------------------------------------------------------------------------- */

PyDoc_STRVAR(open_below_doc,
             "open_below(root, path, flags, mode=0o666, /)\n--\n\n"
             "Open a path below a directory without following a link: a regular file; with os.O_DIRECTORY a directory,\n"
             "with os.O_PATH any kind. The root must have no links in it; an empty path is the root.\n\n"
             "Raises OSError: ELOOP or ENOTDIR if the path has a link, EISDIR or EINVAL if it is not a regular file.");

static PyObject *
open_below_root(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    PyTypeObject *type = ((local_state *)PyModule_GetState(module))->descriptor_type;
    PyObject *encoded[2];
    long flags, mode = 0666;
    if (check_count("open_below", count, 3, 4) < 0 || ((flags = PyLong_AsLong(args[2])) == -1 && PyErr_Occurred()) ||
        (count == 4 && (mode = PyLong_AsLong(args[3])) == -1 && PyErr_Occurred())) {
        return NULL;
    }
    descriptor *self = NULL;
    if (as_paths(args, encoded, 2) == 0 && (self = (descriptor *)type->tp_alloc(type, 0)) != NULL) {
        const char *root = PyBytes_AS_STRING(encoded[0]), *path = PyBytes_AS_STRING(encoded[1]);
        int error;
        self->fd = -1;
        do {
            Py_BEGIN_ALLOW_THREADS
            error = open_below(root, path, (int)flags, (mode_t)mode, &self->fd);
            Py_END_ALLOW_THREADS
        } while (should_retry(error));
        if (error != 0) {
            Py_CLEAR(self);
            raise_below(error, args[0], args[1], NULL);
        }
    }
    free_paths(encoded, 2);
    return (PyObject *)self;
}

/* Adds the names in a directory, which is closed, to a list. Returns 0, an errno, or -1 with an exception. */
static int
add_names(int fd, PyObject *list)
{
    DIR *directory = fdopendir(fd);
    if (directory == NULL) {
        int error = errno;
        close(fd);
        return error;
    }
    int error = 0;
    while (error == 0) {
        struct dirent *entry;
        Py_BEGIN_ALLOW_THREADS
        errno = 0;
        entry = readdir(directory);
        error = errno;
        Py_END_ALLOW_THREADS
        if (entry == NULL) {
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        PyObject *name = PyUnicode_DecodeFSDefault(entry->d_name);
        error = name == NULL || PyList_Append(list, name) < 0 ? -1 : 0;
        Py_XDECREF(name);
    }
    Py_BEGIN_ALLOW_THREADS
    closedir(directory);
    Py_END_ALLOW_THREADS
    return error;
}

PyDoc_STRVAR(list_directory_doc, "list_directory(root, path, /)\n--\n\nThe names in a directory below a root, as open_below "
                                 "opens it.");

static PyObject *
list_directory(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    PyObject *encoded[2], *list = NULL;
    if (check_count("list_directory", count, 2, 2) < 0) {
        return NULL;
    }
    if (as_paths(args, encoded, 2) == 0 && (list = PyList_New(0)) != NULL) {
        const char *root = PyBytes_AS_STRING(encoded[0]), *path = PyBytes_AS_STRING(encoded[1]);
        int fd, error;
        do {
            Py_BEGIN_ALLOW_THREADS
            error = open_below(root, path, O_RDONLY | O_DIRECTORY, 0, &fd);
            Py_END_ALLOW_THREADS
        } while (should_retry(error));
        if (error == 0) {
            error = add_names(fd, list);
        }
        if (error != 0) {
            Py_CLEAR(list);
            raise_below(error, args[0], args[1], NULL);
        }
    }
    free_paths(encoded, 2);
    return list;
}

/* ---- Mapped files ------------------------------------------------------------------------------------------------ */

static int
map_descriptor(int fd, void **base, Py_ssize_t *length)
{
    struct stat status;
    if (fstat(fd, &status) != 0) {
        return errno;
    }
    if ((unsigned long long)status.st_size > (unsigned long long)PY_SSIZE_T_MAX) {
        return EFBIG;
    }
    *base = NULL;
    *length = (Py_ssize_t)status.st_size;
    if (*length == 0) {
        return 0;
    }
    void *mapping = mmap(NULL, (size_t)*length, PROT_READ, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED) {
        return errno;
    }
    *base = mapping;
    return 0;
}

static int
map_path(const char *root, const char *path, void **base, Py_ssize_t *length)
{
    int fd, error = open_below(root, path, O_RDONLY, 0, &fd);
    if (error == 0) {
        error = map_descriptor(fd, base, length);
        close(fd);
    }
    return error;
}

PyDoc_STRVAR(map_file_doc, "map_file(root, path, /)\n--\n\nMap a whole file read-only; no descriptor stays open.");

static PyObject *
map_file(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    local_state *state = PyModule_GetState(module);
    PyTypeObject *type = state->mapped_file_type;
    PyObject *encoded[2];
    mapped_file *self = NULL;
    if (check_count("map_file", count, 2, 2) < 0) {
        return NULL;
    }
    if (as_paths(args, encoded, 2) == 0 && (self = (mapped_file *)type->tp_alloc(type, 0)) != NULL) {
        const char *root = PyBytes_AS_STRING(encoded[0]), *path = PyBytes_AS_STRING(encoded[1]);
        int error;
        do {
            Py_BEGIN_ALLOW_THREADS
            error = map_path(root, path, &self->base, &self->length);
            Py_END_ALLOW_THREADS
        } while (should_retry(error));
        if (error != 0) {
            Py_CLEAR(self);
            raise_below(error, args[0], args[1], NULL);
        }
    }
    free_paths(encoded, 2);
    return (PyObject *)self;
}

static void
mapped_file_dealloc(PyObject *object)
{
    mapped_file *self = (mapped_file *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->base != NULL) {
        munmap(self->base, (size_t)self->length);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

static int
mapped_file_getbuffer(PyObject *object, Py_buffer *buffer, int flags)
{
    static const char nothing[1] = "";
    mapped_file *self = (mapped_file *)object;
    void *base = self->base != NULL ? self->base : (void *)nothing;
    return PyBuffer_FillInfo(buffer, object, base, self->length, 1, flags);
}

static Py_ssize_t
mapped_file_length(PyObject *object)
{
    return ((mapped_file *)object)->length;
}

static PyObject *
mapped_file_repr(PyObject *object)
{
    return PyUnicode_FromFormat("<MappedFile of %zd bytes>", ((mapped_file *)object)->length);
}

static PyType_Slot mapped_file_slots[] = {
    {Py_tp_doc, "A file mapped read-only: a buffer. It is unmapped when the last view of it goes."},
    {Py_tp_dealloc, mapped_file_dealloc},
    {Py_tp_repr, mapped_file_repr},
    {Py_sq_length, mapped_file_length},
    {Py_bf_getbuffer, mapped_file_getbuffer},
    {0, NULL},
};

static PyType_Spec mapped_file_spec = {
    .name = "txstore._native._local.MappedFile",
    .basicsize = sizeof(mapped_file),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = mapped_file_slots,
};

/* ---- Checksums and checked slices -------------------------------------------------------------------------------- */

/* REQUIRES: the caller holds an export of the buffer that `data` lies in. */
static uint32_t
extend_checksum(uint32_t checksum, const void *data, Py_ssize_t length)
{
    if (length < GIL_THRESHOLD) {
        return txs_crc32c(checksum, data, (size_t)length);
    }
    Py_BEGIN_ALLOW_THREADS
    checksum = txs_crc32c(checksum, data, (size_t)length);
    Py_END_ALLOW_THREADS
    return checksum;
}

PyDoc_STRVAR(crc32c_doc, "crc32c(buffer, value=0, /)\n--\n\nThe CRC-32C of a contiguous buffer, continued from `value`.");

static PyObject *
crc32c(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    uint32_t checksum = 0;
    if (check_count("crc32c", count, 1, 2) < 0 || (count == 2 && as_checksum(args[1], &checksum) < 0)) {
        return NULL;
    }
    Py_buffer buffer;
    if (PyObject_GetBuffer(args[0], &buffer, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    checksum = extend_checksum(checksum, buffer.buf, buffer.len);
    PyBuffer_Release(&buffer);
    return PyLong_FromUnsignedLong(checksum);
}

/* A memoryview of the buffer's bytes that no other thread can release. */
static PyObject *
view_of_bytes(PyObject *object)
{
    PyObject *whole = PyMemoryView_FromObject(object);
    if (whole == NULL) {
        return NULL;
    }
    const Py_buffer *buffer = PyMemoryView_GET_BUFFER(whole);
    if (buffer->ndim == 1 && buffer->strides[0] == 1 && buffer->format[0] == 'B' && buffer->format[1] == '\0') {
        return whole;
    }
    PyObject *bytes = PyObject_CallMethod(whole, "cast", "s", "B");
    Py_DECREF(whole);
    return bytes;
}

/* The read-only slice [offset, offset + length), or a ValueError that names the failed check. */
static PyObject *
checked_slice(PyObject *whole, long long offset, long long length, uint32_t stored, PyObject *const *args)
{
    Py_ssize_t size = PyMemoryView_GET_BUFFER(whole)->len;
    if (offset < 0 || length < 0 || offset > size || length > size - offset) {
        PyErr_Format(PyExc_ValueError, "out of bounds: offset %S, length %S in a buffer of %zd bytes", args[1], args[2],
                     size);
        return NULL;
    }
    PyObject *slice = PySequence_GetSlice(whole, (Py_ssize_t)offset, (Py_ssize_t)(offset + length));
    if (slice == NULL) {
        return NULL;
    }
    const Py_buffer *buffer = PyMemoryView_GET_BUFFER(slice);
    uint32_t computed = extend_checksum(0, buffer->buf, buffer->len);
    if (computed != stored) {
        PyErr_Format(PyExc_ValueError, "checksum mismatch: stored 0x%08x, computed 0x%08x", stored, computed);
        Py_DECREF(slice);
        return NULL;
    }
    if (!buffer->readonly) {
        PyObject *readonly = PyObject_CallMethod(slice, "toreadonly", NULL);
        Py_DECREF(slice);
        return readonly;
    }
    return slice;
}

PyDoc_STRVAR(view_doc, "view(buffer, offset, length, checksum, /)\n--\n\n"
                       "The slice of a buffer as a read-only memoryview, once its bounds and CRC-32C are checked.\n\n"
                       "Raises ValueError, \"out of bounds: ...\" or \"checksum mismatch: ...\".");

static PyObject *
view(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    long long offset, length;
    uint32_t stored;
    if (check_count("view", count, 4, 4) < 0 || as_extent(args[1], &offset) < 0 || as_extent(args[2], &length) < 0 ||
        as_checksum(args[3], &stored) < 0) {
        return NULL;
    }
    PyObject *whole = view_of_bytes(args[0]);
    if (whole == NULL) {
        return NULL;
    }
    PyObject *slice = checked_slice(whole, offset, length, stored, args);
    Py_DECREF(whole);
    return slice;
}

/* ---- Renames ----------------------------------------------------------------------------------------------------- */

static int
rename_names(int source_fd, const char *source, int target_fd, const char *target)
{
#ifdef SYS_renameat2
    if (syscall(SYS_renameat2, source_fd, source, target_fd, target, RENAME_NOREPLACE) == 0) {
        return 0;
    }
    if (errno != ENOSYS && errno != EINVAL) { /* an old kernel; a file system without RENAME_NOREPLACE */
        return errno;
    }
#endif
    if (linkat(source_fd, source, target_fd, target, 0) != 0) {
        return errno;
    }
    /* The target exists, so the rename has happened. A source left behind is harmless: a crash here leaves one too. */
    (void)unlinkat(source_fd, source, 0);
    return 0;
}

static int
rename_below(const char *root, const char *source, const char *target)
{
    int source_fd, target_fd, error = open_above(root, source, &source_fd);
    if (error != 0) {
        return error;
    }
    error = open_above(root, target, &target_fd);
    if (error == 0) {
        error = rename_names(source_fd, last_segment(source), target_fd, last_segment(target));
        close(target_fd);
    }
    close(source_fd);
    return error;
}

PyDoc_STRVAR(rename_noreplace_doc, "rename_noreplace(root, source, target, /)\n--\n\n"
                                   "Rename a file below a root; FileExistsError if the target exists. Atomic.");

static PyObject *
rename_noreplace(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    PyObject *encoded[3];
    if (check_count("rename_noreplace", count, 3, 3) < 0) {
        return NULL;
    }
    int error = -1;
    if (as_paths(args, encoded, 3) == 0) {
        const char *root = PyBytes_AS_STRING(encoded[0]), *source = PyBytes_AS_STRING(encoded[1]);
        const char *target = PyBytes_AS_STRING(encoded[2]);
        Py_BEGIN_ALLOW_THREADS
        error = rename_below(root, source, target);
        Py_END_ALLOW_THREADS
        if (error != 0) {
            raise_below(error, args[0], args[1], args[2]);
        }
    }
    free_paths(encoded, 3);
    return error == 0 ? Py_NewRef(Py_None) : NULL;
}

/* ---- Space and write-back ---------------------------------------------------------------------------------------- */

static int
allocate_range(int fd, long long offset, long long length)
{
#ifdef __linux__
    return fallocate(fd, 0, (off_t)offset, (off_t)length) == 0 ? 0 : errno;
#else
    (void)fd, (void)offset, (void)length;
    return ENOSYS;
#endif
}

PyDoc_STRVAR(allocate_doc, "allocate(fd, offset, length, /)\n--\n\n"
                           "Reserve disk space and extend the file. False where that can't be done without writing.");

static PyObject *
allocate(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    int fd, error;
    long long offset, length;
    if (as_file_range("allocate", args, count, &fd, &offset, &length) < 0) {
        return NULL;
    }
    do {
        Py_BEGIN_ALLOW_THREADS
        error = allocate_range(fd, offset, length);
        Py_END_ALLOW_THREADS
    } while (should_retry(error));
    if (error == 0) {
        Py_RETURN_TRUE;
    }
    if (error == EOPNOTSUPP || error == ENOSYS || error == EINVAL) {
        Py_RETURN_FALSE;
    }
    return raise_os_error(error, NULL, NULL);
}

PyDoc_STRVAR(start_writeback_doc, "start_writeback(fd, offset, length, /)\n--\n\n"
                                  "Start writing dirty pages to disk, as a hint: waits for nothing, reports nothing.");

static PyObject *
start_writeback(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    int fd;
    long long offset, length;
    if (as_file_range("start_writeback", args, count, &fd, &offset, &length) < 0) {
        return NULL;
    }
#ifdef __linux__
    /* I9: without a WAIT flag the kernel keeps a write error for the next fsync; this call swallows none. */
    Py_BEGIN_ALLOW_THREADS
    (void)sync_file_range(fd, (off_t)offset, (off_t)length, SYNC_FILE_RANGE_WRITE);
    Py_END_ALLOW_THREADS
#endif
    Py_RETURN_NONE;
}

/* ---- The module -------------------------------------------------------------------------------------------------- */

/* Casts through void (*)(void): compilers warn about a cast between two other function types. */
#define FAST(function) ((PyCFunction)(void (*)(void))(function)), METH_FASTCALL

static PyMethodDef local_methods[] = {
    {"crc32c", FAST(crc32c), crc32c_doc},
    {"list_directory", FAST(list_directory), list_directory_doc},
    {"map_file", FAST(map_file), map_file_doc},
    {"open_below", FAST(open_below_root), open_below_doc},
    {"view", FAST(view), view_doc},
    {"rename_noreplace", FAST(rename_noreplace), rename_noreplace_doc},
    {"allocate", FAST(allocate), allocate_doc},
    {"start_writeback", FAST(start_writeback), start_writeback_doc},
    {"open_watch", open_watch, METH_O, open_watch_doc},
    {"drain_watch", drain_watch, METH_O, drain_watch_doc},
    {NULL, NULL, 0, NULL},
};

static int
local_exec(PyObject *module)
{
    local_state *state = PyModule_GetState(module);
    state->descriptor_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &descriptor_spec, NULL);
    if (state->descriptor_type == NULL || PyModule_AddType(module, state->descriptor_type) < 0) {
        return -1;
    }
    state->mapped_file_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &mapped_file_spec, NULL);
    if (state->mapped_file_type == NULL || PyModule_AddType(module, state->mapped_file_type) < 0) {
        return -1;
    }
    return PyModule_AddStringConstant(module, "IMPLEMENTATION", "c");
}

static int
local_traverse(PyObject *module, visitproc visit, void *arg)
{
    local_state *state = PyModule_GetState(module);
    Py_VISIT(state->descriptor_type);
    Py_VISIT(state->mapped_file_type);
    return 0;
}

static int
local_clear(PyObject *module)
{
    local_state *state = PyModule_GetState(module);
    Py_CLEAR(state->descriptor_type);
    Py_CLEAR(state->mapped_file_type);
    return 0;
}

static void
local_free(void *module)
{
    (void)local_clear(module);
}

static PyModuleDef_Slot local_slots[] = {
    {Py_mod_exec, local_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef local_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "txstore._native._local",
    .m_doc = "Files below a root, mapped files, checked slices, renames that don't replace.",
    .m_size = sizeof(local_state),
    .m_methods = local_methods,
    .m_slots = local_slots,
    .m_traverse = local_traverse,
    .m_clear = local_clear,
    .m_free = local_free,
};

PyMODINIT_FUNC
PyInit__local(void)
{
    return PyModuleDef_Init(&local_module);
}
