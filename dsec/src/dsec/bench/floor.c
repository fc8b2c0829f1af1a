/*
 * The floor of `dsec bench`: the least that a machine must do for what DSec does, in plain C. Compiled on the spot by
 * bench/native.py; no library but libc.
 *
 *   floor create    LOWER SCRATCH COUNT -- ARGV...            new namespaces, overlay, pivot_root, exec, wait, tear-down
 *   floor lifecycle LOWER SCRATCH COUNT LOOPS -- ARGV...      the same COUNT times in each of LOOPS parallel loops
 *   floor exec      LOWER SCRATCH COUNT -- ARGV...            into one such running thing: setns, fork, exec, wait
 *   floor idle      LOWER SCRATCH COUNT                       COUNT of them that only wait, until stdin ends
 *
 * Each finished turn prints "FIRST TOTAL": nanoseconds from its start to its first byte of output (or end of output) and
 * to its end. Loops end with "done LOOPS NANOSECONDS". Anything that goes wrong ends the program with a message and 1;
 * nothing is left behind but directories under SCRATCH, which the caller removes.
 */
#include "turns.h"

#define NAMESPACES (CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET)

static void make_directory(const char *path)
{
    if (mkdir(path, 0755) != 0 && errno != EEXIST)
        die("make %s", path);
}

/* In a fresh mount namespace: the overlay becomes the root, the old root is gone. */
static void enter_root(const char *lower, const char *home)
{
    char path[PATH_MAX], options[3 * PATH_MAX];
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        die("make / private");
    int length = snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s/upper,workdir=%s/work,volatile", lower, home, home);
    errno = ENAMETOOLONG;
    if (length < 0 || length >= (int)sizeof options)
        die("write the options of an overlay on %s", home);
    join(path, "%s/root", home);
    if (mount("overlay", path, "overlay", 0, options) != 0)
        die("mount an overlay on %s (%s)", path, options);
    if (chdir(path) != 0 || syscall(SYS_pivot_root, ".", ".") != 0)
        die("make %s the root", path);
    if (umount2(".", MNT_DETACH) != 0 || chdir("/") != 0)
        die("leave the old root");
}

static void make_home(char home[PATH_MAX], const char *scratch, long loop, long turn)
{
    static const char *const parts[] = {"upper", "work", "root"};
    char path[PATH_MAX];
    join(home, "%s/%ld-%ld", scratch, loop, turn);
    make_directory(home);
    for (int i = 0; i < 3; i++) {
        join(path, "%s/%s", home, parts[i]);
        make_directory(path);
    }
}

static void remove_home(const char *home)
{
    /* overlayfs leaves these behind; what a command wrote into its upper stays for the caller to remove */
    static const char *const parts[] = {"root", "upper", "work/work/incompat/volatile", "work/work/incompat", "work/work", "work", ""};
    char path[PATH_MAX];
    join(path, "%s/work/work/incompat/volatile/dirty", home);
    unlink(path);
    for (int i = 0; i < 7; i++) {
        join(path, "%s/%s", home, parts[i]);
        rmdir(path);
    }
}

/* A child in namespaces of its own with its own root; with argv NULL it only waits. Returns its pid. */
static pid_t start(const char *lower, const char *home, char **argv, int output)
{
    pid_t pid = (pid_t)syscall(SYS_clone, NAMESPACES | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid < 0)
        die("clone with new namespaces (root is needed)");
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    enter_root(lower, home);
    if (argv == NULL) {
        if (write(output, "r", 1) != 1)
            _exit(1);
        close(output);
        for (;;)
            pause();
    }
    if (dup2(output, 1) < 0)
        _exit(1);
    execv(argv[0], argv);
    die("execute %s", argv[0]);
    return -1;
}

static struct turn lifecycle(const char *lower, const char *scratch, long loop, long count, char **argv)
{
    char home[PATH_MAX];
    int ends[2];
    struct turn turn;
    long begin = now();
    make_home(home, scratch, loop, count);
    if (pipe2(ends, O_CLOEXEC) != 0)
        die("make a pipe");
    pid_t pid = start(lower, home, argv, ends[1]);
    close(ends[1]);
    turn.first = drain(ends[0]) - begin;
    close(ends[0]);
    wait_for(pid, argv[0]);
    remove_home(home);
    turn.total = now() - begin;
    return turn;
}

static void kill_and_reap(pid_t pid)
{
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

static pid_t start_idle(const char *lower, const char *home)
{
    int ends[2];
    char byte;
    if (pipe2(ends, O_CLOEXEC) != 0)
        die("make a pipe");
    pid_t pid = start(lower, home, NULL, ends[1]);
    close(ends[1]);
    errno = EPROTO;
    if (read(ends[0], &byte, 1) != 1)
        die("start an idle process under %s", home);
    close(ends[0]);
    return pid;
}

/* setns acts on the children's pid namespace, hence the second fork. */
static struct turn exec_into(int pidfd, int output, char **argv)
{
    struct turn turn;
    long begin = now();
    pid_t outer = fork();
    if (outer < 0)
        die("fork");
    if (outer == 0) {
        if (dup2(output, 1) < 0 || setns(pidfd, NAMESPACES) != 0)
            die("enter the namespaces");
        pid_t inner = vfork();
        if (inner == 0) {
            execv(argv[0], argv);
            _exit(127);
        }
        if (inner < 0)
            die("fork inside");
        wait_for(inner, argv[0]);
        _exit(0);
    }
    wait_for(outer, "the child that enters");
    turn.total = now() - begin;
    turn.first = turn.total;
    return turn;
}

struct overlay_context {
    const char *lower;
    const char *scratch;
    char **argv;
};

static struct turn overlay_turn(long loop, long count, void *context)
{
    struct overlay_context *c = context;
    return lifecycle(c->lower, c->scratch, loop, count, c->argv);
}

static void run_create(char **args, char **argv)
{
    long count = number(args[2], 1, 1000000);
    for (long i = 0; i < count; i++)
        print(lifecycle(args[0], args[1], 0, i, argv));
}

static void run_lifecycle(char **args, char **argv)
{
    struct overlay_context context = {args[0], args[1], argv};
    in_loops(number(args[3], 1, 256), number(args[2], 1, 1000000), 600, overlay_turn, &context);
}

static void run_exec(char **args, char **argv)
{
    char home[PATH_MAX];
    long count = number(args[2], 1, 1000000);
    make_home(home, args[1], 0, 0);
    pid_t pid = start_idle(args[0], home);
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0)
        die("open a pidfd of %d", pid);
    int output = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (output < 0)
        die("open /dev/null");
    for (long i = 0; i < count; i++)
        print(exec_into(pidfd, output, argv));
    kill_and_reap(pid);
    remove_home(home);
}

static void run_idle(char **args, char **argv)
{
    (void)argv;
    char home[PATH_MAX], byte;
    long count = number(args[2], 1, 100000);
    pid_t *pids = calloc((size_t)count, sizeof *pids);
    if (pids == NULL)
        die("keep %ld pids", count);
    for (long i = 0; i < count; i++) {
        make_home(home, args[1], 0, i);
        pids[i] = start_idle(args[0], home);
    }
    puts("ready");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    for (long i = 0; i < count; i++)
        kill(pids[i], SIGKILL);
    for (long i = 0; i < count; i++) {
        kill_and_reap(pids[i]);
        join(home, "%s/0-%ld", args[1], i);
        remove_home(home);
    }
    free(pids);
}

static const struct {
    const char *name;
    int args;
    int needs_argv;
    void (*run)(char **args, char **argv);
} commands[] = {
    {"create", 3, 1, run_create}, {"lifecycle", 4, 1, run_lifecycle}, {"exec", 3, 1, run_exec}, {"idle", 3, 0, run_idle},
};

int main(int argc, char **argv)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(argv[1], commands[i].name) != 0)
            continue;
        int rest = 2 + commands[i].args;
        int ok = commands[i].needs_argv ? argc > rest + 1 && strcmp(argv[rest], "--") == 0 : argc == rest;
        if (!ok)
            break;
        commands[i].run(argv + 2, argv + rest + 1);
        return 0;
    }
    fputs("floor: usage: see the head of floor.c\n", stderr);
    return 2;
}
