"""`dsec bench`: the same work done by the machine's floor, by other runtimes and by us, in turn, in one run.

One *bench* (create, lifecycle, exec, idle_memory, layer_build, ...) stands on one *ground*: a scratch directory, a root
file system that everyone uses (the very layers of the image, mounted once), two small C programs compiled on the spot
(`floor.c`, `stopwatch.c`; `pause` adds `hold.c`) and a node of our own with its own state and sockets, so that nothing
of the user's is touched. Everything the ground holds is given back in reverse order, also after Ctrl-C, SIGTERM and a
failure.

Contestants are measured in interleaved rounds (A B C A B C ...), so that whatever drifts hits all alike. Each is timed
by the fairest watch there is for it: other runtimes by `stopwatch` (a C program that spawns them), the floor by itself,
ours through the public SDK in this process: what a user pays, Python included.

The answer is a `Report`: `{"name", "ours", "peers", "floor", "ratios", "machine"}`. Each ratio is ours divided by the
named thing. A peer that is not installed is null; one that has no such operation is not listed.

- `figures`   figures, ratios, reports, targets: values only
- `machine`   what machine this is
- `native`    the C programs: compile and drive
- `peers`     crun, runc, bwrap, docker: how each is asked for the same thing
- `node`      a node of our own to measure
- `ground`    all of it together, and its end
- `rounds`    interleaving
- `create`, `lifecycle`, `exec`, `idle_memory`, `layer_build`, `pause`, ...  one bench each
- `table`     for people; `page` for docs/performance.md
"""
