//! Network namespaces made ahead.
//!
//! Making one is the dearest part of a create, and it needs nothing of the plan. So the fork server makes a few when
//! nothing has been created for a moment: it steps into a new one, brings up what is the same for all, keeps a
//! descriptor, and steps back. Each serves one sandbox, once. In a burst none is left and PID 1 makes its own, so that
//! the work is never done twice and never in the way.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{openat, Mode, OFlags, CWD};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use super::note;
use crate::container::network;
use crate::sys::{KernelError, On};

/// How many wait at most: each costs the kernel some 300 KB.
const READY: usize = 4;
/// Since the last create, before the next one is made ahead.
const QUIET: Duration = Duration::from_millis(20);

pub struct Networks {
    host: OwnedFd,
    proc: OwnedFd,
    ready: Vec<OwnedFd>,
    /// Nothing is made ahead any more before this; never, if this machine refuses it.
    next: Option<Instant>,
}

impl Networks {
    pub fn new(now: Instant) -> Result<Self, KernelError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let proc = openat(CWD, "/proc", flags | OFlags::DIRECTORY, Mode::empty()).on("open", "/proc")?;
        Ok(Self { host: own(&proc)?, proc, ready: Vec::with_capacity(READY), next: Some(now + QUIET) })
    }

    /// One for a create that starts now, if there is one.
    pub fn take(&mut self, now: Instant) -> Option<OwnedFd> {
        self.next = self.next.map(|_| now + QUIET);
        self.ready.pop()
    }

    /// When `refill` wants to be called.
    pub fn next_wake(&self) -> Option<Instant> {
        self.next.filter(|_| self.ready.len() < READY)
    }

    /// Make one if it is time. An error is the end: this process would not be where it belongs.
    pub fn refill(&mut self, now: Instant) -> Result<(), KernelError> {
        if !self.next_wake().is_some_and(|next| next <= now) {
            return Ok(());
        }
        let made = self.make();
        rustix::thread::move_into_link_name_space(self.host.as_fd(), Some(LinkNameSpaceType::Network))
            .on("return to", "the host's network namespace")?;
        match made {
            Ok(network) => self.ready.push(network),
            Err(error) => {
                note(format_args!("creates make their own network namespaces: {error}"));
                self.next = None;
            }
        }
        Ok(())
    }

    fn make(&self) -> Result<OwnedFd, KernelError> {
        // SAFETY: this process has one thread.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.on("unshare", "the network namespace")?;
        network::prepare(&self.proc)?;
        own(&self.proc)
    }
}

/// The network namespace that this process is in.
fn own(proc: &OwnedFd) -> Result<OwnedFd, KernelError> {
    openat(proc, "self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).on("open", "/proc/self/ns/net")
}
