/* Watches a directory for new names, by inotify.
 *
 *     open_watch          returns a descriptor that becomes readable when a name appears
 *     drain_watch         reads the events, and returns whether more can come
 *
 * The caller waits with select.poll(), which handles signals and deadlines. The fallback can't watch: its caller polls the
 * directory.
 *
 * THE DESCRIPTOR
 *
 * One inotify instance with one watch, not blocking, closed on exec; the caller closes it. A forked child shares the
 * queue of events with its parent: each event goes to only one of the two, so the child must open its own watch.
 *
 * THE EVENTS
 *
 * A commit is renamed into its directory (IN_MOVED_TO), or linked where the file system can't rename without replacing
 * (IN_CREATE). The code ignores the details of an event: any event means "look again". So an overflow of the queue
 * loses nothing, because the descriptor is readable then too. But some events mean that no more will come: the
 * directory was deleted, unmounted, or moved, which leaves the watch on a directory that no longer has that name.
 * (Linux reports a deleted directory only when no process has a file of it open or mapped any more: don't wait for
 * that.)
 *
 *     struct inotify_event     wd | mask | cookie | len | name, padded with zeros to len bytes
 *
 * System calls that may wait for a disk run without the GIL. */

#ifndef TXS_WATCH_H
#define TXS_WATCH_H

#ifdef __linux__
#include <sys/inotify.h>

#define APPEARED (IN_MOVED_TO | IN_CREATE)
#define GONE (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED)

/* About 250 commits. Events that do not fit leave the descriptor readable. */
#define EVENTS_SIZE 8192

/* Returns 0 or an errno. */
static int
watch_path(const char *path, int *descriptor)
{
    int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (fd < 0) {
        return errno;
    }
    if (inotify_add_watch(fd, path, APPEARED | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR) < 0) {
        int error = errno;
        close(fd);
        return error;
    }
    *descriptor = fd;
    return 0;
}

PyDoc_STRVAR(open_watch_doc, "open_watch(path, /)\n--\n\n"
                             "A descriptor that is readable once a name has appeared in a directory, or the directory is gone.\n\n"
                             "Raises OSError, among others where the system allows no more watches.");

static PyObject *
open_watch(PyObject *Py_UNUSED(module), PyObject *path)
{
    PyObject *encoded;
    if (!PyUnicode_FSConverter(path, &encoded)) {
        return NULL;
    }
    int error, descriptor = -1;
    Py_BEGIN_ALLOW_THREADS
    error = watch_path(PyBytes_AS_STRING(encoded), &descriptor);
    Py_END_ALLOW_THREADS
    Py_DECREF(encoded);
    if (error != 0) {
        errno = error;
        return PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path);
    }
    return PyLong_FromLong(descriptor);
}

static uint32_t
masks_of(const char *events, size_t length)
{
    uint32_t masks = 0;
    struct inotify_event event;
    for (size_t at = 0; at + sizeof(event) <= length; at += sizeof(event) + event.len) {
        memcpy(&event, events + at, sizeof(event));
        masks |= event.mask;
    }
    return masks;
}

PyDoc_STRVAR(drain_watch_doc, "drain_watch(descriptor, /)\n--\n\n"
                        "Read the events of a watch, without waiting. False: the directory is gone, open another watch.");

static PyObject *
drain_watch(PyObject *Py_UNUSED(module), PyObject *object)
{
    int descriptor = PyObject_AsFileDescriptor(object);
    if (descriptor < 0) {
        return NULL;
    }
    char events[EVENTS_SIZE];
    ssize_t length = read(descriptor, events, sizeof(events)); /* it never waits: the GIL can stay */
    if (length < 0 && errno != EAGAIN && errno != EINTR) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyBool_FromLong(length < 0 || !(masks_of(events, (size_t)length) & GONE));
}

#else

#define open_watch_doc NULL
#define drain_watch_doc NULL

static PyObject *
open_watch(PyObject *Py_UNUSED(module), PyObject *path)
{
    errno = ENOSYS;
    return PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path);
}

static PyObject *
drain_watch(PyObject *module, PyObject *descriptor)
{
    return open_watch(module, descriptor);
}

#endif
#endif
