/* Adds a delay to each file operation on paths below a folder, as a network file system's round trips would.
 *
 *   gcc -O2 -shared -fPIC -o slowfs.so benchmarks/cpu/slowfs.c -ldl
 *   SLOWFS_BELOW=/tmp/slow SLOWFS_MS=10 SLOWFS_LOG=count.txt LD_PRELOAD=./slowfs.so COMMAND
 *
 * Delayed are operations that such a file system answers from its server: open and create, stat, access, mkdir, opendir,
 * rename, unlink, rmdir, link, chmod, chown, utime, truncate, fsync, and the close of a file that was open for writing.
 * Reading and writing is not: a client's cache takes that. SLOWFS_LOG gets each process's number of delayed operations.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>

#define MOST_FILES 65536
static atomic_long delayed;
static atomic_char written[MOST_FILES]; /* by descriptor: open for writing below the folder */
static const char *below;
static long milliseconds;

__attribute__((constructor)) static void start(void) {
  below = getenv("SLOWFS_BELOW");
  milliseconds = getenv("SLOWFS_MS") ? atol(getenv("SLOWFS_MS")) : 10;
}

__attribute__((destructor)) static void tell(void) {
  const char *path = getenv("SLOWFS_LOG");
  FILE *(*real)(const char *, const char *) = dlsym(RTLD_NEXT, "fopen");
  FILE *file = path && delayed ? real(path, "a") : NULL;
  if (file) { fprintf(file, "%ld\n", (long)delayed); fclose(file); }
}

/* _exit skips destructors, and programs that end that way count too */
void _exit(int code) {
  void (*real)(int) __attribute__((noreturn)) = dlsym(RTLD_NEXT, "_exit");
  tell();
  real(code);
}

static int is_below(const char *path) {
  char folder[4096];
  if (!below || !path) return 0;
  if (path[0] == '/') return !strncmp(path, below, strlen(below));
  if (!getcwd(folder, sizeof folder - 1)) return 0;
  strcat(folder, "/");
  strncat(folder, path, sizeof folder - strlen(folder) - 1);
  return !strncmp(folder, below, strlen(below));
}

static void wait_once(void) {
  struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  atomic_fetch_add(&delayed, 1);
  nanosleep(&pause, NULL);
}

static int slow(const char *path) {
  int yes = is_below(path);
  if (yes) wait_once();
  return yes;
}

static void note(int descriptor, int flags, int yes) {
  if (descriptor >= 0 && descriptor < MOST_FILES) written[descriptor] = yes && (flags & O_ACCMODE) != O_RDONLY;
}

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
    REAL(name); \
    int yes = slow(path), descriptor = real(path, flags, mode); \
    note(descriptor, flags, yes); \
    return descriptor; \
  }
#define OPENAT(name) \
  int name(int at, const char *path, int flags, ...) { \
    va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
    REAL(name); \
    int yes = slow(path), descriptor = real(at, path, flags, mode); \
    note(descriptor, flags, yes); \
    return descriptor; \
  }
#define FOPEN(name) \
  FILE *name(const char *path, const char *how) { \
    REAL(name); \
    int yes = slow(path); \
    FILE *file = real(path, how); \
    if (file) note(fileno(file), *how == 'r' && !strchr(how, '+') ? O_RDONLY : O_WRONLY, yes); \
    return file; \
  }
#define PATH1(type, name, declared, passed) type name declared { REAL(name); slow(path); return real passed; }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)
PATH1(int, stat, (const char *path, struct stat *found), (path, found))
PATH1(int, stat64, (const char *path, struct stat64 *found), (path, found))
PATH1(int, lstat, (const char *path, struct stat *found), (path, found))
PATH1(int, lstat64, (const char *path, struct stat64 *found), (path, found))
PATH1(int, fstatat, (int at, const char *path, struct stat *found, int flags), (at, path, found, flags))
PATH1(int, fstatat64, (int at, const char *path, struct stat64 *found, int flags), (at, path, found, flags))
PATH1(int, access, (const char *path, int mode), (path, mode))
PATH1(int, faccessat, (int at, const char *path, int mode, int flags), (at, path, mode, flags))
PATH1(int, mkdir, (const char *path, mode_t mode), (path, mode))
PATH1(int, mkdirat, (int at, const char *path, mode_t mode), (at, path, mode))
PATH1(int, rmdir, (const char *path), (path))
PATH1(int, unlink, (const char *path), (path))
PATH1(int, unlinkat, (int at, const char *path, int flags), (at, path, flags))
PATH1(int, rename, (const char *path, const char *to), (path, to))
PATH1(int, renameat, (int at, const char *path, int to_at, const char *to), (at, path, to_at, to))
PATH1(int, link, (const char *path, const char *to), (path, to))
PATH1(int, chmod, (const char *path, mode_t mode), (path, mode))
PATH1(int, chown, (const char *path, uid_t owner, gid_t group), (path, owner, group))
PATH1(int, lchown, (const char *path, uid_t owner, gid_t group), (path, owner, group))
PATH1(int, utime, (const char *path, const struct utimbuf *times), (path, times))
PATH1(int, utimensat, (int at, const char *path, const struct timespec times[2], int flags), (at, path, times, flags))
PATH1(int, truncate, (const char *path, off_t size), (path, size))
PATH1(DIR *, opendir, (const char *path), (path))

static int is_written(int descriptor) { return descriptor >= 0 && descriptor < MOST_FILES && written[descriptor]; }

#define SYNC(name, declared, passed) \
  int name declared { REAL(name); if (is_written(descriptor)) wait_once(); return real passed; }
SYNC(fsync, (int descriptor), (descriptor))
SYNC(fdatasync, (int descriptor), (descriptor))
SYNC(fchmod, (int descriptor, mode_t mode), (descriptor, mode))
SYNC(ftruncate, (int descriptor, off_t size), (descriptor, size))
SYNC(ftruncate64, (int descriptor, off64_t size), (descriptor, size))
SYNC(futimens, (int descriptor, const struct timespec times[2]), (descriptor, times))

int close(int descriptor) {
  REAL(close);
  if (is_written(descriptor)) { written[descriptor] = 0; wait_once(); }
  return real(descriptor);
}

int fclose(FILE *file) {
  REAL(fclose);
  int descriptor = fileno(file);
  if (is_written(descriptor)) { written[descriptor] = 0; wait_once(); }
  return real(file);
}
