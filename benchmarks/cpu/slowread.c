/* Adds a delay to each open and each read of a file below a folder, as storage on a network without a warm cache would.
 *
 *   gcc -O2 -shared -fPIC -o slowread.so benchmarks/cpu/slowread.c -ldl
 *   SLOWREAD_BELOW=/data SLOWREAD_MS=10 LD_PRELOAD=./slowread.so COMMAND
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

#define MOST_FILES 65536
static _Atomic char below[MOST_FILES]; /* by descriptor */
static const char *folder;
static struct timespec delay;

__attribute__((constructor)) static void start(void) {
  folder = getenv("SLOWREAD_BELOW");
  delay.tv_nsec = (getenv("SLOWREAD_MS") ? atol(getenv("SLOWREAD_MS")) : 10) * 1000000;
}

static int opened(int descriptor, const char *path) {
  if (descriptor < 0 || descriptor >= MOST_FILES) return descriptor;
  below[descriptor] = folder && !strncmp(path, folder, strlen(folder));
  if (below[descriptor]) nanosleep(&delay, NULL);
  return descriptor;
}

static ssize_t got(int descriptor, ssize_t bytes) { /* that a file is at its end is known without asking */
  if (bytes > 0 && descriptor < MOST_FILES && below[descriptor]) nanosleep(&delay, NULL);
  return bytes;
}

#define OPEN(name)                                                                      \
  int name(const char *path, int flags, ...) {                                          \
    va_list more;                                                                       \
    va_start(more, flags);                                                              \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;             \
    va_end(more);                                                                       \
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, #name);                      \
    return opened(real(path, flags, mode), path);                                       \
  }
OPEN(open)
OPEN(open64)

#define READ(name, offset_type)                                                         \
  ssize_t name(int descriptor, void *buffer, size_t bytes, offset_type offset) {        \
    ssize_t (*real)(int, void *, size_t, offset_type) = dlsym(RTLD_NEXT, #name);        \
    return got(descriptor, real(descriptor, buffer, bytes, offset));                    \
  }
READ(pread, off_t)
READ(pread64, off64_t)

ssize_t read(int descriptor, void *buffer, size_t bytes) {
  ssize_t (*real)(int, void *, size_t) = dlsym(RTLD_NEXT, "read");
  return got(descriptor, real(descriptor, buffer, bytes));
}
