//! What happens between fork and exec.
//!
//! A child of PID 1 starts as a copy of it: the keeper, outside. It joins its leaf cgroup, takes the descriptors it
//! needs and closes every other one, enters the sandbox's user namespace, becomes root inside, looks up its user,
//! becomes that user, changes directory, and executes. From the moment it enters it can be seen by the sandbox, so by
//! then it is not dumpable (nobody inside can trace it) and holds nothing of PID 1's. What fails on the way is
//! reported through a close-on-exec descriptor as (stage, errno): an empty report means that the program runs.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Pid, Uid};
use rustix::thread::LinkNameSpaceType;

use super::kernel::{self, Forked};
use super::passwd::{self, Account};
use crate::sys;

/// What every child needs of the sandbox, opened before anything ran inside.
pub struct Sandbox {
    pub user_namespace: OwnedFd,
    /// O_PATH of the devpts root.
    pub devpts: OwnedFd,
    /// /dev/null, for reading and writing.
    pub null: OwnedFd,
    /// The /proc of the sandbox's pid namespace.
    pub proc: OwnedFd,
    pub oom_score_adj: i32,
}

/// A child's descriptors: the standard ones, then where it reports, the namespace it enters, and one of its caller's.
pub const REPORT: RawFd = 3;
const NAMESPACE: RawFd = 4;
pub const EXTRA: RawFd = 5;
/// PID 1 keeps its own descriptors from here on, so that placing a child's never overwrites one still to be placed.
pub const FIRST_FREE: RawFd = 6;

/// Where a child was when something failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    Fork = 1,
    Cgroup,
    UserNamespace,
    User,
    Groups,
    Cwd,
    Exec,
}

impl Stage {
    pub fn name(self) -> &'static str {
        match self {
            Self::Fork => "fork",
            Self::Cgroup => "cgroup",
            Self::UserNamespace => "user_namespace",
            Self::User => "user",
            Self::Groups => "groups",
            Self::Cwd => "cwd",
            Self::Exec => "exec",
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        use Stage::{Cgroup, Cwd, Exec, Fork, Groups, User, UserNamespace};
        [Fork, Cgroup, UserNamespace, User, Groups, Cwd, Exec].into_iter().find(|stage| *stage as u8 == number)
    }
}

/// Why a child did not get where it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub stage: Stage,
    pub errno: Errno,
}

pub const REPORT_SIZE: usize = 5;

impl Failure {
    pub fn new(stage: Stage, error: &io::Error) -> Self {
        Self { stage, errno: Errno::from_io_error(error).unwrap_or(Errno::IO) }
    }

    pub fn to_bytes(self) -> [u8; REPORT_SIZE] {
        let [a, b, c, d] = self.errno.raw_os_error().to_le_bytes();
        [self.stage as u8, a, b, c, d]
    }

    /// The failure in a report; none if the report is empty.
    pub fn from_bytes(report: &[u8]) -> Option<Self> {
        let &[stage, a, b, c, d] = report else { return None };
        let errno = Errno::from_raw_os_error(i32::from_le_bytes([a, b, c, d]));
        Stage::from_number(stage).map(|stage| Self { stage, errno })
    }
}

/// Attach the stage to an error of a system call.
pub trait At<T> {
    fn at(self, stage: Stage) -> Result<T, Failure>;
}

impl<T> At<T> for Result<T, Errno> {
    fn at(self, stage: Stage) -> Result<T, Failure> {
        self.map_err(|errno| Failure { stage, errno })
    }
}

impl<T> At<T> for Result<T, io::Error> {
    fn at(self, stage: Stage) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(stage, &error))
    }
}

/// What a child takes along.
pub struct Luggage<'a> {
    pub stdin: BorrowedFd<'a>,
    pub stdout: BorrowedFd<'a>,
    pub stderr: BorrowedFd<'a>,
    pub report: BorrowedFd<'a>,
    /// Found at EXTRA.
    pub extra: Option<BorrowedFd<'a>>,
    /// `cgroup.procs` of the leaf to join.
    pub leaf: Option<BorrowedFd<'a>>,
}

/// A program to run.
pub struct Program {
    pub argv: Vec<CString>,
    /// `NAME=value`.
    pub env: Vec<CString>,
    pub cwd: CString,
    pub user: String,
}

/// Start a program; `prepare` runs in the child as the sandbox's user, last before the change of directory.
pub fn spawn(
    sandbox: &Sandbox,
    luggage: &Luggage<'_>,
    program: &Program,
    prepare: &dyn Fn() -> Result<(), Failure>,
) -> io::Result<Pid> {
    match kernel::fork()? {
        Forked::Parent(pid) => Ok(pid),
        Forked::Child => {
            let failure = run_program(sandbox, luggage, program, prepare);
            // the report may be refused only if PID 1 is gone, and then nobody reads it
            let _refused = rustix::io::write(kernel::placed(REPORT), &failure.to_bytes());
            kernel::exit_now(127)
        }
    }
}

/// Returns only to say why the program does not run.
fn run_program(
    sandbox: &Sandbox,
    luggage: &Luggage<'_>,
    program: &Program,
    prepare: &dyn Fn() -> Result<(), Failure>,
) -> Failure {
    let inside = || -> Result<Account, Failure> {
        let account = enter(sandbox, luggage, &program.user)?;
        prepare()?;
        rustix::process::chdir(program.cwd.as_c_str()).at(Stage::Cwd)?;
        Ok(account)
    };
    let account = match inside() {
        Ok(account) => account,
        Err(failure) => return failure,
    };
    kernel::reset_signals();
    let mut env = program.env.clone();
    if !env.iter().any(|entry| entry.to_bytes().starts_with(b"HOME=")) {
        env.extend(CString::new([b"HOME=", account.home.as_slice()].concat()));
    }
    super::path::execute(&program.argv, &env)
}

/// Become `user` inside the sandbox, with nothing but the luggage.
pub fn enter(sandbox: &Sandbox, luggage: &Luggage<'_>, user: &str) -> Result<Account, Failure> {
    // first, so that whatever fails after it can be said
    kernel::place(luggage.report, REPORT, true).at(Stage::Fork)?;
    rustix::process::setsid().at(Stage::Fork)?;
    if let Some(leaf) = luggage.leaf {
        rustix::io::write(leaf, b"0").at(Stage::Cgroup)?;
    }
    adjust_oom_score(sandbox).at(Stage::Cgroup)?;
    arrange(sandbox, luggage).at(Stage::Fork)?;
    let namespace = kernel::placed(NAMESPACE);
    let kind = Some(LinkNameSpaceType::User);
    rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).at(Stage::UserNamespace)?;
    drop(namespace);
    become_account(Uid::ROOT, Gid::ROOT, &[]).at(Stage::UserNamespace)?;
    let account = passwd::resolve(user).at(Stage::User)?;
    let groups: Vec<Gid> = account.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    if (account.uid, account.gid) != (0, 0) || !groups.is_empty() {
        become_account(Uid::from_raw(account.uid), Gid::from_raw(account.gid), &groups).at(Stage::Groups)?;
    }
    Ok(account)
}

fn become_account(uid: Uid, gid: Gid, groups: &[Gid]) -> Result<(), Errno> {
    rustix::thread::set_thread_groups(groups)?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)
}

/// The files of a process that is not dumpable belong to root, so it becomes dumpable for this one write: it is still
/// outside, where nobody of the sandbox can trace it.
fn adjust_oom_score(sandbox: &Sandbox) -> Result<(), Errno> {
    use rustix::fs::{openat, Mode, OFlags};
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    let file = openat(&sandbox.proc, "self/oom_score_adj", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    let written = file.and_then(|file| rustix::io::write(file, sandbox.oom_score_adj.to_string().as_bytes()));
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    written.map(|_| ())
}

fn arrange(sandbox: &Sandbox, luggage: &Luggage<'_>) -> io::Result<()> {
    kernel::place(luggage.stdin, 0, false)?;
    kernel::place(luggage.stdout, 1, false)?;
    kernel::place(luggage.stderr, 2, false)?;
    kernel::place(sandbox.user_namespace.as_fd(), NAMESPACE, true)?;
    match luggage.extra {
        Some(extra) => kernel::place(extra, EXTRA, false)?,
        None => return close_from(EXTRA),
    }
    close_from(FIRST_FREE)
}

fn close_from(first: RawFd) -> io::Result<()> {
    Ok(sys::close_range(first as u32, u32::MAX)?)
}
