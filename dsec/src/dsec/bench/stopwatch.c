/*
 * The stop-watch of `dsec bench`: times any program without an interpreter's cost in the figure.
 *
 *   stopwatch SECONDS COUNT LOOPS NAME -- ARGV...
 *
 * LOOPS processes each run ARGV up to COUNT times, for SECONDS at most; @ID@ in an argument becomes NAME-<loop>-<number>.
 * Prints what floor.c prints. A program that ends with anything but 0 ends it all.
 */
#include "turns.h"

extern char **environ;

static char **with_id(char **argv, const char *id)
{
    static char texts[64][PATH_MAX];
    static char *out[65];
    int i = 0;
    errno = E2BIG;
    for (; argv[i] != NULL; i++) {
        if (i == 64)
            die("time a command of more than 64 arguments");
        const char *mark = strstr(argv[i], "@ID@");
        if (mark == NULL)
            join(texts[i], "%s", argv[i]);
        else
            join(texts[i], "%.*s%s%s", (int)(mark - argv[i]), argv[i], id, mark + 4);
        out[i] = texts[i];
    }
    out[i] = NULL;
    return out;
}

static struct turn spawn(char **argv)
{
    posix_spawn_file_actions_t actions;
    struct turn turn;
    int ends[2];
    pid_t pid;
    if (pipe2(ends, O_CLOEXEC) != 0)
        die("make a pipe");
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    long begin = now();
    errno = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    if (errno != 0)
        die("start %s", argv[0]);
    close(ends[1]);
    turn.first = drain(ends[0]) - begin;
    close(ends[0]);
    posix_spawn_file_actions_destroy(&actions);
    wait_for(pid, argv[0]);
    turn.total = now() - begin;
    return turn;
}

struct spawn_context {
    const char *name;
    char **argv;
};

static struct turn spawn_turn(long loop, long count, void *context)
{
    struct spawn_context *c = context;
    char id[PATH_MAX];
    join(id, "%s-%ld-%ld", c->name, loop, count);
    return spawn(with_id(c->argv, id));
}

int main(int argc, char **argv)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc < 7 || strcmp(argv[5], "--") != 0) {
        fputs("stopwatch: usage: stopwatch SECONDS COUNT LOOPS NAME -- ARGV...\n", stderr);
        return 2;
    }
    struct spawn_context context = {argv[4], argv + 6};
    in_loops(number(argv[3], 1, 256), number(argv[2], 1, 1000000), number(argv[1], 1, 600), spawn_turn, &context);
    return 0;
}
