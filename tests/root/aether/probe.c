/*
 * Asks the kernel, from inside a sandbox, for what a sandbox must not have. Each argument is a question; each answer is
 * a line "QUESTION ERRNO-NAME", where 0 says that it was granted.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

static long touch_memory_of_pid_1(void)
{
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)0x400000, 1};
    return process_vm_readv(1, &here, 1, &there, 1, 0);
}

static long open_for(const char *path, int flags)
{
    return open(path, flags);
}

static long join_own_namespace(const char *path, int kind)
{
    int descriptor = open(path, O_RDONLY);
    return descriptor < 0 ? -1 : setns(descriptor, kind);
}

#if defined(__x86_64__)
/* A call by the 32-bit gate of the same process. */
static long call_i386(long number, long first)
{
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(first), "c"(0), "d"(0) : "memory", "r8", "r9", "r10", "r11");
    if (result >= 0)
        return result;
    errno = -result;
    return -1;
}
#endif

static long ask(const char *question)
{
    char attr[128] = {0};
    if (!strcmp(question, "mount"))
        return mount("none", "/mnt", "tmpfs", 0, NULL);
    if (!strcmp(question, "bind"))
        return mount("/etc", "/mnt", NULL, MS_BIND, NULL);
    if (!strcmp(question, "umount"))
        return umount2("/proc/sys", MNT_DETACH);
    if (!strcmp(question, "remount"))
        return mount(NULL, "/sys", NULL, MS_REMOUNT | MS_BIND, NULL);
    if (!strcmp(question, "fsopen"))
        return syscall(430, "tmpfs", 0);
    if (!strcmp(question, "unshare-user"))
        return unshare(CLONE_NEWUSER);
    if (!strcmp(question, "unshare-mount"))
        return unshare(CLONE_NEWNS);
    if (!strcmp(question, "clone-user")) {
        long pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
        if (pid == 0)
            _exit(0);
        return pid;
    }
    if (!strcmp(question, "setns-mount"))
        return join_own_namespace("/proc/self/ns/mnt", 0);
    if (!strcmp(question, "setns-net"))
        return join_own_namespace("/proc/self/ns/net", CLONE_NEWNET);
    if (!strcmp(question, "bpf"))
        return syscall(SYS_bpf, 0, attr, sizeof attr);
    if (!strcmp(question, "userfaultfd"))
        return syscall(SYS_userfaultfd, 1);
    if (!strcmp(question, "perf"))
        return syscall(SYS_perf_event_open, attr, 0, -1, -1, 0);
    if (!strcmp(question, "io_uring"))
        return syscall(425, 1, attr);
    if (!strcmp(question, "keyctl"))
        return syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0);
    if (!strcmp(question, "add_key"))
        return syscall(SYS_add_key, "user", "name", "x", 1, KEY_SPEC_PROCESS_KEYRING);
    if (!strcmp(question, "syslog"))
        return syscall(SYS_syslog, 3, attr, sizeof attr);
    if (!strcmp(question, "reboot"))
        return syscall(SYS_reboot, 0, 0, 0, 0);
    if (!strcmp(question, "handle"))
        return syscall(SYS_open_by_handle_at, AT_FDCWD, attr, 0);
    if (!strcmp(question, "vsock"))
        return socket(AF_VSOCK, SOCK_STREAM, 0);
    if (!strcmp(question, "alg"))
        return socket(AF_ALG, SOCK_SEQPACKET, 0);
    if (!strcmp(question, "packet"))
        return socket(AF_PACKET, SOCK_RAW, 0);
    if (!strcmp(question, "inet"))
        return socket(AF_INET, SOCK_STREAM, 0);
    if (!strcmp(question, "ping"))
        return socket(AF_INET, SOCK_DGRAM, 1);
    if (!strcmp(question, "mknod"))
        return mknod("/tmp/disk", S_IFBLK | 0600, makedev(254, 0));
    if (!strcmp(question, "ptrace-1"))
        return ptrace(PTRACE_SEIZE, 1, NULL, NULL);
    if (!strcmp(question, "vm-read-1"))
        return touch_memory_of_pid_1();
    if (!strcmp(question, "kill-1"))
        return kill(1, SIGKILL);
    if (!strcmp(question, "stop-1"))
        return kill(1, SIGSTOP);
    if (!strncmp(question, "read:", 5))
        return open_for(question + 5, O_RDONLY);
    if (!strncmp(question, "write:", 6))
        return open_for(question + 6, O_WRONLY);
#if defined(__x86_64__)
    if (!strcmp(question, "i386-unshare"))
        return call_i386(310, CLONE_NEWUSER);
    if (!strcmp(question, "i386-bpf"))
        return call_i386(357, 0);
    if (!strcmp(question, "i386-socketcall"))
        return call_i386(102, 1);
    if (!strcmp(question, "i386-getpid"))
        return call_i386(20, 0);
    if (!strcmp(question, "x32-getpid"))
        return syscall(0x40000000 | SYS_getpid);
#endif
    fprintf(stderr, "no such question: %s\n", question);
    exit(2);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        errno = 0;
        long answer = ask(argv[i]);
        printf("%s %s\n", argv[i], answer < 0 ? strerrorname_np(errno) : "0");
    }
    return 0;
}
