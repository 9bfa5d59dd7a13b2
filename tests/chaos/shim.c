/* A library for LD_PRELOAD that breaks a process inside a change of a file, fills the disk, or steps the clock.

   It acts on command: every process maps the same small file, in which `tests/chaos/shim.py` writes its orders. Changes
   count only below one folder. Because the library stands between a program and the C library, it also reaches the
   writes of PyArrow (Tune's checkpoints and states), of safetensors and of SQLite, which no Python code makes.

   An armed change is the n-th one from now. The process then makes the first half of a write, or nothing of another
   change (rename, unlink, mkdir, truncate, fsync), and kills itself; or it makes the change and kills itself after it.

   The stepped clock is shown to Python only (time.time, datetime), because waits of C++ code on the real clock with
   deadlines of another clock would never end, which a really stepped clock does not cause either. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MAX_PIDS 16
#define PATH_SIZE 1024

struct orders {              /* the same layout as ORDERS in shim.py */
  int64_t changes_left;      /* the number of changes until the armed one; 0: none is armed */
  int64_t after;             /* 1: the armed change is made before the process dies */
  int64_t full;              /* 1: the disk has no room */
  int64_t struck;            /* the id of the process that died */
  double clock_step_s;       /* what is added to the clock that Python reads, s */
  int32_t pids[MAX_PIDS];    /* the processes whose changes count; all 0: every process */
  char folder[PATH_SIZE];    /* changes of files below this folder count */
  char where[PATH_SIZE];     /* the armed change, once it has happened */
};

static struct orders *orders;
static const char *python_from, *python_to; /* the addresses of the object that holds Python itself */

#define REAL(name) ((__typeof__(&name))real_of(#name))

static void *real_of(const char *name) { return dlsym(RTLD_NEXT, name); }

static int holds(struct dl_phdr_info *object, size_t size, void *symbol) {
  (void)size;
  const char *from = NULL, *to = NULL;
  for (int i = 0; i < object->dlpi_phnum; i++) {
    if (object->dlpi_phdr[i].p_type != PT_LOAD) continue;
    const char *low = (const char *)object->dlpi_addr + object->dlpi_phdr[i].p_vaddr;
    const char *high = low + object->dlpi_phdr[i].p_memsz;
    if (!from || low < from) from = low;
    if (high > to) to = high;
  }
  if ((const char *)symbol < from || (const char *)symbol >= to) return 0;
  python_from = from;
  python_to = to;
  return 1;
}

static void find_python(void) {
  void *symbol = dlsym(RTLD_DEFAULT, "PyObject_GetAttr");
  if (symbol) dl_iterate_phdr(holds, symbol);
}

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("HFLRAY_CHAOS_ORDERS");
  int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void *place = mmap(NULL, sizeof(struct orders), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (place == MAP_FAILED) return;
  orders = place;
  find_python();
}

/* ---- which changes count */

static int is_ours(void) {
  if (!orders->pids[0]) return 1;
  int32_t own = (int32_t)getpid();
  for (int i = 0; i < MAX_PIDS; i++)
    if (orders->pids[i] == own) return 1;
  return 0;
}

static int is_below(const char *path) {
  size_t length = strlen(orders->folder);
  return length && !strncmp(path, orders->folder, length) && path[length] == '/';
}

static int watching(void) { return orders && (orders->changes_left > 0 || orders->full); }

static int path_of(int fd, char *path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, PATH_SIZE - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return 1;
}

static int full_path(int dir, const char *name, char *path) {
  if (!name) return 0;
  if (name[0] == '/') return snprintf(path, PATH_SIZE, "%s", name) < PATH_SIZE;
  char start[PATH_SIZE];
  if (dir == AT_FDCWD ? !getcwd(start, sizeof start) : !path_of(dir, start)) return 0;
  return snprintf(path, PATH_SIZE, "%s/%s", start, name) < PATH_SIZE;
}

static void die(const char *what, const char *path) {
  snprintf(orders->where, PATH_SIZE, "%s %s", what, path);
  __atomic_store_n(&orders->struck, (int64_t)getpid(), __ATOMIC_SEQ_CST);
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

/* Return whether this change is the armed one. */
static int is_armed(const char *path) {
  if (orders->changes_left <= 0 || !is_below(path) || !is_ours()) return 0;
  return __atomic_sub_fetch(&orders->changes_left, 1, __ATOMIC_SEQ_CST) == 0;
}

/* ---- writes */

#define WRITE(call, name, half)                                        \
  if (!watching()) return call;                                        \
  int saved = errno;                                                   \
  char path[PATH_SIZE];                                                \
  int known = path_of(fd, path);                                       \
  errno = saved;                                                       \
  if (known && is_armed(path)) {                                       \
    if (orders->after) (void)!call;                                    \
    else { half; }                                                     \
    die(orders->after ? "after " name : "inside " name, path);         \
  }                                                                    \
  if (known && orders->full && is_below(path)) { errno = ENOSPC; return -1; } \
  return call

ssize_t write(int fd, const void *data, size_t size) {
  static __typeof__(&write) real;
  if (!real) real = REAL(write);
  WRITE(real(fd, data, size), "write", (void)!real(fd, data, size / 2));
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
  static __typeof__(&pwrite64) real;
  if (!real) real = REAL(pwrite64);
  WRITE(real(fd, data, size, at), "write", (void)!real(fd, data, size / 2, at));
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
  static __typeof__(&pwrite) real;
  if (!real) real = REAL(pwrite);
  WRITE(real(fd, data, size, at), "write", (void)!real(fd, data, size / 2, at));
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
  static __typeof__(&writev) real;
  if (!real) real = REAL(writev);
  WRITE(real(fd, parts, count), "write", (void)!real(fd, parts, count / 2));
}

ssize_t sendfile64(int fd, int from, off64_t *at, size_t size) {
  static __typeof__(&sendfile64) real;
  if (!real) real = REAL(sendfile64);
  WRITE(real(fd, from, at, size), "write", (void)!real(fd, from, at, size / 2));
}

ssize_t sendfile(int fd, int from, off_t *at, size_t size) {
  static __typeof__(&sendfile) real;
  if (!real) real = REAL(sendfile);
  WRITE(real(fd, from, at, size), "write", (void)!real(fd, from, at, size / 2));
}

/* ---- changes of open files; a full disk lets them pass */

#define ON_FILE(call, name)                                            \
  if (!watching()) return call;                                        \
  int saved = errno;                                                   \
  char path[PATH_SIZE];                                                \
  int known = path_of(fd, path);                                       \
  errno = saved;                                                       \
  if (known && is_armed(path)) {                                       \
    if (orders->after) (void)!call;                                    \
    die(orders->after ? "after " name : "before " name, path);         \
  }                                                                    \
  return call

int fsync(int fd) {
  static __typeof__(&fsync) real;
  if (!real) real = REAL(fsync);
  ON_FILE(real(fd), "fsync");
}

int fdatasync(int fd) {
  static __typeof__(&fdatasync) real;
  if (!real) real = REAL(fdatasync);
  ON_FILE(real(fd), "fsync");
}

int ftruncate64(int fd, off64_t size) {
  static __typeof__(&ftruncate64) real;
  if (!real) real = REAL(ftruncate64);
  ON_FILE(real(fd, size), "truncate");
}

int ftruncate(int fd, off_t size) {
  static __typeof__(&ftruncate) real;
  if (!real) real = REAL(ftruncate);
  ON_FILE(real(fd, size), "truncate");
}

/* ---- changes of names */

#define ON_NAME(call, what, dir, name)                                 \
  if (!watching()) return call;                                        \
  int saved = errno;                                                   \
  char path[PATH_SIZE];                                                \
  int known = full_path(dir, name, path);                              \
  errno = saved;                                                       \
  if (known && is_armed(path)) {                                       \
    if (orders->after) (void)!call;                                    \
    die(orders->after ? "after " what : "before " what, path);         \
  }                                                                    \
  return call

int rename(const char *from, const char *to) {
  static __typeof__(&rename) real;
  if (!real) real = REAL(rename);
  ON_NAME(real(from, to), "rename", AT_FDCWD, to);
}

int renameat(int old, const char *from, int new, const char *to) {
  static __typeof__(&renameat) real;
  if (!real) real = REAL(renameat);
  ON_NAME(real(old, from, new, to), "rename", new, to);
}

int link(const char *from, const char *to) {
  static __typeof__(&link) real;
  if (!real) real = REAL(link);
  ON_NAME(real(from, to), "link", AT_FDCWD, to);
}

int unlink(const char *name) {
  static __typeof__(&unlink) real;
  if (!real) real = REAL(unlink);
  ON_NAME(real(name), "unlink", AT_FDCWD, name);
}

int unlinkat(int dir, const char *name, int flags) {
  static __typeof__(&unlinkat) real;
  if (!real) real = REAL(unlinkat);
  ON_NAME(real(dir, name, flags), "unlink", dir, name);
}

int mkdir(const char *name, mode_t mode) {
  static __typeof__(&mkdir) real;
  if (!real) real = REAL(mkdir);
  ON_NAME(real(name, mode), "mkdir", AT_FDCWD, name);
}

int rmdir(const char *name) {
  static __typeof__(&rmdir) real;
  if (!real) real = REAL(rmdir);
  ON_NAME(real(name), "rmdir", AT_FDCWD, name);
}

/* ---- the room of a full disk */

int statvfs64(const char *name, struct statvfs64 *room) {
  static __typeof__(&statvfs64) real;
  if (!real) real = REAL(statvfs64);
  int code = real(name, room);
  char path[PATH_SIZE];
  if (!code && orders && orders->full && full_path(AT_FDCWD, name, path) &&
      (is_below(path) || !strcmp(path, orders->folder)))
    room->f_bavail = room->f_bfree = 0;
  return code;
}

int statvfs(const char *name, struct statvfs *room) { return statvfs64(name, (struct statvfs64 *)room); }

/* ---- the clock */

static int asked_by_python(const void *caller) {
  return orders && orders->clock_step_s != 0.0 && (const char *)caller >= python_from && (const char *)caller < python_to;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  static __typeof__(&clock_gettime) real;
  if (!real) real = REAL(clock_gettime);
  int code = real(clock, now);
  if (!code && clock == CLOCK_REALTIME && asked_by_python(__builtin_return_address(0)))
    now->tv_sec += (time_t)orders->clock_step_s; /* whole seconds */
  return code;
}

time_t time(time_t *result) {
  struct timespec now;
  static __typeof__(&clock_gettime) real;
  if (!real) real = REAL(clock_gettime);
  real(CLOCK_REALTIME, &now);
  if (asked_by_python(__builtin_return_address(0))) now.tv_sec += (time_t)orders->clock_step_s;
  if (result) *result = now.tv_sec;
  return now.tv_sec;
}
