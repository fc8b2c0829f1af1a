//! What all calls share.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{fchmod, Mode};
use rustix::pipe::{pipe_with, PipeFlags};

use super::child::Sandbox;
use super::clock::Clock;
use super::edge::Edge;
use super::kernel;
use super::leaf::{read_counter, Leaves};
use super::orphans::Orphans;
use super::Meminfo;

/// Large enough that the allocator takes it from the kernel page by page, as it is used.
pub const SCRATCH: usize = 128 * 1024;
const WORTH_A_REST: u64 = 64 * 1024;

pub struct World {
    pub sandbox: Sandbox,
    pub edge: Edge,
    pub clock: Clock,
    pub leaves: Leaves,
    pub orphans: Orphans,
    pub meminfo: Option<Meminfo>,
    pub pids_events: Option<OwnedFd>,
    /// Where one read lands before it is passed on.
    pub scratch: Vec<u8>,
    /// Bytes passed on since the last rest.
    pub passed: u64,
}

impl World {
    /// Bytes of collected output to hold at once: PID 1 lives on the sandbox's memory, and an answer is copied twice on
    /// its way out.
    pub fn may_hold(&self) -> u64 {
        self.meminfo.as_ref().map_or(u64::MAX, |meminfo| meminfo.limit_bytes / 8)
    }

    /// Forks the kernel has refused in this sandbox so far.
    pub fn pids_refused(&self) -> u64 {
        self.pids_events.as_ref().map_or(0, |events| read_counter(events.as_fd(), "max"))
    }

    /// Nothing runs: give back memory that something large has used, so that an idle sandbox stays small.
    pub fn rest(&mut self) {
        if self.passed >= WORTH_A_REST {
            self.passed = 0;
            self.scratch = vec![0; SCRATCH];
            kernel::release_memory();
        }
    }

    /// A pipe from a child: our end, which does not block, and the child's.
    pub fn output_pipe(&self) -> std::io::Result<(OwnedFd, OwnedFd)> {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        Ok((ours, theirs))
    }

    /// A pipe for a child's report, which fits into any pipe: neither end blocks.
    pub fn report_pipe(&self) -> std::io::Result<(OwnedFd, OwnedFd)> {
        Ok(pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?)
    }

    /// As `output_pipe`, for a program: to be standard output or error.
    pub fn standard_output_pipe(&self) -> std::io::Result<(OwnedFd, OwnedFd)> {
        let (ours, theirs) = self.output_pipe()?;
        open_to_all(&theirs)?;
        Ok((ours, theirs))
    }

    /// A pipe to a program, to be its standard input: its end, and ours, which does not block.
    pub fn standard_input_pipe(&self) -> std::io::Result<(OwnedFd, OwnedFd)> {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        open_to_all(&theirs)?;
        Ok((theirs, ours))
    }
}

/// A pipe belongs to the keeper, whom nobody inside is; who has it as a standard stream may still open it by its name
/// (`> /dev/stderr`, also after a change of user). Only such a process's own /proc/PID/fd leads to it.
fn open_to_all(pipe: &OwnedFd) -> std::io::Result<()> {
    Ok(fchmod(pipe, Mode::from_raw_mode(0o666))?)
}
