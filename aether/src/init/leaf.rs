//! The processes of one command: a leaf cgroup, or without a memory cgroup the process tree.
//!
//! A leaf tells whose memory ran out (the kernel counts OOM kills only in the victim's own cgroup) and holds every
//! process of a command, however it forks or detaches. Leaves c0, c1, ... are made as they are needed and used again
//! as soon as they are empty, since a removed cgroup lingers in the kernel: sequential commands share one leaf.
//!
//! PID 1 may make leaves because the directory above belongs to the keeper. A child joins one through a descriptor
//! of its `cgroup.procs` while it still is the keeper, which both versions of cgroups allow; version 2 further asks
//! that `cgroup.procs` of the directory above belongs to the keeper as well, and that PID 1 sits in a leaf itself.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{mkdirat, openat, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{kill_process, kill_process_group, Pid, Signal};

use super::tree;

/// Leaves at most; more are in use only if as many commands have left processes behind.
const LIMIT: usize = 160;

struct Leaf {
    directory: OwnedFd,
    /// `cgroup.procs`, for joining.
    door: OwnedFd,
    /// Where OOM kills are counted.
    events: OwnedFd,
    /// Version 2: writing to it kills all members at once.
    kill: Option<OwnedFd>,
    busy: bool,
    /// It was seen empty after its last command, and so it stays: only a command's own child joins it.
    empty: bool,
}

/// What a command's processes are found by.
pub struct Scope {
    leaf: Option<usize>,
    /// The first process; its descendants and its session are the scope when there is no leaf.
    root: Option<Pid>,
    oom_kills_before: u64,
}

pub struct Leaves {
    parent: Option<OwnedFd>,
    version: u8,
    proc: OwnedFd,
    leaves: Vec<Leaf>,
}

impl Leaves {
    pub fn new(parent: Option<OwnedFd>, version: u8, proc: OwnedFd) -> Self {
        Self { parent, version, proc, leaves: Vec::new() }
    }

    /// A scope with nothing in it.
    pub fn acquire(&mut self) -> Result<Scope, Errno> {
        if self.parent.is_none() {
            return Ok(Scope { leaf: None, root: None, oom_kills_before: 0 });
        }
        let unused = |leaf: &Leaf| !leaf.busy && leaf.empty;
        let emptied = |leaf: &Leaf| !leaf.busy && is_empty(&leaf.directory);
        let leaves = &self.leaves;
        let index = match leaves.iter().position(unused).or_else(|| leaves.iter().position(emptied)) {
            Some(index) => index,
            None => self.make()?,
        };
        self.leaves[index].busy = true;
        let mut scope = Scope { leaf: Some(index), root: None, oom_kills_before: 0 };
        scope.oom_kills_before = self.count_oom_kills(&scope);
        Ok(scope)
    }

    fn make(&mut self) -> Result<usize, Errno> {
        let index = self.leaves.len();
        let Some(parent) = self.parent.as_ref().filter(|_| index < LIMIT) else { return Err(Errno::NOSPC) };
        let name = format!("c{index}");
        match mkdirat(parent, &name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(parent, &name, flags, Mode::empty())?;
        let open = |file: &str, flags| openat(&directory, file, flags | OFlags::CLOEXEC, Mode::empty());
        let door = open("cgroup.procs", OFlags::WRONLY)?;
        let (events, kill) = match self.version {
            1 => (open("memory.oom_control", OFlags::RDONLY)?, None),
            _ => (open("memory.events", OFlags::RDONLY)?, open("cgroup.kill", OFlags::WRONLY).ok()),
        };
        self.leaves.push(Leaf { directory, door, events, kill, busy: false, empty: false });
        Ok(index)
    }

    /// The scope's command has been answered. Processes it left behind go on; the leaf is used again when empty.
    pub fn release(&mut self, scope: Scope) {
        if let Some(leaf) = scope.leaf.and_then(|index| self.leaves.get_mut(index)) {
            leaf.busy = false;
            leaf.empty = is_empty(&leaf.directory);
        }
    }

    /// Where a child joins.
    pub fn door(&self, scope: &Scope) -> Option<BorrowedFd<'_>> {
        self.leaf(scope).map(|leaf| leaf.door.as_fd())
    }

    /// Whether no process of the scope is left, zombies aside.
    pub fn is_empty(&self, scope: &Scope) -> bool {
        self.leaf(scope).map_or_else(|| self.members(scope).is_empty(), |leaf| is_empty(&leaf.directory))
    }

    /// Every process of the scope now, zombies aside. Those that cannot be listed are missed: who kills asks again.
    pub fn members(&self, scope: &Scope) -> Vec<Pid> {
        match (self.leaf(scope), scope.root) {
            (Some(leaf), _) => read_pids(&leaf.directory).unwrap_or_default(),
            (None, Some(root)) => tree::members(&self.proc, root),
            (None, None) => Vec::new(),
        }
    }

    /// Send SIGKILL to everything in the scope. A process that forks faster than it is found needs further calls:
    /// each one leaves fewer, since a process with a pending SIGKILL cannot fork.
    pub fn kill(&self, scope: &Scope) {
        if let Some(kill) = self.leaf(scope).and_then(|leaf| leaf.kill.as_ref()) {
            if rustix::io::write(kill, b"1").is_ok() {
                return;
            }
        }
        // none left to get it is what was wanted
        let _any = self.signal(scope, Signal::KILL);
    }

    /// The first blow: the group of the first process dies in one step of the kernel's, so that a fork bomb in it
    /// cannot outrun us. Who else belongs to it is found before that, since descent is lost with a parent.
    pub fn kill_group(&self, scope: &Scope, leader: Pid) {
        let members = self.members(scope);
        // ESRCH: they have ended in between, which is what was wanted
        let _gone = kill_process_group(leader, Signal::KILL);
        for pid in members {
            let _gone = kill_process(pid, Signal::KILL);
        }
        self.kill(scope);
    }

    /// Whether any process got the signal.
    pub fn signal(&self, scope: &Scope, signal: Signal) -> bool {
        let members = self.members(scope);
        members.into_iter().filter(|pid| kill_process(*pid, signal).is_ok()).count() > 0
    }

    /// OOM kills in the scope since it was acquired.
    pub fn oom_kills(&self, scope: &Scope) -> u64 {
        self.count_oom_kills(scope).saturating_sub(scope.oom_kills_before)
    }

    fn count_oom_kills(&self, scope: &Scope) -> u64 {
        self.leaf(scope).map_or(0, |leaf| read_counter(leaf.events.as_fd(), "oom_kill"))
    }

    fn leaf(&self, scope: &Scope) -> Option<&Leaf> {
        scope.leaf.and_then(|index| self.leaves.get(index))
    }
}

impl Scope {
    pub fn set_root(&mut self, root: Pid) {
        self.root = Some(root);
    }
}

/// The value of `name` in a file of "name value" lines; 0 when it cannot be read, since it only informs.
pub fn read_counter(file: BorrowedFd<'_>, name: &str) -> u64 {
    let mut buffer = [0; 1024];
    let count = rustix::io::pread(file, &mut buffer, 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&buffer[..count]);
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(key, _)| *key == name).and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0)
}

/// Opened anew each time: version 1 serves a list up to a second old to a descriptor that has read one before.
fn open_pids(leaf: &OwnedFd) -> Result<OwnedFd, Errno> {
    openat(leaf, "cgroup.procs", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Whether nobody is in a leaf; one that cannot be looked into is not taken for empty.
fn is_empty(leaf: &OwnedFd) -> bool {
    open_pids(leaf).and_then(|procs| rustix::io::read(procs, &mut [0; 16])) == Ok(0)
}

fn read_pids(leaf: &OwnedFd) -> Result<Vec<Pid>, Errno> {
    let procs = open_pids(leaf)?;
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    while let count @ 1.. = rustix::io::read(&procs, &mut buffer)? {
        text.extend_from_slice(&buffer[..count]);
    }
    let lines = String::from_utf8_lossy(&text);
    // 0 stands for a process outside of our pid namespace
    Ok(lines.lines().filter_map(|line| line.parse().ok().and_then(Pid::from_raw)).collect())
}
