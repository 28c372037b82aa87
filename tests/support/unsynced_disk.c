/* Records what a process does to the files below a directory: loaded into it with LD_PRELOAD.
 *
 * RAYLAY_DISK_ROOT     the directory, absolute; nothing else is recorded
 * RAYLAY_DISK_RECORD   where the record is written
 *
 * unsynced_disk.py reads the record and rebuilds the directory as a power cut leaves it. Each entry
 * is: operation (1 byte), flags (1 byte), length of a path (u16), offset (u64), length of the data
 * (u64), path, data; little-endian. Operations:
 *
 *   W  data was written at the offset; flag 1: by a descriptor that syncs each write
 *   T  the file has this size (offset) now
 *   S  a file or directory was synced
 *   C  a file was made, or emptied: flag 1
 *   M  a directory was made
 *   R  path was renamed to data
 *   U  path was unlinked
 *   O  the process wrote data to its standard output: what it has told
 *
 * Syncs are recorded and not performed, so that a run costs no time. What is written through a
 * shared mapping is not seen: it counts as lost, as it is before an msync that nobody here makes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static char root[PATH_MAX];
static size_t root_length;
static int record = -1;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void fail(const char *what) {
    fprintf(stderr, "unsynced_disk: %s: %s\n", what, strerror(errno));
    _exit(97);
}

__attribute__((constructor)) static void begin(void) {
    const char *where = getenv("RAYLAY_DISK_ROOT"), *to = getenv("RAYLAY_DISK_RECORD");
    if (!where || !to || !realpath(where, root)) return;
    root_length = strlen(root);
    record = (int)syscall(SYS_openat, AT_FDCWD, to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (record < 0) fail(to);
}

static void put(const void *data, size_t length) {
    const char *at = data;
    while (length) {
        ssize_t done = syscall(SYS_write, record, at, length);
        if (done < 0) fail("the record cannot be written");
        at += done;
        length -= (size_t)done;
    }
}

static void note(char operation, uint8_t flags, const char *path, uint64_t offset, const void *data,
                 uint64_t length) {
    uint16_t path_length = (uint16_t)strlen(path);
    unsigned char head[20];
    head[0] = (unsigned char)operation;
    head[1] = flags;
    memcpy(head + 2, &path_length, 2);
    memcpy(head + 4, &offset, 8);
    memcpy(head + 12, &length, 8);
    put(head, sizeof head);
    put(path, path_length);
    if (length) put(data, length);
}

/* The path below the root, or NULL where it is elsewhere. */
static const char *below(const char *path) {
    if (record < 0 || strncmp(path, root, root_length)) return NULL;
    if (path[root_length] == '/') return path + root_length + 1;
    return path[root_length] ? NULL : "";
}

static const char *path_of_fd(int fd, char *buffer) {
    char link[64];
    if (record < 0 || fd == record) return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, buffer, PATH_MAX - 1);
    if (length <= 0) return NULL;
    buffer[length] = 0;
    if (strstr(buffer, " (deleted)")) return NULL;
    return below(buffer);
}

static const char *path_of(int directory, const char *name, char *buffer) {
    char folder[PATH_MAX], joined[2 * PATH_MAX];
    if (record < 0) return NULL;
    if (name[0] == '/') {
        snprintf(joined, sizeof joined, "%s", name);
    } else if (directory == AT_FDCWD) {
        if (!getcwd(folder, sizeof folder)) return NULL;
        snprintf(joined, sizeof joined, "%s/%s", folder, name);
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        ssize_t length = readlink(link, folder, sizeof folder - 1);
        if (length <= 0) return NULL;
        folder[length] = 0;
        snprintf(joined, sizeof joined, "%s/%s", folder, name);
    }
    if (strlen(joined) >= PATH_MAX) return NULL;
    strcpy(buffer, joined);
    return below(buffer);
}

/* -- files ------------------------------------------------------------------------------------ */
static int opened(int directory, const char *name, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    const char *path = path_of(directory, name, buffer);
    if (!path) return (int)syscall(SYS_openat, directory, name, flags, mode);
    pthread_mutex_lock(&lock);
    struct stat before;
    int was = stat(buffer, &before) == 0;
    int fd = (int)syscall(SYS_openat, directory, name, flags, mode);
    int error = errno;
    if (fd >= 0 && !was && (flags & O_CREAT)) note('C', 0, path, 0, NULL, 0);
    else if (fd >= 0 && was && (flags & O_TRUNC)) note('C', 1, path, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    errno = error;
    return fd;
}

#define MODE(flags)                                              \
    mode_t mode = 0;                                             \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                       \
        va_list rest;                                            \
        va_start(rest, flags);                                   \
        mode = (mode_t)va_arg(rest, int);                        \
        va_end(rest);                                            \
    }

int open(const char *name, int flags, ...) { MODE(flags) return opened(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags) return opened(AT_FDCWD, name, flags, mode); }
int openat(int at, const char *name, int flags, ...) { MODE(flags) return opened(at, name, flags, mode); }
int openat64(int at, const char *name, int flags, ...) { MODE(flags) return opened(at, name, flags, mode); }

static void wrote(int fd, const char *path, uint64_t offset, const void *data, ssize_t length) {
    int flags = fcntl(fd, F_GETFL);
    /* O_SYNC contains O_DSYNC. */
    note('W', (flags & O_DSYNC) != 0, path, offset, data, (uint64_t)length);
}

static uint64_t position(int fd) {
    struct stat status;
    if ((fcntl(fd, F_GETFL) & O_APPEND) && fstat(fd, &status) == 0) return (uint64_t)status.st_size;
    return (uint64_t)lseek(fd, 0, SEEK_CUR);
}

ssize_t write(int fd, const void *data, size_t length) {
    char buffer[PATH_MAX];
    if (fd == STDOUT_FILENO && record >= 0) {
        pthread_mutex_lock(&lock);
        ssize_t done = syscall(SYS_write, fd, data, length);
        if (done > 0) note('O', 0, "", 0, data, (uint64_t)done);
        pthread_mutex_unlock(&lock);
        return done;
    }
    const char *path = path_of_fd(fd, buffer);
    if (!path) return syscall(SYS_write, fd, data, length);
    pthread_mutex_lock(&lock);
    uint64_t offset = position(fd);
    ssize_t done = syscall(SYS_write, fd, data, length);
    int error = errno;
    if (done > 0) wrote(fd, path, offset, data, done);
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    char buffer[PATH_MAX];
    const char *path = path_of_fd(fd, buffer);
    if (!path) return syscall(SYS_pwrite64, fd, data, length, offset);
    pthread_mutex_lock(&lock);
    ssize_t done = syscall(SYS_pwrite64, fd, data, length, offset);
    int error = errno;
    if (done > 0) wrote(fd, path, (uint64_t)offset, data, done);
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    return pwrite64(fd, data, length, offset);
}

/* One write for each buffer: what is recorded is the same. */
static ssize_t vectors(int fd, const struct iovec *parts, int count, off64_t offset, int moves) {
    ssize_t all = 0;
    for (int i = 0; i < count; i++) {
        if (!parts[i].iov_len) continue;
        ssize_t done = moves ? write(fd, parts[i].iov_base, parts[i].iov_len)
                             : pwrite64(fd, parts[i].iov_base, parts[i].iov_len, offset + all);
        if (done < 0) return all ? all : done;
        all += done;
        if ((size_t)done < parts[i].iov_len) break;
    }
    return all;
}
ssize_t writev(int fd, const struct iovec *parts, int count) { return vectors(fd, parts, count, 0, 1); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    return vectors(fd, parts, count, offset, 0);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    return vectors(fd, parts, count, offset, 0);
}

/* Callers fall back to read and write. */
ssize_t sendfile64(int out, int in, off64_t *offset, size_t length) {
    char buffer[PATH_MAX];
    if (!path_of_fd(out, buffer)) return syscall(SYS_sendfile, out, in, offset, length);
    errno = ENOTSOCK;
    return -1;
}
ssize_t sendfile(int out, int in, off_t *offset, size_t length) {
    return sendfile64(out, in, offset, length);
}
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t length, unsigned flags) {
    char buffer[PATH_MAX];
    if (!path_of_fd(out, buffer)) return syscall(SYS_copy_file_range, in, from, out, to, length, flags);
    errno = EXDEV;
    return -1;
}

static int sized(int fd, int result) {
    char buffer[PATH_MAX];
    struct stat status;
    const char *path = path_of_fd(fd, buffer);
    if (path && result == 0 && fstat(fd, &status) == 0)
        note('T', 0, path, (uint64_t)status.st_size, NULL, 0);
    return result;
}
int ftruncate64(int fd, off64_t size) {
    pthread_mutex_lock(&lock);
    int result = sized(fd, (int)syscall(SYS_ftruncate, fd, size));
    pthread_mutex_unlock(&lock);
    return result;
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }
int posix_fallocate64(int fd, off64_t offset, off64_t length) {
    pthread_mutex_lock(&lock);
    int result = syscall(SYS_fallocate, fd, 0, offset, length) ? errno : 0;
    sized(fd, result);
    pthread_mutex_unlock(&lock);
    return result;
}
int posix_fallocate(int fd, off_t offset, off_t length) { return posix_fallocate64(fd, offset, length); }

/* What the kernel is left to write (io_submit, by its number) is there at once and not synced. */
long syscall(long number, ...) {
    static long (*real)(long, ...);
    if (!real) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(arguments, long);
    va_end(arguments);
    if (number != SYS_io_submit || record < 0) return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    pthread_mutex_lock(&lock);
    long taken = real(number, a[0], a[1], a[2]);
    int error = errno;
    struct iocb **requests = (struct iocb **)a[2];
    for (long i = 0; i < taken; i++) {
        char buffer[PATH_MAX];
        struct iocb *request = requests[i];
        const char *path = path_of_fd((int)request->aio_fildes, buffer);
        if (path && request->aio_lio_opcode == IOCB_CMD_PWRITE)
            wrote((int)request->aio_fildes, path, (uint64_t)request->aio_offset,
                  (const void *)(uintptr_t)request->aio_buf, (ssize_t)request->aio_nbytes);
    }
    pthread_mutex_unlock(&lock);
    errno = error;
    return taken;
}

static int synced(int fd, int (*real)(int)) {
    char buffer[PATH_MAX];
    const char *path = path_of_fd(fd, buffer);
    if (!path) return real(fd);
    pthread_mutex_lock(&lock);
    note('S', 0, path, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return 0;
}
int fsync(int fd) { return synced(fd, REAL(fsync)); }
int fdatasync(int fd) { return synced(fd, REAL(fdatasync)); }

/* -- directories ------------------------------------------------------------------------------ */
static int renamed(int from_at, const char *from, int to_at, const char *to) {
    char first[PATH_MAX], second[PATH_MAX];
    pthread_mutex_lock(&lock);
    const char *old = path_of(from_at, from, first), *fresh = path_of(to_at, to, second);
    int result = (int)syscall(SYS_renameat, from_at, from, to_at, to);
    int error = errno;
    if (result == 0 && old && fresh) note('R', 0, old, 0, fresh, strlen(fresh));
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}
int rename(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to); }
int renameat(int from_at, const char *from, int to_at, const char *to) {
    return renamed(from_at, from, to_at, to);
}

static int unlinked(int at, const char *name, int flags) {
    char buffer[PATH_MAX];
    pthread_mutex_lock(&lock);
    const char *path = path_of(at, name, buffer);
    int result = (int)syscall(SYS_unlinkat, at, name, flags);
    int error = errno;
    if (result == 0 && path) note('U', 0, path, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}
int unlink(const char *name) { return unlinked(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinked(AT_FDCWD, name, AT_REMOVEDIR); }
int unlinkat(int at, const char *name, int flags) { return unlinked(at, name, flags); }

static int made(int at, const char *name, mode_t mode) {
    char buffer[PATH_MAX];
    pthread_mutex_lock(&lock);
    const char *path = path_of(at, name, buffer);
    int result = (int)syscall(SYS_mkdirat, at, name, mode);
    int error = errno;
    if (result == 0 && path) note('M', 0, path, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}
int mkdir(const char *name, mode_t mode) { return made(AT_FDCWD, name, mode); }
int mkdirat(int at, const char *name, mode_t mode) { return made(at, name, mode); }
