/* Stands between LMDB and the kernel, for whatever is done to a file named data.mdb. Loaded with LD_PRELOAD.

   faults_log(path)     append every write, sync and change of length to a log, see power.py
   faults_mark(n)       put a mark into that log
   faults_arm(at, how)  do something at the at-th of those calls from now: how = 0 nothing, 1 SIGKILL before it,
                        2 SIGKILL when half of it is written, 3 SIGKILL after it; an error number above 100 (less
                        100): fail this and every later write and sync with it
   faults_calls()       how many calls there were since it was armed */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BEFORE = 1, HALF = 2, AFTER = 3, ERRORS = 100 };

static int log_file = -1, at, how, calls;

void faults_arm(int call, int what) { at = call, how = what, calls = 0; }
int faults_calls(void) { return calls; }

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

static int watched(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    const char *name = strrchr(path, '/');
    return name && !strcmp(name, "/data.mdb");
}

static ssize_t plain_write(int fd, const void *data, size_t size) {
    return ((ssize_t(*)(int, const void *, size_t))real("write"))(fd, data, size);
}

static void put(const void *data, size_t size) {
    if (plain_write(log_file, data, size) != (ssize_t)size) abort();
}

static void note(char kind, uint64_t where, uint64_t size, const struct iovec *parts, int count) {
    if (log_file < 0) return;
    put(&kind, 1), put(&where, 8), put(&size, 8);
    for (int n = 0; n < count; n++) {
        size_t length = parts[n].iov_len < size ? parts[n].iov_len : size;
        put(parts[n].iov_base, length);
        size -= length;
    }
}

void faults_log(const char *path) {
    log_file = ((int (*)(const char *, int, ...))real("open"))(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

void faults_mark(uint64_t n) { note('M', n, 0, 0, 0); }

/* Whether this call is the one; fails it where that was asked. */
static int due(void) {
    calls++;
    if (how > ERRORS && calls >= at) {
        errno = how - ERRORS;
        return -1;
    }
    int now = how && how < ERRORS && calls == at;
    if (now && how == BEFORE) kill(getpid(), SIGKILL);
    return now;
}

static void died(void) { kill(getpid(), SIGKILL); }

static ssize_t write_at(int fd, const struct iovec *parts, int count, off_t where, int seek) {
    ssize_t (*pwritev_)(int, const struct iovec *, int, off_t) = real("pwritev");
    int now = due();
    if (now < 0) return -1;
    if (now && how == HALF) {
        size_t size = 0;
        for (int n = 0; n < count; n++) size += parts[n].iov_len;
        char *all = malloc(size), *end = all;
        for (int n = 0; n < count; n++) end = mempcpy(end, parts[n].iov_base, parts[n].iov_len);
        struct iovec half = {all, size / 2};
        pwritev_(fd, &half, 1, where);
        died();
    }
    ssize_t done = pwritev_(fd, parts, count, where);
    if (done > 0) note('W', where, done, parts, count);
    if (done > 0 && seek) lseek(fd, where + done, SEEK_SET);
    if (now) died();
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t where) {
    struct iovec part = {(void *)data, size};
    if (watched(fd)) return write_at(fd, &part, 1, where, 0);
    return ((ssize_t(*)(int, const void *, size_t, off_t))real("pwrite"))(fd, data, size, where);
}

ssize_t write(int fd, const void *data, size_t size) {
    struct iovec part = {(void *)data, size};
    return watched(fd) ? write_at(fd, &part, 1, lseek(fd, 0, SEEK_CUR), 1) : plain_write(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (watched(fd)) return write_at(fd, parts, count, lseek(fd, 0, SEEK_CUR), 1);
    return ((ssize_t(*)(int, const struct iovec *, int))real("writev"))(fd, parts, count);
}

static int sync_with(const char *name, int fd) {
    int seen = watched(fd), now = seen ? due() : 0;
    if (now < 0) return -1;
    int done = ((int (*)(int))real(name))(fd);
    if (seen && !done) note('S', 0, 0, 0, 0);
    if (now) died();
    return done;
}

int fdatasync(int fd) { return sync_with("fdatasync", fd); }
int fsync(int fd) { return sync_with("fsync", fd); }

int ftruncate(int fd, off_t size) {
    int seen = watched(fd), now = seen ? due() : 0;
    if (now < 0) return -1;
    int done = ((int (*)(int, off_t))real("ftruncate"))(fd, size);
    if (seen && !done) note('T', size, 0, 0, 0);
    if (now) died();
    return done;
}
