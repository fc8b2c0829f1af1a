//! The system calls of PID 1 and its children that rustix does not offer.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::Pid;

/// Both sides of a fork.
pub enum Forked {
    Parent(Pid),
    Child,
}

/// Fork this process.
pub fn fork() -> io::Result<Forked> {
    // SAFETY: PID 1 has one thread, so the child may go on with any code: no lock is held by a thread it lacks.
    let result = unsafe { libc::fork() };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Pid::from_raw(result).map_or(Forked::Child, Forked::Parent))
}

/// End this process at once: no destructor, no buffer of the parent's is run twice.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: ends the process; nothing of it is used again.
    unsafe { libc::_exit(status) }
}

/// Every signal to its default action but SIGPIPE, which PID 1 ignores: whatever it was started with, its children
/// start with nothing else to undo.
pub fn settle_signals() {
    const SIGNALS: libc::c_long = 64;
    const MASK_BYTES: libc::size_t = 8;
    // the kernel's own structure, all zero: the default action. The C library's function would refuse 32 and 33, which
    // it keeps for itself and which whoever started us may have ignored all the same.
    let default = [0_u64; 4];
    for signal in 1..=SIGNALS {
        // SAFETY: the kernel reads one structure, no larger than the array. SIGKILL and SIGSTOP fail, which is right.
        unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null::<u64>(), MASK_BYTES);
        }
    }
    // SAFETY: only constants are passed.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// In a child: every signal has its default action and none is blocked, as a program expects to be started.
pub fn reset_signals() {
    // SAFETY: only constants and a local set, made valid by sigemptyset, are passed.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
    }
}

/// Make `target` a copy of `source`; what `target` was is closed.
pub fn place(source: BorrowedFd<'_>, target: RawFd, close_on_exec: bool) -> io::Result<()> {
    let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: the low numbers belong to the process that places them (PID 1 keeps them free for its children).
    let result = unsafe { libc::dup3(source.as_raw_fd(), target, flags) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Take the descriptor that `place` has put at a number.
pub fn placed(number: RawFd) -> OwnedFd {
    // SAFETY: the number was opened by `place` in this process and has no other owner.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Become the program at `path`; returns only to say why not.
pub fn execute(path: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, envp) = (pointers(arguments), pointers(environment));
    // SAFETY: both arrays end with a null pointer and their strings live until the call returns.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}

/// Memory that was used by something large goes back to the system, so that an idle PID 1 stays small.
pub fn release_memory() {
    // SAFETY: malloc_trim touches only memory that is free.
    unsafe { libc::malloc_trim(0) };
}

/// Large allocations come from the kernel and go back to it on free, whatever was freed before.
pub fn keep_heap_small() {
    // SAFETY: mallopt changes parameters of the allocator alone.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 * 1024);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 * 1024);
    }
}
