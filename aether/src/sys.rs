//! The system calls that no crate of ours wraps, and the error that names call and target.
//!
//! Everything else goes through `rustix`; `.on(call, target)` turns its bare errno into a `KernelError`, so that a
//! failure always says what was tried on what.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::process::Pid;

/// A system call that failed, and what it was tried on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelError {
    pub call: &'static str,
    pub target: String,
    pub errno: Errno,
}

impl fmt::Display for KernelError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cannot {} {}: {}", self.call, self.target, self.errno)
    }
}

impl std::error::Error for KernelError {}

/// Names the call and its target on failure.
pub trait On<T> {
    fn on(self, call: &'static str, target: impl fmt::Display) -> Result<T, KernelError>;
}

impl<T> On<T> for Result<T, Errno> {
    fn on(self, call: &'static str, target: impl fmt::Display) -> Result<T, KernelError> {
        self.map_err(|errno| KernelError { call, target: target.to_string(), errno })
    }
}

impl<T> On<T> for std::io::Result<T> {
    fn on(self, call: &'static str, target: impl fmt::Display) -> Result<T, KernelError> {
        self.map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            KernelError { call, target: target.to_string(), errno }
        })
    }
}

fn checked(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result < 0 {
        return Err(last_errno());
    }
    Ok(result)
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Which side of a fork this is.
pub enum Forked {
    Child,
    Parent { pid: Pid, pidfd: OwnedFd },
}

#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// A copy of this process as PID 1 of a new pid namespace.
///
/// # Safety
/// The caller must be single-threaded: the copy has only the calling thread, and every lock stays as it was.
pub unsafe fn fork_into_pid_namespace() -> Result<Forked, Errno> {
    let mut pidfd: RawFd = -1;
    let mut arguments = CloneArgs {
        flags: (libc::CLONE_NEWPID | libc::CLONE_PIDFD) as u64,
        pidfd: std::ptr::addr_of_mut!(pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    // SAFETY: the arguments live across the call and no stack is given, so that this is a fork; both copies go on
    // with memory of their own.
    let pid = checked(unsafe {
        libc::syscall(libc::SYS_clone3, std::ptr::addr_of_mut!(arguments), std::mem::size_of::<CloneArgs>())
    })?;
    match Pid::from_raw(pid as i32) {
        None => Ok(Forked::Child),
        // SAFETY: the kernel has stored a new descriptor that nothing else owns.
        Some(pid) => Ok(Forked::Parent { pid, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } }),
    }
}

extern "C" fn wait_to_be_killed(_: *mut libc::c_void) -> libc::c_int {
    loop {
        // SAFETY: no descriptor, no time limit and no mask: all pointers are null.
        unsafe { libc::syscall(libc::SYS_ppoll, 0, 0, 0, 0, 0) };
    }
}

const HOLDER_STACK: usize = 4096;

#[repr(align(16))]
struct HolderStack([u8; HOLDER_STACK]);

/// A process that does nothing in a new user namespace and shares this one's memory, which makes it cheap; it lives on
/// a stack of its own. Dropping it kills it and waits for its end; `kill` in advance makes that short.
pub struct NamespaceHolder {
    pub pid: Pid,
    _stack: Box<HolderStack>,
}

impl NamespaceHolder {
    /// The new user namespace is owned by this process's effective uid.
    pub fn start() -> Result<Self, Errno> {
        let mut stack = Box::new(HolderStack([0; HOLDER_STACK]));
        let flags = libc::CLONE_NEWUSER | libc::CLONE_VM | libc::CLONE_FILES | libc::SIGCHLD;
        // SAFETY: the stack grows down from its end, is used by the new process alone, and lives until `drop` has
        // seen it dead; the function makes system calls without touching shared memory but errno, which this process
        // reads only after a failed call of its own.
        let pid = unsafe {
            let top = stack.0.as_mut_ptr().add(HOLDER_STACK);
            libc::clone(wait_to_be_killed, top.cast(), flags, std::ptr::null_mut())
        };
        let pid = Pid::from_raw(checked(pid.into())? as i32).ok_or(Errno::INVAL)?;
        Ok(Self { pid, _stack: stack })
    }
}

impl NamespaceHolder {
    /// It is not needed any more: let it end while others work.
    pub fn kill(&self) -> Result<(), Errno> {
        // it is our child and not yet reaped, so its pid is still its own
        rustix::process::kill_process(self.pid, rustix::process::Signal::KILL)
    }
}

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        // ESRCH and ECHILD would say that it is gone
        let _ = self.kill();
        while let Err(Errno::INTR) = rustix::process::waitpid(Some(self.pid), rustix::process::WaitOptions::empty()) {}
    }
}

#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Attributes that a mount can be given.
pub mod mount_attribute {
    pub const RDONLY: u64 = 0x1;
    pub const NOSUID: u64 = 0x2;
    pub const NODEV: u64 = 0x4;
    pub const NOEXEC: u64 = 0x8;
}

const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

fn mount_setattr(mount: BorrowedFd<'_>, mut attributes: MountAttr) -> Result<(), Errno> {
    // SAFETY: the path is a constant string and the attributes live across the call.
    checked(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            b"\0".as_ptr(),
            libc::AT_EMPTY_PATH,
            std::ptr::addr_of_mut!(attributes),
            std::mem::size_of::<MountAttr>(),
        )
    })?;
    Ok(())
}

/// Map the ids of a detached mount through a user namespace, and add `attributes`.
pub fn map_ids(mount: impl AsFd, user_namespace: impl AsFd, attributes: u64) -> Result<(), Errno> {
    let userns_fd = user_namespace.as_fd().as_raw_fd() as u64;
    mount_setattr(
        mount.as_fd(),
        MountAttr { attr_set: MOUNT_ATTR_IDMAP | attributes, userns_fd, ..MountAttr::default() },
    )
}

/// Add `attributes` to a mount.
pub fn restrict_mount(mount: impl AsFd, attributes: u64) -> Result<(), Errno> {
    mount_setattr(mount.as_fd(), MountAttr { attr_set: attributes, ..MountAttr::default() })
}

/// Close every descriptor from `first` to `last`.
pub fn close_range(first: u32, last: u32) -> Result<(), Errno> {
    // SAFETY: the caller decides what is still used; no memory is touched.
    checked(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })?;
    Ok(())
}

/// Set a network interface's flags to up.
pub fn bring_up(socket: impl AsFd, interface: &str) -> Result<(), Errno> {
    // SAFETY: an all-zero request is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request lives across the call.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS, std::ptr::addr_of!(request)) };
    checked(result.into())?;
    Ok(())
}

/// Where in this process's memory the kernel finds the command line that it shows of it.
#[derive(Clone, Copy, Debug)]
pub struct CommandLine {
    start: usize,
    end: usize,
}

impl CommandLine {
    pub fn find() -> Result<Self, KernelError> {
        const PATH: &str = "/proc/self/stat";
        let stat = std::fs::read_to_string(PATH).on("read", PATH)?;
        let field = |number| stat_field(&stat, number)?.parse().ok();
        let found = field(48).zip(field(49)).filter(|(start, end)| 0 < *start && start < end);
        let (start, end) = found.ok_or(Errno::PROTO).on("find the command line in", PATH)?;
        Ok(Self { start, end })
    }

    /// Show `text` instead, which is cut to what there is room for. Nobody may read the arguments afterwards.
    pub fn show(self, text: &str) {
        // SAFETY: the kernel has put the arguments there and nothing else; it is writable as long as the process lives,
        // no reference of ours leads to it (std copies each argument that it hands out), and the process has one thread.
        let shown = unsafe { std::slice::from_raw_parts_mut(self.start as *mut u8, self.end - self.start) };
        shown.fill(0);
        shown.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
        // a last byte that is not NUL tells the kernel to show what stands before the first
        if let Some(last) = shown.last_mut() {
            *last = b'.';
        }
    }
}

/// A field of a /proc/PID/stat, by its number in proc(5); of those after the program's name.
pub fn stat_field(stat: &str, number: usize) -> Option<&str> {
    const FIRST: usize = 3;
    // the name, in parentheses, may hold anything
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(number.checked_sub(FIRST)?)
}

/// One instruction of a classic BPF program, as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BpfInstruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

#[repr(C)]
struct BpfProgram {
    len: u16,
    filter: *const BpfInstruction,
}

/// Put a seccomp filter on this process without PR_SET_NO_NEW_PRIVS, which needs CAP_SYS_ADMIN.
pub fn install_seccomp(program: &[BpfInstruction]) -> Result<(), Errno> {
    const SET_MODE_FILTER: libc::c_uint = 1;
    let len = u16::try_from(program.len()).map_err(|_| Errno::TOOBIG)?;
    let header = BpfProgram { len, filter: program.as_ptr() };
    // SAFETY: the header and the instructions it points at live across the call, which copies them.
    checked(unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, 0, std::ptr::addr_of!(header)) })?;
    Ok(())
}

/// A descriptor that is readable when a child has changed its state; SIGCHLD is blocked from here on.
pub fn sigchld_descriptor() -> Result<OwnedFd, Errno> {
    // SAFETY: the set is initialised by sigemptyset before use and lives across the calls.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        checked(libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()).into())?;
        let descriptor = checked(libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK).into())?;
        Ok(OwnedFd::from_raw_fd(descriptor as RawFd))
    }
}

/// Unblock every signal.
pub fn unblock_signals() -> Result<(), Errno> {
    // SAFETY: the set is initialised by sigemptyset before use and lives across the calls.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        checked(libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()).into())?;
    }
    Ok(())
}
