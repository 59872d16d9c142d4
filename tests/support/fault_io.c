/* A disk that fails, for LD_PRELOAD: of the files whose path has OUTRIDER_FAULTS_IN in it, one write in
 * OUTRIDER_FAULTS_EVERY is cut short, and one in as many of those fails, as does one sync in as many squared.
 * OUTRIDER_FAULTS_SEED chooses which. With OUTRIDER_FAULTS_NO_LOCKS the file system has no locks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static unsigned every(void) {
  const char* text = getenv("OUTRIDER_FAULTS_EVERY");
  return text == NULL ? 0 : (unsigned)atoi(text);
}

static unsigned chance(void) {
  static atomic_uint threads;
  static __thread unsigned seed;
  if (seed == 0) {
    const char* text = getenv("OUTRIDER_FAULTS_SEED");
    seed = (text == NULL ? 0 : (unsigned)atoi(text)) + atomic_fetch_add(&threads, 1) + 1;
  }
  return (unsigned)rand_r(&seed);
}

static int hits(int file, unsigned one_in) {
  const char* part = getenv("OUTRIDER_FAULTS_IN");
  char link[64], path[PATH_MAX];
  ssize_t length;
  if (part == NULL || one_in == 0 || chance() % one_in != 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = '\0';
  return strstr(path, part) != NULL;
}

typedef ssize_t (*Pwrite)(int, const void*, size_t, off_t);

ssize_t pwrite(int file, const void* bytes, size_t count, off_t offset) {
  static Pwrite real;
  if (real == NULL) real = (Pwrite)dlsym(RTLD_NEXT, "pwrite");
  if (count > 0 && hits(file, every())) {
    if (chance() % every() == 0) {
      errno = chance() % 2 ? ENOSPC : EIO;
      return -1;
    }
    count = 1 + chance() % count;
  }
  return real(file, bytes, count, offset);
}

ssize_t pwrite64(int file, const void* bytes, size_t count, off_t offset) { return pwrite(file, bytes, count, offset); }

int fdatasync(int file) {
  static int (*real)(int);
  if (real == NULL) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
  if (hits(file, every() * every())) {
    errno = EIO;
    return -1;
  }
  return real(file);
}

int flock(int file, int operation) {
  if (getenv("OUTRIDER_FAULTS_NO_LOCKS") == NULL) return (int)syscall(SYS_flock, file, operation);
  errno = ENOLCK;
  return -1;
}
