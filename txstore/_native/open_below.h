/*
 * Opens a path below a directory without following a symbolic link. No Python.
 *
 * A user who may write a repository may put anything in it: a link to another user's home in place of `.staging`, a
 * FIFO in place of a commit. So no file below its root is opened by a plain path. `root` is a path without links
 * (realpath), and `path` is relative to it; none of its segments is "..".
 *
 *     openat2             one call for the whole way, and no link in any part of it, RESOLVE_NO_SYMLINKS (Linux 5.6)
 *     elsewhere           each segment below the descriptor of the one before, O_NOFOLLOW
 *
 * No descriptor of the root is kept. So a repository that was moved or replaced is found as by any other path, a fork
 * inherits nothing, and a thousand opened repositories cost no descriptors.
 *
 * Only directories and regular files are opened, and O_NONBLOCK makes a FIFO or a device answer at once: it changes
 * nothing for a regular file.
 */

#ifndef TXS_OPEN_BELOW_H
#define TXS_OPEN_BELOW_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#ifdef SYS_openat2
#include <linux/openat2.h>
#endif
#endif

#ifndef PATH_MAX
#define PATH_MAX 4096
#endif

/* For a directory inside the path: it need not be readable. */
#ifdef O_PATH
#define PASSED_THROUGH (O_PATH | O_DIRECTORY | O_CLOEXEC)
#else
#define PASSED_THROUGH (O_RDONLY | O_DIRECTORY | O_CLOEXEC)
#endif

/* The offset of a path's last segment. */
static inline const char *
last_segment(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static inline bool
leads_up(const char *path)
{
    for (const char *at = path; at != NULL; at = strchr(at, '/')) {
        at += *at == '/';
        if (at[0] == '.' && at[1] == '.' && (at[2] == '/' || at[2] == '\0')) {
            return true;
        }
    }
    return false;
}

/* `root`/`path` in `whole`; the root alone if the path is empty. */
static inline int
join_path(char whole[PATH_MAX], const char *root, const char *path, size_t path_length)
{
    size_t root_length = strlen(root);
    if (root_length + path_length + 2 > PATH_MAX) {
        return ENAMETOOLONG;
    }
    memcpy(whole, root, root_length);
    if (path_length > 0) {
        whole[root_length++] = '/';
        memcpy(whole + root_length, path, path_length);
    }
    whole[root_length + path_length] = '\0';
    return 0;
}

/* Segment by segment, where there is no openat2. `path` is changed. */
static inline int
open_in_steps(const char *root, char *path, int flags, mode_t mode)
{
    int fd = open(root, *path == '\0' ? flags | O_NOFOLLOW : PASSED_THROUGH | O_NOFOLLOW, mode);
    while (fd >= 0 && *path != '\0') {
        char *slash = strchr(path, '/');
        if (slash != NULL) {
            *slash = '\0';
        }
        int next = openat(fd, path, slash == NULL ? flags | O_NOFOLLOW : PASSED_THROUGH | O_NOFOLLOW, mode);
        int error = errno;
        close(fd);
        errno = error;
        fd = next;
        path = slash == NULL ? path + strlen(path) : slash + 1;
    }
    return fd;
}

/* Does the caller ask for a directory, or for any kind of file? */
static inline bool
is_any_kind(int flags)
{
#ifdef O_PATH
    return (flags & (O_DIRECTORY | O_PATH)) != 0;
#else
    return (flags & O_DIRECTORY) != 0;
#endif
}

/* Opens the first `length` bytes of `path` below `root`: with O_DIRECTORY a directory, with O_PATH any kind, else a
 * regular file. Returns 0 or an errno: ELOOP (or ENOTDIR) if the path has a link, EISDIR or EINVAL if it is not a
 * regular file. */
static inline int
open_part_below(const char *root, const char *path, size_t length, int flags, mode_t mode, int *descriptor)
{
    char whole[PATH_MAX];
    int error = leads_up(path) ? EXDEV : join_path(whole, root, path, length);
    if (error != 0) {
        return error;
    }
    flags |= O_CLOEXEC | (is_any_kind(flags) ? 0 : O_NONBLOCK | O_NOCTTY);
    int fd = -1;
#ifdef SYS_openat2
    struct open_how how = {
        .flags = (unsigned)flags, .mode = (flags & O_CREAT) != 0 ? mode : 0, .resolve = RESOLVE_NO_SYMLINKS};
    fd = (int)syscall(SYS_openat2, AT_FDCWD, whole, &how, sizeof how);
    /* An old kernel, or a sandbox that does not allow the call; EPERM may mean that too. */
    if (fd < 0 && (errno == ENOSYS || errno == EPERM))
#endif
    {
        fd = open_in_steps(root, whole + strlen(root) + (length > 0), flags, mode);
    }
    if (fd < 0) {
        return errno;
    }
    struct stat status;
    if (!is_any_kind(flags)) {
        if (fstat(fd, &status) != 0) {
            error = errno;
        } else if (!S_ISREG(status.st_mode)) {
            error = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
        }
    }
    if (error != 0) {
        close(fd);
        return error;
    }
    *descriptor = fd;
    return 0;
}

static inline int
open_below(const char *root, const char *path, int flags, mode_t mode, int *descriptor)
{
    return open_part_below(root, path, strlen(path), flags, mode, descriptor);
}

/* Opens the parent directory of a path, for calls that take a directory and a name. */
static inline int
open_above(const char *root, const char *path, int *descriptor)
{
    const char *name = last_segment(path);
    return open_part_below(root, path, name == path ? 0 : (size_t)(name - path - 1), PASSED_THROUGH, 0, descriptor);
}

#endif
