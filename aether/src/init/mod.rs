//! PID 1 of a sandbox.

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
    /// Directory, delegated to the keeper: leaves a command are made below it.
    pub memory_cgroup: Option<OwnedFd>,
    /// pids.events of the sandbox, read for pids_refused.
    pub pids_events: Option<OwnedFd>,
    pub cgroup_version: u8,
    pub oom_score_adj: i32,
    /// Refreshed before each command.
    pub meminfo: Option<Meminfo>,
}

pub struct Meminfo {
    /// Backs /proc/meminfo.
    pub file: OwnedFd,
    pub usage: OwnedFd,
    pub limit_bytes: u64,
}

/// Never returns; sends HELLO when ready.
pub fn run(_inherited: Inherited) -> ! {
    loop {
        std::thread::park();
    }
}
