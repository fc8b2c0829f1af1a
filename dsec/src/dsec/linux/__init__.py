"""The only room that makes system calls beyond what Python's own file functions make.

One file a kernel concern. Nothing here knows of sandboxes, images or requests: callers pass paths, descriptors and
numbers, and get descriptors, small values or a `KernelError` that names the system call and what it was called on.

- `syscalls`  the calls the standard library lacks, by ctypes
- `mounts`    detached mounts: EROFS from files or loop devices, idmapped clones, attach, detach
- `fanotify`  pre-content events: a reader waits until somebody has said that its bytes are there
- `loops`     loop devices that free themselves; `specimen` has the images that are mounted to see whether they can be
- `cgroups`   which controllers are where (v1, v2, hybrid), and a pool of re-used directories
- `reclaim`   giving a paused group's memory back, with `advice` on other processes' memory
- `swap`      where that memory goes: zram and a file of this node's own
- `uppers`    writable directories of sandboxes: plain, `sized` (ext4 on a loop device) or `btrfs` (subvolumes)
- `removal`   taking directories away that hostile code has filled
- `processes` identity of processes: start times, pidfds
- `probe`     what this machine can do, each thing tried for real

What must always hold: a descriptor returned is owned by the caller and close-on-exec; on failure nothing that the
call made is left behind; whatever outlives a process (mounts, cgroups, directories) can be found again by its path.
"""

from .syscalls import KernelError

__all__ = ["KernelError"]
