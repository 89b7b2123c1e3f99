"""A wall clock that jumps, for one process and what it starts: `clock_gettime(CLOCK_REALTIME)`,
`gettimeofday` and `time` of the C library return another time to all that the process runs. Waits
until a time of that clock (of a semaphore, a condition, a futex) end when they would on such a
machine: the kernel, whose clock is right, is asked for that moment.

The library is compiled here, by the machine's C compiler, and put before the C library's own
(`LD_PRELOAD`). The process maps a file with the clock's error, which may be changed at any time.
Readings of a wrong time are counted there.
"""

import os
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct off { volatile int64_t seconds; volatile uint64_t wrong_readings; };
static struct off none, *off = &none;

__attribute__((constructor)) static void map_file(void) {
  const char *name = getenv("WALL_CLOCK");
  int file = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *at = mmap(0, sizeof(struct off), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at != MAP_FAILED) off = at;
  close(file);
}

static int64_t seconds_off(void) {
  int64_t seconds = off->seconds;
  if (seconds) __sync_fetch_and_add(&off->wrong_readings, 1);
  return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += seconds_off();
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec precise;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *now) {
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  if (now) *now = precise.tv_sec;
  return precise.tv_sec;
}

static struct timespec of_kernel(const struct timespec *until) {
  struct timespec there = *until;
  there.tv_sec -= off->seconds;
  if (there.tv_sec < 0) there.tv_sec = 0;  // long ago
  return there;
}

long syscall(long number, ...) {
  static long (*real)(long, ...);
  if (!real) real = dlsym(RTLD_NEXT, "syscall");
  long a[6];
  va_list rest;
  va_start(rest, number);
  for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long);
  va_end(rest);
  int until_a_time = FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME;
  if (number == SYS_futex && a[3] && (a[1] & ~FUTEX_PRIVATE_FLAG) == until_a_time) {
    struct timespec there = of_kernel((const struct timespec *)a[3]);
    return real(number, a[0], a[1], a[2], &there, a[4], a[5]);
  }
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
  static int (*real)(sem_t *, const struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");
  struct timespec there = of_kernel(until);
  return real(semaphore, &there);
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                           const struct timespec *until) {
  static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  if (!real) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  if (until->tv_sec < 1000000000) return real(condition, mutex, until);  // since the start
  struct timespec there = of_kernel(until);
  return real(condition, mutex, &there);
}
"""


def build(folder: Path) -> Path | None:
    """The compiled library, or None without a compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    source, library = folder / "wall_clock.c", folder / "wall_clock.so"
    source.write_text(SOURCE)
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


class WallClock:
    """The clock of one process, right until it jumps."""

    def __init__(self, library: Path, file: Path):
        self._library, self._file = library, file
        file.write_bytes(bytes(16))

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the process whose clock it is."""
        return {"LD_PRELOAD": str(self._library), "WALL_CLOCK": str(self._file)}

    def jump(self, seconds: int) -> None:
        """It is so far off from now on."""
        file = os.open(self._file, os.O_RDWR)
        try:
            os.pwrite(file, struct.pack("q", seconds), 0)
        finally:
            os.close(file)

    @property
    def wrong_readings(self) -> int:
        """Number of readings of a wrong time."""
        return struct.unpack("Q", self._file.read_bytes()[8:16])[0]
