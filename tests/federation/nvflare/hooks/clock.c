/* A clock that is wrong by PMTL_TEST_CLOCK seconds, for a process that has this as LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long wrong(void) {
    const char *given = getenv("PMTL_TEST_CLOCK");
    return given ? atol(given) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += wrong();
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int status = real(now, zone);
    now->tv_sec += wrong();
    return status;
}

time_t time(time_t *place) {
    time_t (*real)(time_t *) = dlsym(RTLD_NEXT, "time");
    time_t now = real(NULL) + wrong();
    if (place) *place = now;
    return now;
}
