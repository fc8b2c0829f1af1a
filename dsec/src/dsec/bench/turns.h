/* Shared by floor.c and stopwatch.c: turns, the clock, and loops of turns. See floor.c for what is printed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct turn {
    long first;
    long total;
};

static void die(const char *format, ...)
{
    int error = errno;
    va_list args;
    va_start(args, format);
    fputs("floor: cannot ", stderr);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, ": %s\n", strerror(error));
    _exit(1);
}

static long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static long number(const char *text, long low, long high)
{
    char *end;
    errno = EINVAL;
    long value = strtol(text, &end, 10);
    if (*text == 0 || *end != 0 || value < low || value > high)
        die("read the number '%s': it must be %ld..%ld", text, low, high);
    return value;
}

static void join(char out[PATH_MAX], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(out, PATH_MAX, format, args);
    va_end(args);
    errno = ENAMETOOLONG;
    if (length < 0 || length >= PATH_MAX)
        die("make a path from '%s'", format);
}

static long drain(int fd)
{
    char buffer[4096];
    ssize_t count;
    long first = 0;
    do {
        count = read(fd, buffer, sizeof buffer);
        if (first == 0)
            first = now();
    } while (count > 0 || (count < 0 && errno == EINTR));
    return first;
}

static void wait_for(pid_t pid, const char *what)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            die("wait for %s", what);
    errno = EPROTO;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        die("go on: %s ended with wait status %#x", what, status);
}

static void print(struct turn turn)
{
    char line[64];
    int length = snprintf(line, sizeof line, "%ld %ld\n", turn.first, turn.total);
    if (write(1, line, (size_t)length) != length) /* one write, so that loops do not mix their lines */
        _exit(1);
}

static void wait_for_loops(const pid_t *loops, long count)
{
    for (long i = 0; i < count; i++)
        wait_for(loops[i], "a loop");
}

typedef struct turn (*body)(long loop, long count, void *context);

/* LOOPS processes, each turning until the time or its count is up. */
static void in_loops(long loops, long turns, double seconds, body one, void *context)
{
    pid_t pids[256];
    long begin = now(), until = begin + (long)(seconds * 1e9);
    for (long loop = 0; loop < loops; loop++) {
        pids[loop] = fork();
        if (pids[loop] < 0)
            die("fork a loop");
        if (pids[loop] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (long count = 0; count < turns && now() < until; count++)
                print(one(loop, count, context));
            _exit(0);
        }
    }
    wait_for_loops(pids, loops);
    printf("done %ld %ld\n", loops, now() - begin);
}
