/* Sets the wall clock of a process, while it runs, to any time: loaded into it with LD_PRELOAD.
 *
 * RAYLAY_CLOCK_FILE   eight bytes: by how many microseconds the wall clock is ahead of the host's
 *                     (signed, in the byte order of the host). Whoever writes there sets the clock.
 *
 * The monotonic clocks and sleeps are left alone. (libfaketime 0.9.10 lets clock_nanosleep fail with
 * TIMER_ABSTIME where it leaves them alone, and Python's time.sleep uses that.)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *ahead_us;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("RAYLAY_CLOCK_FILE");
  int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  void *mapped = MAP_FAILED;
  if (file >= 0) {
    mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
  }
  if (mapped == MAP_FAILED) {
    fprintf(stderr, "set_clock: RAYLAY_CLOCK_FILE is no file that can be read\n");
    _exit(97);
  }
  ahead_us = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *found) {
  int failed = (int)syscall(SYS_clock_gettime, clock, found);
  if (failed || ahead_us == NULL || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
    return failed;
  int64_t now_ns = (int64_t)found->tv_sec * 1000000000 + found->tv_nsec + *ahead_us * 1000;
  found->tv_sec = now_ns / 1000000000;
  found->tv_nsec = now_ns % 1000000000;
  return 0;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
  struct timespec now;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &now))
    return -1;
  found->tv_sec = now.tv_sec;
  found->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *found) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (found != NULL)
    *found = now.tv_sec;
  return now.tv_sec;
}
