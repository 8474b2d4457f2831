/* Faults of the machine for a process that runs unchanged, loaded by LD_PRELOAD.

   The process maps the file that FASTI_FAULTS names and reads it at every call, so that a test
   changes the machine's behaviour while the process runs. shim.py writes the same layout. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    WRITE = 1,
    SYNC = 2,
    ALLOCATE = 4,
    TRUNCATE = 8,
    OPEN = 16,
    RENAME = 32,
    UNLINK = 64,
    MAP = 128
};

struct control {
    int64_t wall_offset_ns;  /* added to CLOCK_REALTIME */
    int64_t remaining;       /* calls that still fail; negative: all */
    int64_t injected;        /* calls that failed or hung */
    int64_t skipped;         /* so many calls succeed before the first that fails */
    int32_t hangs;           /* not 0: calls wait until it is, and succeed then */
    int32_t unused;
    int32_t error;           /* errno of the failing calls; 0: none fails */
    int32_t calls;           /* which calls fail: bits of the enum above */
    char path_part[240];     /* of the files whose calls fail; several: a|b */
};

static struct control none;
static struct control *faults = &none;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FASTI_FAULTS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED)
        faults = mapped;
}

static int counts(int64_t *left) {
    /* Several threads may be here: each call takes one. */
    int64_t before = *left;
    while (before > 0 && !__sync_bool_compare_and_swap(left, before, before - 1))
        before = *left;
    return before != 0;
}

static int is_named(const char *path) {
    char parts[sizeof faults->path_part], *rest, *part;
    memcpy(parts, faults->path_part, sizeof parts);
    if (!parts[0])
        return 1;
    for (part = strtok_r(parts, "|", &rest); part; part = strtok_r(NULL, "|", &rest))
        if (strstr(path, part))
            return 1;
    return 0;
}

static int is_on(int call) {
    return (faults->error || faults->hangs) && (faults->calls & call);
}

static int fails_at(const char *path, int call) {
    if (!is_on(call) || !path || !is_named(path))
        return 0;
    if (counts(&faults->skipped) || !counts(&faults->remaining))
        return 0;
    __sync_fetch_and_add(&faults->injected, 1);
    while (faults->hangs)
        usleep(2000);
    if (!faults->error)
        return 0;
    errno = faults->error;
    return 1;
}

/* The path of an open file or folder; -1 if it has none. */
static ssize_t path_of(int fd, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    if (length >= 0)
        path[length] = 0;
    return length;
}

static int fails(int fd, int call) {
    char path[4096];
    return fd >= 0 && is_on(call) && path_of(fd, path, sizeof path) >= 0 && fails_at(path, call);
}

static int fails_in(int folder, const char *name, int call) {
    char path[4096];
    if (!is_on(call))
        return 0;
    if (folder == AT_FDCWD || name[0] == '/')
        return fails_at(name, call);
    ssize_t length = path_of(folder, path, sizeof path);
    if (length < 0)
        return 0;
    snprintf(path + length, sizeof path - length, "/%s", name);
    return fails_at(path, call);
}

#define REAL(type, name, ...)                                 \
    static type (*real)(__VA_ARGS__);                         \
    if (!real)                                                \
        real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name);

int clock_gettime(clockid_t clock, struct timespec *at) {
    REAL(int, clock_gettime, clockid_t, struct timespec *)
    int result = real(clock, at);
    int64_t offset = faults->wall_offset_ns;
    if (result == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = at->tv_sec * 1000000000LL + at->tv_nsec + offset;
        at->tv_sec = ns / 1000000000LL;
        at->tv_nsec = ns % 1000000000LL;
    }
    return result;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

ssize_t write(int fd, const void *bytes, size_t count) {
    REAL(ssize_t, write, int, const void *, size_t)
    return fails(fd, WRITE) ? -1 : real(fd, bytes, count);
}

#define PWRITE(name, offset_type)                                            \
    ssize_t name(int fd, const void *bytes, size_t count, offset_type at) {  \
        REAL(ssize_t, name, int, const void *, size_t, offset_type)          \
        return fails(fd, WRITE) ? -1 : real(fd, bytes, count, at);           \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int)
    return fails(fd, WRITE) ? -1 : real(fd, parts, count);
}

#define PWRITEV(name, offset_type)                                                 \
    ssize_t name(int fd, const struct iovec *parts, int count, offset_type at) {   \
        REAL(ssize_t, name, int, const struct iovec *, int, offset_type)           \
        return fails(fd, WRITE) ? -1 : real(fd, parts, count, at);                 \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

#define PWRITEV2(name, offset_type)                                                           \
    ssize_t name(int fd, const struct iovec *parts, int count, offset_type at, int flags) {   \
        REAL(ssize_t, name, int, const struct iovec *, int, offset_type, int)                 \
        return fails(fd, WRITE) ? -1 : real(fd, parts, count, at, flags);                     \
    }
PWRITEV2(pwritev2, off_t)
PWRITEV2(pwritev64v2, off64_t)

int fsync(int fd) {
    REAL(int, fsync, int)
    return fails(fd, SYNC) ? -1 : real(fd);
}

int fdatasync(int fd) {
    REAL(int, fdatasync, int)
    return fails(fd, SYNC) ? -1 : real(fd);
}

/* This one returns the error instead of setting errno. */
#define POSIX_FALLOCATE(name, offset_type)                           \
    int name(int fd, offset_type at, offset_type count) {            \
        REAL(int, name, int, offset_type, offset_type)               \
        return fails(fd, ALLOCATE) ? errno : real(fd, at, count);    \
    }
POSIX_FALLOCATE(posix_fallocate, off_t)
POSIX_FALLOCATE(posix_fallocate64, off64_t)

#define FTRUNCATE(name, offset_type)                          \
    int name(int fd, offset_type length) {                    \
        REAL(int, name, int, offset_type)                     \
        return fails(fd, TRUNCATE) ? -1 : real(fd, length);   \
    }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)

#define OPENS(name)                                                  \
    int name(const char *path, int flags, ...) {                     \
        REAL(int, name, const char *, int, ...)                      \
        va_list more;                                                \
        va_start(more, flags);                                       \
        mode_t mode = va_arg(more, mode_t);                          \
        va_end(more);                                                \
        return fails_at(path, OPEN) ? -1 : real(path, flags, mode);  \
    }
OPENS(open)
OPENS(open64)

#define OPENS_IN(name)                                                               \
    int name(int folder, const char *path, int flags, ...) {                         \
        REAL(int, name, int, const char *, int, ...)                                 \
        va_list more;                                                                \
        va_start(more, flags);                                                       \
        mode_t mode = va_arg(more, mode_t);                                          \
        va_end(more);                                                                \
        return fails_in(folder, path, OPEN) ? -1 : real(folder, path, flags, mode);  \
    }
OPENS_IN(openat)
OPENS_IN(openat64)

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *)
    return fails_at(from, RENAME) ? -1 : real(from, to);
}

int unlink(const char *path) {
    REAL(int, unlink, const char *)
    return fails_at(path, UNLINK) ? -1 : real(path);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    REAL(int, renameat, int, const char *, int, const char *)
    return fails_in(from_folder, from, RENAME) ? -1 : real(from_folder, from, to_folder, to);
}

int unlinkat(int folder, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int)
    return fails_in(folder, path, UNLINK) ? -1 : real(folder, path, flags);
}

#define MAPS(name, offset_type)                                                            \
    void *name(void *at, size_t count, int how, int flags, int fd, offset_type offset) {   \
        REAL(void *, name, void *, size_t, int, int, int, offset_type)                     \
        return fails(fd, MAP) ? MAP_FAILED : real(at, count, how, flags, fd, offset);      \
    }
MAPS(mmap, off_t)
MAPS(mmap64, off64_t)
