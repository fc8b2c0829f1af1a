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
//! - Time is asked of one clock, which the edge can hold while it keeps the sandbox frozen.

mod calls;
mod child;
mod clock;
mod commands;
mod edge;
mod event_loop;
mod files;
mod input;
mod kept;
mod kernel;
mod leaf;
mod meminfo;
mod orphans;
mod outcome;
mod output;
mod passwd;
mod path;
mod pty;
mod reaper;
mod sessions;
mod shell;
mod tree;
mod world;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{open, Mode, OFlags};
use rustix::process::DumpableBehavior;

use self::child::{Sandbox, FIRST_FREE};
use self::clock::Clock;
use self::edge::Edge;
use self::event_loop::EventLoop;
use self::kept::Kept;
use self::leaf::Leaves;
use self::orphans::Orphans;
use self::reaper::Reaper;
use self::world::World;
use crate::seqpacket::{Channel, ChannelError};

/// What PID 1 is given by the fork server: everything it will ever hold, opened while it was still root.
pub struct Inherited {
    /// SOCK_SEQPACKET, to the edge.
    pub channel: OwnedFd,
    /// Entered by every child.
    pub user_namespace: OwnedFd,
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

/// PID 1 ends, and with it the sandbox: nobody holds the channel any more.
const ENDED_CLOSED: i32 = 0;
/// The edge broke the protocol.
const ENDED_WIRE: i32 = 76;
/// The system refused what PID 1 cannot go on without.
const ENDED_SYSTEM: i32 = 74;

/// Serve the channel until it closes. Says HELLO when ready; never returns.
pub fn run(inherited: Inherited) -> ! {
    let result = prepare(inherited).map_err(ChannelError::Socket).and_then(|mut event_loop| event_loop.run());
    // the end of PID 1 ends every process of its pid namespace
    kernel::exit_now(match result {
        Ok(()) => ENDED_CLOSED,
        // told by a send before a receive could
        Err(ChannelError::Socket(error)) if error.raw_os_error() == Some(libc::EPIPE) => ENDED_CLOSED,
        Err(ChannelError::Wire(_)) => ENDED_WIRE,
        Err(ChannelError::Socket(_)) => ENDED_SYSTEM,
    })
}

fn prepare(inherited: Inherited) -> io::Result<EventLoop> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    kernel::keep_heap_small();
    kernel::settle_signals();
    let inherited = inherited.moved_up()?;
    // nothing has run inside yet, so these paths are still the fork server's
    let null = up(open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)?;
    let proc = up(open("/proc", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)?;
    for number in 0..FIRST_FREE {
        kernel::place(null.as_fd(), number, true)?;
    }
    let kept = Kept::new(kept::limit(inherited.meminfo.as_ref().map(|meminfo| meminfo.limit_bytes)));
    let world = World {
        edge: Edge::new(Channel::new(inherited.channel)?, kept),
        clock: Clock::default(),
        leaves: Leaves::new(inherited.memory_cgroup, inherited.cgroup_version, proc.try_clone()?),
        orphans: Orphans::default(),
        meminfo: inherited.meminfo,
        pids_events: inherited.pids_events,
        scratch: vec![0; world::SCRATCH],
        passed: 0,
        sandbox: Sandbox {
            user_namespace: inherited.user_namespace,
            devpts: inherited.devpts,
            null,
            proc,
            oom_score_adj: inherited.oom_score_adj,
        },
    };
    Ok(EventLoop {
        world,
        reaper: Reaper::new()?,
        commands: BTreeMap::new(),
        files: BTreeMap::new(),
        sessions: BTreeMap::new(),
        last_session: 0,
    })
}

impl Inherited {
    /// The same with every descriptor above those that children use.
    fn moved_up(self) -> io::Result<Self> {
        let meminfo = |meminfo: Meminfo| -> io::Result<Meminfo> {
            Ok(Meminfo { file: up(meminfo.file)?, usage: up(meminfo.usage)?, ..meminfo })
        };
        Ok(Self {
            channel: up(self.channel)?,
            user_namespace: up(self.user_namespace)?,
            devpts: up(self.devpts)?,
            memory_cgroup: self.memory_cgroup.map(up).transpose()?,
            pids_events: self.pids_events.map(up).transpose()?,
            meminfo: self.meminfo.map(meminfo).transpose()?,
            ..self
        })
    }
}

fn up(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(&descriptor, FIRST_FREE)?)
}
