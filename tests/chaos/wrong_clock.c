/* A wrong time of day for one process and its children: preloaded, WRONG_CLOCK_S seconds ahead of
 * the machine's, negative behind. Clocks that only measure are left alone, as on a machine whose
 * date was never set, and a wait until a moment of the wrong clock lasts as long as it says.
 *
 * libfaketime is not used: under 0.9.10 Python's time.sleep fails (clock_nanosleep of the monotonic
 * clock), and under the version after it Ray's workers give up their first wait.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SINCE_1970 1000000000L /* Longer than a machine is up: a moment of the time of day. */

static long off(void)
{
    static long seconds;
    static int known;
    if (!known) {
        const char *told = getenv("WRONG_CLOCK_S");
        seconds = told ? atol(told) : 0;
        known = 1;
    }
    return seconds;
}

static int is_wrong(clockid_t clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

static struct timespec meant(const struct timespec *until)
{
    struct timespec right = *until;
    if (right.tv_sec > SINCE_1970)
        right.tv_sec -= off();
    return right;
}

/* The next `syscall` takes any number of arguments, which cannot be handed on to it. */
static long ask(long number, long a, long b, long c, long d, long e, long f)
{
    long told;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(told)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return told;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*next)(clockid_t, struct timespec *);
    int failed;
    if (!next)
        next = dlsym(RTLD_NEXT, "clock_gettime");
    failed = next(clock, now);
    if (!failed && is_wrong(clock))
        now->tv_sec += off();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec told;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &told);
    now->tv_sec = told.tv_sec;
    now->tv_usec = told.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into)
{
    struct timespec told;
    clock_gettime(CLOCK_REALTIME, &told);
    if (into)
        *into = told.tv_sec;
    return told.tv_sec;
}

int timespec_get(struct timespec *now, int base)
{
    clock_gettime(CLOCK_REALTIME, now);
    return base;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
    static int (*next)(clockid_t, int, const struct timespec *, struct timespec *);
    struct timespec right = flags & TIMER_ABSTIME ? meant(until) : *until;
    if (!next)
        next = dlsym(RTLD_NEXT, "clock_nanosleep");
    return next(clock, flags, &right, left);
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec right = meant(until);
    if (!next) /* Its older version takes conditions of another shape. */
        next = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    return next(cond, mutex, &right);
}

int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *until)
{
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
    struct timespec right = meant(until);
    if (!next)
        next = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    return next(cond, mutex, clock, &right);
}

int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *until)
{
    static int (*next)(pthread_mutex_t *, const struct timespec *);
    struct timespec right = meant(until);
    if (!next)
        next = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    return next(mutex, &right);
}

int sem_timedwait(sem_t *sem, const struct timespec *until)
{
    static int (*next)(sem_t *, const struct timespec *);
    struct timespec right = meant(until);
    if (!next)
        next = dlsym(RTLD_NEXT, "sem_timedwait");
    return next(sem, &right);
}

int sem_clockwait(sem_t *sem, clockid_t clock, const struct timespec *until)
{
    static int (*next)(sem_t *, clockid_t, const struct timespec *);
    struct timespec right = meant(until);
    if (!next)
        next = dlsym(RTLD_NEXT, "sem_clockwait");
    return next(sem, clock, &right);
}

/* Abseil waits by futexes until moments of the time of day. */
long syscall(long number, ...)
{
    long a[6], told;
    struct timespec right;
    va_list rest;
    va_start(rest, number);
    for (int each = 0; each < 6; each++)
        a[each] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) && a[3]) {
        right = meant((const struct timespec *)a[3]);
        a[3] = (long)&right;
    }
    told = ask(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (told < 0 && told > -4096) {
        errno = (int)-told;
        return -1;
    }
    if (number == SYS_clock_gettime && is_wrong((clockid_t)a[0]))
        ((struct timespec *)a[1])->tv_sec += off();
    return told;
}
